"""The norm tile: group norm with fused ReLU, not affine or affine (spec/tiles/norm.py).

Two engines, forward and backward, each go through a packet twice: row by row for sums, then pixel
by pixel for results. What once a group needs is done serially between.
"""

from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any

from amaranth import Array, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.address import AddressGenerator
from hw.bus import tile_bus
from hw.delay import delayed
from hw.norm_parameters import NormParameterStore, store_bits
from hw.norm_scalars import MeansUnit, StatisticsUnit
from hw.queue import OutputQueue
from hw.random_bits import RANDOM_LATENCY, RandomWord, index_product
from hw.rounding import clamp, requantize, round_half_up
from hw.shared import shared
from hw.stash import kept_port, stash_reader
from hw.streams import HEADER, element, packet_stream, word
from hw.tile_registers import StateRegister
from spec.bus import TILE_REGISTER_BITS
from spec.formats import product_limit, signed_width
from spec.packets import BeatLayout, Kind
from spec.random_bits import Tensor
from spec.shape import Shape
from spec.tiles.norm import (
    BACKWARD_TAIL,
    CENTRE_LATENCY,
    GAIN_LATENCY,
    NORMALISE_LATENCY,
    SUMS_LATENCY,
    NormFormats,
    NormWalks,
    NormWidths,
)
from spec.update import ParameterFormats

NORM_QUEUE = CENTRE_LATENCY + GAIN_LATENCY + 4
EMISSION = data.StructLayout({"push": 1, "last": 1, "header": HEADER})
ANSWER = data.StructLayout({"push": 1, "last": 1, "kind": 2})


@dataclass(frozen=True)
class NormParameters:
    """What a norm is built for; equal parameters give the same module."""

    source: Shape
    group: int
    lanes: int
    formats: NormFormats

    @property
    def affine(self) -> bool:
        return self.formats.parameters is not None

    @property
    def parameters(self) -> ParameterFormats:
        assert self.formats.parameters is not None
        return self.formats.parameters

    @property
    def affine_bits(self) -> int:
        """Of gain x^ + offset."""
        formats = self.formats
        offset = -formats.offset.minimum << formats.affine_frac - formats.offset.frac
        return signed_width(product_limit(self.parameters.working, formats.normalised) + offset)

    @property
    def gain_bits(self) -> int:
        """Of the sum of d x^ over all pixels of a channel."""
        limit = product_limit(self.formats.target_gradient, self.formats.normalised)
        return signed_width(self.source.pixels * limit)

    @property
    def offset_bits(self) -> int:
        """Of the sum of d."""
        return signed_width(self.source.pixels * -self.formats.target_gradient.minimum)

    @property
    def masked(self) -> bool:
        """Whether a mask bit is kept: elsewhere x^ itself says what a ReLU lets through."""
        return self.affine and self.formats.relu

    @cached_property
    def walks(self) -> NormWalks:
        return NormWalks.of(self.source, self.group, self.lanes)

    @cached_property
    def widths(self) -> NormWidths:
        return NormWidths.of(self.group * self.source.pixels, self.formats)

    @property
    def beats(self) -> int:
        return self.source.elements // self.lanes

    @property
    def groups(self) -> int:
        return self.source.channels // self.group

    @property
    def statistics(self) -> data.ArrayLayout:
        """Of the groups of a row, for the forward pass."""
        each = {"mean": element(self.formats.mean), "rstd": element(self.formats.rstd)}
        return data.ArrayLayout(data.StructLayout(each), self.walks.groups_per_word)

    @property
    def means(self) -> data.ArrayLayout:
        """Of the groups of a row, for the backward pass."""
        mean = element(self.formats.gradient_mean)
        each = {"plain": mean, "weighted": mean, "rstd": element(self.formats.rstd)}
        return data.ArrayLayout(data.StructLayout(each), self.walks.groups_per_word)

    @property
    def kept(self) -> data.StructLayout:
        """A word of x^, with the mask where one is needed."""
        mask = {"mask": self.lanes} if self.masked else {}
        return data.StructLayout({"normalised": word(self.formats.normalised, self.lanes), **mask})

    def group_of(self, lane: int) -> int:
        """Place of a lane's group within its word."""
        return lane * self.walks.groups_per_word // self.lanes


