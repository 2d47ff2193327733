"""From float hyperparameters to the integers of the update unit, with the error of each."""

from dataclasses import dataclass
from math import log2

from spec.errors import InputError
from spec.hyperparameters import FloatCoefficients
from spec.update import (
    DECAY_SHIFT_LIMIT,
    HORIZON_BITS,
    MANTISSA_BITS,
    MOMENTUM_SHIFT_LIMIT,
    SHIFT_LIMIT,
    SPIKE_FRAC,
    ParameterFormats,
    UpdateCoefficients,
)


@dataclass(frozen=True)
class CoefficientError:
    """What an integer coefficient stands for beside what was asked."""

    name: str
    wanted: float
    used: float

    @property
    def relative(self) -> float:
        return (self.used - self.wanted) / self.wanted if self.wanted else self.used


@dataclass(frozen=True)
class QuantizedCoefficients:
    """The integers of one tile and the float coefficients that they exactly stand for."""

    integers: UpdateCoefficients
    errors: tuple[CoefficientError, ...]


def quantize_coefficients(
    wanted: FloatCoefficients, formats: ParameterFormats
) -> QuantizedCoefficients:
    """The nearest (mantissa, shift) coefficients.

    Raises InputError when the learning rate, the momentum or the delay is out of their range.
    """
    momentum_shift = _nearest_power("momentum", 1 - wanted.momentum, MOMENTUM_SHIFT_LIMIT)
    decay_shift, alignment = 0, 0
    if wanted.weight_decay:
        alignment = max(0, formats.master.frac - formats.velocity.frac)
        limit = DECAY_SHIFT_LIMIT - alignment
        decay_shift = _nearest_power("weight decay", wanted.weight_decay, limit)
    eta = wanted.learning_rate / (1 - wanted.momentum)
    mantissa, eta_shift = _mantissa_and_shift(eta, formats)
    spike_wanted = wanted.b * (1 - wanted.momentum)
    spike = min(round(spike_wanted * (1 << SPIKE_FRAC)), (1 << SPIKE_FRAC) - 1)
    if wanted.horizon >= 1 << HORIZON_BITS:
        raise InputError(f"horizon must be below {1 << HORIZON_BITS}, not {wanted.horizon}")
    integers = UpdateCoefficients(
        momentum_shift=momentum_shift,
        step_mantissa=mantissa,
        step_shift=_step_shift(formats, eta_shift),
        spike=spike,
        prediction_mantissa=mantissa * int(wanted.horizon),
        prediction_shift=_prediction_shift(formats, eta_shift),
        decay=bool(wanted.weight_decay),
        decay_shift=decay_shift + alignment,
    )
    errors = (
        CoefficientError("1 - momentum", 1 - wanted.momentum, 2.0**-momentum_shift),
        CoefficientError("eta", eta, mantissa * 2.0**-eta_shift),
        CoefficientError("spike c", spike_wanted, spike / (1 << SPIKE_FRAC)),
        CoefficientError("horizon T", wanted.horizon, wanted.horizon),
        CoefficientError(
            "weight decay", wanted.weight_decay, 2.0**-decay_shift if wanted.weight_decay else 0.0
        ),
    )
    return QuantizedCoefficients(integers, errors)


def _step_shift(formats: ParameterFormats, eta_shift: int) -> int:
    return formats.velocity.frac + SPIKE_FRAC + eta_shift - formats.master.frac


def _prediction_shift(formats: ParameterFormats, eta_shift: int) -> int:
    return formats.velocity.frac + eta_shift - formats.master.frac


def _mantissa_and_shift(eta: float, formats: ParameterFormats) -> tuple[int, int]:
    """eta as an odd mantissa of MANTISSA_BITS and a shift; the smallest mantissa on ties."""
    largest = (1 << MANTISSA_BITS) - 1
    lowest = formats.master.frac - formats.velocity.frac
    highest = SHIFT_LIMIT - SPIKE_FRAC + lowest
    candidates = [
        (mantissa, shift)
        for mantissa in range(1, largest + 1)
        for shift in range(lowest, highest + 1)
    ]
    best = min(candidates, key=lambda c: abs(c[0] * 2.0 ** -c[1] - eta))
    smallest, greatest = 2.0**-highest, largest * 2.0**-lowest
    if not smallest / 2 <= eta <= greatest:
        raise InputError(
            f"learning rate must be from {smallest:.3g} to {greatest:.3g} "
            f"in these formats, not {eta:.3g}"
        )
    return best


def _nearest_power(name: str, value: float, limit: int) -> int:
    """k of the power of two 2**-k nearest to `value` in ratio."""
    shift = round(-log2(value))
    if not 0 <= shift <= limit:
        raise InputError(f"{name}: {value:.3g} must be between 2^-{limit} and 1")
    return shift
