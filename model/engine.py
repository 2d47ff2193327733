"""The sequential reference engine: the pipeline as a Kahn network, one slot at a time.

Slot k takes forward packet k through all tiles, then brings one backward packet from the loss back
to the first tile. A backward edge is a queue that holds `tokens` bubbles at reset, so a tile with
delay D handles the gradient of slot k - D: its forward of sample i uses parameters that have seen
the samples 0 to i - D - 1, and its backward those that have seen 0 to i - 1 (design, section 3).
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from model.arithmetic import Arithmetic
from model.packets import EMPTY, Packet
from model.tiles.base import Parameters, ParameterTile, Tile
from model.tiles.branch import AddTile, ForkTile, ShortcutTile
from model.tiles.conv import ConvTile
from model.tiles.loss import LossResult, LossTile
from model.tiles.norm import AffineNormTile, NormTile
from model.tiles.pool import AveragePoolTile, MaxPoolTile
from model.update import Coefficients
from spec.network import Edge
from spec.packets import BUBBLE, Header, Kind
from spec.plan import Plan
from spec.tile_plans import ConvPlan, NormPlan, TilePlan
from spec.tiles import Add, AveragePool, Fork, MaxPool


@dataclass(frozen=True)
class EdgePacket:
    """A packet on one of an edge's two streams."""

    edge: Edge
    forward: bool
    packet: Packet


@dataclass(frozen=True)
class SlotRecord:
    """Everything that a slot put on the streams.

    `packets` are in causal order: the forward packets from the input to the loss, then the
    backward packets that this slot *produced*, from the loss to the first tile. `done` is the kind
    of the empty packet on the host's edge: TRAIN when a sample has left the array with this slot.
    """

    packets: tuple[EdgePacket, ...]
    result: LossResult
    done: Kind


class Engine:
    """Runs slots of a plan in a number system; `parameters` by tile name (`model.initial`).

    `tiles` has every tile but the loss. Raises InputError where the number system cannot do what a
    tile asks for.
    """

    def __init__(
        self, plan: Plan, arithmetic: Arithmetic, parameters: dict[str, Parameters]
    ) -> None:
        hardware = plan.hardware
        self.plan, self.arithmetic = plan, arithmetic
        self.tiles = {
            planned.tile.name: make_tile(plan, planned, arithmetic, parameters)
            for planned in hardware.tiles[:-1]
        }
        self.loss = LossTile(plan, arithmetic)
        network, loss = plan.network, plan.network.tiles[-1].name
        self._entrance, self._exit = network.edges[0], hardware.source_of(loss).edge
        self._order = [
            (
                tile,
                [planned.edge for planned in hardware.sources_of(name)],
                [planned.edge for planned in hardware.targets_of(name)],
            )
            for name, tile in self.tiles.items()
        ]
        self._backward_edges = [
            edge
            for edge in dict.fromkeys(
                stream.edge for stream in hardware.streams if not stream.forward
            )
            if edge is not None
        ]
        self._queues = {p.edge: deque([EMPTY] * p.tokens) for p in hardware.edges}
        self.first_delay = hardware.first_delay

    @property
    def trained(self) -> dict[str, ParameterTile]:
        """The tiles with parameters."""
        return {n: tile for n, tile in self.tiles.items() if isinstance(tile, ParameterTile)}

    def slot(self, header: Header, sample: torch.Tensor | None = None) -> SlotRecord:
        """Run one slot; `sample` as `encode`d in the input edge's activation format, flat or
        [rows, columns, channels]."""
        if header.kind is Kind.BUBBLE:
            header, sample = Header(Kind.BUBBLE, header.commit), None
        if sample is not None:
            shape = self.plan.network.input_shape
            sample = sample.view(shape.rows, shape.columns, shape.channels)
        forward = self._forward(Packet(header, sample))
        result, back = self.loss.turn(forward[self._exit])
        backward = self._backward(back)
        record = [EdgePacket(edge, True, forward[edge]) for edge in self.plan.network.edges]
        record += [EdgePacket(edge, False, backward[edge]) for edge in self._backward_edges]
        return SlotRecord(tuple(record), result, backward[self._entrance].header.kind)

    def _forward(self, packet: Packet) -> dict[Edge, Packet]:
        """What every edge carries forwards."""
        carried = {self._entrance: packet}
        for tile, sources, targets in self._order:
            results = tile.forward(*(carried[edge] for edge in sources))
            carried.update(zip(targets, results, strict=True))
        return carried

    def _backward(self, back: Packet) -> dict[Edge, Packet]:
        """What every edge's consumer sends back in this slot, behind the tokens on its edge."""
        sent = {self._exit: back}
        for tile, sources, targets in reversed(self._order):
            arrived = []
            for edge in targets:
                self._queues[edge].append(sent[edge])
                arrived.append(self._queues[edge].popleft())
            sent.update(zip(sources, tile.backward(*arrived), strict=True))
        return sent

    def drain(self) -> list[SlotRecord]:
        """Bubbles until every sample in flight has come back to the first tile."""
        return [self.slot(BUBBLE) for _ in range(self.first_delay)]

    def set_shadow(self, tile: str, coefficients: Coefficients) -> None:
        """Coefficients that a tile takes over with the next forward packet that commits."""
        self.trained[tile].shadow = coefficients

    def state(self) -> dict[str, Any]:
        """Everything that changes during a run, what is in flight included, as plain data."""
        return {
            "tiles": {name: tile.state() for name, tile in self.tiles.items()},
            "loss": self.loss.state(),
            "queues": {
                str(edge): [(int(p.header.kind), p.data) for p in queue]
                for edge, queue in self._queues.items()
            },
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned, bit for bit."""
        for name, tile in self.tiles.items():
            tile.load_state(state["tiles"][name])
        self.loss.load_state(state["loss"])
        for edge in self._queues:
            packets = state["queues"][str(edge)]
            self._queues[edge] = deque(Packet(Header(Kind(k)), data) for k, data in packets)


def make_tile(
    plan: Plan, planned: TilePlan, arithmetic: Arithmetic, parameters: dict[str, Parameters]
) -> Tile:
    """The golden tile of any kind but the loss."""
    if isinstance(planned, ConvPlan):
        return ConvTile(plan, planned, arithmetic, parameters[planned.tile.name])
    if isinstance(planned, NormPlan):
        if planned.tile.affine:
            return AffineNormTile(plan, planned, arithmetic, parameters[planned.tile.name])
        return NormTile(plan, planned, arithmetic)
    tile = planned.tile
    if isinstance(tile, MaxPool):
        return MaxPoolTile(plan, planned)
    if isinstance(tile, AveragePool):
        return AveragePoolTile(plan, planned, arithmetic)
    if isinstance(tile, Fork):
        return ForkTile(plan, planned, arithmetic)
    if isinstance(tile, Add):
        return AddTile(plan, planned, arithmetic)
    return ShortcutTile(plan, planned)
