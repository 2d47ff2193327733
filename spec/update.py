"""The update in integers: EMA form with Spike Compensation and weight prediction (design, 5).

`update` on Python integers is the reference for the golden model and for the update unit. In the
fractional bits of the velocity u, with g the gradient and w the master weight:

    g' = g + w 2**-d                       weight decay; rounded half up
    u' = clamp(u + SR((g' - u) 2**-k))     1 - m = 2**-k
    w' = clamp(w - SR(eta (u' + c (g' - u'))))
    w^ = clamp(w' - eta T u')              half up to the working copy
"""

from dataclasses import dataclass

from spec.errors import InputError
from spec.formats import (
    EXACT_INT64_BITS,
    Fixed,
    requantize,
    round_half_up,
    round_stochastic,
    signed_width,
)

SPIKE_FRAC = 10
MANTISSA_BITS = 4
HORIZON_BITS = 10
"""Delays, and so prediction horizons, stay below 2**HORIZON_BITS."""
MOMENTUM_SHIFT_LIMIT = 15
SHIFT_LIMIT = 32
DECAY_SHIFT_LIMIT = 31


@dataclass(frozen=True)
class ParameterFormats:
    """Formats of one tile's parameters; its biases share all of them but the working copy.

    Biases are added, not multiplied, so their working copy has the master format.
    Raises InputError when the update could pass 64-bit integers or the binary points do not fit.
    """

    working: Fixed
    master: Fixed
    velocity: Fixed
    gradient: Fixed
    stochastic: bool

    def __post_init__(self) -> None:
        if self.velocity.frac < self.gradient.frac:
            raise InputError(
                f"velocity needs at least the gradient's {self.gradient.frac} fractional bits, "
                f"not {self.velocity.frac}"
            )
        if self.working.frac > self.master.frac:
            raise InputError(
                f"working copy can have at most the master's {self.master.frac} fractional bits, "
                f"not {self.working.frac}"
            )
        if self.step_bits > EXACT_INT64_BITS:
            raise InputError(
                f"the update's sums need {self.step_bits} bits, more than the exact "
                f"{EXACT_INT64_BITS}: narrow the weight gradient or the velocity"
            )

    @property
    def decay_headroom(self) -> int:
        """Static left shift that aligns the master weight for decay without losing bits."""
        return max(0, self.velocity.frac - self.master.frac)

    @property
    def decayed_bits(self) -> int:
        """Signed bits of g' in the velocity's fractional bits."""
        gradient = self.gradient.width + self.velocity.frac - self.gradient.frac
        decay = self.master.width + self.decay_headroom
        return max(gradient, decay) + 1

    @property
    def error_bits(self) -> int:
        """Signed bits of g' - u."""
        return max(self.decayed_bits, self.velocity.width) + 1

    @property
    def spike_bits(self) -> int:
        """Signed bits of u' + c (g' - u') with SPIKE_FRAC more fractional bits."""
        return self.error_bits + SPIKE_FRAC + 1

    @property
    def step_bits(self) -> int:
        """Signed bits of the step before its shift, with room for the random bits."""
        return max(self.spike_bits + MANTISSA_BITS, signed_width(1 << SHIFT_LIMIT)) + 1


@dataclass(frozen=True)
class UpdateCoefficients:
    """The integers that a tile's update unit reads; `spec.coefficients` computes them.

    eta = step_mantissa 2**-x, with x folded into the two shifts together with the formats.
    """

    momentum_shift: int
    step_mantissa: int
    step_shift: int
    spike: int
    prediction_mantissa: int
    prediction_shift: int
    decay: bool
    decay_shift: int


COEFFICIENT_BITS = {
    "momentum_shift": 4,
    "step_mantissa": MANTISSA_BITS,
    "step_shift": 6,
    "spike": SPIKE_FRAC,
    "prediction_mantissa": MANTISSA_BITS + HORIZON_BITS,
    "prediction_shift": 6,
    "decay": 1,
    "decay_shift": 5,
}
"""Width of each coefficient register, in the order of their addresses."""


@dataclass(frozen=True)
class Updated:
    """What an update writes back."""

    velocity: int
    master: int
    working: int


def update(
    gradient: int,
    velocity: int,
    master: int,
    formats: ParameterFormats,
    working: Fixed,
    coefficients: UpdateCoefficients,
    random: tuple[int, int],
) -> Updated:
    """One element's update; `random` has the words of the velocity and of the weight.

    `working` is the format of the working copy (the master's for a bias). The words are ignored
    unless the formats say stochastic.
    """

    def rounded(number: int, shift: int, word: int) -> int:
        if formats.stochastic:
            return round_stochastic(number, shift, word)
        return round_half_up(number, shift)

    decay = 0
    if coefficients.decay:
        decay = round_half_up(master << formats.decay_headroom, coefficients.decay_shift)
    decayed = (gradient << formats.velocity.frac - formats.gradient.frac) + decay
    change = rounded(decayed - velocity, coefficients.momentum_shift, random[0])
    velocity = formats.velocity.clamp(velocity + change)
    spiked = (velocity << SPIKE_FRAC) + coefficients.spike * (decayed - velocity)
    step = rounded(coefficients.step_mantissa * spiked, coefficients.step_shift, random[1])
    master = formats.master.clamp(master - step)
    ahead = -coefficients.prediction_mantissa * velocity >> coefficients.prediction_shift
    return Updated(velocity, master, requantize(master + ahead, formats.master.frac, working))
