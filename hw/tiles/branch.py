"""The tiles of branches: packets stream through them, and nothing is kept (spec/tiles/branch.py).

Where two streams meet, the sum goes through a queue of two beats, so that no path runs through a
chain of branches.
"""

from functools import reduce
from operator import add
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from hw.rounding import clamp
from hw.streams import packet_stream
from spec.formats import Fixed
from spec.packets import BeatLayout, Kind
from spec.shape import Shape
from spec.tiles import Shortcut

JOIN_DEPTH = 2


class ForkCore(wiring.Component):
    """Copies forward packets to every output; adds the gradients of all, saturating once.

    Throughput: one beat a clock each way. An output that is slow holds the others for no longer
    than it must: each takes every beat once.

    Members
    -------
    i, o0, o1, ...: forwards. gradient0, gradient1, ..., o_gradient: backwards.
    """

    def __init__(self, forward: BeatLayout, backward: BeatLayout, outputs: int) -> None:
        if outputs < 2:
            raise ValueError(f"outputs must be at least 2, not {outputs}")
        self.key = (forward, backward, outputs)
        self._format, self._outputs = backward.format, outputs
        members = {"i": In(packet_stream(forward)), "o_gradient": Out(packet_stream(backward))}
        for place in range(outputs):
            members[f"o{place}"] = Out(packet_stream(forward))
            members[f"gradient{place}"] = In(packet_stream(backward))
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        places = range(self._outputs)
        _copy(m, self.i, [getattr(self, f"o{place}") for place in places])
        gradients = [getattr(self, f"gradient{place}") for place in places]
        _add(m, gradients, self.o_gradient, self._format)
        return m


