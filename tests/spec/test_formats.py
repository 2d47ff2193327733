"""Rounding and saturation, against exact fractions."""

from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.errors import InputError
from spec.formats import (
    Fixed,
    product_limit,
    requantize,
    round_half_up,
    round_stochastic,
    signed_width,
)

numbers = st.integers(-(1 << 70), 1 << 70)
words = st.integers(0, (1 << 32) - 1)
formats = st.builds(Fixed, st.integers(2, 64), st.integers(-40, 80), st.booleans())


def exact(number: int, shift: int) -> Fraction:
    return number / Fraction(2) ** shift


@given(numbers, st.integers(1, 80))
def test_half_up_is_the_floor_of_the_quotient_plus_one_half(number: int, shift: int) -> None:
    assert round_half_up(number, shift) == floor(exact(number, shift) + Fraction(1, 2))


@given(st.integers(-(1 << 40), 1 << 40), st.integers(1, 40))
def test_halves_go_upwards_also_below_zero(quotient: int, shift: int) -> None:
    half = (quotient << shift) + (1 << shift - 1)
    assert round_half_up(half, shift) == quotient + 1
    assert round_half_up(half - 1, shift) == quotient


@given(numbers, st.integers(-40, 0), words)
def test_every_rounding_is_exact_without_dropped_bits(number: int, shift: int, word: int) -> None:
    assert round_half_up(number, shift) == exact(number, shift)
    assert round_stochastic(number, shift, word) == exact(number, shift)


@given(numbers, st.integers(1, 80), words)
def test_stochastic_is_the_floor_or_the_ceiling(number: int, shift: int, word: int) -> None:
    quotient = exact(number, shift)
    assert round_stochastic(number, shift, word) in {floor(quotient), ceil(quotient)}


@given(numbers, st.integers(1, 80), words, words)
def test_stochastic_grows_with_the_random_word(
    number: int, shift: int, one: int, other: int
) -> None:
    low, high = sorted((one, other))
    assert round_stochastic(number, shift, low) <= round_stochastic(number, shift, high)


@given(numbers, st.integers(1, 8), st.integers(0, (1 << 24) - 1))
def test_the_mean_over_all_random_words_is_the_exact_value(
    number: int, shift: int, ignored: int
) -> None:
    drawn = (top << 32 - shift | ignored for top in range(1 << shift))
    assert sum(round_stochastic(number, shift, word) for word in drawn) == number


@given(formats, numbers)
def test_clamp_is_the_nearest_number_of_the_format(target: Fixed, number: int) -> None:
    clamped = target.clamp(number)
    assert clamped == sorted((target.minimum, number, target.maximum))[1]
    assert target.clamp(clamped) == clamped


@given(formats)
def test_a_format_holds_two_to_the_width_numbers(target: Fixed) -> None:
    assert target.maximum - target.minimum + 1 == 1 << target.width
    assert target.minimum == (-target.maximum - 1 if target.signed else 0)


@given(st.integers(2, 64), st.integers(-20, 20), st.booleans())
def test_a_covering_format_reaches_its_exponent_by_one_step(
    width: int, exponent: int, signed: bool
) -> None:
    target = Fixed.covering(width, exponent, signed)
    assert target.width == width
    assert exact(target.maximum + 1, target.frac) == Fraction(2) ** exponent


@given(formats, numbers, st.integers(-40, 80))
def test_requantize_misses_by_half_a_step_or_saturates(
    target: Fixed, number: int, frac: int
) -> None:
    wanted = exact(number, frac - target.frac)
    result = requantize(number, frac, target)
    if target.minimum <= wanted <= target.maximum:
        assert abs(result - wanted) <= Fraction(1, 2)
    else:
        assert result == (target.maximum if wanted > 0 else target.minimum)


@given(formats, numbers, st.integers(-40, 80), words)
def test_stochastic_requantize_misses_by_less_than_a_step_or_saturates(
    target: Fixed, number: int, frac: int, word: int
) -> None:
    wanted = exact(number, frac - target.frac)
    result = requantize(number, frac, target, word)
    if target.minimum <= wanted <= target.maximum:
        assert abs(result - wanted) < 1
    else:
        assert result == (target.maximum if wanted > 0 else target.minimum)


@given(formats, st.data())
def test_requantize_to_the_own_format_changes_nothing(target: Fixed, data: st.DataObject) -> None:
    number = data.draw(st.integers(target.minimum, target.maximum))
    assert requantize(number, target.frac, target) == number
    assert requantize(number, target.frac, target, data.draw(words)) == number


@given(st.integers(max_value=1), st.booleans())
def test_widths_without_a_value_bit_are_refused(width: int, signed: bool) -> None:
    least = 1 + signed
    if width >= least:
        assert Fixed(width, 0, signed).width == width
        return
    with pytest.raises(InputError, match=f"^width must be at least {least}, not {width}$"):
        Fixed(width, 0, signed)


@given(st.integers(1025), st.booleans())
def test_formats_of_any_amount_of_memory_are_refused(size: int, signed: bool) -> None:
    for width, frac in ((size, 0), (8, size), (8, -size)):
        with pytest.raises(InputError, match=f"at most 1024, not {width} and {frac}"):
            Fixed(width, frac, signed)


@given(st.integers(0, 1 << 80))
def test_the_signed_width_is_the_least_that_holds_the_limit(limit: int) -> None:
    width = signed_width(limit)
    assert -(1 << width - 1) <= -limit
    assert limit < 1 << width - 1
    assert width == 1 or limit >= 1 << width - 2


@given(formats, formats)
def test_the_product_limit_is_the_largest_of_the_products_of_extremes(a: Fixed, b: Fixed) -> None:
    extremes = [x * y for x in (a.minimum, a.maximum) for y in (b.minimum, b.maximum)]
    assert product_limit(a, b) == max(map(abs, extremes))
