"""The update of a tile's parameters in both number systems (design, sections 4 and 5).

Vectors are flat: a tile's weights in [out, in] order, then its biases.
"""

from typing import NamedTuple

import torch

from spec.hyperparameters import FloatCoefficients
from spec.random_bits import MASK
from spec.update import SPIKE_FRAC, ParameterFormats, UpdateCoefficients

Coefficients = FloatCoefficients | UpdateCoefficients
WORD_BITS = MASK.bit_length()


class Moments(NamedTuple):
    """What a tile remembers: master weights, and the velocity (v in floats, u in integers)."""

    master: torch.Tensor
    velocity: torch.Tensor


class Updated(NamedTuple):
    """`predicted` are the weights of the next forward pass, before rounding to the working copy."""

    moments: Moments
    predicted: torch.Tensor


def float_update(
    moments: Moments, gradient: torch.Tensor, coefficients: FloatCoefficients
) -> Updated:
    """v' = m v + g,  w' = w - lr (a v' + b g),  w^ = w' - lr T v' or w' + T (w' - w); g is shrunk
    and has decay lambda w added.

    Kosson et al., sections 3.1 (Spike Compensation) and 3.2 (Linear Weight Prediction).
    """
    master, velocity = moments
    c = coefficients
    if c.shrink != 1:
        gradient = c.shrink * gradient
    if c.weight_decay:
        gradient = gradient + c.weight_decay * master
    velocity = c.momentum * velocity + gradient
    step = c.a * velocity + c.b * gradient if c.b else c.a * velocity
    updated = Moments(master - c.learning_rate * step, velocity)
    if c.weight_form and c.horizon:
        return Updated(updated, updated.master + c.horizon * (updated.master - master))
    return Updated(updated, predicted(updated, c, c.horizon))


def predicted(moments: Moments, coefficients: FloatCoefficients, horizon: float) -> torch.Tensor:
    """w - lr T v, the weights `horizon` updates later if the velocity stays."""
    if not horizon:
        return moments.master
    return moments.master - coefficients.learning_rate * horizon * moments.velocity


def integer_update(
    moments: Moments,
    gradient: torch.Tensor,
    formats: ParameterFormats,
    coefficients: UpdateCoefficients,
    words: tuple[torch.Tensor | None, torch.Tensor | None],
) -> Updated:
    """`spec.update.update` of every element, bit for bit; all values are int64.

    `words` are the random words of the velocities and of the weights, None where the formats round
    half up. `predicted` has the master's fractional bits. The sums are exact, so the spike's
    u' + c (g' - u') is written as (1 - c) u' + c g', which costs fewer passes over the tensor.
    """
    master, velocity = moments
    c = coefficients
    decayed = gradient << formats.velocity.frac - formats.gradient.frac
    if c.decay:
        decayed = decayed + rounded(master << formats.decay_headroom, c.decay_shift)
    change = rounded(decayed - velocity, c.momentum_shift, words[0])
    velocity = (change + velocity).clamp_(formats.velocity.minimum, formats.velocity.maximum)
    step = velocity * (c.step_mantissa * ((1 << SPIKE_FRAC) - c.spike))
    if c.spike:
        step.add_(decayed, alpha=c.step_mantissa * c.spike)
    step = rounded(step, c.step_shift, words[1])
    master = (master - step).clamp_(formats.master.minimum, formats.master.maximum)
    if not c.prediction_mantissa:
        return Updated(Moments(master, velocity), master)
    ahead = (velocity * -c.prediction_mantissa).bitwise_right_shift_(c.prediction_shift)
    return Updated(Moments(master, velocity), ahead.add_(master))


def rounded(numbers: torch.Tensor, shift: int, words: torch.Tensor | None = None) -> torch.Tensor:
    """numbers 2**-shift rounded half up, or by the top bits of random words."""
    if shift <= 0:
        return numbers << -shift if shift else numbers
    if words is None:
        return (numbers + (1 << shift - 1)).bitwise_right_shift_(shift)
    if shift > WORD_BITS:
        raise ValueError(f"a stochastic shift must be at most {WORD_BITS}, not {shift}")
    return (words >> WORD_BITS - shift).add_(numbers).bitwise_right_shift_(shift)
