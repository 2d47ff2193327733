"""Float hyperparameters, the methods, and the nearest integers that stand for them."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spec.coefficients import quantize_coefficients
from spec.errors import InputError
from spec.hyperparameters import FloatCoefficients, Hyperparameters, float_coefficients
from spec.method import PAPER_METHODS, Method
from spec.presets import Preset
from spec.ranges import ParameterRange
from spec.update import (
    COEFFICIENT_BITS,
    HORIZON_BITS,
    MANTISSA_BITS,
    MOMENTUM_SHIFT_LIMIT,
    SHIFT_LIMIT,
    SPIKE_FRAC,
    ParameterFormats,
)

STEPS = 200

momenta = st.floats(0, 0.999)
delays = st.integers(0, 60)


@st.composite
def parameter_formats(draw: st.DrawFn) -> ParameterFormats:
    """Formats of either preset at any calibration that the planner could meet."""
    gradient = draw(st.integers(-3, 5))
    velocity = gradient - draw(st.integers(0, 8))
    ranges = ParameterRange("tile", draw(st.integers(-3, 4)), gradient, velocity)
    return ranges.formats(draw(st.sampled_from(Preset)).widths)


def coefficients(
    eta: float, momentum_shift: int = 4, horizon: int = 0, weight_decay: float = 0.0, b: float = 0
) -> FloatCoefficients:
    """A momentum that is exact in float, so that eta comes back from lr exactly."""
    step = 2.0**-momentum_shift
    return FloatCoefficients(eta * step, 1 - step, 1.0, b, horizon, weight_decay)


def representable(formats: ParameterFormats) -> dict[tuple[int, int], Fraction]:
    """eta of every mantissa and step shift; the prediction needs SPIKE_FRAC bits less of shift."""
    surplus = formats.velocity.frac + SPIKE_FRAC - formats.master.frac
    return {
        (mantissa, shift): mantissa / Fraction(2) ** (shift - surplus)
        for mantissa in range(1, 1 << MANTISSA_BITS)
        for shift in range(SPIKE_FRAC, SHIFT_LIMIT + 1)
    }


def test_scaling_the_reference_rates_gives_a_power_of_two() -> None:
    scaled = Hyperparameters.scaled(0.1, 0.9, 128)
    assert scaled.eta == pytest.approx(2.0**-7, rel=1e-12)
    assert round(scaled.momentum, 5) == 0.99918
    formats = ParameterRange("tile", 0, 2, -2).formats(Preset.COMPACT.widths)
    used = quantize_coefficients(float_coefficients(scaled, Method.PB, 0), formats)
    by_name = {error.name: error.used for error in used.errors}
    assert (by_name["eta"], by_name["1 - momentum"]) == (2.0**-7, 2.0**-10)


@given(st.floats(1e-4, 1), momenta, st.integers(1, 512), st.integers(1, 16))
def test_scaling_keeps_the_decay_of_momentum_and_the_total_step_a_sample(
    rate: float, momentum: float, batch: int, size: int
) -> None:
    scaled = Hyperparameters.scaled(rate, momentum, batch, size)
    assert scaled.momentum ** (batch / size) == pytest.approx(momentum, rel=1e-6, abs=1e-9)
    assert scaled.eta / size == pytest.approx(rate / (1 - momentum) / batch)


@given(momenta, delays)
def test_after_the_delay_a_compensated_impulse_equals_undelayed_momentum(
    momentum: float, delay: int
) -> None:
    used = float_coefficients(Hyperparameters(1.0, momentum), Method.SC, delay)
    late = undelayed = 0.0
    velocity, late_velocity = 0.0, 0.0
    for t in range(delay + STEPS):
        velocity = momentum * velocity + (t == 0)
        undelayed += velocity
        late_velocity = momentum * late_velocity + (t == delay)
        late += used.a * late_velocity + used.b * (t == delay)
        if t >= delay:
            assert late == pytest.approx(undelayed)


@given(st.floats(1e-4, 1), momenta, delays, st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_the_averaged_form_equals_the_form_with_a_velocity(
    eta: float, momentum: float, delay: int, gradients: list[float]
) -> None:
    """What the hardware computes on u = (1-m) v is the update of the papers."""
    used = float_coefficients(Hyperparameters(eta, momentum), Method.LWP_SC, delay)
    spike = 1 - momentum**delay
    weight = averaged_weight = velocity = average = 0.0
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        weight -= used.learning_rate * (used.a * velocity + used.b * gradient)
        average += (1 - momentum) * (gradient - average)
        averaged_weight -= eta * (average + spike * (gradient - average))
        ahead = used.learning_rate * used.horizon * velocity
        assert averaged_weight == pytest.approx(weight, abs=1e-9)
        assert eta * used.horizon * average == pytest.approx(ahead, abs=1e-9)


@given(momenta, delays, st.sampled_from(PAPER_METHODS))
def test_methods_leave_out_what_their_names_do_not_say(
    momentum: float, delay: int, method: Method
) -> None:
    used = float_coefficients(Hyperparameters(1.0, momentum), method, delay)
    assert used.horizon == (delay if "lwp" in str(method) else 0)
    if "sc" not in str(method) or delay == 0:
        assert (used.a, used.b) == (1, 0)


@given(
    st.floats(),
    st.one_of(st.floats(), st.just(0.5)),
    st.one_of(st.floats(), st.just(0.0)),
)
def test_hyperparameters_out_of_range_are_refused(eta: float, m: float, decay: float) -> None:
    if 0 < eta < float("inf") and 0 <= m < 1 and 0 <= decay < 1:
        assert Hyperparameters(eta, m, decay).learning_rate <= eta
        return
    with pytest.raises(InputError, match=r"must be (a positive number|at least 0 and below 1)"):
        Hyperparameters(eta, m, decay)


@settings(max_examples=60)
@given(parameter_formats(), st.floats(0, 1) | st.floats(0.45, 0.55), st.data())
def test_no_representable_learning_rate_is_nearer(
    formats: ParameterFormats, between: float, data: st.DataObject
) -> None:
    possible = representable(formats)
    low, high = data.draw(st.sampled_from(list(pairwise(sorted(set(possible.values()))))))
    eta = float(low) + between * float(high - low)
    integers = quantize_coefficients(coefficients(eta), formats).integers
    chosen = possible[integers.step_mantissa, integers.step_shift]
    assert abs(chosen - Fraction(eta)) == min(abs(p - Fraction(eta)) for p in possible.values())
    assert integers.step_mantissa == min(
        mantissa for (mantissa, _), value in possible.items() if value == chosen
    )


@settings(max_examples=60)
@given(parameter_formats(), st.data())
def test_representable_learning_rates_are_exact(
    formats: ParameterFormats, data: st.DataObject
) -> None:
    eta = data.draw(st.sampled_from(list(representable(formats).values())))
    quantized = quantize_coefficients(coefficients(float(eta)), formats)
    (error,) = (error for error in quantized.errors if error.name == "eta")
    assert error.used == error.wanted == eta
    assert error.relative == 0


@settings(max_examples=60)
@given(parameter_formats(), st.floats(2.0**-60, 2.0**30))
def test_a_learning_rate_out_of_range_is_answered_with_the_range(
    formats: ParameterFormats, eta: float
) -> None:
    possible = representable(formats).values()
    least, greatest = float(min(possible)), float(max(possible))
    assume(not least / 2 <= eta <= greatest)
    legal = f"learning rate must be from {least:.3g} to {greatest:.3g} in these formats"
    with pytest.raises(InputError) as refusal:
        quantize_coefficients(coefficients(eta), formats)
    assert str(refusal.value) == f"{legal}, not {eta:.3g}"


@given(parameter_formats(), st.floats(0, 1, exclude_max=True))
def test_momentum_is_the_power_of_two_nearest_in_ratio(
    formats: ParameterFormats, momentum: float
) -> None:
    wanted = FloatCoefficients(2.0**-5 * (1 - momentum), momentum, 1.0, 0.0, 0, 0.0)
    if 1 - momentum < 2.0 ** -(MOMENTUM_SHIFT_LIMIT + 0.5):
        with pytest.raises(InputError, match=f"between 2\\^-{MOMENTUM_SHIFT_LIMIT} and 1"):
            quantize_coefficients(wanted, formats)
        return
    ratio = (1 - momentum) * 2.0 ** quantize_coefficients(wanted, formats).integers.momentum_shift
    assert 0.5**0.5 - 1e-9 <= ratio <= 2**0.5 + 1e-9


@given(
    parameter_formats(),
    st.integers(0, MOMENTUM_SHIFT_LIMIT),
    st.integers(0, (1 << HORIZON_BITS) - 1),
    st.one_of(st.just(0.0), st.floats(2.0**-40, 1, exclude_max=True)),
    st.floats(0, 1),
    st.sampled_from([2.0**-6, 3 * 2.0**-7, 13 * 2.0**-9]),
)
def test_integers_fit_their_registers_and_errors_say_what_they_stand_for(
    formats: ParameterFormats,
    momentum_shift: int,
    horizon: int,
    decay: float,
    spike: float,
    eta: float,
) -> None:
    wanted = coefficients(eta, momentum_shift, horizon, decay, b=spike * 2.0**momentum_shift)
    try:
        quantized = quantize_coefficients(wanted, formats)
    except InputError as refusal:
        assert "weight decay" in str(refusal)
        assert decay < 2.0**-20
        return
    integers = quantized.integers
    for name, bits in COEFFICIENT_BITS.items():
        assert 0 <= getattr(integers, name) < 1 << bits, name
    used = {error.name: error.used for error in quantized.errors}
    assert used["1 - momentum"] == 2.0**-momentum_shift
    assert used["spike c"] == integers.spike / (1 << SPIKE_FRAC)
    assert used["spike c"] == pytest.approx(spike, abs=2.0**-SPIKE_FRAC)
    assert used["horizon T"] == horizon
    aligned = integers.decay_shift - max(0, formats.master.frac - formats.velocity.frac)
    assert used["weight decay"] == (2.0**-aligned if decay else 0)
    assert integers.decay == bool(decay)
    assert integers.prediction_mantissa == integers.step_mantissa * horizon
    assert integers.prediction_shift == integers.step_shift - SPIKE_FRAC


@given(parameter_formats(), st.integers(1 << HORIZON_BITS, 1 << 20))
def test_a_horizon_beyond_its_register_is_refused(formats: ParameterFormats, horizon: int) -> None:
    with pytest.raises(InputError, match=f"horizon must be below 1024, not {horizon}"):
        quantize_coefficients(coefficients(2.0**-6, horizon=horizon), formats)
