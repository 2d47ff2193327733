"""Turns a network, its ranges and the user's wishes into a plan."""

from dataclasses import dataclass, replace

from spec.errors import InputError
from spec.formats import Fixed
from spec.hyperparameters import Method
from spec.mac import Folding
from spec.network import INPUT, Edge, Network
from spec.plan import DensePlan, EdgePlan, HardwarePlan, Plan, RunPlan
from spec.presets import Preset, Widths
from spec.ranges import Ranges
from spec.schedule import Schedule, edge_tokens
from spec.tiles import Dense, Loss
from spec.tiles.loss import LOGITS
from spec.zoo import ZooEntry

DEFAULT_STASH_BITS = 1 << 23
"""Memory for one tile's stash unless told otherwise: 1 MiB."""


@dataclass(frozen=True)
class Wishes:
    """What a user may choose about a network; None means the network's own default."""

    method: Method = Method.LWP_SC
    schedule: Schedule = Schedule.PAPER
    preset: Preset = Preset.COMPACT
    eta: float | None = None
    seed: int = 0
    foldings: tuple[Folding, ...] | None = None
    stash_bits: int = DEFAULT_STASH_BITS


def make_plan(entry: ZooEntry, wishes: Wishes, ranges: Ranges | None = None) -> Plan:
    """Plan a network of the zoo; `ranges` are its committed ones unless given.

    Raises InputError for wishes that do not fit the network.
    """
    network = entry.network
    ranges = ranges or Ranges.load(network)
    foldings = entry.foldings if wishes.foldings is None else wishes.foldings
    hyperparameters = entry.hyperparameters
    if wishes.eta is not None:
        hyperparameters = replace(hyperparameters, eta=wishes.eta)
    hardware = plan_hardware(
        network, ranges, wishes.preset.widths, foldings, wishes.schedule, wishes.stash_bits
    )
    run = RunPlan(wishes.method, wishes.schedule, hyperparameters, wishes.seed, entry.dataset)
    return Plan(hardware, run)


def plan_hardware(
    network: Network,
    ranges: Ranges,
    widths: Widths,
    foldings: tuple[Folding, ...],
    schedule: Schedule,
    stash_bits: int = DEFAULT_STASH_BITS,
) -> HardwarePlan:
    """Formats from ranges, tokens from the schedule, lanes of each edge from the foldings."""
    tiles = network.dense_tiles
    if len(foldings) != len(tiles):
        raise InputError(
            f"{network.name} has {len(tiles)} tiles with weights, so needs as many foldings, "
            f"not {len(foldings)}"
        )
    by_name = {tile.name: folding for tile, folding in zip(tiles, foldings, strict=True)}
    for tile, folding in zip(tiles, foldings, strict=True):
        tile.check_folding(network.input_shape_of(tile), folding)
    tokens = edge_tokens(network, schedule)
    edges = tuple(
        EdgePlan(
            edge=edge,
            shape=network.output_shapes[edge.source],
            activation=_activation(network, edge, ranges, widths),
            gradient=Fixed.covering(widths.gradient, ranges.edge(edge).gradient),
            stochastic=widths.stochastic_gradient,
            lanes=_lanes(edge, by_name),
            tokens=tokens[edge],
        )
        for edge in network.edges
    )
    dense = tuple(
        DensePlan(tile, by_name[tile.name], ranges.parameter(tile.name).formats(widths))
        for tile in tiles
    )
    return HardwarePlan(network, edges, dense, stash_bits)


def _activation(network: Network, edge: Edge, ranges: Ranges, widths: Widths) -> Fixed:
    """Inputs and ReLU outputs are unsigned; logits have the format that the loss wants."""
    if any(isinstance(tile, Loss) and tile.name == edge.target for tile in network.tiles):
        return LOGITS
    sources = [tile for tile in network.tiles if tile.name == edge.source]
    positive = edge.source == INPUT or any(isinstance(t, Dense) and t.relu for t in sources)
    return Fixed.covering(widths.activation, ranges.edge(edge).activation, signed=not positive)


def _lanes(edge: Edge, foldings: dict[str, Folding]) -> int:
    """Those of the producer, else of the consumer; the plan refuses it where they differ."""
    if edge.source in foldings:
        return foldings[edge.source].lanes_out
    return foldings[edge.target].lanes_in
