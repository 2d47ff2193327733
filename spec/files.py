"""Files that are either whole or absent."""

import os
from pathlib import Path

from spec.errors import InputError


def write_text(path: Path, text: str) -> None:
    """Write to a temporary name beside `path`, then rename; makes the folder when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def writable_folder(path: Path) -> Path:
    """Make a folder for results before any work is done; InputError when that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make folder {path}: {error.strerror}") from None
    return path
