"""Memories that keep packets until their tile needs them (design, section 3).

The forward channel of a tile is its stash; its backward channel is the same part with tokens.
"""

from typing import Any

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.ram import Ram
from hw.streams import HEADER, packet_stream, word
from spec.packets import BeatLayout


def stash_reader(layout: BeatLayout, beats: int) -> wiring.Signature:
    """What a tile core sees of a stash; the core drives the `Out` members.

    pending: a whole packet waits that the tile has not taken yet; `header` is its header.
    beat: word to read, from the packet at the front or, if `late`, from the one `delay` slots
    before it (the one whose gradient is due). `data` follows one clock later.
    take: the tile is done with the packet's forward pass.
    release: the slot is over; the packet that is `delay` slots old is forgotten.
    """
    return wiring.Signature(
        {
            "pending": In(1),
            "header": In(HEADER),
            "beat": Out(range(beats)),
            "late": Out(1),
            "data": In(word(layout.format, layout.lanes)),
            "take": Out(1),
            "release": Out(1),
        }
    )


class Stash(wiring.Component):
    """A ring of packets, written by a stream and read at random.

    A packet is pending once its last beat has been written; the stream is held while the ring is
    full. At reset the ring holds `tokens` bubbles. The first `delay` releases forget nothing, since
    no gradient of an earlier packet was due.

    Latency: a packet is pending one clock after its last beat, a word is read in one clock.
    Throughput: one beat a clock written and one word a clock read.

    Parameters
    ----------
    layout: beats of the stream.
    beats: beats of a packet with data.
    entries: packets that the ring holds.
    tokens: bubbles at reset.
    delay: slots between a packet's forward and backward pass.
    """

    def __init__(
        self, layout: BeatLayout, beats: int, entries: int, tokens: int = 0, delay: int = 0
    ) -> None:
        if tokens > entries:
            raise ValueError(f"tokens must be at most the {entries} entries, not {tokens}")
        if delay >= entries:
            raise ValueError(f"delay must be below the {entries} entries, not {delay}")
        self._layout, self._beats, self._entries = layout, beats, entries
        self._tokens, self._delay = tokens, delay
        super().__init__(
            {
                "i": In(packet_stream(layout)),
                "reader": Out(stash_reader(layout, beats).flip()),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        entries = self._entries
        used = Signal(range(entries + 1), init=self._tokens)
        pending = Signal(range(entries + 1), init=self._tokens)
        young = Signal(range(self._delay + 1), init=self._delay)
        stored, forgotten = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(used != entries),
            stored.eq(self.i.valid & self.i.ready & self.i.payload.last),
            forgotten.eq(self.reader.release & (young == 0)),
            self.reader.pending.eq(pending != 0),
        ]
        m.d.sync += [
            used.eq(used + stored - forgotten),
            pending.eq(pending + stored - self.reader.take),
        ]
        with m.If(self.reader.release & (young != 0)):
            m.d.sync += young.eq(young - 1)

        write, front, late = (self._pointer(m, name) for name in ("write", "front", "late"))
        m.d.comb += [
            write.move.eq(stored),
            front.move.eq(self.reader.take),
            late.move.eq(forgotten),
        ]
        self._store_data(m, write, front, late)
        self._store_headers(m, write, front, stored)
        return m

    def _pointer(self, m: Module, name: str) -> "_Pointer":
        first = self._tokens % self._entries if name == "write" else 0
        pointer = _Pointer(self._entries, self._beats, first)
        m.submodules[name] = pointer
        return pointer

    def _store_data(
        self, m: Module, write: "_Pointer", front: "_Pointer", late: "_Pointer"
    ) -> None:
        shape = self.reader.data.shape()
        m.submodules.memory = memory = Ram(shape, self._entries * self._beats)
        beat = Signal(range(self._beats))
        taken = Signal()
        m.d.comb += [
            taken.eq(self.i.valid & self.i.ready),
            memory.write_address.eq(write.base + beat),
            memory.write_data.eq(self.i.payload.data),
            memory.write.eq(taken),
            memory.address.eq(Mux(self.reader.late, late.base, front.base) + self.reader.beat),
            memory.read.eq(1),
            self.reader.data.eq(memory.data),
        ]
        with m.If(taken):
            m.d.sync += beat.eq(Mux(self.i.payload.last, 0, beat + 1))

    def _store_headers(
        self, m: Module, write: "_Pointer", front: "_Pointer", stored: Signal
    ) -> None:
        memory = Memory(shape=HEADER, depth=self._entries, init=[])
        m.submodules.headers = memory
        port, reader = memory.write_port(), memory.read_port(domain="comb")
        arriving = Signal(HEADER)
        carried = self.i.payload.shape().members
        m.d.comb += [
            getattr(arriving, name).eq(getattr(self.i.payload, name))
            for name in HEADER.members
            if name in carried
        ]
        m.d.comb += [
            port.addr.eq(write.entry),
            port.data.eq(arriving),
            port.en.eq(stored),
            reader.addr.eq(front.entry),
            self.reader.header.eq(reader.data),
        ]


class KeptStash(wiring.Component):
    """A ring of what forward passes leave for the backward pass of the same sample: ReLU masks,
    normalised activations, places of maxima.

    Every slot begins and writes one packet (one word for a bubble) and releases one. A tile with
    parameters, which takes forward and backward packets by turns, needs no flow control; others may
    begin a packet only while there is `room`. A word is read in one clock.

    Parameters
    ----------
    width: bits of a word.
    words: words of a packet with data.
    entries: packets that the ring holds: delay + 2.
    delay: slots between a packet's forward and backward pass.
    """

    def __init__(self, width: int, words: int, entries: int, delay: int) -> None:
        if delay + 2 > entries:
            raise ValueError(f"entries must be at least {delay + 2}, not {entries}")
        self._words, self._entries, self._delay = words, entries, delay
        super().__init__({"port": Out(kept_port(width, words).flip())})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        port = self.port
        m.submodules.memory = memory = Ram(port.word.shape(), self._entries * self._words)
        m.submodules.write = write = _Pointer(self._entries, self._words)
        m.submodules.late = late = _Pointer(self._entries, self._words)
        young = Signal(range(self._delay + 1), init=self._delay)
        used = Signal(range(self._entries + 1))
        index = Signal(range(self._words))
        forgotten = Signal()
        m.d.comb += [
            port.room.eq(used != self._entries),
            memory.write_address.eq(write.base + index),
            memory.write_data.eq(port.word),
            memory.write.eq(port.valid),
            write.move.eq(port.valid & port.last),
            memory.address.eq(late.base + port.beat),
            memory.read.eq(1),
            port.data.eq(memory.data),
            forgotten.eq(port.release & (young == 0)),
            late.move.eq(forgotten),
        ]
        m.d.sync += used.eq(used + port.begin - forgotten)
        with m.If(port.valid):
            m.d.sync += index.eq(Mux(port.last, 0, index + 1))
        with m.If(port.release & (young != 0)):
            m.d.sync += young.eq(young - 1)
        return m


def kept_port(width: int, words: int) -> wiring.Signature:
    """What a tile core sees of a kept stash; the core drives the `Out` members.

    room, begin: another packet may be begun; one is begun now.
    valid, last, word: the next word of the packet begun first.
    beat, data: word to read, one clock before its data, of the packet `delay` slots old.
    release: the backward pass of that packet (or of a bubble of the reset) is over.
    """
    return wiring.Signature({**kept_writer(width).members, **kept_reader(width, words).members})


def kept_writer(width: int) -> wiring.Signature:
    """The part of a kept port that the forward pass needs."""
    return wiring.Signature(
        {"room": In(1), "begin": Out(1), "valid": Out(1), "last": Out(1), "word": Out(width)}
    )


def kept_reader(width: int, words: int) -> wiring.Signature:
    """The part of a kept port that the backward pass needs."""
    return wiring.Signature({"beat": Out(range(words)), "data": In(width), "release": Out(1)})


def connect_kept(m: Module, port: Any, writer: Any, reader: Any) -> None:
    """Make a kept port of the two parts."""
    m.d.comb += [
        writer.room.eq(port.room),
        port.begin.eq(writer.begin),
        port.valid.eq(writer.valid),
        port.last.eq(writer.last),
        port.word.eq(writer.word),
        port.beat.eq(reader.beat),
        reader.data.eq(port.data),
        port.release.eq(reader.release),
    ]


class _Pointer(wiring.Component):
    """An entry of a ring and the address of its first word; moves on by one when told."""

    def __init__(self, entries: int, words: int, first: int = 0) -> None:
        self._entries, self._words = entries, words
        super().__init__(
            {
                "move": In(1),
                "entry": Out(range(entries), init=first),
                "base": Out(range(entries * words), init=first * words),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        with m.If(self.move):
            with m.If(self.entry == self._entries - 1):
                m.d.sync += [self.entry.eq(0), self.base.eq(0)]
            with m.Else():
                m.d.sync += [
                    self.entry.eq(self.entry + 1),
                    self.base.eq(self.base + self._words),
                ]
        return m
