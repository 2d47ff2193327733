"""The core of the loss tile: softmax cross-entropy, one class a clock (design, section 5)."""

from dataclasses import dataclass, fields

from amaranth import Array, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bus import tile_bus
from hw.delay import delayed
from hw.queue import OutputQueue
from hw.random_bits import RandomWord, index_product, xorshift32
from hw.rounding import clamp, requantize, round_half_up
from hw.softmax import EXPONENTIAL_BITS, Exponentials, Logarithm, Maximum, Reciprocal
from hw.stash import stash_reader
from hw.streams import element, packet_stream, word
from spec.bus import DATA_BITS, TILE_REGISTER_BITS, LossRegister
from spec.formats import Fixed
from spec.packets import LABEL_BITS, LOSS_BITS, BeatLayout, Kind
from spec.tiles.loss import (
    ELEMENT_LATENCY,
    LOGITS,
    LOSS,
    PROBABILITY_FRAC,
    PROBABILITY_SHIFT,
    RECIPROCAL_BITS,
)

RESULT = data.StructLayout({"kind": 2, "prediction": LABEL_BITS, "loss": LOSS_BITS})
PLACE = data.StructLayout({"valid": 1, "index": LABEL_BITS, "lane": LABEL_BITS, "end": 1})
"""A class on its way through the pipeline; `end` marks the last lane of a beat."""


