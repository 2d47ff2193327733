"""The pool tiles: 2x2 maximum and global average. Golden counterpart: model/tiles/pool.py."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.address import AddressGenerator
from hw.bus import tile_bus
from hw.delay import delayed
from hw.queue import OutputQueue
from hw.random_bits import RANDOM_LATENCY, RandomWord, index_product
from hw.rounding import requantize
from hw.stash import kept_port, stash_reader
from hw.streams import HEADER, element, packet_stream
from hw.tile_registers import StateRegister
from spec.bus import TILE_REGISTER_BITS
from spec.formats import Fixed
from spec.packets import BeatLayout, Kind
from spec.reciprocal import Reciprocal
from spec.shape import Shape
from spec.tiles.pool import (
    AVERAGE_TAIL,
    MAXIMUM_LATENCY,
    WINDOW,
    average_backward,
    average_forward,
    maximum_backward,
    maximum_forward,
)

PLACE_BITS = 2
"""Of a maximum's place in its window."""


class MaxPoolCore(wiring.Component):
    """The largest of each 2x2 window; its place is kept for the gradient.

    Forward and backward packets are handled independently of each other, as far as the ring of
    kept places allows. Throughput: MaxPool.forward_cycles and backward_cycles clocks a packet.

    Parameters
    ----------
    source: shape of the input.
    lanes: channels of a beat on all streams.
    activation, gradient: formats of both sides.

    Members
    -------
    stash: packets at the input. gradient: those that come back.
    kept: the place of each maximum in its window, row by row.
    o, o_gradient: results forwards and backwards.
    """

    def __init__(self, source: Shape, lanes: int, activation: Fixed, gradient: Fixed) -> None:
        self.key = (source, lanes, activation, gradient)
        self._source, self._lanes = source, lanes
        target = Shape(source.rows // WINDOW, source.columns // WINDOW, source.channels)
        self._words = target.elements // lanes
        forward = BeatLayout(activation, lanes, forward=True)
        backward = BeatLayout(gradient, lanes, forward=False)
        super().__init__(
            {
                "stash": Out(stash_reader(forward, source.elements // lanes)),
                "gradient": Out(stash_reader(backward, self._words)),
                "kept": Out(kept_port(PLACE_BITS * lanes, self._words)),
                "o": Out(packet_stream(forward)),
                "o_gradient": Out(packet_stream(backward)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._forward(m)
        self._backward(m)
        return m

    def _forward(self, m: Module) -> None:
        m.submodules.forward_walk = walk = AddressGenerator(
            maximum_forward(self._source, self._lanes)
        )
        m.submodules.queue = queue = OutputQueue(self.o.payload.shape())
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        bubble = self._control_forward(m, walk, queue)
        step, first, last, final = (
            delayed(m, signal, 1, name=name)
            for name, signal in (
                ("step", walk.step & walk.advance),
                ("first", walk.first),
                ("last", walk.last),
                ("final", walk.final),
            )
        )
        largest, places = self._compare(m, step, first)
        header = delayed(m, self.stash.header, MAXIMUM_LATENCY, name="header")
        done = delayed(m, step & last, 1, name="done") | bubble
        m.d.comb += [
            queue.push.eq(done),
            queue.beat.last.eq(bubble | delayed(m, final, 1, name="ending")),
            queue.beat.kind.eq(header.kind),
            queue.beat.commit.eq(header.commit),
            queue.beat.label.eq(header.label),
            self.kept.valid.eq(done),
            self.kept.last.eq(queue.beat.last),
            self.kept.word.eq(places),
        ]
        with m.If(~bubble):
            m.d.comb += queue.beat.data.eq(largest)

    def _control_forward(self, m: Module, walk: AddressGenerator, queue: OutputQueue) -> Signal:
        """Take a packet when its places have room; returns when a bubble's beat is due."""
        begun = Signal()
        bubble = Signal()
        m.d.comb += self.stash.beat.eq(walk.stash)
        with m.FSM(name="forward"):
            with m.State("TAKE"), m.If(self.stash.pending & self.kept.room):
                with m.If(self.stash.header.kind != Kind.BUBBLE):
                    m.d.comb += begun.eq(1)
                    m.next = "WALK"
                with m.Elif(queue.room):
                    m.d.comb += [
                        begun.eq(1),
                        bubble.eq(1),
                        queue.reserve.eq(1),
                        self.stash.take.eq(1),
                    ]
            with m.State("WALK"):
                m.d.comb += [
                    walk.run.eq(1),
                    walk.advance.eq(queue.room | ~walk.last),
                    queue.reserve.eq(walk.advance & walk.last),
                    self.stash.take.eq(walk.over),
                ]
                with m.If(walk.over):
                    m.next = "TAKE"
        m.d.comb += [self.kept.begin.eq(begun), self.stash.release.eq(self.stash.take)]
        late: Signal = delayed(m, bubble, MAXIMUM_LATENCY, name="bubble")
        return late

    def _compare(self, m: Module, step: Signal, first: Signal) -> tuple[Signal, Signal]:
        """The largest so far of every lane, and where in the window it came first."""
        place = Signal(PLACE_BITS)
        shape = self.stash.data.shape()
        largest = Signal(shape)
        places = Signal(data.ArrayLayout(PLACE_BITS, self._lanes))
        with m.If(step):
            m.d.sync += place.eq(Mux(first, 1, place + 1))
            for lane in range(self._lanes):
                with m.If(first | (self.stash.data[lane] > largest[lane])):
                    m.d.sync += [
                        largest[lane].eq(self.stash.data[lane]),
                        places[lane].eq(Mux(first, 0, place)),
                    ]
        return largest, places

    def _backward(self, m: Module) -> None:
        """Every input pixel in order: the gradient of its window if it was the largest."""
        m.submodules.backward_walk = walk = AddressGenerator(
            maximum_backward(self._source, self._lanes)
        )
        m.submodules.gradient_queue = queue = OutputQueue(self.o_gradient.payload.shape())
        wiring.connect(m, queue.o, wiring.flipped(self.o_gradient))
        bubble = Signal()
        m.d.comb += [self.gradient.beat.eq(walk.gradient), self.kept.beat.eq(walk.gradient)]
        with m.FSM(name="backward"):
            with m.State("TAKE"), m.If(self.gradient.pending):
                with m.If(self.gradient.header.kind != Kind.BUBBLE):
                    m.next = "WALK"
                with m.Elif(queue.room):
                    m.d.comb += [
                        bubble.eq(1),
                        queue.reserve.eq(1),
                        self.gradient.take.eq(1),
                    ]
            with m.State("WALK"):
                m.d.comb += [
                    walk.run.eq(1),
                    walk.advance.eq(queue.room),
                    queue.reserve.eq(walk.advance),
                    self.gradient.take.eq(walk.over),
                ]
                with m.If(walk.over):
                    m.next = "TAKE"
        taken = delayed(m, walk.step & walk.advance, 1, name="backward_step")
        late = delayed(m, bubble, 1, name="backward_bubble")
        place = delayed(m, walk.weight, 1, name="place")
        outside = delayed(m, walk.padded, 1, name="outside")
        m.d.comb += [
            self.gradient.release.eq(self.gradient.take),
            self.kept.release.eq(self.gradient.take),
            queue.push.eq(taken | late),
            queue.beat.kind.eq(Mux(late, Kind.BUBBLE, Kind.TRAIN)),
            queue.beat.last.eq(late | delayed(m, walk.final, 1, name="backward_final")),
        ]
        for lane in range(self._lanes):
            chosen = self.kept.data.word_select(lane, PLACE_BITS) == place
            with m.If(taken & chosen & ~outside):
                m.d.comb += queue.beat.data[lane].eq(self.gradient.data[lane])


class AveragePoolCore(wiring.Component):
    """The mean of each channel over all pixels; backwards an equal share for each.

    Forward and backward packets are handled independently of each other. Throughput:
    AveragePool.forward_cycles and backward_cycles clocks a packet.

    Parameters
    ----------
    source: shape of the input.
    lanes: channels of a beat on all streams.
    activation, target: formats of the input and of the mean.
    source_gradient, gradient: formats of the gradients that leave and that come back.
    stochastic: whether the former are rounded stochastically.

    Members
    -------
    stash: packets at the input. gradient: those that come back.
    o, o_gradient: results forwards and backwards.
    bus: the random state.
    """

    def __init__(
        self,
        source: Shape,
        lanes: int,
        activation: Fixed,
        target: Fixed,
        source_gradient: Fixed,
        gradient: Fixed,
        stochastic: bool,
    ) -> None:
        self.key = (source, lanes, activation, target, source_gradient, gradient, stochastic)
        self._source, self._lanes, self._stochastic = source, lanes, stochastic
        self._activation, self._target = activation, target
        self._source_gradient, self._gradient = source_gradient, gradient
        self._reciprocal = Reciprocal.of(source.pixels)
        forward = BeatLayout(activation, lanes, forward=True)
        backward = BeatLayout(gradient, lanes, forward=False)
        super().__init__(
            {
                "stash": Out(stash_reader(forward, source.elements // lanes)),
                "gradient": Out(stash_reader(backward, source.channels // lanes)),
                "o": Out(packet_stream(BeatLayout(target, lanes, forward=True))),
                "o_gradient": Out(packet_stream(BeatLayout(source_gradient, lanes, False))),
                "bus": In(tile_bus(TILE_REGISTER_BITS)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._forward(m)
        self._backward(m)
        return m

    def _forward(self, m: Module) -> None:
        m.submodules.forward_walk = walk = AddressGenerator(
            average_forward(self._source, self._lanes)
        )
        m.submodules.queue = queue = OutputQueue(self.o.payload.shape())
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        emission = Signal(data.StructLayout({"push": 1, "last": 1, "header": HEADER}))
        m.d.comb += [emission.header.eq(self.stash.header), self.stash.beat.eq(walk.stash)]
        with m.FSM(name="forward"):
            with m.State("TAKE"), m.If(self.stash.pending):
                with m.If(self.stash.header.kind != Kind.BUBBLE):
                    m.next = "WALK"
                with m.Elif(queue.room):
                    m.d.comb += [
                        emission.push.eq(1),
                        emission.last.eq(1),
                        self.stash.take.eq(1),
                    ]
            with m.State("WALK"):
                m.d.comb += [
                    walk.run.eq(1),
                    walk.advance.eq(queue.room | ~walk.last),
                    emission.push.eq(walk.advance & walk.last),
                    emission.last.eq(walk.final),
                    self.stash.take.eq(walk.over),
                ]
                with m.If(walk.over):
                    m.next = "TAKE"
        step = delayed(m, walk.step & walk.advance, 1, name="step")
        first = delayed(m, walk.first, 1, name="first")
        late = delayed(m, emission, 3, name="emission")
        m.d.comb += [
            self.stash.release.eq(self.stash.take),
            queue.reserve.eq(emission.push),
            queue.push.eq(late.push),
            queue.beat.last.eq(late.last),
            queue.beat.kind.eq(late.header.kind),
            queue.beat.commit.eq(late.header.commit),
            queue.beat.label.eq(late.header.label),
        ]
        for lane in range(self._lanes):
            mean = self._mean(m, self.stash.data[lane], step, first, lane)
            with m.If(late.header.kind != Kind.BUBBLE):
                m.d.comb += queue.beat.data[lane].eq(mean)

    def _mean(self, m: Module, term: Signal, step: Signal, first: Signal, lane: int) -> Signal:
        """Add, multiply by the reciprocal, round: a clock each."""
        limit = max(-self._activation.minimum, self._activation.maximum) * self._source.pixels
        total = Signal(range(-limit, limit + 1), name=f"total_{lane}")
        scaled = limit * self._reciprocal.mantissa
        product = Signal(range(-scaled, scaled + 1), name=f"mean_product_{lane}")
        with m.If(step):
            m.d.sync += total.eq(Mux(first, 0, total) + term)
        m.d.sync += product.eq(total * self._reciprocal.mantissa)
        mean = Signal(element(self._target), name=f"mean_{lane}")
        frac = self._activation.frac + self._reciprocal.shift
        m.d.comb += mean.eq(requantize(product, frac, self._target))
        return mean

    def _backward(self, m: Module) -> None:
        m.submodules.backward_walk = walk = AddressGenerator(
            average_backward(self._source, self._lanes)
        )
        m.submodules.gradient_queue = queue = OutputQueue(self.o_gradient.payload.shape())
        m.submodules.state = state = StateRegister(TILE_REGISTER_BITS)
        wiring.connect(m, queue.o, wiring.flipped(self.o_gradient))
        wiring.connect(m, wiring.flipped(self.bus), state.bus)
        emission = Signal(data.StructLayout({"push": 1, "last": 1, "kind": 2}))
        tail = Signal(range(AVERAGE_TAIL + 1))
        m.d.comb += self.gradient.beat.eq(walk.gradient)
        with m.FSM(name="backward"):
            with m.State("TAKE"), m.If(self.gradient.pending):
                with m.If(self.gradient.header.kind != Kind.BUBBLE):
                    m.next = "WALK"
                with m.Elif(queue.room):
                    m.d.comb += [
                        emission.push.eq(1),
                        emission.last.eq(1),
                        self.gradient.take.eq(1),
                    ]
            with m.State("WALK"):
                m.d.comb += [
                    walk.run.eq(1),
                    walk.advance.eq(queue.room),
                    emission.push.eq(walk.advance),
                    emission.last.eq(walk.final),
                    emission.kind.eq(Kind.TRAIN),
                    self.gradient.take.eq(walk.over),
                ]
                with m.If(walk.over):
                    m.d.sync += tail.eq(AVERAGE_TAIL)
                    m.next = "TAIL"
            with m.State("TAIL"):
                m.d.sync += tail.eq(tail - 1)
                with m.If(tail == 1):
                    m.d.comb += state.updated.eq(1)
                    m.next = "TAKE"
        late = delayed(m, emission, RANDOM_LATENCY, name="backward_emission")
        m.d.comb += [
            self.gradient.release.eq(self.gradient.take),
            queue.reserve.eq(emission.push),
            queue.push.eq(late.push),
            queue.beat.last.eq(late.last),
            queue.beat.kind.eq(late.kind),
        ]
        self._shares(m, walk, state, queue, late)

    def _shares(
        self,
        m: Module,
        walk: AddressGenerator,
        state: StateRegister,
        queue: OutputQueue,
        late: data.View,
    ) -> None:
        """Multiply by the reciprocal, then round; random words take as long."""
        frac = self._gradient.frac + self._reciprocal.shift
        for lane in range(self._lanes):
            limit = -self._gradient.minimum * self._reciprocal.mantissa
            product = Signal(range(-limit, limit + 1), name=f"share_{lane}")
            m.d.sync += product.eq(self.gradient.data[lane] * self._reciprocal.mantissa)
            random = None
            if self._stochastic:
                m.submodules[f"random_{lane}"] = generator = RandomWord()
                m.d.comb += [
                    generator.state.eq(state.state),
                    generator.late_state.eq(state.state),
                    generator.base.eq(walk.index),
                    generator.offset.eq(index_product(lane + 1)),
                ]
                random = generator.word
            with m.If(late.kind != Kind.BUBBLE):
                m.d.comb += queue.beat.data[lane].eq(
                    requantize(product, frac, self._source_gradient, random)
                )
