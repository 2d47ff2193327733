"""Random words by element, as in spec/random_bits, in two clocks."""

from amaranth import Module, Signal, Value

from spec.random_bits import GOLDEN, MASK

RANDOM_LATENCY = 2
"""Clocks from an index to its random word."""


def xorshift32(x: Value) -> Value:
    """One step of the generator, combinational."""
    x = (x ^ x.shift_left(13))[:32]
    x = (x ^ x.shift_right(17))[:32]
    return (x ^ x.shift_left(5))[:32]


def index_product(index: int) -> int:
    """index * G mod 2**32: what address generators accumulate in place of the index."""
    return index * GOLDEN & MASK


def random_word(m: Module, states: tuple[Value, Value], product: Value, name: str) -> Value:
    """The random word of the element whose (i + 1) G is `product`, RANDOM_LATENCY clocks later.

    `states` holds the tensor's state as the first and the second clock shall see it.
    """
    first, second = Signal(32, name=f"{name}_first"), Signal(32, name=f"{name}_second")
    m.d.sync += [
        first.eq(states[0] + product),
        second.eq(xorshift32(first) + states[1]),
    ]
    return xorshift32(second)
