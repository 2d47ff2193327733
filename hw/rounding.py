"""Rounding and saturation as expressions; each function mirrors its namesake in spec/formats."""

from amaranth import Mux, Value
from amaranth.hdl import ValueLike

from spec.formats import Fixed


def clamp(number: ValueLike, target: Fixed) -> Value:
    """Saturate; the result is meant for a signal of the target's shape.

    Bounds that the number's shape cannot pass are not compared with.
    """
    number = Value.cast(number)
    width, signed = number.shape().width, number.shape().signed
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    result = number
    if low < target.minimum:
        result = Mux(number < target.minimum, target.minimum, result)
    return Mux(number > target.maximum, target.maximum, result) if high > target.maximum else result


def round_half_up(number: ValueLike, shift: int) -> Value:
    """Drop `shift` bits, halves upwards."""
    number = Value.cast(number)
    if shift <= 0:
        return number.shift_left(-shift)
    return (number + (1 << (shift - 1))).shift_right(shift)


def round_stochastic(number: ValueLike, shift: int, random: Value) -> Value:
    """Drop `shift` bits after adding the top `shift` bits of the 32-bit word `random`."""
    number = Value.cast(number)
    if shift <= 0:
        return number.shift_left(-shift)
    top = random[32 - shift :] if shift <= 32 else random.shift_left(shift - 32)
    return (number + top).shift_right(shift)


def requantize(number: ValueLike, frac: int, target: Fixed, random: Value | None = None) -> Value:
    """From `frac` fractional bits to `target`: one rounding, one saturation."""
    shift = frac - target.frac
    if random is None:
        return clamp(round_half_up(number, shift), target)
    return clamp(round_stochastic(number, shift, random), target)
