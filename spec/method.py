"""Methods: how late gradients are corrected, as one switchboard for golden model and RTL.

A method is written as terms joined by '+'. With D the delay of a tile and D_0 that of the first
tile, the terms are, and say of the update in `FloatCoefficients`:

| term          | meaning                                                       | source          |
|---------------|---------------------------------------------------------------|-----------------|
| `pb`          | the late gradient as it is: a = 1, b = 0, T = 0               | Kosson, 2       |
| `sc`          | Spike Compensation: a = m^D, b = (1 - m^D) / (1 - m)          | Kosson, 3.1     |
| `sc=A,B`      | generalised: a = A, b = B at every delay                      | Kosson, 3.1     |
| `nesterov`    | Nesterov's momentum, which is Spike Compensation at D = 1     | Kosson, 3.4     |
| `lwp`, `lwp*F`| Linear Weight Prediction w^ = w' - lr T v', T = F D           | Kosson, 3.2     |
| `lwpw`, `*F`  | the same from the last step: w^ = w' + T (w' - w)             | Kosson, 3.2     |
| `spectrain`   | the backward pass predicts too, T_b = floor((D_0 - D) / 2),   | Chen,           |
|               | and the forward pass for the same time, T = D + T_b           | arXiv 1809.02839|
| `stash`       | the backward pass reads the weights its forward pass read     | Harlap,         |
|               |                                                               | arXiv 1806.03377|
| `shrink=S`    | the gradient is multiplied by S^D                             | Zhuang,         |
|               |                                                               | arXiv 1906.12051|
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from typing import Any, ClassVar

from spec.codec import Written
from spec.errors import InputError

TERMS = "pb, sc, sc=A,B, nesterov, lwp, lwp*F, lwpw, lwpw*F, spectrain, stash, shrink=S"
"""What a method may be made of, for messages."""
_TERM = re.compile(r"(?P<name>[a-z]+)(?:(?P<sign>[*=])(?P<values>[^*=]+))?", re.ASCII)


class Spike(Enum):
    """The delay that Spike Compensation makes up for: none, one (Nesterov), or the tile's own."""

    NONE = ""
    NESTEROV = "nesterov"
    DELAY = "sc"


class Prediction(Enum):
    """What the prediction of weights follows: nothing, the velocity, the last step, or the velocity
    in both passes."""

    NONE = ""
    VELOCITY = "lwp"
    STEP = "lwpw"
    BOTH_PASSES = "spectrain"