class LossCore(wiring.Component):
    """Takes logits, answers with a result and a gradient for each; counts what it saw.

    Three walks over the classes: maximum, exponentials and their sum, gradients; before the last a
    long division, with the logarithm beside it. Golden counterpart: model/tiles/loss.py.

    Throughput: Loss.slot_cycles clocks a training sample.

    Parameters
    ----------
    classes, lanes: logits of a packet and of a beat.
    gradient: format of the gradients.
    stochastic: whether they are rounded stochastically.

    Members
    -------
    stash: the channel of logits, with no delay.
    o: one result a slot. o_gradient: one backward packet a slot.
    bus: random state and counters (LossRegister).
    committed: a packet with `commit` has arrived here, at the end of its way.
    started: a slot starts in this clock.
    """

    def __init__(self, classes: int, lanes: int, gradient: Fixed, stochastic: bool) -> None:
        if classes % lanes:
            raise ValueError(f"lanes must divide the {classes} classes, not {lanes}")
        self._classes, self._lanes = classes, lanes
        self._gradient, self._stochastic = gradient, stochastic
        self.key = (classes, lanes, gradient, stochastic)
        logits = BeatLayout(LOGITS, lanes, forward=True)
        super().__init__(
            {
                "stash": Out(stash_reader(logits, classes // lanes)),
                "o": Out(stream.Signature(RESULT)),
                "o_gradient": Out(packet_stream(BeatLayout(gradient, lanes, forward=False))),
                "bus": In(tile_bus(TILE_REGISTER_BITS)),
                "committed": Out(1),
                "started": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        parts = _Parts(
            walk=_Walk(self._classes, self._lanes),
            maximum=Maximum(),
            exponentials=Exponentials(self._classes),
            reciprocal=Reciprocal(),
            logarithm=Logarithm(),
            queue=OutputQueue(self.o_gradient.payload.shape()),
        )
        for field in fields(parts):
            m.submodules[field.name] = getattr(parts, field.name)
        wiring.connect(m, parts.queue.o, wiring.flipped(self.o_gradient))
        state, trained = Signal(32, init=1), Signal()
        with m.If(trained):
            m.d.sync += state.eq(xorshift32(state))
        self._connect(m, parts)
        self._gradients(m, parts, state)
        self._control(m, parts, trained)
        self._registers(m, parts.maximum, state)
        return m

    def _connect(self, m: Module, parts: "_Parts") -> None:
        """Logits reach the maximum and the exponentials two clocks after their address."""
        header, walk = self.stash.header, parts.walk
        maximum, exponentials = parts.maximum, parts.exponentials
        logit, place = Signal(element(LOGITS)), delayed(m, walk.place, 2, name="place")
        lane = delayed(m, walk.place.lane, 1, name="lane")
        m.d.sync += logit.eq(Array(self.stash.data[i] for i in range(self._lanes))[lane])
        m.d.comb += [
            self.stash.beat.eq(walk.beat),
            self.stash.release.eq(self.stash.take),
            maximum.valid.eq(place.valid & walk.first_pass),
            maximum.index.eq(place.index),
            maximum.logit.eq(logit),
            maximum.label.eq(header.label),
            exponentials.valid.eq(place.valid & walk.second_pass),
            exponentials.index.eq(place.index),
            exponentials.logit.eq(logit),
            exponentials.top.eq(maximum.top),
            exponentials.read_index.eq(walk.place.index),
            parts.reciprocal.total.eq(exponentials.total),
            parts.logarithm.total.eq(exponentials.total),
            self.o.payload.kind.eq(header.kind),
        ]
        distance = maximum.top - maximum.labelled
        with m.If(header.kind != Kind.BUBBLE):
            m.d.comb += [
                self.o.payload.prediction.eq(maximum.prediction),
                self.o.payload.loss.eq(clamp(distance + parts.logarithm.logarithm, LOSS)),
            ]

    def _gradients(self, m: Module, parts: "_Parts", state: Signal) -> None:
        """probability - one-hot, collected lane by lane into a beat."""
        walk, queue = parts.walk, parts.queue
        product = Signal(EXPONENTIAL_BITS + RECIPROCAL_BITS)
        probability = Signal(PROBABILITY_FRAC + 1)
        place = delayed(m, walk.place, 2, name="gradient_place")
        collected = Signal(word(self._gradient, self._lanes))
        labelled = place.index == self.stash.header.label
        random = None
        if self._stochastic:
            m.submodules.random = generator = RandomWord()
            m.d.comb += [
                generator.state.eq(state),
                generator.late_state.eq(state),
                generator.base.eq(walk.product),
                generator.offset.eq(index_product(1)),
            ]
            random = generator.word
        difference = probability - labelled.shift_left(PROBABILITY_FRAC)
        gradient = Signal(element(self._gradient))
        emitted = delayed(m, place, 1, name="emitted")
        m.d.comb += [
            probability.eq(round_half_up(product, PROBABILITY_SHIFT)),
            gradient.eq(requantize(difference, PROBABILITY_FRAC, self._gradient, random)),
            queue.push.eq(emitted.valid & emitted.end & walk.third_pass),
            queue.beat.kind.eq(Kind.TRAIN),
            queue.beat.last.eq(emitted.index == self._classes - 1),
            queue.beat.data.eq(collected),
        ]
        m.d.sync += product.eq(parts.exponentials.read_data * parts.reciprocal.quotient)
        for lane in range(self._lanes):
            with m.If(place.lane == lane):
                m.d.sync += collected[lane].eq(gradient)

    def _control(self, m: Module, parts: "_Parts", trained: Signal) -> None:
        """The order of a slot. A walk is over when its last class has left the pipeline."""
        header, walk, queue = self.stash.header, parts.walk, parts.queue
        with m.FSM(name="slot"):
            with m.State("TAKE"), m.If(self.stash.pending):
                m.d.comb += [
                    self.started.eq(1),
                    self.committed.eq(header.commit),
                    parts.maximum.clear.eq(1),
                    parts.exponentials.clear.eq(1),
                ]
                m.next = "MAXIMUM"
                with m.If(header.kind == Kind.BUBBLE):
                    m.next = "RESULT"
            with m.State("MAXIMUM"):
                m.d.comb += [walk.run.eq(1), walk.first_pass.eq(1)]
                with m.If(walk.over):
                    m.next = "EXPONENTIAL"
            with m.State("EXPONENTIAL"):
                m.d.comb += [walk.run.eq(1), walk.second_pass.eq(1)]
                with m.If(walk.over):
                    m.next = "START"
            with m.State("START"):
                m.d.comb += [parts.reciprocal.start.eq(1), parts.logarithm.start.eq(1)]
                m.next = "DIVIDE"
            with m.State("DIVIDE"), m.If(parts.reciprocal.done):
                m.next = "RESULT"
            with m.State("RESULT"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "BUBBLE"
                    with m.If(header.kind == Kind.TRAIN):
                        m.next = "GRADIENT"
            with m.State("GRADIENT"):
                m.d.comb += [
                    walk.run.eq(queue.room | ~walk.place.end),
                    walk.third_pass.eq(1),
                    queue.reserve.eq(walk.place.valid & walk.place.end),
                ]
                with m.If(walk.over):
                    m.d.comb += [self.stash.take.eq(1), trained.eq(1)]
                    m.next = "TAKE"
            with m.State("BUBBLE"), m.If(queue.room):
                m.d.comb += [
                    queue.reserve.eq(1),
                    queue.push.eq(1),
                    queue.beat.eq(0),
                    queue.beat.last.eq(1),
                    self.stash.take.eq(1),
                ]
                m.next = "TAKE"

    def _registers(self, m: Module, maximum: Maximum, state: Signal) -> None:
        """The random state, and counters that a result increments and a write clears."""
        counters = {kind: _Counters(kind.name.lower()) for kind in (Kind.TRAIN, Kind.EVAL)}
        header, given = self.stash.header, self.o.valid & self.o.ready
        for kind, counter in counters.items():
            with m.If(given & (header.kind == kind)):
                m.d.sync += [
                    counter.seen.eq(counter.seen + 1),
                    counter.correct.eq(counter.correct + (maximum.prediction == header.label)),
                    counter.loss.eq(counter.loss + self.o.payload.loss),
                ]
        registers: dict[LossRegister, Value] = {LossRegister.STATE: state}
        for base, kind in (
            (LossRegister.TRAIN_SEEN, Kind.TRAIN),
            (LossRegister.EVAL_SEEN, Kind.EVAL),
        ):
            words = counters[kind].words()
            registers |= {LossRegister(base + i): part for i, part in enumerate(words)}
        answer = Signal(DATA_BITS)
        m.d.sync += answer.eq(0)
        for place, register in registers.items():
            here = self.bus.select & (self.bus.region == 0) & (self.bus.offset == place)
            with m.If(here):
                m.d.sync += answer.eq(register)
                with m.If(self.bus.write):
                    m.d.sync += register.eq(self.bus.write_data if register is state else 0)
        m.d.comb += self.bus.read_data.eq(delayed(m, answer, 1, name="answer"))


@dataclass(frozen=True)
class _Parts:
    walk: "_Walk"
    maximum: Maximum
    exponentials: Exponentials
    reciprocal: Reciprocal
    logarithm: Logarithm
    queue: OutputQueue


class _Counters:
    """What the loss has seen of one kind of packet."""

    def __init__(self, name: str) -> None:
        self.seen = Signal(DATA_BITS, name=f"{name}_seen")
        self.correct = Signal(DATA_BITS, name=f"{name}_correct")
        self.loss = Signal(2 * DATA_BITS, name=f"{name}_loss")

    def words(self) -> list[Value]:
        return [self.seen, self.correct, self.loss[:DATA_BITS], self.loss[DATA_BITS:]]


class _Walk(wiring.Component):
    """Offers class after class while `run` is high, then waits ELEMENT_LATENCY clocks.

    `over` marks the last of them. `product` is the index product of the class (hw/random_bits). The
    pass flags are set by the control for the length of a walk.
    """

    def __init__(self, classes: int, lanes: int) -> None:
        self._classes, self._lanes = classes, lanes
        super().__init__(
            {
                "run": In(1),
                "place": Out(PLACE),
                "beat": Out(range(classes // lanes)),
                "product": Out(32),
                "over": Out(1),
                "first_pass": In(1),
                "second_pass": In(1),
                "third_pass": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        wait = Signal(range(ELEMENT_LATENCY + 1))
        index, lane = Signal(range(self._classes)), Signal(range(self._lanes))
        beat = Signal(range(self._classes // self._lanes))
        product = Signal(32)
        m.d.comb += [
            self.place.valid.eq(self.run & (wait == 0)),
            self.place.index.eq(index),
            self.place.lane.eq(lane),
            self.place.end.eq((lane == self._lanes - 1) & (wait == 0)),
            self.beat.eq(beat),
            self.product.eq(product),
            self.over.eq(wait == 1),
        ]
        with m.If(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        with m.If(self.place.valid):
            m.d.sync += [
                index.eq(index + 1),
                lane.eq(lane + 1),
                product.eq(product + index_product(1)),
            ]
            with m.If(self.place.end):
                m.d.sync += [lane.eq(0), beat.eq(beat + 1)]
            with m.If(index == self._classes - 1):
                m.d.sync += [
                    wait.eq(ELEMENT_LATENCY),
                    index.eq(0),
                    beat.eq(0),
                    product.eq(0),
                ]
        return m
