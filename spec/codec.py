"""Frozen dataclasses to JSON and back, driven by their type hints alone."""

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from spec.errors import InputError

TAG = "is"
"""Key that names the class of a dataclass that stands for one member of a union."""


class Written(ABC):
    """A value that people write as one word: it is text in JSON too."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`; raises InputError that says what is legal."""

    @abstractmethod
    def __str__(self) -> str: ...


def encode(value: Any) -> Any:
    """Plain JSON data of a dataclass, an enum, a tuple or a scalar."""
    if isinstance(value, Written):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        members = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {TAG: type(value).__name__, **members}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    return value


def decode(hint: Any, data: Any, where: str = "plan") -> Any:
    """The value of type `hint` that `encode` turned into `data`.

    Raises InputError that names the place (`where` and below) when the data do not fit the type.
    """
    if isinstance(hint, UnionType):
        return _decode_union(hint, data, where)
    if get_origin(hint) is tuple:
        return _decode_tuple(get_args(hint), data, where)
    if isinstance(hint, type) and issubclass(hint, Written):
        return _decode_written(hint, data, where)
    if is_dataclass(hint):
        return _decode_dataclass(hint, data, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(data)
        except ValueError:
            legal = ", ".join(str(member.value) for member in hint)
            raise InputError(f"{where} must be one of {legal}, not {data!r}") from None
    if hint is float and type(data) is int:
        try:
            return float(data)
        except OverflowError:
            raise InputError(f"{where} is too large a number") from None
    if type(data) is not hint:
        raise InputError(f"{where} must be {hint.__name__}, not {data!r}")
    return data


def canonical(value: Any) -> str:
    """The one text of a value, whatever its place or the machine."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"))


def content_hash(value: Any) -> str:
    """The first 64 bits of the SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def _decode_written(hint: type[Written], data: Any, where: str) -> Written:
    if not isinstance(data, str):
        raise InputError(f"{where} must be a text, not {data!r}")
    try:
        value = hint.parse(data)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if str(value) != data:
        raise InputError(f"{where} must be written {str(value)!r}, not {data!r}")
    return value


def _decode_union(hint: UnionType, data: Any, where: str) -> Any:
    members = get_args(hint)
    if data is None and NoneType in members:
        return None
    rest = [member for member in members if member is not NoneType]
    if len(rest) == 1:
        return decode(rest[0], data, where)
    tag = data.get(TAG) if isinstance(data, dict) else None
    for member in rest:
        if tag == member.__name__:
            return decode(member, data, where)
    legal = ", ".join(member.__name__ for member in rest)
    raise InputError(f"{where}.{TAG} must be one of {legal}, not {tag!r}")


def _decode_tuple(hints: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise InputError(f"{where} must be a list, not {data!r}")
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(data)
    if len(hints) != len(data):
        raise InputError(f"{where} must have {len(hints)} items, not {len(data)}")
    pairs = enumerate(zip(hints, data, strict=True))
    return tuple(decode(hint, item, f"{where}[{i}]") for i, (hint, item) in pairs)


def _decode_dataclass(hint: Any, data: Any, where: str) -> Any:
    hints = get_type_hints(hint)
    names = [field.name for field in fields(hint)]
    if not isinstance(data, dict) or data.keys() != {TAG, *names} or data[TAG] != hint.__name__:
        raise InputError(f"{where} must be {hint.__name__} with {', '.join(names)}")
    members = {name: decode(hints[name], data[name], f"{where}.{name}") for name in names}
    try:
        return hint(**members)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
