"""The queue at a tile's output, with room reserved before a result is started."""

from amaranth import Module, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from spec.mac import RESULT_LATENCY

QUEUE_DEPTH = RESULT_LATENCY + 4
"""Enough that a result a clock flows while the consumer takes one a clock."""


class OutputQueue(wiring.Component):
    """Lets a pipeline that cannot stop feed a stream that can.

    Whoever starts a result that will arrive later asserts `reserve` while `room` is high; the
    result is pushed when it is there. Throughput: one beat a clock.

    Parameters
    ----------
    shape: payload of the stream.
    depth: beats that it holds.
    """

    def __init__(self, shape: data.Layout, depth: int = QUEUE_DEPTH) -> None:
        self._depth = depth
        super().__init__(
            {
                "room": Out(1),
                "reserve": In(1),
                "push": In(1),
                "beat": In(shape),
                "o": Out(stream.Signature(shape)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.fifo = queue = fifo.SyncFIFOBuffered(
            width=self.beat.shape().size, depth=self._depth
        )
        free = Signal(range(self._depth + 1), init=self._depth)
        m.d.comb += [
            self.room.eq(free != 0),
            queue.w_data.eq(self.beat),
            queue.w_en.eq(self.push),
            self.o.payload.eq(queue.r_data),
            self.o.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.o.ready),
        ]
        m.d.sync += free.eq(free - self.reserve + (self.o.valid & self.o.ready))
        return m
