"""The array: tiles, their stashes and channels, joined by streams as the plan says."""

from typing import Any

from amaranth import ClockSignal, Instance, Module, ResetSignal, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus import host_bus
from hw.delay import delayed
from hw.mac import MacParameters
from hw.queue import QUEUE_DEPTH
from hw.shared import shared
from hw.stash import MaskStash, Stash
from hw.streams import packet_stream
from hw.tiles.dense import ACTIVITY, DenseCore
from hw.tiles.loss import LossCore
from spec.packets import RESULT_FIELDS
from spec.plan import DensePlan, EdgePlan, HardwarePlan
from spec.registers import (
    DATA_BITS,
    IDENTITY,
    REGION_BITS,
    STATE_BASE,
    VERSION,
    AddressMap,
    ArrayRegister,
    Region,
)
from spec.schedule import channel_depth, stash_depth

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
    activity: what each tile does now, for observers: the tiles with weights in order.
    """

    def __init__(self, hardware: HardwarePlan, *, probes: bool = False) -> None:
        self._hardware, self._probes = hardware, probes
        self._map = AddressMap(hardware)
        members = {
            "i": In(packet_stream(hardware.edges[0].forward)),
            "o": Out(stream.Signature(OUTPUT)),
            "bus": In(host_bus(self._map.address_bits)),
            "activity": Out(data.ArrayLayout(ACTIVITY, len(hardware.dense))),
        }
        if probes:
            members["probe"] = In(PROBE_CONTROL)
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        hardware = self._hardware
        names = [tile.name for tile in hardware.network.tiles]
        cores: list[DenseCore | LossCore] = []
        for place, planned in enumerate(hardware.dense):
            core = self._dense(m, planned, platform)
            cores.append(core)
            m.d.comb += self.activity[place].eq(core.activity)
        loss_edge = hardware.source_of(names[-1])
        loss = LossCore(
            loss_edge.shape.channels, loss_edge.lanes, loss_edge.gradient, loss_edge.stochastic
        )
        m.submodules[names[-1]] = loss
        cores.append(loss)
        self._join(m, dict(zip(names, cores, strict=True)))
        self._results(m, cores[0], loss)
        self._bus(m, dict(zip(names, cores, strict=True)), loss.committed)
        return m

    def _dense(self, m: Module, planned: DensePlan, platform: object) -> DenseCore:
        """A tile with weights and the mask stash outside it."""
        hardware, name = self._hardware, planned.tile.name
        parameters = MacParameters(
            hardware.geometry(planned), hardware.formats(planned), hardware.sum_widths(planned)
        )
        target = hardware.target_of(name)
        core = DenseCore(parameters, hardware.source_of(name).beats, target.beats)
        m.submodules[name] = shared(core, core.key, platform)
        if planned.tile.relu:
            delay = hardware.delay(name)
            mask = MaskStash(target.lanes, target.beats, stash_depth(delay), delay)
            m.submodules[f"{name}_mask"] = mask
            wiring.connect(m, core.mask, mask.port)
        return core

    def _join(self, m: Module, cores: dict[str, DenseCore | LossCore]) -> None:
        """Per edge: the consumer's stash forwards, the producer's channel backwards."""
        for place, planned in enumerate(self._hardware.edges):
            source, target = planned.edge.source, planned.edge.target
            core, delay = cores[target], self._hardware.delay(target)
            stash = Stash(planned.forward, planned.beats, stash_depth(delay), delay=delay)
            m.submodules[f"{target}_stash"] = stash
            wiring.connect(m, core.stash, stash.reader)
            producer = cores.get(source)
            sender = producer.o if producer is not None else wiring.flipped(self.i)
            self._connect(m, place, sender, stash.i)
            if producer is not None:
                self._channel(m, planned, core, producer)

    def _channel(
        self,
        m: Module,
        planned: EdgePlan,
        consumer: DenseCore | LossCore,
        producer: DenseCore | LossCore,
    ) -> None:
        depth = channel_depth(planned.tokens)
        channel = Stash(planned.backward, planned.beats, depth, tokens=planned.tokens)
        m.submodules[f"{planned.edge.source}_channel"] = channel
        assert isinstance(producer, DenseCore)
        wiring.connect(m, producer.gradient, channel.reader)
        place = self._backward_place(planned)
        self._connect(m, place, consumer.o_gradient, channel.i)

    def _backward_place(self, planned: EdgePlan) -> int:
        """Position of an edge's backward stream in `hardware.streams`."""
        edges = self._hardware.edges
        return 2 * len(edges) - 1 - edges.index(planned)

    def _connect(self, m: Module, place: int, source: Any, sink: Any) -> None:
        """Join two streams, through a probe if asked for."""
        if not self._probes:
            m.d.comb += [
                sink.valid.eq(source.valid),
                sink.payload.eq(source.payload),
                source.ready.eq(sink.ready),
            ]
            return
        payload = source.payload.as_value()
        last = source.payload.last if "last" in source.payload.shape().members else 1
        carried, ready, valid = Signal(payload.shape()), Signal(), Signal()
        m.submodules[f"probe_{place}"] = Instance(
            "tidemill_probe",
            p_WIDTH=len(payload),
            p_INDEX=place,
            i_clk=ClockSignal(),
            i_rst=ResetSignal(),
            i_control=self.probe.as_value(),
            i_i_valid=source.valid,
            i_i_payload=payload,
            i_i_last=last,
            o_i_ready=ready,
            o_o_valid=valid,
            o_o_payload=carried,
            i_o_ready=sink.ready,
        )
        m.d.comb += [
            source.ready.eq(ready),
            sink.valid.eq(valid),
            sink.payload.as_value().eq(carried),
        ]

    def _results(self, m: Module, first: DenseCore | LossCore, loss: LossCore) -> None:
        """One result of the loss, then one backward packet of the first tile, slot by slot."""
        depth = self._hardware.delay(self._hardware.network.tiles[0].name) + 2
        m.submodules.done = done = fifo.SyncFIFOBuffered(width=2, depth=depth)
        merged = stream.Signature(OUTPUT).create(path=("merged",))
        finished = stream.Signature(first.o_gradient.payload.shape()).create(path=("finished",))
        edges = self._hardware.edges
        self._connect(m, self._backward_place(edges[0]), first.o_gradient, finished)
        self._connect(m, 2 * len(edges), merged, wiring.flipped(self.o))
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

    def _bus(self, m: Module, cores: dict[str, DenseCore | LossCore], committed: Signal) -> None:
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
        answers = [self._array_registers(m, block, offset, write, write_data, travelling, refused)]
        for name, core in cores.items():
            bus = core.bus
            mine = enable & (block == 1 + self._hardware.index(name))
            shadow = (region == Region.REGISTERS) & (offset < STATE_BASE)
            locked = travelling & shadow if isinstance(core, DenseCore) else 0
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
        stashes = sum(stash_depth(hardware.delay(tile.name)) for tile in hardware.network.tiles)
        return stashes + QUEUE_DEPTH * len(hardware.dense)

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
