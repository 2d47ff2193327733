"""The forward engine of a norm: sums row by row, then statistics, then results pixel by pixel."""

from functools import reduce
from operator import add
from typing import Any

from amaranth import Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.address import AddressGenerator
from hw.delay import delayed
from hw.norm_layouts import NormParameters
from hw.norm_rows import add_row_states, chosen
from hw.norm_scalars import StatisticsUnit
from hw.queue import OutputQueue
from hw.rounding import requantize
from hw.stash import kept_writer, stash_reader
from hw.streams import HEADER, element, packet_stream, word
from spec.packets import BeatLayout, Kind
from spec.tiles.norm import CENTRE_LATENCY, GAIN_LATENCY, NORMALISE_LATENCY, SUMS_LATENCY

NORM_QUEUE = CENTRE_LATENCY + GAIN_LATENCY + 4
EMISSION = data.StructLayout({"push": 1, "last": 1, "header": HEADER})


class NormForward(wiring.Component):
    """Takes forward packets of a norm, keeps x^ and 1 / sigma, and answers.

    Throughput: Norm.forward_cycles clocks a packet.

    Members
    -------
    stash, kept, rstd, o: see NormCore; of the kept rings, only what writes.
    enable: a packet may be taken. taken: one has been finished. commit: it says so.
    word, evaluate, gain, offset: of an affine norm, see NormParameterStore.
    """

    def __init__(self, parameters: NormParameters) -> None:
        self._p = p = parameters
        formats = p.formats
        super().__init__(
            {
                "stash": Out(stash_reader(BeatLayout(formats.source, p.lanes, True), p.beats)),
                "kept": Out(kept_writer(p.kept.size)),
                "rstd": Out(kept_writer(formats.rstd.width)),
                "o": Out(packet_stream(BeatLayout(formats.target, p.lanes, True))),
                "enable": In(1),
                "taken": Out(1),
                "commit": Out(1),
                **(self._parameter_members() if p.affine else {}),
            }
        )

    def _parameter_members(self) -> dict[str, wiring.Member]:
        p = self._p
        return {
            "word": Out(range(p.walks.words)),
            "evaluate": Out(1),
            "gain": In(word(p.parameters.working, p.lanes)),
            "offset": In(word(p.formats.offset, p.lanes)),
        }

    def elaborate(self, platform: object) -> Module:
        m = Module()
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
        self._control(m, sums, raster, unit, queue, (group, normalising, emission))
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
        return m

    def _control(
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
        bubble = Signal()
        room = self.stash.pending & self.kept.room & self.rstd.room & self.enable
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
            final = add_row_states(
                m, sums, unit, group, walks.groups_per_word, SUMS_LATENCY, "NORMALISE"
            )
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
        m.d.comb += [
            self.taken.eq(self.stash.take),
            self.commit.eq(self.kept.begin & header.commit),
        ]

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
            unit.total.eq(chosen(totals, group)),
            unit.squares.eq(chosen(totals_of_squares, group)),
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
        if p.affine:
            m.d.comb += [
                self.word.eq(delayed(m, raster.weight, 2, name="parameters")),
                self.evaluate.eq(
                    delayed(m, self.stash.header.kind == Kind.EVAL, 3, name="evaluate")
                ),
            ]
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
                m.d.sync += exact.eq(
                    self.gain[lane] * normalised + self.offset[lane].shift_left(shift)
                )
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
