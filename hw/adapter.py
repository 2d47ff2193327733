"""Lane adapters: the same packets in beats of another width."""

from dataclasses import replace
from math import gcd
from typing import Any

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.streams import packet_stream
from spec.packets import BeatLayout, Kind


class LaneAdapter(wiring.Component):
    """Re-cuts packets from `layout.lanes` to `lanes` channels a beat; both divide the channels.

    Beats are cut to the greatest common divisor and joined again. A bubble stays one beat. All
    beats of a packet carry its header.

    Throughput: one beat of the common divisor a clock.

    Parameters
    ----------
    layout: beats that come in.
    lanes: channels of a beat that goes out.
    """

    def __init__(self, layout: BeatLayout, lanes: int) -> None:
        self._layout, self._lanes = layout, lanes
        self._common = gcd(layout.lanes, lanes)
        super().__init__(
            {
                "i": In(packet_stream(layout)),
                "o": Out(packet_stream(replace(layout, lanes=lanes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        narrow = packet_stream(replace(self._layout, lanes=self._common)).create(path=("narrow",))
        self._cut(m, narrow, self._layout.lanes // self._common)
        self._join(m, narrow, self._lanes // self._common)
        return m

    def _cut(self, m: Module, narrow: Any, parts: int) -> None:
        """One beat after the other from the low lanes up."""
        payload = self.i.payload
        part = Signal(range(parts))
        final = Signal()
        words = payload.data.as_value()
        width = len(words) // parts
        m.d.comb += [
            final.eq((part == parts - 1) | (payload.kind == Kind.BUBBLE)),
            narrow.valid.eq(self.i.valid),
            self.i.ready.eq(narrow.ready & final),
            *_same_header(payload, narrow.payload),
            narrow.payload.last.eq(payload.last & final),
            narrow.payload.data.as_value().eq(
                Array(words.word_select(i, width) for i in range(parts))[part]
            ),
        ]
        with m.If(narrow.valid & narrow.ready):
            m.d.sync += part.eq(Mux(final, 0, part + 1))

    def _join(self, m: Module, narrow: Any, parts: int) -> None:
        """Keep all parts but the last, and pass them on with it."""
        payload, out = narrow.payload, self.o.payload
        kept = [Signal(payload.data.shape(), name=f"kept_{i}") for i in range(parts - 1)]
        part = Signal(range(parts))
        bubble, final = payload.kind == Kind.BUBBLE, Signal()
        m.d.comb += [
            final.eq((part == parts - 1) | bubble),
            self.o.valid.eq(narrow.valid & final),
            narrow.ready.eq(self.o.ready | ~final),
            *_same_header(payload, out),
            out.last.eq(payload.last),
        ]
        with m.If(~bubble):
            m.d.comb += out.data.as_value().eq(Cat(*kept, payload.data))
        with m.If(narrow.valid & narrow.ready):
            m.d.sync += part.eq(Mux(final, 0, part + 1))
            for place, word in enumerate(kept):
                with m.If(part == place):
                    m.d.sync += word.eq(payload.data)


def _same_header(source: Any, target: Any) -> list[Any]:
    """Everything but `last` and `data`."""
    names = [name for name in source.shape().members if name not in ("last", "data")]
    return [getattr(target, name).eq(getattr(source, name)) for name in names]
