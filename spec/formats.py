"""Fixed-point formats and their rounding, on Python integers (design, section 5).

These functions are the reference: the golden model repeats them on tensors and the hardware in
gates, and tests compare both with what stands here.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from spec.errors import InputError

#: Integers up to 2**53 are exact in float64, which the golden model uses for matrix products.
EXACT_FLOAT64_BITS = 53
#: The update runs in int64; one bit is the sign.
EXACT_INT64_BITS = 63
#: Far beyond any exact sum; keeps an edited plan from asking for any amount of memory.
LARGEST_FORMAT_BITS = 1 << 10


class Rounding(Enum):
    """How the bits below the new binary point are dropped."""

    HALF_UP = "half_up"
    STOCHASTIC = "stochastic"


@dataclass(frozen=True)
class Fixed:
    """A fixed-point format of `width` bits, `frac` of them fractional; two's complement if signed.

    `frac` may be negative or exceed `width`. An integer n stands for the value n * 2**-frac.
    """

    width: int
    frac: int
    signed: bool = True

    def __post_init__(self) -> None:
        if self.width < 1 or (self.signed and self.width < 2):
            raise InputError(f"width must be at least {1 + self.signed}, not {self.width}")
        if max(self.width, abs(self.frac)) > LARGEST_FORMAT_BITS:
            raise InputError(
                f"width and fractional bits must be at most {LARGEST_FORMAT_BITS}, "
                f"not {self.width} and {self.frac}"
            )

    @cached_property
    def minimum(self) -> int:
        return -(1 << (self.width - 1)) if self.signed else 0

    @cached_property
    def maximum(self) -> int:
        return (1 << (self.width - self.signed)) - 1

    def clamp(self, number: int) -> int:
        """The nearest integer that the format holds (saturation)."""
        return min(max(number, self.minimum), self.maximum)

    @classmethod
    def covering(cls, width: int, exponent: int, signed: bool = True) -> "Fixed":
        """The format of `width` bits that holds magnitudes below 2**exponent."""
        return cls(width, width - signed - exponent, signed)


def round_half_up(number: int, shift: int) -> int:
    """number * 2**-shift rounded to an integer, halves upwards; exact for shift <= 0."""
    if shift <= 0:
        return number << -shift
    return (number + (1 << (shift - 1))) >> shift


def round_stochastic(number: int, shift: int, random: int) -> int:
    """number * 2**-shift rounded by the top `shift` bits of the 32-bit word `random`.

    The result is the floor or the ceiling; the ceiling with the probability of the dropped part.
    """
    if shift <= 0:
        return number << -shift
    return (number + ((random << shift) >> 32)) >> shift


def requantize(number: int, frac: int, target: Fixed, random: int | None = None) -> int:
    """Bring an integer with `frac` fractional bits to `target`: one rounding, one saturation."""
    shift = frac - target.frac
    if random is None:
        return target.clamp(round_half_up(number, shift))
    return target.clamp(round_stochastic(number, shift, random))


def signed_width(limit: int) -> int:
    """Bits of the two's complement number that holds every integer from -limit to limit."""
    return limit.bit_length() + 1


def product_limit(a: Fixed, b: Fixed) -> int:
    """The largest magnitude of a product of two numbers in these formats."""
    return max(-a.minimum, a.maximum) * max(-b.minimum, b.maximum)
