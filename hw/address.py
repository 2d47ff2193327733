"""Address generators: a loop nest of spec/mac walked one step a cycle."""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import product
from operator import and_

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.random_bits import index_product
from spec.mac import Offset, Pass

INDEX_BITS = 32
ADDRESSES = ("stash", "gradient", "weight", "bias")
PADDED_ADDRESSES = ("stash", "gradient")
PLACES = ("row", "column")


class AddressGenerator(wiring.Component):
    """Walks a pass: addresses come from registers, each moved by one addition a step.

    While `run` is high, `step` says that a step is offered; it is taken in every cycle in which
    `advance` is high too. `over` marks the last cycle of the pass (its last step, or the end of the
    idle cycles after it), after which the generator stands at the beginning again.

    Throughput: one step a cycle, `Pass.cycles` cycles a pass. Golden counterpart: `Pass.walk`.

    Parameters
    ----------
    walk: the loop nest.

    Members
    -------
    stash, gradient, weight, bias: word addresses of this step, modulo their width; those of the
        operand of a padded step are 0.
    index: element index of the word's first lane, times G, mod 2**32 (see hw/random_bits).
    padded: the operand of this step lies outside the pass's bounds.
    first, last: this step is the first, the last of its sum.
    final: this step is the last of the pass.
    """

    def __init__(self, walk: Pass) -> None:
        if walk.reduction > len(walk.loops):
            raise ValueError(f"reduction must be at most {len(walk.loops)}, not {walk.reduction}")
        self._walk, self._jumps = walk, Jumps(walk)
        members = {name: Out(self._jumps.limits(name)[1].bit_length()) for name in ADDRESSES}
        super().__init__(
            {
                "run": In(1),
                "advance": In(1),
                "step": Out(1),
                "over": Out(1),
                "padded": Out(1),
                "first": Out(1, init=1),
                "last": Out(1),
                "final": Out(1),
                "index": Out(INDEX_BITS),
                **members,
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        taken = Signal()
        self._count(m, taken)
        self._locate(m, taken)
        idle = Signal(range(self._walk.idle + 1))
        m.d.comb += [self.step.eq(self.run & (idle == 0)), taken.eq(self.step & self.advance)]
        with m.If(taken):
            m.d.sync += self.first.eq(self.last)
        if self._walk.idle:
            ending = Signal()
            m.d.comb += self.over.eq((idle == 1) & ending)
            with m.If(idle != 0):
                m.d.sync += idle.eq(idle - 1)
            with m.If(taken & self.last):
                m.d.sync += [idle.eq(self._walk.idle), ending.eq(self.final)]
        else:
            m.d.comb += self.over.eq(taken & self.final)
        return m

    def _count(self, m: Module, taken: Signal) -> None:
        """Trips and phases of all loops with more than one, and which of them stand at the end."""
        jumps, levels = self._jumps, range(len(self._walk.loops))
        self._counters = {
            level: Signal(range(jumps.most_trips(level)), name=f"counter_{level}")
            for level in levels
            if jumps.most_trips(level) > 1
        }
        self._phases = {
            level: Signal(range(jumps.phases(level)), name=f"phase_{level}")
            for level in levels
            if jumps.phases(level) > 1
        }
        self._ends = {
            level: counter == self._top(level) for level, counter in self._counters.items()
        }
        inner = len(levels) - self._walk.reduction
        m.d.comb += [
            self.last.eq(_all(end for level, end in self._ends.items() if level >= inner)),
            self.final.eq(_all(self._ends.values())),
        ]
        with m.If(taken):
            carry = Value.cast(1)
            for level in reversed(self._counters):
                counter, end = self._counters[level], self._ends[level]
                with m.If(carry):
                    m.d.sync += counter.eq(Mux(end, 0, counter + 1))
                    if level in self._phases:
                        phase = self._phases[level]
                        turn = end | (phase == jumps.phases(level) - 1)
                        m.d.sync += phase.eq(Mux(turn, 0, phase + 1))
                carry = carry & end

    def _top(self, level: int) -> Value:
        """The number of a loop's last trip."""
        by = self._walk.loops[level].by
        if not self._jumps.varies(level) or by is None:
            return Const(self._jumps.most_trips(level) - 1)
        phases = range(self._jumps.phases(by))
        tops = [Const(self._jumps.trips(level, {by: phase}) - 1) for phase in phases]
        return Array(tops)[self._phases[by]]

    def _locate(self, m: Module, taken: Signal) -> None:
        """Registers that move by what the outermost loop that moves says; padding from places."""
        places = {}
        for name, bound in zip(PLACES, self._walk.bounds or (), strict=False):
            low, high = self._jumps.limits(name)
            if low < 0 or high >= bound:
                shape = range(low, max(high, bound) + 1)
                places[name] = Signal(shape, name=name, init=getattr(self._jumps.start, name))
                with m.If(places[name].as_unsigned() >= bound):
                    m.d.comb += self.padded.eq(1)
        registers = dict(places)
        for name in (*ADDRESSES, "index"):
            output = getattr(self, name)
            start = _number(self._jumps.start, name) % (1 << len(output))
            registers[name] = register = Signal(len(output), name=f"{name}_at", init=start)
            m.d.comb += output.eq(register)
            if places and name in PADDED_ADDRESSES:
                with m.If(self.padded):
                    m.d.comb += output.eq(0)
        self._move(m, taken, registers)

    def _move(self, m: Module, taken: Signal, registers: dict[str, Signal]) -> None:
        """Add the jump of the level that moves on: the innermost that is not at its end."""
        moved = {
            name: register
            for name, register in registers.items()
            if len(register) and any(_number(jump, name) for jump in self._jumps.all())
        }
        if not moved:
            return
        jumps = {
            name: Signal(len(register), name=f"{name}_jump") for name, register in moved.items()
        }
        innermost = max(self._ends)
        for level in reversed(self._ends):
            with (m.If if level == innermost else m.Elif)(~self._ends[level]):
                self._choose(m, level, jumps)
        with m.Else():
            self._choose(m, OVER, jumps)
        with m.If(taken):
            m.d.sync += [register.eq(register + jumps[name]) for name, register in moved.items()]

    def _choose(self, m: Module, level: int, jumps: dict[str, Signal]) -> None:
        """The jumps of a level in the present phases."""
        keys = self._jumps.keys(level)
        phases = [self._phases[key] for key in keys]
        with m.Switch(Cat(phases)):
            for numbers in product(*(range(self._jumps.phases(key)) for key in keys)):
                jump = self._jumps.jump(level, dict(zip(keys, numbers, strict=True)))
                patterns = [f"{n:0{len(p)}b}" for n, p in zip(numbers, phases, strict=True)]
                with m.Case("".join(reversed(patterns))) if keys else m.Default():
                    m.d.comb += [
                        signal.eq(_number(jump, name))
                        for name, signal in jumps.items()
                        if _number(jump, name)
                    ]


OVER = -1
"""In place of a level: every loop is at its end and returns to its beginning."""


class Jumps:
    """By how much the addresses of a nest move from one step to the next.

    A jump belongs to the level of the loop that moves on while all loops inside it return. It
    depends on the phases of those loops that `keys` lists, and on nothing else.
    """

    def __init__(self, walk: Pass) -> None:
        self._loops, self._origin = walk.loops, walk.origin

    @property
    def start(self) -> Offset:
        return sum((loop.at(0) for loop in self._loops), self._origin)

    def trips(self, level: int, phases: Mapping[int, int]) -> int:
        """Trips of a loop while others are in these phases (0 unless said)."""
        loop = self._loops[level]
        if loop.by is None:
            return loop.trips
        counts = loop.count if isinstance(loop.count, tuple) else (loop.count,)
        return counts[phases.get(loop.by, 0)]

    def varies(self, level: int) -> bool:
        """Whether the trips of a loop depend on the phase of another."""
        by = self._loops[level].by
        if by is None:
            return False
        return len({self.trips(level, {by: phase}) for phase in range(self.phases(by))}) > 1

    def most_trips(self, level: int) -> int:
        by = self._loops[level].by
        phases = range(1 if by is None else self.phases(by))
        return max(self.trips(level, {} if by is None else {by: phase}) for phase in phases)

    def phases(self, level: int) -> int:
        """Phases that a loop reaches."""
        return min(len(self._loops[level].starts), self.most_trips(level))

    def keys(self, level: int) -> tuple[int, ...]:
        """Loops whose phases the jumps of a level depend on."""
        keys = {level} if level != OVER and self.phases(level) > 1 else set()
        for inner in range(level + 1, len(self._loops)):
            by = self._loops[inner].by
            if by is not None and self.varies(inner) and by <= level:
                keys.add(by)
        return tuple(sorted(keys))

    def jump(self, level: int, phases: Mapping[int, int]) -> Offset:
        """What every address moves by, in these phases of `keys`."""
        known, total = dict(phases), Offset()
        if level != OVER:
            loop, phase = self._loops[level], known.get(level, 0)
            total = loop.at(phase + 1) - loop.at(phase)
        for inner in range(level + 1, len(self._loops)):
            loop, last = self._loops[inner], self.trips(inner, known) - 1
            known.setdefault(inner, last % len(loop.starts))
            total += loop.at(0) - loop.at(last)
        return total

    def all(self) -> Iterator[Offset]:
        """Every jump of the nest."""
        moving = [level for level in range(len(self._loops)) if self.most_trips(level) > 1]
        for level in (OVER, *moving):
            keys = self.keys(level)
            for phases in product(*(range(self.phases(key)) for key in keys)):
                yield self.jump(level, dict(zip(keys, phases, strict=True)))

    def limits(self, name: str) -> tuple[int, int]:
        """Bounds of an address in all steps, the lower at most and the upper at least 0."""
        low = high = getattr(self._origin, name)
        for level, loop in enumerate(self._loops):
            trips, period = self.most_trips(level), len(loop.starts)
            ends = {*range(min(period, trips)), *range(max(0, trips - period), trips)}
            places = [getattr(loop.at(trip), name) for trip in ends]
            low, high = low + min(places), high + max(places)
        return min(low, 0), max(high, 0)


def _number(offset: Offset, name: str) -> int:
    """What a register accumulates."""
    number = int(getattr(offset, name))
    return index_product(number) if name == "index" else number


def _all(conditions: Iterable[Value]) -> Value:
    return reduce(and_, conditions, Const(1))
