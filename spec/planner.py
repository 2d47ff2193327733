"""Turns a network, its ranges and the user's wishes into a plan."""

from dataclasses import dataclass, replace

from spec.edge_plan import EdgePlan
from spec.errors import InputError
from spec.formats import Fixed
from spec.mac import Folding
from spec.method import Method
from spec.network import INPUT, Edge, Network
from spec.plan import HardwarePlan, Plan, RunPlan, least_packets
from spec.presets import Preset, Widths
from spec.ranges import Ranges
from spec.schedule import Placement, Schedule, delays, edge_tokens
from spec.shape import Shape, divisors
from spec.throughput import slot_period
from spec.tile_plans import ConvPlan, LanePlan, NormPlan, TilePlan
from spec.tiles import TRANSPARENT, Add, Conv, Loss, Norm, Shortcut, Tile
from spec.tiles.loss import LOGITS
from spec.tiles.norm import RSTD_BITS
from spec.zoo import ZooEntry

DEFAULT_STASH_BITS = 1 << 30
"""Memory for one tile's stash unless told otherwise: more than any chip has."""
AMPLE_PACKETS = 8
"""Room on the short ways of branches with which none of them can be the bottleneck."""
SLACK = 1.001
"""A smaller buffer may cost this much of the best slot period."""


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
    """Plan a network of the zoo; `ranges` are its committed ones unless given, and nominal where
    it has not been calibrated.

    Raises InputError for wishes that do not fit the network.
    """
    network = entry.network
    ranges = ranges or Ranges.of(network)
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
    """Formats from ranges, delays from the schedule, lanes from the foldings; tokens and the depth
    of buffers where the recursion of spec/throughput finds the shortest slot period."""
    if len(foldings) != len(network.convs):
        raise InputError(
            f"{network.name} has {len(network.convs)} tiles with weights, so needs as many "
            f"foldings, not {len(foldings)}"
        )
    for tile, folding in zip(network.convs, foldings, strict=True):
        tile.check_folding(network.input_shape_of(tile), folding)
    draft = _Draft(network, ranges, widths, foldings, schedule, stash_bits)
    ample = {placement: draft.hardware(placement, AMPLE_PACKETS) for placement in Placement}
    periods = {placement: slot_period(plan) for placement, plan in ample.items()}
    placement = min(periods, key=lambda candidate: periods[candidate])
    for packets in range(1, AMPLE_PACKETS):
        hardware = draft.hardware(placement, packets)
        if hardware == ample[placement]:
            break
        if slot_period(hardware) <= SLACK * periods[placement]:
            return hardware
    return ample[placement]


@dataclass(frozen=True)
class _Draft:
    """All that is decided before tokens and buffers."""

    network: Network
    ranges: Ranges
    widths: Widths
    foldings: tuple[Folding, ...]
    schedule: Schedule
    stash_bits: int

    def hardware(self, placement: Placement, packets: int) -> HardwarePlan:
        """With that placement of tokens, and room for `packets` on the short ways of branches."""
        network = self.network
        tiles = self._tiles()
        by_name = {planned.tile.name: planned for planned in tiles}
        tokens = edge_tokens(network, self.schedule, placement)
        delay = delays(network, tokens)
        short_ways = _short_ways(network)
        formats = _EdgeFormats(network, self.ranges, self.widths)
        edges = []
        for edge in network.edges:
            consumer = by_name[edge.target]
            least = least_packets(consumer, edge, delay[edge.target], network)
            lanes = consumer.lanes_in
            edges.append(
                EdgePlan(
                    edge=edge,
                    shape=network.output_shapes[edge.source],
                    activation=formats.activation(edge),
                    gradient=formats.gradient(edge),
                    stochastic=self.widths.stochastic_gradient,
                    source_lanes=lanes if edge.source == INPUT else by_name[edge.source].lanes_out,
                    target_lanes=lanes,
                    tokens=tokens[edge],
                    packets=max(least, packets) if edge in short_ways else least,
                )
            )
        return HardwarePlan(network, tuple(edges), tiles, self.stash_bits)

    def _tiles(self) -> tuple[TilePlan, ...]:
        foldings = dict(zip((tile.name for tile in self.network.convs), self.foldings, strict=True))
        lanes: dict[str, int] = {}
        tiles: list[TilePlan] = []
        for tile in self.network.tiles:
            if isinstance(tile, Conv):
                parameters = self.ranges.parameter(tile.name).formats(self.widths)
                tiles.append(ConvPlan(tile, foldings[tile.name], parameters))
            else:
                source = self.network.sources(tile.name)[0]
                fitting = _fitting_lanes(tile, self.network.output_shapes[source], lanes[source])
                tiles.append(
                    self._norm(tile, fitting) if isinstance(tile, Norm) else LanePlan(tile, fitting)
                )
            lanes[tile.name] = tiles[-1].lanes_out
        return tuple(tiles)

    def _norm(self, tile: Norm, lanes: int) -> NormPlan:
        found = self.ranges.norm(tile.name)
        parameters = None
        if tile.affine:
            parameters = self.ranges.parameter(tile.name).formats(self.widths)
        return NormPlan(
            tile,
            lanes,
            Fixed.covering(self.widths.normalised, found.normalised),
            Fixed.covering(RSTD_BITS, found.rstd, signed=False),
            parameters,
        )


