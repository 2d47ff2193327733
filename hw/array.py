"""The array: tiles, their stashes and channels, joined by streams as the plan says."""

from typing import Any

from amaranth import ClockSignal, Instance, Module, ResetSignal, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.activity import ACTIVITY
from hw.adapter import LaneAdapter
from hw.bus import host_bus
from hw.channel import PacketFifo
from hw.cores import add_core
from hw.delay import delayed
from hw.queue import QUEUE_DEPTH
from hw.shared import shared
from hw.stash import Stash
from hw.streams import packet_stream
from hw.tiles.conv import ConvCore
from spec.bus import (
    DATA_BITS,
    IDENTITY,
    REGION_BITS,
    STATE_BASE,
    VERSION,
    ArrayRegister,
    Region,
)
from spec.edge_plan import EdgePlan
from spec.network import INPUT, Edge
from spec.packets import RESULT_FIELDS
from spec.plan import HardwarePlan
from spec.registers import AddressMap
from spec.tiles import STREAMING

OUTPUT = data.StructLayout(dict(RESULT_FIELDS))
PROBE_CONTROL = data.StructLayout({"stall": 7, "seed": 32, "capture": 32})
"""For simulation: percent of clocks to hold every stream, the seed of that, and the packet of
which every beat is kept."""


class TileArray(wiring.Component):
    """A network in hardware.

    Samples enter at `i`; each slot leaves two beats at `o` (spec/packets, RESULT_FIELDS). The bus
    reaches all registers and memories (spec/registers); memories may be accessed while no packet
    is on its way.

    Parameters
    ----------
    hardware: the plan.
    probes: put an instance of `tidemill_probe` (cosim/verilog) into every stream, in the order of
        `hardware.streams`, controlled by the port `probe`.

    Members
    -------
    activity: what each tile with a MAC array does now, in order, for observers.
    """

    def __init__(self, hardware: HardwarePlan, *, probes: bool = False) -> None:
        self._hardware, self._probes = hardware, probes
        self._map = AddressMap(hardware)
        members = {
            "i": In(packet_stream(hardware.edges[0].forward)),
            "o": Out(stream.Signature(OUTPUT)),
            "bus": In(host_bus(self._map.address_bits)),
            "activity": Out(data.ArrayLayout(ACTIVITY, len(hardware.convs))),
        }
        if probes:
            members["probe"] = In(PROBE_CONTROL)
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        hardware = self._hardware
        cores = {
            planned.tile.name: add_core(m, hardware, planned, platform)
            for planned in hardware.tiles
        }
        for place, planned in enumerate(hardware.convs):
            m.d.comb += self.activity[place].eq(cores[planned.tile.name].activity)
        for edge in hardware.edges:
            self._forward(m, edge, cores, platform)
            if edge.edge.source != INPUT:
                self._backward(m, edge, cores, platform)
        first, loss = cores[hardware.tiles[0].tile.name], cores[hardware.tiles[-1].tile.name]
        self._results(m, first, loss)
        self._bus(m, cores, loss.committed)
        return m

    def _forward(
        self, m: Module, planned: EdgePlan, cores: dict[str, Any], platform: object
    ) -> None:
        """From the producer, through an adapter where lanes differ, into the consumer's memory."""
        hardware, edge = self._hardware, planned.edge
        consumer, name = cores[edge.target], f"{edge.source}_to_{edge.target}"
        source = wiring.flipped(self.i)
        if edge.source != INPUT:
            place = hardware.network.targets(edge.source).index(edge.target)
            source = _port(cores[edge.source], "o", place)
        source = self._adapt(m, planned, f"{name}_adapter", source, True, platform)
        if hasattr(consumer, "stash"):
            delay = hardware.delay(edge.target)
            delay = delay if isinstance(consumer, ConvCore) else 0
            ring_of = (planned.arriving, planned.target_beats, planned.packets, 0, delay)
            stash = Stash(*ring_of)
            m.submodules[f"{edge.target}_stash"] = shared(stash, ring_of, platform)
            wiring.connect(m, consumer.stash, stash.reader)
            _join(m, source, stash.i)
            return
        if planned.packets:
            fifo_of = (planned.arriving, planned.target_beats, planned.packets, 0)
            buffer = PacketFifo(*fifo_of)
            m.submodules[f"{name}_buffer"] = shared(buffer, fifo_of, platform)
            _join(m, source, buffer.i)
            source = buffer.o
        place = hardware.network.sources(edge.target).index(edge.source)
        _join(m, source, _port(consumer, "i", place))

    def _backward(
        self, m: Module, planned: EdgePlan, cores: dict[str, Any], platform: object
    ) -> None:
        """From the consumer back into the producer's channel, which holds the edge's tokens."""
        hardware, edge = self._hardware, planned.edge
        producer, name = cores[edge.source], f"{edge.source}_to_{edge.target}"
        place = hardware.network.sources(edge.target).index(edge.source)
        source = _port(cores[edge.target], "o_gradient", place)
        source = self._adapt(m, planned, f"{name}_gradient_adapter", source, False, platform)
        packets = hardware.channel_packets(planned)
        place = hardware.network.targets(edge.source).index(edge.target)
        if not isinstance(hardware.network.tile(edge.source), STREAMING):
            ring_of = (planned.returning, planned.beats, packets, planned.tokens)
            channel = Stash(*ring_of)
            m.submodules[f"{edge.source}_channel"] = shared(channel, ring_of, platform)
            wiring.connect(m, producer.gradient, channel.reader)
            _join(m, source, channel.i)
            return
        if packets:
            fifo_of = (planned.returning, planned.beats, packets, planned.tokens)
            buffer = PacketFifo(*fifo_of)
            m.submodules[f"{name}_channel"] = shared(buffer, fifo_of, platform)
            _join(m, source, buffer.i)
            source = buffer.o
        _join(m, source, _port(producer, "gradient", place))

    def _adapt(
        self,
        m: Module,
        planned: EdgePlan,
        name: str,
        source: Any,
        forward: bool,
        platform: object,
    ) -> Any:
        """The stream as it arrives at the other end of its edge, with a probe at either end."""
        source = self._probe(m, self._place(planned.edge, forward), source)
        if not planned.adapted:
            return source
        before, after = (
            (planned.forward, planned.target_lanes)
            if forward
            else (planned.backward, planned.source_lanes)
        )
        adapter = LaneAdapter(before, after)
        m.submodules[name] = shared(adapter, (before, after), platform)
        _join(m, source, adapter.i)
        return self._probe(m, self._place(planned.edge, forward) + 1, adapter.o)

    def _place(self, edge: Edge, forward: bool) -> int:
        """Position in `hardware.streams` of an edge's stream as it leaves its producer."""
        return next(
            place
            for place, stream in enumerate(self._hardware.streams)
            if (stream.edge, stream.forward) == (edge, forward)
        )

    def _probe(self, m: Module, place: int, source: Any) -> Any:
        """The stream behind its probe, if probes are asked for."""
        if not self._probes:
            return source
        shape = source.payload.shape()
        shown = stream.Signature(shape).create(path=(f"shown_{place}",))
        payload = source.payload.as_value()
        carried, ready, valid = Signal(payload.shape()), Signal(), Signal()
        m.submodules[f"probe_{place}"] = Instance(
            "tidemill_probe",
            p_WIDTH=len(payload),
            p_INDEX=place,
            p_CAPTURE=max(2, self._hardware.streams[place].beats),
            i_clk=ClockSignal(),
            i_rst=ResetSignal(),
            i_control=self.probe.as_value(),
            i_i_valid=source.valid,
            i_i_payload=payload,
            i_i_last=source.payload.last if "last" in shape.members else 1,
            o_i_ready=ready,
            o_o_valid=valid,
            o_o_payload=carried,
            i_o_ready=shown.ready,
        )
        m.d.comb += [
            source.ready.eq(ready),
            shown.valid.eq(valid),
            shown.payload.as_value().eq(carried),
        ]
        return shown

    def _results(self, m: Module, first: Any, loss: Any) -> None:
        """One result of the loss, then one backward packet of the first tile, slot by slot."""
        hardware = self._hardware
        depth = hardware.first_delay + 2
        m.submodules.done = done = fifo.SyncFIFOBuffered(width=2, depth=depth)
        merged = stream.Signature(OUTPUT).create(path=("merged",))
        place = self._place(hardware.edges[0].edge, forward=False)
        finished = self._probe(m, place, first.o_gradient)
        _join(m, self._probe(m, len(hardware.streams) - 1, merged), wiring.flipped(self.o))
        turn = Signal()
        m.d.comb += [
            done.w_data.eq(finished.payload.kind),
            done.w_en.eq(finished.valid),
            finished.ready.eq(done.w_rdy),
            merged.payload.done.eq(turn),
        ]
        with m.If(turn):
            m.d.comb += [
                merged.valid.eq(done.r_rdy),
                merged.payload.kind.eq(done.r_data),
                done.r_en.eq(merged.ready),
            ]
        with m.Else():
            m.d.comb += [
                merged.valid.eq(loss.o.valid),
                merged.payload.kind.eq(loss.o.payload.kind),
                merged.payload.prediction.eq(loss.o.payload.prediction),
                merged.payload.loss.eq(loss.o.payload.loss),
                loss.o.ready.eq(merged.ready),
            ]
        with m.If(merged.valid & merged.ready):
            m.d.sync += turn.eq(~turn)

    def _bus(self, m: Module, cores: dict[str, Any], committed: Signal) -> None:
        """Register the request, select the tile, collect answers: BUS_READ_LATENCY clocks."""
        low, middle = self._map.offset_bits, self._map.offset_bits + REGION_BITS
        address, enable, write = Signal.like(self.bus.address), Signal(), Signal()
        write_data = Signal(DATA_BITS)
        m.d.sync += [
            address.eq(self.bus.address),
            enable.eq(self.bus.enable),
            write.eq(self.bus.enable & self.bus.write),
            write_data.eq(self.bus.write_data),
        ]
        offset, region, block = address[:low], address[low:middle], address[middle:]
        entered, travelling, refused = Signal(), Signal(), Signal()
        commits = Signal(range(self._packets_on_their_way + 1))
        payload = self.i.payload
        m.d.comb += [
            entered.eq(self.i.valid & self.i.ready & payload.last & payload.commit),
            travelling.eq(commits != 0),
        ]
        m.d.sync += commits.eq(commits + entered - committed)
        parameterised = {planned.tile.name for planned in self._hardware.parameterised}
        answers = [self._array_registers(m, block, offset, write, write_data, travelling, refused)]
        for name, core in cores.items():
            if not hasattr(core, "bus"):
                continue
            bus = core.bus
            mine = enable & (block == 1 + self._hardware.index(name))
            shadow = (region == Region.REGISTERS) & (offset < STATE_BASE)
            locked = travelling & shadow if name in parameterised else 0
            m.d.comb += [
                bus.select.eq(mine),
                bus.write.eq(write & ~locked),
                bus.region.eq(region),
                bus.offset.eq(offset),
                bus.write_data.eq(write_data),
            ]
            with m.If(mine & write & locked):
                m.d.sync += refused.eq(1)
            answers.append(bus.read_data)
        total = answers[0]
        for answer in answers[1:]:
            total = total | answer
        m.d.sync += self.bus.read_data.eq(total)

    @property
    def _packets_on_their_way(self) -> int:
        """At most so many are between the input and the loss tile: bubbles fill queues, too."""
        hardware = self._hardware
        packets = sum(planned.packets for planned in hardware.edges)
        return packets + QUEUE_DEPTH * (len(hardware.tiles) + len(hardware.edges))

    def _array_registers(
        self,
        m: Module,
        block: Value,
        offset: Value,
        write: Signal,
        write_data: Signal,
        travelling: Signal,
        refused: Signal,
    ) -> Value:
        digest = int(self._hardware.hash, 16)
        registers: dict[ArrayRegister, Value | int] = {
            ArrayRegister.IDENTITY: IDENTITY,
            ArrayRegister.VERSION: VERSION,
            ArrayRegister.HARDWARE_HASH_LOW: digest & 0xFFFF_FFFF,
            ArrayRegister.HARDWARE_HASH_HIGH: digest >> 32,
            ArrayRegister.STATUS: travelling | refused << 1,
        }
        answer = Signal(DATA_BITS, name="array_answer")
        m.d.sync += answer.eq(0)
        for place, value in registers.items():
            with m.If((block == 0) & (offset == place)):
                m.d.sync += answer.eq(value)
        status = (block == 0) & (offset == ArrayRegister.STATUS)
        with m.If(status & write & write_data[1]):
            m.d.sync += refused.eq(0)
        return delayed(m, answer, 1, name="array_answer")


def _port(core: Any, name: str, place: int) -> Any:
    """A core's stream: `name`, or `name` with its number where the core has several."""
    members = core.signature.members
    return getattr(core, name if name in members else f"{name}{place}")


def _join(m: Module, source: Any, sink: Any) -> None:
    m.d.comb += [
        sink.valid.eq(source.valid),
        sink.payload.eq(source.payload),
        source.ready.eq(sink.ready),
    ]
