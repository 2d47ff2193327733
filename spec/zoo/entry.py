"""What the zoo knows of a network."""

from dataclasses import dataclass

from spec.hyperparameters import Hyperparameters
from spec.mac import Folding
from spec.network import Network

DIGITS = Hyperparameters(eta=2.0**-6, momentum=1 - 2.0**-4)
"""A short memory for a small data set (design, section 5)."""
DIGITS_CONVOLUTIONS = Hyperparameters(eta=2.0**-7, momentum=1 - 2.0**-4)
"""Convolutions add up gradients over pixels: half the step of the dense network."""
SCALED = Hyperparameters(eta=2.0**-7, momentum=1 - 2.0**-10)
"""Learning rate 0.1 and momentum 0.9 at batch 128, scaled to batch size one."""
MULTIPLIERS = 16
"""Of a tile, where nothing else is said."""


@dataclass(frozen=True)
class ZooEntry:
    """A network with the data set, hyperparameters, lanes and epochs it is run with by default.

    `foldings` has one for each convolution, in order.
    """

    network: Network
    dataset: str
    hyperparameters: Hyperparameters
    foldings: tuple[Folding, ...]
    epochs: int


def folded(network: Network, multipliers: int = MULTIPLIERS) -> tuple[Folding, ...]:
    """At most so many multipliers for each convolution."""
    return tuple(tile.folding(network.input_shape_of(tile), multipliers) for tile in network.convs)
