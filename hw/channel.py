"""Memories of packets between streams, where no tile reads them at random."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.ram import Ram
from hw.streams import packet_stream
from spec.packets import BeatLayout


class PacketFifo(wiring.Component):
    """First of all yields `tokens` bubbles, then what came in, in order.

    Latency: two clocks. Throughput: one beat a clock.

    Parameters
    ----------
    layout: beats of both streams.
    beats: beats of a packet with data.
    packets: packets with data that it holds.
    tokens: bubbles at reset.
    """

    def __init__(self, layout: BeatLayout, beats: int, packets: int, tokens: int) -> None:
        if packets < 1:
            raise ValueError(f"packets must be at least 1, not {packets}")
        self._depth, self._tokens = packets * beats, tokens
        super().__init__({"i": In(packet_stream(layout)), "o": Out(packet_stream(layout))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        payload = self.i.payload.as_value()
        m.submodules.memory = memory = Ram(payload.shape(), self._depth)
        to, of = Signal(range(self._depth)), Signal(range(self._depth))
        level, shown = Signal(range(self._depth + 1)), Signal()
        left = Signal(range(self._tokens + 1), init=self._tokens)
        taken, fetched = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(level != self._depth),
            taken.eq(self.i.valid & self.i.ready),
            fetched.eq((level != 0) & (~shown | (self.o.ready & (left == 0)))),
            memory.write_address.eq(to),
            memory.write_data.eq(payload),
            memory.write.eq(taken),
            memory.address.eq(of),
            memory.read.eq(fetched),
        ]
        m.d.sync += level.eq(level + taken - fetched)
        for pointer, move in ((to, taken), (of, fetched)):
            with m.If(move):
                m.d.sync += pointer.eq(Mux(pointer == self._depth - 1, 0, pointer + 1))
        with m.If(left != 0):
            m.d.comb += [self.o.valid.eq(1), self.o.payload.last.eq(1)]
            m.d.sync += [left.eq(left - self.o.ready), shown.eq(shown | fetched)]
        with m.Else():
            m.d.comb += [
                self.o.valid.eq(shown),
                self.o.payload.as_value().eq(memory.data),
            ]
            m.d.sync += shown.eq(fetched | (shown & ~self.o.ready))
        return m
