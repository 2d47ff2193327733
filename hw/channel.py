"""Memories of packets between streams, where no tile reads them at random."""

from amaranth import Module, Signal
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

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
        m.submodules.fifo = kept = fifo.SyncFIFOBuffered(width=len(payload), depth=self._depth)
        left = Signal(range(self._tokens + 1), init=self._tokens)
        m.d.comb += [
            kept.w_data.eq(payload),
            kept.w_en.eq(self.i.valid),
            self.i.ready.eq(kept.w_rdy),
        ]
        with m.If(left != 0):
            m.d.comb += [self.o.valid.eq(1), self.o.payload.last.eq(1)]
            with m.If(self.o.ready):
                m.d.sync += left.eq(left - 1)
        with m.Else():
            m.d.comb += [
                self.o.valid.eq(kept.r_rdy),
                self.o.payload.as_value().eq(kept.r_data),
                kept.r_en.eq(self.o.ready),
            ]
        return m
