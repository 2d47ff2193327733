"""One memory of parameters: words of lanes for the tile, single elements for the host."""

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.ram import Ram
from hw.streams import word
from spec.bus import DATA_BITS, lane_bits
from spec.formats import Fixed


class ParameterMemory(wiring.Component):
    """One read and one write port, shared between the tile and the host (who comes first).

    Latency: `data` one clock after `address`; `host_data`, sign-extended, one after that.
    A read sees the writes of earlier clocks.

    Parameters
    ----------
    format: of one element.
    lanes: elements of a word.
    words: depth.

    Members
    -------
    address, data: the tile's reads.
    write_address, write_data, write_mask: the tile's writes, one mask bit an element.
    host_select, host_write, host_offset, host_write_data, host_data: the host's accesses; an
        offset is {word, lane}.
    """

    def __init__(self, format: Fixed, lanes: int, words: int) -> None:
        self._format, self._lanes, self._words = format, lanes, words
        offset = (words - 1).bit_length() + lane_bits(lanes)
        super().__init__(
            {
                "address": In(range(words)),
                "data": Out(word(format, lanes)),
                "write_address": In(range(words)),
                "write_data": In(word(format, lanes)),
                "write_mask": In(lanes),
                "host_select": In(1),
                "host_write": In(1),
                "host_offset": In(offset),
                "host_write_data": In(DATA_BITS),
                "host_data": Out(DATA_BITS),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Ram(self.data.shape(), self._words, self._lanes)
        below = lane_bits(self._lanes)
        host_word, host_lane = self.host_offset[below:], self.host_offset[:below]
        m.d.comb += [
            memory.address.eq(Mux(self.host_select, host_word, self.address)),
            memory.read.eq(1),
            self.data.eq(memory.data),
            memory.write_address.eq(self.write_address),
            memory.write_data.eq(self.write_data),
            memory.write.eq(self.write_mask),
        ]
        with m.If(self.host_select & self.host_write):
            m.d.comb += [memory.write_address.eq(host_word), memory.write.eq(1 << host_lane)]
            m.d.comb += [memory.write_data[i].eq(self.host_write_data) for i in range(self._lanes)]
        selected, lane = Signal(), Signal(max(1, below))
        m.d.sync += [
            selected.eq(self.host_select & ~self.host_write),
            lane.eq(host_lane),
            self.host_data.eq(0),
        ]
        with m.If(selected):
            m.d.sync += self.host_data.eq(Array(self.data[i] for i in range(self._lanes))[lane])
        return m
