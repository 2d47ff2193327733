"""Number presets: the widths of every kind of tensor (design, section 5)."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Widths:
    """Bits of each kind of tensor, and which of them are rounded stochastically.

    `trunk` are the activations of a residual network's trunk, `normalised` the x^ of a norm.
    """

    activation: int
    trunk: int
    normalised: int
    gradient: int
    working: int
    master: int
    velocity: int
    weight_gradient: int
    stochastic_gradient: bool
    stochastic_update: bool


class Preset(Enum):
    """`compact` is the smallest that trained as well as float32, `wide` the comfortable one."""

    COMPACT = "compact"
    WIDE = "wide"

    @property
    def widths(self) -> Widths:
        return _WIDTHS[self]


_WIDTHS = {
    Preset.COMPACT: Widths(
        activation=8,
        trunk=16,
        normalised=8,
        gradient=12,
        working=8,
        master=16,
        velocity=16,
        weight_gradient=16,
        stochastic_gradient=True,
        stochastic_update=True,
    ),
    Preset.WIDE: Widths(
        activation=8,
        trunk=16,
        normalised=12,
        gradient=16,
        working=12,
        master=24,
        velocity=24,
        weight_gradient=24,
        stochastic_gradient=False,
        stochastic_update=False,
    ),
}
