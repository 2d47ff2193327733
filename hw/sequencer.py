"""The fixed order of a tile with weights: forward, backward data, backward weight, update."""

from amaranth import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.address import ADDRESSES, AddressGenerator
from hw.mac import STEP, PassKind
from hw.streams import HEADER, KIND_BITS
from spec.mac import MacGeometry, Pass
from spec.packets import Kind

EMISSION = data.StructLayout({"forward": 1, "backward": 1, "last": 1, "header": HEADER})
"""A beat that this clock's step completes (RESULT_LATENCY later) and for which stream."""


class Sequencer(wiring.Component):
    """Issues the steps of one slot after the other (design, section 3).

    Take forward packet k (its commit first), walk the forward pass; take a backward packet, walk
    backward data, weight and bias, wait until the last weight is written, and end the slot. A
    bubble costs one clock a direction and changes nothing. A step that completes a result waits
    until the output queue has room.

    A slot with a training sample both ways takes MacGeometry.slot_cycles clocks when nothing makes
    it wait.

    Members
    -------
    pending, header: of the packet at the front of the stash.
    gradient_pending, gradient_kind: of the packet at the front of the backward channel.
    target_room, source_room: of the forward and backward output queue.
    commit: the active coefficients take over the shadows now.
    take, take_gradient, release: to the stashes (see hw/stash).
    late: words are read from the packet whose gradient is due.
    step, stash, gradient, weight, bias: the step issued now and its addresses.
    emission: what the step sends.
    updated: all weights of a training sample are written: random states move on.
    started, waiting: a slot starts in this clock; the tile waits for a packet or for room.
    """

    def __init__(self, geometry: MacGeometry) -> None:
        self._geometry = geometry
        generators = {PassKind.FORWARD: geometry.forward}
        if geometry.backward_data is not None:
            generators[PassKind.BACKWARD_DATA] = geometry.backward_data
        generators[PassKind.BACKWARD_WEIGHT] = geometry.backward_weight
        if geometry.backward_bias is not None:
            generators[PassKind.BACKWARD_BIAS] = geometry.backward_bias
        self._passes: dict[PassKind, Pass] = generators
        self._generators = {kind: AddressGenerator(walk) for kind, walk in generators.items()}
        widths = {
            name: max(getattr(g, name).shape().width for g in self._generators.values())
            for name in ADDRESSES
        }
        super().__init__(
            {
                "pending": In(1),
                "header": In(HEADER),
                "gradient_pending": In(1),
                "gradient_kind": In(KIND_BITS),
                "target_room": In(1),
                "source_room": In(1),
                "commit": Out(1),
                "take": Out(1),
                "take_gradient": Out(1),
                "release": Out(1),
                "late": Out(1),
                "step": Out(STEP),
                "emission": Out(EMISSION),
                "updated": Out(1),
                "started": Out(1),
                "waiting": Out(1),
                **{name: Out(width) for name, width in widths.items()},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for kind, generator in self._generators.items():
            m.submodules[kind.name.lower()] = generator
        kinds = list(self._passes)
        tail = Signal(range(self._geometry.update_tail + 1))
        with m.FSM(name="slot"):
            with m.State("TAKE_FORWARD"):
                m.d.comb += self.waiting.eq(~self.started)
                with m.If(self.pending):
                    self._take_forward(m)
            with m.State("FORWARD"):
                self._walk(m, PassKind.FORWARD, self.target_room)
                with m.If(self._generators[PassKind.FORWARD].over):
                    m.d.comb += self.take.eq(1)
                    m.next = "TAKE_BACKWARD"
            with m.State("TAKE_BACKWARD"):
                m.d.comb += self.waiting.eq(~self.gradient_pending)
                with m.If(self.gradient_pending):
                    self._take_backward(m, kinds[1].name)
            for kind, following in zip(kinds[1:], [*kinds[2:], None], strict=True):
                with m.State(kind.name):
                    self._walk(m, kind, self.source_room)
                    m.d.comb += self.late.eq(1)
                    with m.If(self._generators[kind].over):
                        m.d.sync += tail.eq(self._geometry.update_tail)
                        m.next = following.name if following else "TAIL"
            with m.State("TAIL"):
                self._finish(m, tail)
        return m

    def _take_forward(self, m: Module) -> None:
        bubble = self.header.kind == Kind.BUBBLE
        emission = self.emission
        with m.If(~bubble):
            m.d.comb += [self.started.eq(1), self.commit.eq(self.header.commit)]
            m.next = "FORWARD"
        with m.Elif(self.target_room):
            m.d.comb += [
                self.started.eq(1),
                self.commit.eq(self.header.commit),
                self.take.eq(1),
                emission.forward.eq(1),
                emission.last.eq(1),
                emission.header.eq(self.header),
            ]
            m.next = "TAKE_BACKWARD"

    def _take_backward(self, m: Module, following: str) -> None:
        with m.If(self.gradient_kind != Kind.BUBBLE):
            m.next = following
        with m.Elif(self.source_room):
            m.d.comb += [
                self.take_gradient.eq(1),
                self.release.eq(1),
                self.emission.backward.eq(1),
                self.emission.last.eq(1),
            ]
            m.next = "TAKE_FORWARD"

    def _walk(self, m: Module, kind: PassKind, room: Signal) -> None:
        """Offer the steps of a pass; the ones that yield a beat need room for it."""
        generator, step = self._generators[kind], self.step
        forward, backward = kind is PassKind.FORWARD, kind is PassKind.BACKWARD_DATA
        yields = generator.last & (forward or backward)
        taken = generator.step & generator.advance
        m.d.comb += [
            self.waiting.eq(generator.step & ~generator.advance),
            generator.run.eq(1),
            generator.advance.eq(room | ~yields),
            step.valid.eq(taken),
            step.kind.eq(kind),
            step.first.eq(generator.first),
            step.last.eq(generator.last),
            step.padded.eq(generator.padded),
            step.index.eq(generator.index),
            *(getattr(self, name).eq(getattr(generator, name)) for name in ADDRESSES),
            self.emission.last.eq(generator.final),
        ]
        if forward:
            m.d.comb += [
                step.evaluate.eq(self.header.kind == Kind.EVAL),
                self.emission.forward.eq(taken & yields),
                self.emission.header.eq(self.header),
            ]
        if backward:
            m.d.comb += [
                self.emission.backward.eq(taken & yields),
                self.emission.header.kind.eq(Kind.TRAIN),
            ]

    def _finish(self, m: Module, tail: Signal) -> None:
        """Wait for the last write; the first tile then tells the host that the sample is done."""
        first = PassKind.BACKWARD_DATA not in self._passes
        with m.If(tail != 1):
            m.d.sync += tail.eq(tail - 1)
        with m.Elif(self.source_room if first else 1):
            m.d.comb += [self.take_gradient.eq(1), self.release.eq(1), self.updated.eq(1)]
            if first:
                m.d.comb += [
                    self.emission.backward.eq(1),
                    self.emission.last.eq(1),
                    self.emission.header.kind.eq(Kind.TRAIN),
                ]
            m.next = "TAKE_FORWARD"