def _short_ways(network: Network) -> set[Edge]:
    """Edges that bring packets to an add past the memories of the longer way."""
    convs: dict[str, int] = {INPUT: 0}
    short: set[Edge] = set()
    for tile in network.tiles:
        passed = {source: convs[source] for source in network.sources(tile.name)}
        longest = max(passed, key=lambda source: passed[source])
        short |= {Edge(source, tile.name) for source in passed if source != longest}
        convs[tile.name] = passed[longest] + isinstance(tile, Conv)
    return short


def _fitting_lanes(tile: Tile, source: Shape, lanes: int) -> int:
    """At most the producer's lanes: the most that divide the tile's channels and groups."""
    legal = [n for n in divisors(source.channels) if n <= lanes]
    if isinstance(tile, Norm):
        legal = [n for n in legal if n % tile.group == 0 or tile.group % n == 0]
    if isinstance(tile, Shortcut):
        legal = [n for n in legal if tile.outputs % n == 0]
    return max(legal)


class _EdgeFormats:
    """The formats of all edges: one in each direction for all edges that tiles hand through."""

    def __init__(self, network: Network, ranges: Ranges, widths: Widths) -> None:
        self._network, self._ranges, self._widths = network, ranges, widths
        self._positive = self._positive_edges()
        self._class = {edge: frozenset({edge}) for edge in network.edges}
        for tile in network.tiles:
            if isinstance(tile, TRANSPARENT):
                mine = [edge for edge in network.edges if tile.name in (edge.source, edge.target)]
                joined = frozenset[Edge]().union(*(self._class[edge] for edge in mine))
                self._class |= dict.fromkeys(joined, joined)

    def gradient(self, edge: Edge) -> Fixed:
        exponent = max(self._ranges.edge(other).gradient for other in self._class[edge])
        return Fixed.covering(self._widths.gradient, exponent)

    def activation(self, edge: Edge) -> Fixed:
        """Inputs and outputs of a ReLU are unsigned, the trunk of a residual network is wider, and
        logits have the format that the loss wants."""
        edges = self._class[edge]
        targets = [self._network.tile(other.target) for other in edges]
        if any(isinstance(tile, Loss) for tile in targets):
            return LOGITS
        width = self._widths.activation
        if any(isinstance(tile, Add) for tile in targets):
            width = self._widths.trunk
        exponent = max(self._ranges.edge(other).activation for other in edges)
        return Fixed.covering(width, exponent, signed=not edges <= self._positive)

    def _positive_edges(self) -> frozenset[Edge]:
        """Edges that never carry a negative number."""
        positive: dict[str, bool] = {INPUT: True}
        for tile in self._network.tiles:
            if isinstance(tile, Conv | Norm):
                positive[tile.name] = tile.relu
            else:
                sources = self._network.sources(tile.name)
                positive[tile.name] = all(positive[source] for source in sources)
        return frozenset(edge for edge in self._network.edges if positive[edge.source])
