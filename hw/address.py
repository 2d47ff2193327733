"""Address generators: a loop nest of spec/mac walked one step a cycle."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.random_bits import index_product
from spec.mac import Loop, Pass

INDEX_BITS = 32
ADDRESSES = ("stash", "gradient", "weight", "bias")


class AddressGenerator(wiring.Component):
    """Walks a pass: addresses come from registers, each updated by one addition a step.

    While `run` is high, `step` says that a step is offered; it is taken in every cycle in which
    `advance` is high too. `over` marks the last cycle of the pass (its last step, or the end of the
    idle cycles after it), after which the generator stands at the beginning again.

    Throughput: one step a cycle, `Pass.cycles` cycles a pass.

    Parameters
    ----------
    walk: the loop nest.

    Members
    -------
    stash, gradient, weight, bias: word addresses of this step.
    index: element index of the word's first lane, times G, mod 2**32 (see hw/random_bits).
    first, last: this step is the first, the last of its sum.
    final: this step is the last of the pass.
    """

    def __init__(self, walk: Pass) -> None:
        if walk.reduction > len(walk.loops):
            raise ValueError(f"reduction must be at most {len(walk.loops)}, not {walk.reduction}")
        self._walk = walk
        members = {name: Out(_bits(walk, name)) for name in ADDRESSES}
        super().__init__(
            {
                "run": In(1),
                "advance": In(1),
                "step": Out(1),
                "over": Out(1),
                "first": Out(1),
                "last": Out(1),
                "final": Out(1),
                "index": Out(INDEX_BITS),
                **members,
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        walk = self._walk
        counters = [
            Signal(range(loop.count), name=f"counter_{level}")
            for level, loop in enumerate(walk.loops)
        ]
        ends = [
            counter == loop.count - 1 for counter, loop in zip(counters, walk.loops, strict=True)
        ]
        inner = range(len(walk.loops) - walk.reduction, len(walk.loops))
        idle = Signal(range(walk.idle + 1))
        ending = Signal()
        taken = Signal()
        m.d.comb += [
            self.step.eq(self.run & (idle == 0)),
            taken.eq(self.step & self.advance),
            self.first.eq(_all(counters[level] == 0 for level in inner)),
            self.last.eq(_all(ends[level] for level in inner)),
            self.final.eq(_all(ends)),
        ]
        if walk.idle:
            m.d.comb += self.over.eq((idle == 1) & ending)
            with m.If(idle != 0):
                m.d.sync += idle.eq(idle - 1)
            with m.If(taken & self.last):
                m.d.sync += [idle.eq(walk.idle), ending.eq(self.final)]
        else:
            m.d.comb += self.over.eq(taken & self.final)
        with m.If(taken):
            self._advance(m, counters, ends)
        return m

    def _advance(self, m: Module, counters: list[Signal], ends: list[object]) -> None:
        """Innermost loop first; a loop moves when all loops inside it end."""
        carry: object = 1
        for level in reversed(range(len(counters))):
            with m.If(carry):
                m.d.sync += counters[level].eq(Mux(ends[level], 0, counters[level] + 1))
                for name in ADDRESSES:
                    address = getattr(self, name)
                    m.d.sync += address.eq(address + _jump(self._walk.loops, level, name))
                jump = index_product(_jump(self._walk.loops, level, "index"))
                m.d.sync += self.index.eq(self.index + jump)
            carry = _all([carry, ends[level]])
        with m.If(self.final):
            m.d.sync += [getattr(self, name).eq(0) for name in (*ADDRESSES, "index")]


def _all(conditions: object) -> object:
    result: object = 1
    for condition in conditions:  # type: ignore[attr-defined]
        result = condition & result
    return result


def _jump(loops: tuple[Loop, ...], level: int, name: str) -> int:
    """What an address moves by when `level` counts on and all loops inside it return."""
    back = sum(getattr(loop, name) * (loop.count - 1) for loop in loops[level + 1 :])
    return int(getattr(loops[level], name)) - back


def _bits(walk: Pass, name: str) -> int:
    """Address bits: strides are never negative, so the last step has the largest address."""
    return sum(getattr(loop, name) * (loop.count - 1) for loop in walk.loops).bit_length()
