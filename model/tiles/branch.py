"""The golden tiles of branches: fork, add, and the identity shortcut between unequal shapes."""

from functools import reduce
from operator import add

from model.arithmetic import Arithmetic
from model.packets import EMPTY, Packet
from model.tiles.base import Tile
from spec.formats import Fixed
from spec.packets import Kind
from spec.plan import Plan
from spec.tile_plans import LanePlan
from spec.tiles import Shortcut


class ForkTile(Tile):
    """Copies activations to every output; adds the gradients, saturating once."""

    def __init__(self, plan: Plan, planned: LanePlan, arithmetic: Arithmetic) -> None:
        super().__init__(planned.tile.name)
        self._arithmetic = arithmetic
        self._format = plan.hardware.source_of(self.name).gradient
        self._outputs = len(plan.network.targets(self.name))

    def forward(self, *packets: Packet) -> tuple[Packet, ...]:
        return packets * self._outputs

    def backward(self, *packets: Packet) -> tuple[Packet, ...]:
        return (_sum(self.name, packets, self._arithmetic, self._format),)


class AddTile(Tile):
    """Adds the activations of two inputs, saturating once; copies the gradient to both."""

    def __init__(self, plan: Plan, planned: LanePlan, arithmetic: Arithmetic) -> None:
        super().__init__(planned.tile.name)
        self._arithmetic = arithmetic
        self._format = plan.hardware.target_of(self.name).activation

    def forward(self, *packets: Packet) -> tuple[Packet, ...]:
        return (_sum(self.name, packets, self._arithmetic, self._format),)

    def backward(self, *packets: Packet) -> tuple[Packet, ...]:
        return packets * 2


class ShortcutTile(Tile):
    """Every stride-th pixel, filled up with zero channels; the gradient goes back the same way."""

    def __init__(self, plan: Plan, planned: LanePlan) -> None:
        super().__init__(planned.tile.name)
        assert isinstance(planned.tile, Shortcut)
        self._stride = planned.tile.stride
        self._source = plan.hardware.source_of(self.name).shape
        self._target = plan.hardware.target_of(self.name).shape

    def forward(self, *packets: Packet) -> tuple[Packet, ...]:
        (packet,) = packets
        if packet.header.kind is Kind.BUBBLE:
            return packets
        source, target = packet.tensor, self._target
        result = source.new_zeros(target.rows, target.columns, target.channels)
        result[..., : source.shape[2]] = source[:: self._stride, :: self._stride]
        return (Packet(packet.header, result),)

    def backward(self, *packets: Packet) -> tuple[Packet, ...]:
        (packet,) = packets
        if packet.header.kind is Kind.BUBBLE:
            return (EMPTY,)
        source = self._source
        result = packet.tensor.new_zeros(source.rows, source.columns, source.channels)
        result[:: self._stride, :: self._stride] = packet.tensor[..., : source.channels]
        return (Packet(packet.header, result),)


def _sum(name: str, packets: tuple[Packet, ...], arithmetic: Arithmetic, format: Fixed) -> Packet:
    """Packets that meet belong to one sample, so their kinds agree."""
    first = packets[0]
    if any(packet.header.kind is not first.header.kind for packet in packets):
        raise RuntimeError(f"{name}: {[packet.header for packet in packets]} met")
    if first.header.kind is Kind.BUBBLE:
        return first
    total = reduce(add, (packet.tensor for packet in packets))
    return Packet(first.header, arithmetic.requantize(total, format.frac, format))