class NormCore(wiring.Component):
    """Normalises forward packets, and takes the gradient back through it.

    Not affine, both directions run independently of each other, as far as the rings of what is
    kept allow; affine, they take turns, and a forward packet waits for the update before it.
    Throughput: Norm.forward_cycles and backward_cycles clocks a packet. Golden counterpart:
    model/tiles/norm.py. Cores of equal `key` are the same module.

    Members
    -------
    stash: packets at the input. gradient: those that come back.
    kept: x^ (and the mask of an affine norm's ReLU). rstd: one word a group.
    o, o_gradient: results forwards and backwards.
    bus: the random state of gradients; affine, all that a tile with parameters has.
    """

    def __init__(self, parameters: NormParameters) -> None:
        self._p = p = parameters
        self.key = parameters
        formats = p.formats
        source = BeatLayout(formats.source, p.lanes, forward=True)
        target = BeatLayout(formats.target, p.lanes, forward=True)
        source_gradient = BeatLayout(formats.source_gradient, p.lanes, forward=False)
        gradient = BeatLayout(formats.target_gradient, p.lanes, forward=False)
        bits = store_bits(p.walks.words, p.lanes) if p.affine else TILE_REGISTER_BITS
        super().__init__(
            {
                "stash": Out(stash_reader(source, p.beats)),
                "gradient": Out(stash_reader(gradient, p.beats)),
                "kept": Out(kept_port(p.kept.size, p.beats)),
                "rstd": Out(kept_port(formats.rstd.width, p.groups)),
                "o": Out(packet_stream(target)),
                "o_gradient": Out(packet_stream(source_gradient)),
                "bus": In(tile_bus(bits)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._turn = Signal()
        """Of an affine norm: whose turn it is; forward first."""
        if self._p.affine:
            self._store = store = NormParameterStore(
                self._p.walks.words, self._p.lanes, self._p.formats
            )
            m.submodules.store = store
            wiring.connect(m, wiring.flipped(self.bus), store.bus)
            self._state: Value = store.states[Tensor.GRADIENT]
        else:
            m.submodules.state = register = StateRegister(TILE_REGISTER_BITS)
            wiring.connect(m, wiring.flipped(self.bus), register.bus)
            self._state, self._register = register.state, register
        self._forward(m)
        self._backward(m, platform)
        return m

    def _forward(self, m: Module) -> None:
        p, walks = self._p, self._p.walks
        m.submodules.sums_walk = sums = AddressGenerator(walks.sums)
        m.submodules.raster_walk = raster = AddressGenerator(walks.raster)
        m.submodules.statistics = unit = StatisticsUnit(p.formats, p.widths)
        m.submodules.queue = queue = OutputQueue(self.o.payload.shape(), NORM_QUEUE)
        m.submodules.table = table = Memory(shape=p.statistics, depth=walks.rows, init=[])
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        normalising = Signal()
        m.d.comb += self.stash.beat.eq(Mux(normalising, raster.stash, sums.stash))
        group = Signal(range(walks.groups_per_word))
        emission = Signal(EMISSION)
        m.d.comb += emission.header.eq(self.stash.header)
        self._control_forward(m, sums, raster, unit, queue, (group, normalising, emission))
        self._add_up(m, sums, unit, group)
        writer, reader = table.write_port(granularity=1), table.read_port()
        row = Signal(range(walks.rows))
        with m.If(unit.done & (group == walks.groups_per_word - 1)):
            m.d.sync += row.eq(Mux(row == walks.rows - 1, 0, row + 1))
        m.d.comb += [
            writer.addr.eq(row),
            writer.en.eq(unit.done << group),
            *(writer.data[i].mean.eq(unit.mean) for i in range(walks.groups_per_word)),
            *(writer.data[i].rstd.eq(unit.rstd) for i in range(walks.groups_per_word)),
            reader.addr.eq(raster.bias),
            reader.en.eq(1),
        ]
        self._normalise(m, raster, reader.data, queue, emission)

    def _control_forward(
        self,
        m: Module,
        sums: AddressGenerator,
        raster: AddressGenerator,
        unit: StatisticsUnit,
        queue: OutputQueue,
        signals: tuple[Signal, Signal, data.View],
    ) -> None:
        """Sums of a row, statistics of its groups, the next row; then the packet."""
        group, normalising, emission = signals
        walks, header = self._p.walks, self.stash.header
        wait, final = Signal(range(SUMS_LATENCY + 1)), Signal()
        bubble = Signal()
        mine = ~self._turn if self._p.affine else 1
        room = self.stash.pending & self.kept.room & self.rstd.room & mine
        with m.FSM(name="forward"):
            with m.State("TAKE"), m.If(room):
                with m.If(header.kind != Kind.BUBBLE):
                    m.d.comb += self.kept.begin.eq(1)
                    m.next = "SUMS"
                with m.Elif(queue.room):
                    m.d.comb += [
                        bubble.eq(1),
                        self.kept.begin.eq(1),
                        emission.push.eq(1),
                        emission.last.eq(1),
                        self.stash.take.eq(1),
                    ]
            with m.State("SUMS"):
                m.d.comb += [sums.run.eq(1), sums.advance.eq(1)]
                with m.If(sums.last):
                    m.d.sync += [wait.eq(SUMS_LATENCY), final.eq(sums.final)]
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 1):
                    m.next = "START"
            with m.State("START"):
                m.d.comb += unit.start.eq(1)
                m.next = "FINISH"
            with m.State("FINISH"), m.If(unit.done):
                m.d.sync += group.eq(group + 1)
                m.next = "START"
                with m.If(group == walks.groups_per_word - 1):
                    m.d.sync += group.eq(0)
                    m.next = "SUMS"
                    with m.If(final):
                        m.next = "NORMALISE"
            with m.State("NORMALISE"):
                m.d.comb += [
                    normalising.eq(1),
                    raster.run.eq(1),
                    raster.advance.eq(queue.room),
                    emission.push.eq(raster.advance),
                    emission.last.eq(raster.final),
                    self.stash.take.eq(raster.over),
                ]
                with m.If(raster.over):
                    m.next = "TAKE"
        ended = final & (group == walks.groups_per_word - 1)
        m.d.comb += [
            self.rstd.begin.eq(self.kept.begin),
            self.rstd.valid.eq(bubble | unit.done),
            self.rstd.last.eq(bubble | ended),
            self.rstd.word.eq(unit.rstd),
            self.stash.release.eq(self.stash.take),
            queue.reserve.eq(emission.push),
        ]
        if self._p.affine:
            with m.If(self.stash.take):
                m.d.sync += self._turn.eq(1)
            m.d.comb += self._store.commit.eq(self.kept.begin & header.commit)

    def _add_up(
        self, m: Module, sums: AddressGenerator, unit: StatisticsUnit, group: Signal
    ) -> None:
        """Squares, then the groups of a word, then its pixels: a clock each."""
        p = self._p
        valid = [delayed(m, sums.step & sums.advance, 1, name="adding")]
        first = [delayed(m, sums.first, 1, name="adding_first")]
        for stage in range(2):
            valid.append(delayed(m, valid[-1], 1, name=f"adding_{stage}"))
            first.append(delayed(m, first[-1], 1, name=f"adding_first_{stage}"))
        values, squares = [], []
        for lane in range(p.lanes):
            value = Signal(element(p.formats.source), name=f"value_{lane}")
            square = Signal(2 * p.formats.source.width, name=f"square_{lane}")
            m.d.sync += [
                value.eq(self.stash.data[lane]),
                square.eq(self.stash.data[lane] * self.stash.data[lane]),
            ]
            values.append(value)
            squares.append(square)
        totals: list[Value] = []
        totals_of_squares: list[Value] = []
        for place in range(p.walks.groups_per_word):
            mine = [lane for lane in range(p.lanes) if p.group_of(lane) == place]
            for terms, width, found, name in (
                (values, signed(p.widths.total), totals, "total"),
                (squares, p.widths.squares, totals_of_squares, "squares"),
            ):
                partial = Signal(width, name=f"{name}_partial_{place}")
                total = Signal(width, name=f"{name}_{place}")
                m.d.sync += partial.eq(reduce(add, (terms[lane] for lane in mine)))
                with m.If(valid[2]):
                    m.d.sync += total.eq(Mux(first[2], 0, total) + partial)
                found.append(total)
        m.d.comb += [
            unit.total.eq(_chosen(totals, group)),
            unit.squares.eq(_chosen(totals_of_squares, group)),
        ]

    def _normalise(
        self,
        m: Module,
        raster: AddressGenerator,
        statistics: Any,
        queue: OutputQueue,
        emission: data.View,
    ) -> None:
        """Deviation, product, x^, output: a clock each."""
        p, formats = self._p, self._p.formats
        late = delayed(m, emission, NORMALISE_LATENCY, name="emission")
        read = delayed(m, statistics, 1, name="statistics")
        results = Signal(word(formats.target, p.lanes))
        kept = Signal(p.kept)
        gains: list[Value] = []
        offsets: list[Value] = []
        if p.affine:
            evaluate = self.stash.header.kind == Kind.EVAL
            self._forward_word = delayed(m, raster.weight, 2, name="forward_word")
            self._forward_evaluate = delayed(m, evaluate, 3, name="forward_evaluate")
            gains = [self._store.gain[lane] for lane in range(p.lanes)]
            offsets = [self._store.offset[lane] for lane in range(p.lanes)]
        for lane in range(p.lanes):
            group = statistics[p.group_of(lane)]
            value = self.stash.data[lane].shift_left(formats.guard)
            deviation = Signal(signed(formats.mean.width + 1), name=f"deviation_{lane}")
            product = Signal(
                signed(formats.mean.width + 1 + formats.rstd.width), name=f"normal_{lane}"
            )
            normalised = Signal(element(formats.normalised), name=f"normalised_{lane}")
            frac = formats.mean.frac + formats.rstd.frac
            m.d.sync += [
                deviation.eq(value - group.mean),
                product.eq(deviation * read[p.group_of(lane)].rstd),
                normalised.eq(requantize(product, frac, formats.normalised)),
            ]
            shown = delayed(m, normalised, 1, name=f"kept_{lane}")
            exact, frac = shown, formats.normalised.frac
            if p.affine:
                exact = Signal(signed(p.affine_bits), name=f"affine_{lane}")
                shift = formats.affine_frac - formats.offset.frac
                m.d.sync += exact.eq(gains[lane] * normalised + offsets[lane].shift_left(shift))
                frac = formats.affine_frac
            result = Signal(element(formats.target), name=f"result_{lane}")
            m.d.comb += result.eq(requantize(exact, frac, formats.target))
            positive = Mux(result > 0, result, 0) if formats.relu else result
            m.d.comb += [results[lane].eq(positive), kept.normalised[lane].eq(shown)]
            if p.masked:
                m.d.comb += kept.mask[lane].eq(result > 0)
        m.d.comb += [
            queue.push.eq(late.push),
            queue.beat.last.eq(late.last),
            queue.beat.kind.eq(late.header.kind),
            queue.beat.commit.eq(late.header.commit),
            queue.beat.label.eq(late.header.label),
            self.kept.valid.eq(late.push),
            self.kept.last.eq(late.last),
            self.kept.word.eq(kept),
        ]
        with m.If(late.header.kind != Kind.BUBBLE):
            m.d.comb += queue.beat.data.eq(results)

    def _backward(self, m: Module, platform: object) -> None:
        p, walks = self._p, self._p.walks
        m.submodules.back_sums_walk = sums = AddressGenerator(walks.sums)
        m.submodules.back_raster_walk = raster = AddressGenerator(walks.raster)
        m.submodules.means = unit = MeansUnit(p.formats, p.widths)
        m.submodules.gradient_queue = queue = OutputQueue(
            self.o_gradient.payload.shape(), NORM_QUEUE
        )
        m.submodules.means_table = table = Memory(shape=p.means, depth=walks.rows, init=[])
        wiring.connect(m, queue.o, wiring.flipped(self.o_gradient))
        group, row = Signal(range(walks.groups_per_word)), Signal(range(walks.rows))
        centring, emission = Signal(), Signal(ANSWER)
        address = Mux(centring, raster.stash, sums.stash)
        m.d.comb += [self.gradient.beat.eq(address), self.kept.beat.eq(address)]
        gradients, raw, normalised = self._read_gradients(m, sums, raster, centring)
        self._control_backward(m, sums, raster, unit, queue, (group, centring, emission))
        self._add_up_gradients(m, sums, unit, group, gradients, normalised)
        if p.affine:
            self._add_up_parameters(m, sums, raw, normalised)
        writer, reader = table.write_port(granularity=1), table.read_port()
        with m.If(unit.done & (group == walks.groups_per_word - 1)):
            m.d.sync += row.eq(Mux(row == walks.rows - 1, 0, row + 1))
        front = GAIN_LATENCY if p.affine else 0
        m.d.comb += [
            self.rstd.beat.eq(row * walks.groups_per_word + group),
            writer.addr.eq(row),
            writer.en.eq(unit.done << group),
            reader.addr.eq(delayed(m, raster.bias, front, name="means_row")),
            reader.en.eq(1),
        ]
        for place in range(walks.groups_per_word):
            m.d.comb += [
                writer.data[place].plain.eq(unit.plain_mean),
                writer.data[place].weighted.eq(unit.weighted_mean),
                writer.data[place].rstd.eq(self.rstd.data),
            ]
        self._centre(m, platform, raster, reader.data, (gradients, normalised), queue, emission)

    def _read_gradients(
        self, m: Module, sums: AddressGenerator, raster: AddressGenerator, centring: Signal
    ) -> tuple[list[Value], list[Value], list[Value]]:
        """d, masked gradients and x^ of each lane, two clocks after their address; the gains of an
        affine norm take GAIN_LATENCY more, for which the other two are held back."""
        p, formats = self._p, self._p.formats
        kept = data.View(p.kept, self.kept.data)
        if p.affine:
            channel = delayed(m, Mux(centring, raster.weight, sums.weight), 1, name="gain_word")
            # The last words of a forward packet are still on their way when the turn goes over.
            late_turn = delayed(m, self._turn, 3, name="turn")
            m.d.comb += [
                self._store.word.eq(Mux(late_turn, channel, self._forward_word)),
                self._store.evaluate.eq(late_turn | self._forward_evaluate),
            ]
        gradients, raw, normalised = [], [], []
        for lane in range(p.lanes):
            passed: Value = Value.cast(1)
            if formats.relu:
                passed = kept.mask[lane] if p.masked else kept.normalised[lane] > 0
            masked = Signal(element(formats.target_gradient), name=f"masked_{lane}")
            x = Signal(element(formats.normalised), name=f"x_{lane}")
            m.d.sync += [
                masked.eq(Mux(passed, self.gradient.data[lane], 0)),
                x.eq(kept.normalised[lane]),
            ]
            if p.affine:
                working = p.parameters.working
                product = Signal(
                    signed(masked.shape().width + working.width), name=f"gained_{lane}"
                )
                scaled = Signal(element(formats.gradient), name=f"scaled_{lane}")
                late = delayed(m, masked, 1, name=f"late_masked_{lane}")
                frac = formats.target_gradient.frac + working.frac
                m.d.sync += product.eq(late * self._store.gain[lane])
                m.d.comb += scaled.eq(requantize(product, frac, formats.gradient))
                gradients.append(scaled)
                raw.append(delayed(m, late, 1, name=f"raw_{lane}"))
                normalised.append(delayed(m, x, GAIN_LATENCY, name=f"late_x_{lane}"))
            else:
                gradients.append(masked)
                normalised.append(x)
        return gradients, raw, normalised

    def _control_backward(
        self,
        m: Module,
        sums: AddressGenerator,
        raster: AddressGenerator,
        unit: MeansUnit,
        queue: OutputQueue,
        signals: tuple[Signal, Signal, data.View],
    ) -> None:
        """Sums of a row, means of its groups, the next row; the packet; then the update."""
        group, centring, emission = signals
        p, walks = self._p, self._p.walks
        latency = SUMS_LATENCY + (GAIN_LATENCY + walks.words_per_group if p.affine else 0)
        tail = BACKWARD_TAIL + (GAIN_LATENCY if p.affine else 0)
        wait, final = Signal(range(max(latency, tail) + 1)), Signal()
        bubble, finished = Signal(), Signal()
        mine = self._turn if p.affine else 1
        with m.FSM(name="backward"):
            with m.State("TAKE"), m.If(self.gradient.pending & mine):
                with m.If(self.gradient.header.kind != Kind.BUBBLE):
                    m.next = "SUMS"
                with m.Elif(queue.room):
                    m.d.comb += [bubble.eq(1), emission.push.eq(1), emission.last.eq(1)]
            with m.State("SUMS"):
                m.d.comb += [sums.run.eq(1), sums.advance.eq(1)]
                with m.If(sums.last):
                    m.d.sync += [wait.eq(latency), final.eq(sums.final)]
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 1):
                    m.next = "START"
            with m.State("START"):
                m.d.comb += unit.start.eq(1)
                m.next = "FINISH"
            with m.State("FINISH"), m.If(unit.done):
                m.d.sync += group.eq(group + 1)
                m.next = "START"
                with m.If(group == walks.groups_per_word - 1):
                    m.d.sync += group.eq(0)
                    m.next = "SUMS"
                    with m.If(final):
                        m.next = "CENTRE"
            with m.State("CENTRE"):
                m.d.comb += [
                    centring.eq(1),
                    raster.run.eq(1),
                    raster.advance.eq(queue.room),
                    emission.push.eq(raster.advance),
                    emission.last.eq(raster.final),
                    emission.kind.eq(Kind.TRAIN),
                ]
                with m.If(raster.over):
                    m.d.sync += wait.eq(tail)
                    m.next = "TAIL"
            with m.State("TAIL"):
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 1):
                    if p.affine:
                        m.d.comb += self._store.update.eq(1)
                        m.next = "UPDATE"
                    else:
                        m.d.comb += [finished.eq(1), self._register.updated.eq(1)]
                        m.next = "TAKE"
            if p.affine:
                with m.State("UPDATE"), m.If(self._store.done):
                    m.d.comb += [finished.eq(1), self._store.updated.eq(1)]
                    m.next = "TAKE"
        taken = bubble | finished
        m.d.comb += [
            queue.reserve.eq(emission.push),
            self.gradient.take.eq(taken),
            self.gradient.release.eq(taken),
            self.kept.release.eq(taken),
            self.rstd.release.eq(taken),
        ]
        if p.affine:
            with m.If(taken):
                m.d.sync += self._turn.eq(0)

    def _add_up_gradients(
        self,
        m: Module,
        sums: AddressGenerator,
        unit: MeansUnit,
        group: Signal,
        gradients: list[Value],
        normalised: list[Value],
    ) -> None:
        """Products with x^, then the groups of a word, then its pixels: a clock each."""
        p = self._p
        first, valid = self._sum_flags(m, sums)
        terms, weighted = [], []
        for lane in range(p.lanes):
            product = Signal(
                signed(p.formats.gradient.width + p.formats.normalised.width),
                name=f"weighted_{lane}",
            )
            m.d.sync += product.eq(gradients[lane] * normalised[lane])
            terms.append(delayed(m, Value.cast(gradients[lane]), 1, name=f"term_{lane}"))
            weighted.append(product)
        totals: list[Value] = []
        totals_weighted: list[Value] = []
        for place in range(p.walks.groups_per_word):
            mine = [lane for lane in range(p.lanes) if p.group_of(lane) == place]
            for parts, width, found, name in (
                (terms, p.widths.gradients, totals, "gradients"),
                (weighted, p.widths.weighted, totals_weighted, "weighted"),
            ):
                total = Signal(signed(width), name=f"{name}_{place}")
                partial = reduce(add, (parts[lane] for lane in mine))
                with m.If(valid):
                    m.d.sync += total.eq(Mux(first, 0, total) + partial)
                found.append(total)
        m.d.comb += [
            unit.total.eq(_chosen(totals, group)),
            unit.weighted.eq(_chosen(totals_weighted, group)),
        ]

    def _sum_flags(self, m: Module, sums: AddressGenerator) -> tuple[Value, Value]:
        """First of a row and valid, as the products of d and x^ are."""
        wait = 3 + (GAIN_LATENCY if self._p.affine else 0)
        first = delayed(m, sums.first, wait, name="gradient_first")
        return first, delayed(m, sums.step & sums.advance, wait, name="gradient_step")

    def _add_up_parameters(
        self, m: Module, sums: AddressGenerator, raw: list[Value], normalised: list[Value]
    ) -> None:
        """Gradients of gains and offsets: sums over pixels, one word of a row after the other."""
        p, inner = self._p, self._p.walks.words_per_group
        gradient, store = p.parameters.gradient, self._store
        first, valid = self._sum_flags(m, sums)
        wait = 3 + GAIN_LATENCY
        last = delayed(m, sums.last & sums.step, wait + 1, name="row_end")
        place = Signal(range(inner), name="row_word")
        fresh = Signal(name="row_fresh")
        with m.If(valid):
            m.d.sync += place.eq(Mux(place == inner - 1, 0, place + 1))
            with m.If(place == inner - 1):
                m.d.sync += fresh.eq(0)
        with m.If(valid & first):
            m.d.sync += fresh.eq(inner > 1)
        clear = first | fresh
        gains: list[list[Signal]] = []
        offsets: list[list[Signal]] = []
        for lane in range(p.lanes):
            product = Signal(
                signed(p.formats.target_gradient.width + p.formats.normalised.width),
                name=f"gain_product_{lane}",
            )
            late = delayed(m, raw[lane], 1, name=f"offset_term_{lane}")
            m.d.sync += product.eq(raw[lane] * normalised[lane])
            for term, width, found, name in (
                (product, p.gain_bits, gains, "gain"),
                (late, p.offset_bits, offsets, "offset"),
            ):
                words = [Signal(signed(width), name=f"{name}_sum_{lane}_{i}") for i in range(inner)]
                for i, total in enumerate(words):
                    with m.If(valid & (place == i)):
                        m.d.sync += total.eq(Mux(clear, 0, total) + term)
                found.append(words)
        stored, channel = Signal(range(inner)), Signal(range(p.walks.words))
        storing = Signal()
        with m.If(last):
            m.d.sync += [storing.eq(1), stored.eq(0)]
        with m.If(storing):
            m.d.sync += [
                stored.eq(stored + 1),
                channel.eq(Mux(channel == p.walks.words - 1, 0, channel + 1)),
                storing.eq(stored != inner - 1),
            ]
        m.d.comb += [store.gradient_valid.eq(storing), store.gradient_word.eq(channel)]
        for lane in range(p.lanes):
            gain, offset = _chosen(gains[lane], stored), _chosen(offsets[lane], stored)
            m.d.comb += [
                store.gain_gradient[lane].eq(
                    requantize(gain, p.formats.gain_gradient_frac, gradient)
                ),
                store.offset_gradient[lane].eq(
                    requantize(offset, p.formats.target_gradient.frac, gradient)
                ),
            ]

    def _centre(
        self,
        m: Module,
        platform: object,
        raster: AddressGenerator,
        means: Any,
        operands: tuple[list[Value], list[Value]],
        queue: OutputQueue,
        emission: data.View,
    ) -> None:
        """x^ m2, centred gradient, product with rstd, dx: a clock each."""
        p, formats = self._p, self._p.formats
        gradients, normalised = operands
        front = GAIN_LATENCY if p.affine else 0
        late = delayed(m, emission, CENTRE_LATENCY + front, name="centre_emission")
        base = delayed(m, raster.index, CENTRE_LATENCY + front - RANDOM_LATENCY, name="dx_index")
        read = delayed(m, means, 1, name="means")
        later = delayed(m, read, 1, name="later_means")
        latest = delayed(m, later, 1, name="latest_means")
        frac = formats.normalised.frac
        width = formats.centred.width + frac + 4
        for lane in range(p.lanes):
            group = p.group_of(lane)
            weighted = Signal(
                signed(formats.normalised.width + formats.gradient_mean.width),
                name=f"pulled_{lane}",
            )
            plain = Signal(signed(width), name=f"plain_{lane}")
            exact = Signal(signed(width), name=f"exact_{lane}")
            centred = Signal(element(formats.centred), name=f"centred_{lane}")
            product = Signal(signed(formats.centred.width + formats.rstd.width), name=f"dx_{lane}")
            aligned = gradients[lane].shift_left(formats.gradient_guard + frac)
            m.d.sync += [
                weighted.eq(normalised[lane] * read[group].weighted),
                plain.eq(aligned - read[group].plain.shift_left(frac)),
                centred.eq(clamp(round_half_up(exact, frac), formats.centred)),
                product.eq(centred * latest[group].rstd),
            ]
            m.d.comb += exact.eq(plain - weighted)
            random = None
            if formats.source_stochastic:
                generator = RandomWord()
                m.submodules[f"random_{lane}"] = shared(generator, None, platform)
                m.d.comb += [
                    generator.state.eq(self._state),
                    generator.late_state.eq(self._state),
                    generator.base.eq(base),
                    generator.offset.eq(index_product(lane + 1)),
                ]
                random = generator.word
            dx_frac = formats.centred.frac + formats.rstd.frac
            with m.If(late.kind != Kind.BUBBLE):
                m.d.comb += queue.beat.data[lane].eq(
                    requantize(product, dx_frac, formats.source_gradient, random)
                )
        m.d.comb += [
            queue.push.eq(late.push),
            queue.beat.last.eq(late.last),
            queue.beat.kind.eq(late.kind),
        ]


def _chosen(values: list[Any], place: Signal) -> Value:
    return values[0] if len(values) == 1 else Array(values)[place]
