"""Calibrated ranges: where the binary point of each tensor lies.

A short float run records the range of every tensor (`make calibrate`). Float sums differ between
machines, so the ranges of the zoo's networks are committed under `spec/calibration/`.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2, sqrt
from pathlib import Path

from spec.codec import content_hash, decode, encode
from spec.errors import InputError
from spec.files import write_text
from spec.formats import Fixed
from spec.network import INPUT, Edge, Network
from spec.presets import Widths
from spec.tiles import Add, Conv, Fork, Loss, Norm, ParameterTile
from spec.update import ParameterFormats

FOLDER = Path(__file__).parent / "calibration"


@dataclass(frozen=True)
class EdgeRange:
    """Exponents e of an edge: all magnitudes lie below 2**e."""

    edge: Edge
    activation: int
    gradient: int


@dataclass(frozen=True)
class ParameterRange:
    """Exponents of a tile's weights and biases (or gains and offsets), gradients and velocities."""

    tile: str
    weight: int
    gradient: int
    velocity: int

    def formats(self, widths: Widths) -> ParameterFormats:
        return ParameterFormats(
            working=Fixed.covering(widths.working, self.weight),
            master=Fixed.covering(widths.master, self.weight),
            velocity=Fixed.covering(widths.velocity, self.velocity),
            gradient=Fixed.covering(widths.weight_gradient, self.gradient),
            stochastic=widths.stochastic_update,
        )


@dataclass(frozen=True)
class NormRange:
    """Exponents of a norm's x^ and of its reciprocal deviation."""

    tile: str
    normalised: int
    rstd: int


@dataclass(frozen=True)
class Ranges:
    """The calibrated ranges of one network."""

    network_hash: str
    edges: tuple[EdgeRange, ...]
    norms: tuple[NormRange, ...]
    parameters: tuple[ParameterRange, ...]

    @classmethod
    def load(cls, network: Network) -> "Ranges":
        """The committed ranges; InputError when there are none for this very graph."""
        path = FOLDER / f"{network.name}.json"
        advice = f"run make calibrate NET={network.name}"
        try:
            ranges = decode(cls, json.loads(path.read_text()), path.name)
        except FileNotFoundError:
            raise InputError(f"{network.name} has not been calibrated: {advice}") from None
        if not isinstance(ranges, cls) or ranges.network_hash != content_hash(network):
            raise InputError(f"{path.name} was calibrated for another graph: {advice}")
        return ranges

    @classmethod
    def nominal(cls, network: Network) -> "Ranges":
        """Plausible exponents of an untrained network of the right scale, from its graph alone.

        Enough to generate, simulate and size a network whose data set is not at hand; not to train
        it well.
        """
        tiles = network.tiles
        return cls(
            content_hash(network),
            tuple(_nominal_edge(network, edge) for edge in network.edges),
            tuple(NormRange(tile.name, 3, 3) for tile in tiles if isinstance(tile, Norm)),
            tuple(
                _nominal_parameters(network, tile)
                for tile in tiles
                if isinstance(tile, Conv | Norm) and network.has_parameters(tile.name)
            ),
        )

    @classmethod
    def of(cls, network: Network) -> "Ranges":
        """The committed ranges if the network has been calibrated, else nominal ones."""
        return cls.load(network) if is_calibrated(network) else cls.nominal(network)

    def save(self, name: str, folder: Path = FOLDER) -> Path:
        path = folder / f"{name}.json"
        write_text(path, json.dumps(encode(self), indent=1) + "\n")
        return path

    @cached_property
    def _edges(self) -> dict[Edge, EdgeRange]:
        return {found.edge: found for found in self.edges}

    def edge(self, edge: Edge) -> EdgeRange:
        return self._edges[edge]

    def norm(self, tile: str) -> NormRange:
        return next(found for found in self.norms if found.tile == tile)

    def parameter(self, tile: str) -> ParameterRange:
        return next(found for found in self.parameters if found.tile == tile)


def is_calibrated(network: Network) -> bool:
    """Whether ranges are committed under the network's name."""
    return (FOLDER / f"{network.name}.json").exists()


def _nominal_edge(network: Network, edge: Edge) -> EdgeRange:
    """Activations of unit variance stay below 8, sums on a trunk below 32."""
    target = network.tile(edge.target)
    if edge.source == INPUT:
        return EdgeRange(edge, 0, 0)
    wide = isinstance(target, Add | Fork)
    return EdgeRange(edge, 5 if wide else 3, 0 if isinstance(target, Loss) else -2)


def _nominal_parameters(network: Network, tile: ParameterTile) -> ParameterRange:
    """Twice the bound of the initial weights; gains start at one."""
    weight = 1
    if isinstance(tile, Conv):
        bound = tile.gain * sqrt(6 / tile.fan_in(network.input_shape_of(tile)))
        weight = ceil(log2(2 * bound))
    return ParameterRange(tile.name, weight, gradient=0, velocity=-2)