@dataclass(frozen=True)
class Method(Written):
    """How a late gradient is corrected.

    `spike` may be a pair (a, b) of its own; `horizon` is the F of T = F D. Raises InputError for
    numbers out of range and for terms that exclude each other.
    """

    spike: Spike | tuple[float, float] = Spike.NONE
    prediction: Prediction = Prediction.NONE
    horizon: float = 1.0
    stashes_weights: bool = False
    shrink: float = 1.0

    PB: ClassVar["Method"]
    SC: ClassVar["Method"]
    LWP: ClassVar["Method"]
    LWP_SC: ClassVar["Method"]

    def __post_init__(self) -> None:
        if not (self.horizon > 0 and isfinite(self.horizon)):
            raise InputError(f"method: the factor of lwp must be positive, not {self.horizon}")
        if self.horizon != 1 and self.prediction not in (Prediction.VELOCITY, Prediction.STEP):
            raise InputError("method: only lwp and lwpw have a factor")
        if not 0 < self.shrink <= 1:
            raise InputError(f"method: shrink must be above 0 and at most 1, not {self.shrink}")
        if isinstance(self.spike, tuple) and not all(isfinite(value) for value in self.spike):
            raise InputError(f"method: sc=A,B must be finite numbers, not {self.spike}")
        if self.stashes_weights and self.prediction is Prediction.BOTH_PASSES:
            raise InputError("method: spectrain and stash exclude each other")

    @property
    def predicts_weights(self) -> bool:
        return self.prediction is not Prediction.NONE

    @property
    def has_hardware(self) -> bool:
        """Whether tiles can do it in integers; the others exist in the float golden model only."""
        return (
            isinstance(self.spike, Spike)
            and self.prediction in (Prediction.NONE, Prediction.VELOCITY)
            and self.horizon.is_integer()
            and not self.stashes_weights
            and self.shrink == 1
        )

    def check_hardware(self) -> None:
        """Raises InputError unless `has_hardware`."""
        if not self.has_hardware:
            raise InputError(
                f"method {self} has no hardware: it must be made of pb, sc, nesterov, lwp and "
                "lwp*F with a whole F, or run with ARITHMETIC=float32 or float64"
            )

    @classmethod
    def parse(cls, text: str) -> "Method":
        """Raises InputError that lists the terms when the text is not made of them."""
        found: dict[str, Any] = {}
        for part in text.split("+"):
            match = _TERM.fullmatch(part)
            read = _READERS.get((match["name"], match["sign"])) if match else None
            if match is None or read is None:
                raise InputError(f"method must be terms of {TERMS} joined by +, not {text!r}")
            for name, value in read(_numbers(text, match["values"])).items():
                if name in found:
                    raise InputError(f"method {text!r} has two terms that exclude each other")
                found[name] = value
        if "pb" in found and len(found) > 1:
            raise InputError(f"method {text!r}: pb stands alone")
        found.pop("pb", None)
        return cls(**found)

    def __str__(self) -> str:
        terms = [self.prediction.value]
        if self.horizon != 1:
            terms = [f"{self.prediction.value}*{_text(self.horizon)}"]
        if isinstance(self.spike, tuple):
            terms.append("sc=" + ",".join(_text(value) for value in self.spike))
        else:
            terms.append(self.spike.value)
        if self.stashes_weights:
            terms.append("stash")
        if self.shrink != 1:
            terms.append(f"shrink={_text(self.shrink)}")
        return "+".join(term for term in terms if term) or "pb"


Method.PB = Method()
Method.SC = Method(Spike.DELAY)
Method.LWP = Method(prediction=Prediction.VELOCITY)
Method.LWP_SC = Method(Spike.DELAY, Prediction.VELOCITY)

PAPER_METHODS = (Method.PB, Method.SC, Method.LWP, Method.LWP_SC)
"""The methods of the paper's main table; all have hardware."""

_Reader = Callable[[tuple[float, ...]], dict[str, Any]]


def _fixed(**members: Any) -> _Reader:
    return lambda _: members


def _predicting(prediction: Prediction) -> _Reader:
    return lambda values: {"prediction": prediction, "horizon": _taken("lwp*F", values, 1)[0]}


_READERS: dict[tuple[str, str | None], _Reader] = {
    ("pb", None): _fixed(pb=True),
    ("sc", None): _fixed(spike=Spike.DELAY),
    ("sc", "="): lambda values: {"spike": _taken("sc=A,B", values, 2)},
    ("nesterov", None): _fixed(spike=Spike.NESTEROV),
    ("lwp", None): _fixed(prediction=Prediction.VELOCITY),
    ("lwp", "*"): _predicting(Prediction.VELOCITY),
    ("lwpw", None): _fixed(prediction=Prediction.STEP),
    ("lwpw", "*"): _predicting(Prediction.STEP),
    ("spectrain", None): _fixed(prediction=Prediction.BOTH_PASSES),
    ("stash", None): _fixed(stashes_weights=True),
    ("shrink", "="): lambda values: {"shrink": _taken("shrink=S", values, 1)[0]},
}


def _numbers(text: str, values: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(value) for value in values.split(",")) if values else ()
    except ValueError:
        raise InputError(f"method {text!r}: {values!r} must be numbers") from None


def _taken(term: str, values: tuple[float, ...], count: int) -> tuple[float, ...]:
    """The numbers of a term that takes `count` of them."""
    if len(values) != count:
        written = ("one number", "two numbers")[count - 1]
        raise InputError(f"method: {term} takes {written}, not {len(values)}")
    return values


def _text(value: float) -> str:
    """The shortest text that reads back as the same number, without '+'."""
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value).replace("e+", "e")
