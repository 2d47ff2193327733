"""The sequential reference engine: the pipeline as a Kahn network, one slot at a time.

Slot k takes forward packet k through all tiles, then brings one backward packet from the loss back
to the first tile. A backward edge is a queue that holds `tokens` bubbles at reset, so a tile with
delay D handles the gradient of slot k - D: its forward of sample i uses parameters that have seen
the samples 0 to i - D - 1, and its backward those that have seen 0 to i - 1 (design, section 3).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from model.arithmetic import Arithmetic
from model.packets import EMPTY, Packet
from model.tiles.dense import DenseTile, Parameters
from model.tiles.loss import LossResult, LossTile
from model.update import Coefficients
from spec.network import Edge
from spec.packets import BUBBLE, Header, Kind
from spec.plan import Plan


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
    backward packets that this slot *produced*, from the loss to the first tile. The last of them,
    on the host's edge, is empty; its kind is `done`.
    """

    packets: tuple[EdgePacket, ...]
    result: LossResult

    @property
    def done(self) -> Kind:
        """TRAIN when a sample has left the array with this slot."""
        return self.packets[-1].packet.header.kind


class Engine:
    """Runs slots of a plan in a number system; `parameters` by tile name (`model.initial`)."""

    def __init__(
        self, plan: Plan, arithmetic: Arithmetic, parameters: dict[str, Parameters]
    ) -> None:
        hardware = plan.hardware
        self.plan, self.arithmetic = plan, arithmetic
        self.tiles = {
            planned.tile.name: DenseTile(plan, planned, arithmetic, parameters[planned.tile.name])
            for planned in hardware.dense
        }
        self.loss = LossTile(plan, arithmetic)
        names = [tile.name for tile in plan.network.tiles]
        self._edges = [hardware.source_of(name).edge for name in names]
        self._queues = {p.edge: deque([EMPTY] * p.tokens) for p in hardware.edges}
        self.first_delay = hardware.delay(names[0])

    def slot(self, header: Header, sample: torch.Tensor | None = None) -> SlotRecord:
        """Run one slot; `sample` [inputs] as `encode`d in the input edge's activation format."""
        if header.kind is Kind.BUBBLE:
            header, sample = Header(Kind.BUBBLE, header.commit), None
        record, result, back = self._forward(Packet(header, sample))
        return SlotRecord((*record, *self._backward(back)), result)

    def _forward(self, packet: Packet) -> tuple[list[EdgePacket], LossResult, Packet]:
        record = [EdgePacket(self._edges[0], True, packet)]
        for tile, edge in zip(self.tiles.values(), self._edges[1:], strict=True):
            packet = tile.forward(packet)
            record.append(EdgePacket(edge, True, packet))
        result, back = self.loss.turn(packet)
        return record, result, back

    def _backward(self, back: Packet) -> Iterator[EdgePacket]:
        yield EdgePacket(self._edges[-1], False, back)
        pairs = zip(self.tiles.values(), self._edges, self._edges[1:], strict=False)
        for tile, source, target in reversed(list(pairs)):
            queue = self._queues[target]
            queue.append(back)
            back = tile.backward(queue.popleft())
            yield EdgePacket(source, False, back)

    def drain(self) -> list[SlotRecord]:
        """Bubbles until every sample in flight has come back to the first tile."""
        return [self.slot(BUBBLE) for _ in range(self.first_delay)]

    def set_shadow(self, tile: str, coefficients: Coefficients) -> None:
        """Coefficients that a tile takes over with the next forward packet that commits."""
        self.tiles[tile].shadow = coefficients

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
