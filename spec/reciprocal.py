"""Division by a constant as a multiplication, for means over groups and images."""

from dataclasses import dataclass

from spec.formats import Fixed, requantize

RECIPROCAL_BITS = 18


@dataclass(frozen=True)
class Reciprocal:
    """1/n as mantissa * 2**-shift, the mantissa rounded half up to RECIPROCAL_BITS bits.

    Exact when n is a power of two; otherwise within a relative 2**-RECIPROCAL_BITS.
    """

    mantissa: int
    shift: int

    @classmethod
    def of(cls, n: int) -> "Reciprocal":
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        shift = RECIPROCAL_BITS - 1 + (n - 1).bit_length()
        return cls(((2 << shift) // n + 1) >> 1, shift)

    def mean(self, total: int, frac: int, target: Fixed, random: int | None = None) -> int:
        """`total` (with `frac` fractional bits) / n in `target`: one rounding, one saturation."""
        return requantize(total * self.mantissa, frac + self.shift, target, random)