class AddCore(wiring.Component):
    """Adds the forward packets of two inputs, saturating once; copies gradients to both.

    Throughput: one beat a clock each way.

    Members
    -------
    i0, i1, o: forwards. gradient, o_gradient0, o_gradient1: backwards.
    """

    def __init__(self, forward: BeatLayout, backward: BeatLayout) -> None:
        self.key = (forward, backward)
        self._format = forward.format
        super().__init__(
            {
                "i0": In(packet_stream(forward)),
                "i1": In(packet_stream(forward)),
                "o": Out(packet_stream(forward)),
                "gradient": In(packet_stream(backward)),
                "o_gradient0": Out(packet_stream(backward)),
                "o_gradient1": Out(packet_stream(backward)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        _add(m, [self.i0, self.i1], self.o, self._format)
        _copy(m, self.gradient, [self.o_gradient0, self.o_gradient1])
        return m


class ShortcutCore(wiring.Component):
    """Keeps every stride-th pixel and fills up its channels with zeros; backwards the inverse.

    Throughput: one beat a clock, of whichever side has more beats.

    Parameters
    ----------
    source: shape of the forward input.
    tile: stride and channels of the output.
    lanes: channels of a beat on both sides; divides the channels of both.

    Members
    -------
    i, o: forwards. gradient, o_gradient: backwards.
    """

    def __init__(
        self, source: Shape, tile: Shortcut, lanes: int, activation: Fixed, gradient: Fixed
    ) -> None:
        self._source, self._target = source, tile.output_shape(source)
        if source.channels % lanes or tile.outputs % lanes:
            raise ValueError(f"lanes must divide both numbers of channels, not {lanes}")
        self._stride, self._lanes = tile.stride, lanes
        self.key = (source, tile.outputs, tile.stride, lanes, activation, gradient)
        forward = packet_stream(BeatLayout(activation, lanes, forward=True))
        backward = packet_stream(BeatLayout(gradient, lanes, forward=False))
        super().__init__(
            {
                "i": In(forward),
                "o": Out(forward),
                "gradient": In(backward),
                "o_gradient": Out(backward),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._forward(m)
        self._backward(m)
        return m

    def _forward(self, m: Module) -> None:
        """Pass the channels of a kept pixel, then add zeros with its header."""
        walk = _Raster(self._source, self._source.channels // self._lanes, self._stride)
        m.submodules.forward_walk = walk
        extra = self._target.channels // self._lanes - walk.words
        left = Signal(range(extra + 1))
        held = Signal(self.i.payload.shape())
        payload, out = self.i.payload, self.o.payload
        bubble = payload.kind == Kind.BUBBLE
        with m.If(left != 0):
            m.d.comb += [
                self.o.valid.eq(1),
                out.eq(held),
                out.data.eq(0),
                out.last.eq(held.last & (left == 1)),
            ]
            with m.If(self.o.ready):
                m.d.sync += left.eq(left - 1)
        with m.Else():
            m.d.comb += [
                out.eq(payload),
                out.last.eq(bubble | (walk.last_kept & walk.pixel_end & (extra == 0))),
                self.o.valid.eq(self.i.valid & (bubble | walk.kept)),
                self.i.ready.eq(self.o.ready | ~(bubble | walk.kept)),
                walk.move.eq(self.i.valid & self.i.ready & ~bubble),
            ]
            with m.If(walk.move & walk.kept & walk.pixel_end):
                m.d.sync += [left.eq(extra), held.eq(payload), held.last.eq(walk.last_kept)]

    def _backward(self, m: Module) -> None:
        """Pass the channels of a kept pixel and drop the added ones; zeros for pixels left out."""
        walk = _Raster(self._source, self._source.channels // self._lanes, self._stride)
        m.submodules.backward_walk = walk
        extra = self._target.channels // self._lanes - walk.words
        left = Signal(range(extra + 1))
        source, out = self.gradient, self.o_gradient.payload
        bubble = (source.payload.kind == Kind.BUBBLE) & walk.start
        with m.If(left != 0):
            m.d.comb += source.ready.eq(1)
            with m.If(source.valid):
                m.d.sync += left.eq(left - 1)
        with m.Elif(walk.kept):
            m.d.comb += [
                out.eq(source.payload),
                out.last.eq(bubble | walk.end),
                self.o_gradient.valid.eq(source.valid),
                source.ready.eq(self.o_gradient.ready),
                walk.move.eq(source.valid & source.ready & ~bubble),
            ]
            with m.If(walk.move & walk.pixel_end):
                m.d.sync += left.eq(extra)
        with m.Else():
            m.d.comb += [
                self.o_gradient.valid.eq(1),
                out.kind.eq(Kind.TRAIN),
                out.last.eq(walk.end),
                walk.move.eq(self.o_gradient.ready),
            ]


class _Raster(wiring.Component):
    """Counts the beats of a packet: pixel by pixel, `words` beats each.

    Members
    -------
    move: this beat is done.
    kept: its row and column are multiples of the stride; last_kept: and none follows.
    pixel_end, start, end: it is the last of its pixel, the first, the last of the packet.
    """

    def __init__(self, shape: Shape, words: int, stride: int) -> None:
        self._shape, self.words, self._stride = shape, words, stride
        names = ("kept", "last_kept", "pixel_end", "start", "end")
        super().__init__({"move": In(1), **{name: Out(1) for name in names}})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word = Signal(range(self.words))
        ends = [word == self.words - 1]
        carry = self.move & ends[0]
        with m.If(self.move):
            m.d.sync += word.eq(Mux(ends[0], 0, word + 1))
        kept, last_kept, zero = Const(1), Const(1), word == 0
        for name, side in (("column", self._shape.columns), ("row", self._shape.rows)):
            place, phase = Signal(range(side), name=name), Signal(range(self._stride))
            end = place == side - 1
            with m.If(carry):
                m.d.sync += [
                    place.eq(Mux(end, 0, place + 1)),
                    phase.eq(Mux(end | (phase == self._stride - 1), 0, phase + 1)),
                ]
            kept = kept & (phase == 0)
            last_kept = last_kept & (place == (side - 1) // self._stride * self._stride)
            zero = zero & (place == 0)
            carry = carry & end
            ends.append(end)
        m.d.comb += [
            self.kept.eq(kept),
            self.last_kept.eq(last_kept),
            self.pixel_end.eq(ends[0]),
            self.start.eq(zero),
            self.end.eq(Cat(ends).all()),
        ]
        return m


def _copy(m: Module, source: Any, sinks: list[Any]) -> None:
    """Offer each beat to every sink until all have taken it."""
    served = [Signal(name=f"served_{place}") for place in range(len(sinks))]
    takes: list[Value] = []
    for sink, done in zip(sinks, served, strict=True):
        m.d.comb += [sink.valid.eq(source.valid & ~done), sink.payload.eq(source.payload)]
        takes.append(done | sink.ready)
    m.d.comb += source.ready.eq(Cat(takes).all())
    for done, take in zip(served, takes, strict=True):
        with m.If(source.valid):
            m.d.sync += done.eq(take & ~source.ready)


def _add(m: Module, sources: list[Any], sink: Any, format: Fixed) -> None:
    """Beat by beat, lane by lane; headers are those of the first source, equal in all."""
    payload = sink.payload.shape()
    m.submodules += (queue := fifo.SyncFIFOBuffered(width=payload.size, depth=JOIN_DEPTH))
    total = Signal(payload)
    m.d.comb += total.eq(sources[0].payload)
    for lane in range(payload.members["data"].length):
        exact = reduce(add, (source.payload.data[lane] for source in sources))
        m.d.comb += total.data[lane].eq(clamp(exact, format))
    together = Cat(source.valid for source in sources).all()
    m.d.comb += [
        queue.w_data.eq(total),
        queue.w_en.eq(together),
        *(source.ready.eq(queue.w_rdy & together) for source in sources),
        sink.valid.eq(queue.r_rdy),
        sink.payload.as_value().eq(queue.r_data),
        queue.r_en.eq(sink.ready),
    ]
