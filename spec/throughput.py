"""How fast an array runs, and that it runs at all: its events as a max-plus recursion.

Every tile has the events that its forward packet could be and is complete, the same of its
gradient, and the end of its slot. They wait for packets, for the tile's own last slot, and for
room: a stash, a buffer or a channel takes the packet of slot k when a former one has been
forgotten. Forks, adds and shortcuts have no memory, so whatever holds them holds those before them.
(Design, section 3.)
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import gcd

from spec.edge_plan import EdgePlan
from spec.errors import InputError
from spec.mac import RESULT_LATENCY
from spec.network import INPUT
from spec.plan import HardwarePlan
from spec.recursion import Arc, Cycle, deadlock, slowest_cycle
from spec.tile_plans import ConvPlan, LanePlan, NormPlan, TilePlan
from spec.tiles import STREAMING, Add, AveragePool, Loss, MaxPool
from spec.tiles.norm import NormWalks

PACKET_LATENCY = RESULT_LATENCY + 3
"""Cycles from the last step of a packet until its consumer can take it: queue and stash."""
ROOM_LATENCY = 2
"""Cycles from the end of a packet in a memory until the next can use its place."""

Event = tuple[str, str]
Held = tuple[Event, int]
"""An event and the lag by which it holds another."""


def slot_period(hardware: HardwarePlan) -> float:
    """Cycles from one training sample to the next in steady state."""
    return float(critical_cycle(hardware).period)


def critical_cycle(hardware: HardwarePlan) -> Cycle:
    """The events that set the period. Raises InputError when some wait for each other for ever."""
    check_live(hardware)
    return slowest_cycle(_Array(hardware).arcs)


def utilisation(hardware: HardwarePlan) -> dict[str, float]:
    """Share of the period in which the multipliers of each convolution work."""
    period = slot_period(hardware)
    return {p.tile.name: hardware.geometry(p).busy_cycles / period for p in hardware.convs}


def check_live(hardware: HardwarePlan) -> None:
    """Raises InputError when a plan would deadlock, naming who would wait for whom."""
    ring = deadlock(_Array(hardware).arcs)
    if ring:
        listed = ", ".join(" ".join(event) for event in ring if isinstance(event, tuple))
        name = hardware.network.name
        raise InputError(f"{name} would deadlock, each waits for the next: {listed}")


@dataclass(frozen=True)
class Timing:
    """Cycles of a tile: of its forward packet, of its gradient, and of what follows (weights).

    `emits` and `emits_back` are the cycles from a packet's first beat to its last.
    """

    forward: int
    backward: int
    rest: int
    emits: int
    emits_back: int


def timing(hardware: HardwarePlan, planned: TilePlan) -> Timing:
    """From the cycle formulas of the tile."""
    name = planned.tile.name
    source = hardware.source_of(name)
    if isinstance(planned, ConvPlan):
        geometry = hardware.geometry(planned)
        data = geometry.backward_data.cycles if geometry.backward_data else 0
        bias = geometry.backward_bias.cycles if geometry.backward_bias else 0
        rest = geometry.backward_weight.cycles + bias + geometry.update_tail
        return Timing(1 + geometry.forward.cycles, 1 + data, rest, geometry.forward.cycles, data)
    if isinstance(planned, NormPlan):
        walks = NormWalks.of(source.shape, planned.tile.group, planned.lanes)
        forward = planned.tile.forward_cycles(source.shape, planned.lanes)
        backward = planned.tile.backward_cycles(source.shape, planned.lanes)
        rest = 0
        if planned.tile.affine:
            plain = replace(planned.tile, affine=False)
            rest = backward - plain.backward_cycles(source.shape, planned.lanes)
        beats = walks.raster.cycles
        return Timing(forward, backward - rest, rest, beats, beats)
    tile = planned.tile
    if isinstance(tile, MaxPool | AveragePool):
        forward = tile.forward_cycles(source.shape, planned.lanes)
        backward = tile.backward_cycles(source.shape, planned.lanes)
        return Timing(forward, backward, 0, forward, backward)
    if isinstance(tile, Loss):
        return Timing(0, tile.slot_cycles(source.shape), 0, 0, source.shape.channels)
    return Timing(0, 0, 0, 0, 0)


class _Array:
    """The arcs of all tiles."""

    def __init__(self, hardware: HardwarePlan) -> None:
        self._hardware = hardware
        self._timings = {p.tile.name: timing(hardware, p) for p in hardware.tiles}

    @cached_property
    def arcs(self) -> list[Arc]:
        arcs: list[Arc] = []
        for planned in self._hardware.tiles:
            arcs += self._forward(planned)
            arcs += self._backward(planned)
        return arcs

    def _forward(self, planned: TilePlan) -> list[Arc]:
        """A forward packet is complete after its inputs, the tile's turn, and room for it."""
        name, tile = planned.tile.name, planned.tile
        work, done = self._timings[name].forward, (name, "forward")
        ready = (name, "forward ready")
        arcs = [_arc(ready, done, 0, 0)]
        for edge in self._hardware.sources_of(name):
            if edge.edge.source != INPUT:
                wait = work + (0 if self._streams(name) else PACKET_LATENCY)
                arcs.append(_arc((edge.edge.source, "forward"), ready, wait, 0))
        if _takes_turns(planned):
            arcs.append(_arc((name, "slot"), ready, work, 1))
        elif not self._streams(name):
            arcs.append(_arc(done, ready, work, 1))
        if isinstance(planned, NormPlan) or isinstance(tile, MaxPool):
            arcs.append(_arc((name, "slot"), ready, work + ROOM_LATENCY, 2))
        for edge in self._hardware.targets_of(name):
            emission = self._emission(edge, self._timings[name].emits)
            for event, lag in self._holds_forward(edge):
                arcs.append(_arc(event, done, emission + ROOM_LATENCY, lag))
        return arcs

    def _backward(self, planned: TilePlan) -> list[Arc]:
        """A gradient is complete after those that come back, the tile's turn, and room for it."""
        name, timing = planned.tile.name, self._timings[planned.tile.name]
        ready, done, slot = (name, "gradient ready"), (name, "gradient"), (name, "slot")
        arcs = [_arc(ready, done, 0, 0), _arc(done, slot, timing.rest, 0)]
        for edge in self._hardware.targets_of(name):
            wait = timing.backward + (0 if self._streams(name) else PACKET_LATENCY)
            arcs.append(_arc((edge.edge.target, "gradient"), ready, wait, edge.tokens))
        if _takes_turns(planned):
            arcs.append(_arc((name, "forward"), ready, timing.backward, 0))
        elif not self._streams(name):
            arcs.append(_arc(slot, ready, timing.backward, 1))
        for edge in self._hardware.sources_of(name):
            emission = self._emission(edge, timing.emits_back)
            for event, lag in self._holds_backward(edge):
                arcs.append(_arc(event, done, emission + ROOM_LATENCY, lag))
        return arcs

    def _holds_forward(self, edge: EdgePlan) -> list[Held]:
        """What must have happened before a forward packet on an edge finds room."""
        name = edge.edge.target
        planned, hardware = self._hardware.planned(name), self._hardware
        if isinstance(planned, ConvPlan):
            return [((name, "slot"), edge.packets - hardware.delay(name))]
        if edge.packets or not isinstance(planned, LanePlan):
            event = "gradient" if isinstance(planned.tile, Loss) else "forward"
            return [((name, event), edge.packets)]
        others: list[Held] = [
            ((other.edge.source, "forward ready"), 0)
            for other in hardware.sources_of(name)
            if other is not edge and isinstance(planned.tile, Add)
        ]
        onward = [held for out in hardware.targets_of(name) for held in self._holds_forward(out)]
        return others + onward

    def _holds_backward(self, edge: EdgePlan) -> list[Held]:
        """What must have happened before a gradient on an edge finds room."""
        name = edge.edge.source
        if name == INPUT:
            return []
        packets = self._hardware.channel_packets(edge)
        if packets:
            event = "gradient" if self._streams(name) else "slot"
            return [((name, event), packets - edge.tokens)]
        others: list[Held] = [
            ((other.edge.target, "gradient ready"), other.tokens)
            for other in self._hardware.targets_of(name)
            if other is not edge
        ]
        onward = [
            held for back in self._hardware.sources_of(name) for held in self._holds_backward(back)
        ]
        return others + onward

    def _emission(self, edge: EdgePlan, cycles: int) -> int:
        """Cycles that a packet takes through an edge, where an adapter may be the slowest."""
        if not edge.adapted:
            return cycles
        return max(cycles, edge.shape.elements // gcd(edge.source_lanes, edge.target_lanes))

    def _streams(self, name: str) -> bool:
        return isinstance(self._hardware.network.tile(name), STREAMING)


def _takes_turns(planned: TilePlan) -> bool:
    """Whether a tile handles forward and backward packets by turns: those with parameters, and the
    loss, whose gradient is the answer to a forward packet."""
    if isinstance(planned, NormPlan):
        return planned.tile.affine
    return isinstance(planned, ConvPlan) or isinstance(planned.tile, Loss)


def _arc(source: Event, target: Event, cycles: int, lag: int) -> Arc:
    return Arc(source, target, Fraction(cycles), lag)
