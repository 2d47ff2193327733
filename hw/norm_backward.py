"""The backward engine of a norm: sums row by row, then means, then gradients pixel by pixel."""

from functools import reduce
from operator import add
from typing import Any

from amaranth import Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.address import AddressGenerator
from hw.delay import delayed
from hw.norm_forward import NORM_QUEUE
from hw.norm_layouts import NormParameters
from hw.norm_rows import add_row_states, chosen
from hw.norm_scalars import MeansUnit
from hw.queue import OutputQueue
from hw.random_bits import RANDOM_LATENCY, RandomWord, index_product
from hw.rounding import clamp, requantize, round_half_up
from hw.shared import shared
from hw.stash import kept_reader, stash_reader
from hw.streams import element, packet_stream, word
from spec.packets import BeatLayout, Kind
from spec.tiles.norm import BACKWARD_TAIL, CENTRE_LATENCY, GAIN_LATENCY, SUMS_LATENCY

ANSWER = data.StructLayout({"push": 1, "last": 1, "kind": 2})


class NormBackward(wiring.Component):
    """Takes gradients of a norm back through it and, affine, adds up those of its parameters.

    Throughput: Norm.backward_cycles clocks a packet.

    Members
    -------
    gradient, kept, rstd: see NormCore; of the kept rings, only what reads.
    o: gradients towards the input. state: random state of their rounding.
    enable: a packet may be taken. taken: one has been finished; updated: it had a gradient.
    word, gain, gradient_valid ... done: of an affine norm, see NormParameterStore.
    """

    def __init__(self, parameters: NormParameters) -> None:
        self._p = p = parameters
        formats = p.formats
        gradient = BeatLayout(formats.target_gradient, p.lanes, forward=False)
        super().__init__(
            {
                "gradient": Out(stash_reader(gradient, p.beats)),
                "kept": Out(kept_reader(p.kept.size, p.beats)),
                "rstd": Out(kept_reader(formats.rstd.width, p.groups)),
                "o": Out(packet_stream(BeatLayout(formats.source_gradient, p.lanes, False))),
                "state": In(32),
                "enable": In(1),
                "taken": Out(1),
                "updated": Out(1),
                **(self._parameter_members() if p.affine else {}),
            }
        )

    def _parameter_members(self) -> dict[str, wiring.Member]:
        p = self._p
        gradients = word(p.parameters.gradient, p.lanes)
        return {
            "word": Out(range(p.walks.words)),
            "gain": In(word(p.parameters.working, p.lanes)),
            "gradient_valid": Out(1),
            "gradient_word": Out(range(p.walks.words)),
            "gain_gradient": Out(gradients),
            "offset_gradient": Out(gradients),
            "update": Out(1),
            "done": In(1),
        }

    def elaborate(self, platform: object) -> Module:
        m = Module()
        p, walks = self._p, self._p.walks
        m.submodules.sums_walk = sums = AddressGenerator(walks.sums)
        m.submodules.raster_walk = raster = AddressGenerator(walks.raster)
        m.submodules.means = unit = MeansUnit(p.formats, p.widths)
        m.submodules.queue = queue = OutputQueue(self.o.payload.shape(), NORM_QUEUE)
        m.submodules.table = table = Memory(shape=p.means, depth=walks.rows, init=[])
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        group, row = Signal(range(walks.groups_per_word)), Signal(range(walks.rows))
        centring, emission = Signal(), Signal(ANSWER)
        address = Mux(centring, raster.stash, sums.stash)
        m.d.comb += [self.gradient.beat.eq(address), self.kept.beat.eq(address)]
        gradients, raw, normalised = self._read_gradients(m, sums, raster, centring)
        self._control(m, sums, raster, unit, queue, (group, centring, emission))
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
        return m

    def _read_gradients(
        self, m: Module, sums: AddressGenerator, raster: AddressGenerator, centring: Signal
    ) -> tuple[list[Value], list[Value], list[Value]]:
        """d, masked gradients and x^ of each lane, two clocks after their address; the gains of an
        affine norm take GAIN_LATENCY more, for which the other two are held back."""
        p, formats = self._p, self._p.formats
        kept = data.View(p.kept, self.kept.data)
        if p.affine:
            channel = delayed(m, Mux(centring, raster.weight, sums.weight), 1, name="gain_word")
            m.d.comb += self.word.eq(channel)
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
                m.d.sync += product.eq(late * self.gain[lane])
                m.d.comb += scaled.eq(requantize(product, frac, formats.gradient))
                gradients.append(scaled)
                raw.append(delayed(m, late, 1, name=f"raw_{lane}"))
                normalised.append(delayed(m, x, GAIN_LATENCY, name=f"late_x_{lane}"))
            else:
                gradients.append(masked)
                normalised.append(x)
        return gradients, raw, normalised

    def _control(
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
        wait = Signal(range(tail + 1))
        bubble = Signal()
        with m.FSM(name="backward"):
            with m.State("TAKE"), m.If(self.gradient.pending & self.enable):
                with m.If(self.gradient.header.kind != Kind.BUBBLE):
                    m.next = "SUMS"
                with m.Elif(queue.room):
                    m.d.comb += [bubble.eq(1), emission.push.eq(1), emission.last.eq(1)]
            add_row_states(m, sums, unit, group, walks.groups_per_word, latency, "CENTRE")
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
                        m.d.comb += self.update.eq(1)
                        m.next = "UPDATE"
                    else:
                        m.d.comb += self.updated.eq(1)
                        m.next = "TAKE"
            if p.affine:
                with m.State("UPDATE"), m.If(self.done):
                    m.d.comb += self.updated.eq(1)
                    m.next = "TAKE"
        taken = bubble | self.updated
        m.d.comb += [
            queue.reserve.eq(emission.push),
            self.gradient.take.eq(taken),
            self.gradient.release.eq(taken),
            self.kept.release.eq(taken),
            self.rstd.release.eq(taken),
            self.taken.eq(taken),
        ]

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
            unit.total.eq(chosen(totals, group)),
            unit.weighted.eq(chosen(totals_weighted, group)),
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
        gradient = p.parameters.gradient
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
        m.d.comb += [self.gradient_valid.eq(storing), self.gradient_word.eq(channel)]
        for lane in range(p.lanes):
            gain, offset = chosen(gains[lane], stored), chosen(offsets[lane], stored)
            m.d.comb += [
                self.gain_gradient[lane].eq(
                    requantize(gain, p.formats.gain_gradient_frac, gradient)
                ),
                self.offset_gradient[lane].eq(
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
                    generator.state.eq(self.state),
                    generator.late_state.eq(self.state),
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
