"""Random words by element, as in spec/random_bits, in two clocks."""

from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from spec.random_bits import GOLDEN, MASK

RANDOM_LATENCY = 2
"""Clocks from an index to its random word."""


def xorshift32(x: Value) -> Value:
    """One step of the generator, combinational."""
    x = x ^ Cat(Const(0, 13), x[:19])
    x = x ^ x[17:]
    return x ^ Cat(Const(0, 5), x[:27])


def index_product(index: int) -> int:
    """index * G mod 2**32: what address generators accumulate in place of the index."""
    return index * GOLDEN & MASK


class RandomWord(wiring.Component):
    """The random word of an element, RANDOM_LATENCY clocks later; one a clock.

    Members
    -------
    state, late_state: the tensor's state, now and as it was one clock ago.
    base, offset: index products whose sum is (i + 1) G.
    """

    def __init__(self) -> None:
        members = {name: In(32) for name in ("state", "late_state", "base", "offset")}
        super().__init__({**members, "word": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        first, second = Signal(32), Signal(32)
        m.d.sync += [
            first.eq(self.state + self.base + self.offset),
            second.eq(xorshift32(first) + self.late_state),
        ]
        m.d.comb += self.word.eq(xorshift32(second))
        return m
