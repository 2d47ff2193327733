"""The integer update against the update on exact fractions, line by line."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.coefficients import QuantizedCoefficients, quantize_coefficients
from spec.errors import InputError
from spec.formats import EXACT_INT64_BITS, Fixed
from spec.hyperparameters import Hyperparameters, float_coefficients
from spec.method import PAPER_METHODS
from spec.presets import Preset
from spec.random_bits import MASK
from spec.ranges import ParameterRange
from spec.update import (
    MANTISSA_BITS,
    SHIFT_LIMIT,
    SPIKE_FRAC,
    ParameterFormats,
    Updated,
    update,
)

presets = st.sampled_from(Preset)
words = st.tuples(st.integers(0, MASK), st.integers(0, MASK))


@st.composite
def settings(draw: st.DrawFn) -> tuple[ParameterFormats, QuantizedCoefficients]:
    """Formats of a preset at any calibration, and coefficients of any method."""
    gradient = draw(st.integers(-2, 4))
    ranges = ParameterRange(
        "tile", draw(st.integers(-2, 3)), gradient, gradient - draw(st.integers(0, 6))
    )
    formats = ranges.formats(draw(presets).widths)
    decay = draw(st.sampled_from([0.0, 0.75, 2.0**-3, 2.0**-10]))
    hyperparameters = Hyperparameters(
        draw(st.floats(2.0**-8, 2.0**-3)), 1 - 2.0 ** -draw(st.integers(0, 12)), decay
    )
    wanted = float_coefficients(
        hyperparameters, draw(st.sampled_from(PAPER_METHODS)), draw(st.integers(0, 40))
    )
    return formats, quantize_coefficients(wanted, formats)


def numbers(target: Fixed) -> st.SearchStrategy[int]:
    extremes = st.sampled_from([target.minimum, target.maximum, 0])
    return st.one_of(st.integers(target.minimum, target.maximum), extremes)


def value(number: int, target: Fixed) -> Fraction:
    return number / Fraction(2) ** target.frac


def misses(number: int, exact: Fraction, target: Fixed) -> Fraction:
    """Distance from the exact value, saturated, in steps of the format."""
    limits = Fraction(target.minimum), Fraction(target.maximum)
    nearest = min(max(exact * Fraction(2) ** target.frac, limits[0]), limits[1])
    return abs(Fraction(number) - nearest)


@given(settings(), words, st.booleans(), st.data())
def test_each_line_misses_the_exact_update_by_at_most_one_step(
    setting: tuple[ParameterFormats, QuantizedCoefficients],
    random: tuple[int, int],
    bias: bool,
    data: st.DataObject,
) -> None:
    """Half a step where a line rounds to the nearest, saturation included."""
    formats, quantized = setting
    working = formats.master if bias else formats.working
    g = data.draw(numbers(formats.gradient))
    u = data.draw(numbers(formats.velocity))
    w = data.draw(numbers(formats.master))
    found = update(g, u, w, formats, working, quantized.integers, random)
    used = {error.name: Fraction(error.used) for error in quantized.errors}

    decay = value(w, formats.master) * used["weight decay"] * Fraction(2) ** formats.velocity.frac
    rounded = floor(decay + Fraction(1, 2)) / Fraction(2) ** formats.velocity.frac
    late = value(g, formats.gradient) + rounded
    average = value(u, formats.velocity)
    average += used["1 - momentum"] * (late - average)
    one_line = 1 if formats.stochastic else Fraction(1, 2)
    assert misses(found.velocity, average, formats.velocity) <= one_line

    average = value(found.velocity, formats.velocity)
    step = used["eta"] * (average + used["spike c"] * (late - average))
    assert misses(found.master, value(w, formats.master) - step, formats.master) <= one_line

    ahead = used["eta"] * used["horizon T"] * average
    assert misses(found.working, value(found.master, formats.master) - ahead, working) <= 1


@given(settings(), words, st.booleans(), st.data())
def test_results_stay_in_their_formats(
    setting: tuple[ParameterFormats, QuantizedCoefficients],
    random: tuple[int, int],
    bias: bool,
    data: st.DataObject,
) -> None:
    formats, quantized = setting
    working = formats.master if bias else formats.working
    drawn = [
        data.draw(st.sampled_from([target.minimum, target.maximum]))
        for target in (formats.gradient, formats.velocity, formats.master)
    ]
    g, u, w = drawn
    found = update(g, u, w, formats, working, quantized.integers, random)
    for number, target in (
        (found.velocity, formats.velocity),
        (found.master, formats.master),
        (found.working, working),
    ):
        assert target.clamp(number) == number


@given(settings(), words, st.data())
def test_a_larger_gradient_never_raises_the_weight(
    setting: tuple[ParameterFormats, QuantizedCoefficients],
    random: tuple[int, int],
    data: st.DataObject,
) -> None:
    """Which it would if a clamp wrapped, or a line had the wrong sign."""
    formats, quantized = setting
    low, high = sorted(data.draw(numbers(formats.gradient)) for _ in range(2))
    u, w = data.draw(numbers(formats.velocity)), data.draw(numbers(formats.master))

    def updated(g: int) -> Updated:
        return update(g, u, w, formats, formats.working, quantized.integers, random)

    assert updated(low).velocity <= updated(high).velocity
    assert updated(low).master >= updated(high).master


@given(settings(), st.data())
def test_nothing_moves_at_rest(
    setting: tuple[ParameterFormats, QuantizedCoefficients], data: st.DataObject
) -> None:
    """No gradient, no velocity, no decay: the weight stays whatever the random words."""
    formats, quantized = setting
    if quantized.integers.decay:
        return
    w = data.draw(numbers(formats.master))
    found = update(0, 0, w, formats, formats.master, quantized.integers, data.draw(words))
    assert found == Updated(0, w, w)


wide = st.builds(Fixed, st.integers(2, 64), st.integers(0, 40))


@given(wide, wide, wide, wide, st.booleans())
def test_accepted_formats_cannot_pass_64_bits(
    working: Fixed, master: Fixed, velocity: Fixed, gradient: Fixed, stochastic: bool
) -> None:
    try:
        formats = ParameterFormats(working, master, velocity, gradient, stochastic)
    except InputError as refusal:
        if "the update's sums need" not in str(refusal):
            assert velocity.frac < gradient.frac or working.frac > master.frac
        return
    largest_gradient = -gradient.minimum << velocity.frac - gradient.frac
    largest = largest_gradient + (-master.minimum << formats.decay_headroom)
    spiked = (-velocity.minimum << SPIKE_FRAC) + ((1 << SPIKE_FRAC) - 1) * (
        largest - velocity.minimum
    )
    step = ((1 << MANTISSA_BITS) - 1) * spiked + (1 << SHIFT_LIMIT)
    assert step < 1 << EXACT_INT64_BITS


@given(st.sampled_from(Preset), st.integers(45, 64))
def test_a_gradient_that_passes_the_exact_range_is_refused(preset: Preset, width: int) -> None:
    formats = ParameterRange("tile", 0, 2, -2).formats(preset.widths)
    with pytest.raises(InputError, match=r"sums need .* bits, more than the exact 63"):
        ParameterFormats(
            formats.working,
            formats.master,
            formats.velocity,
            Fixed(width, formats.gradient.frac),
            formats.stochastic,
        )
