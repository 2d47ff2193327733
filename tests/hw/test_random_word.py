"""Random words in gates against the reference."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hw.random_bits import RANDOM_LATENCY, RandomWord, index_product
from spec.random_bits import MASK, random_word
from tests.hw.conftest import simulate

WORDS = 300


def test_a_word_a_clock_equals_the_reference_also_while_states_change() -> None:
    generator, rng = RandomWord(), random.Random(1)
    asked = [
        (rng.choice((1, MASK, rng.randint(1, MASK))), rng.randrange(1 << 20), rng.randrange(64))
        for _ in range(WORDS)
    ]

    async def check(ctx: Any) -> None:
        for clock in range(WORDS + RANDOM_LATENCY):
            if clock < WORDS:
                state, base, offset = asked[clock]
                ctx.set(generator.state, state)
                ctx.set(generator.base, index_product(base))
                ctx.set(generator.offset, index_product(offset + 1))
            if 0 < clock <= WORDS:
                ctx.set(generator.late_state, asked[clock - 1][0])
            if clock >= RANDOM_LATENCY:
                state, base, offset = asked[clock - RANDOM_LATENCY]
                assert ctx.get(generator.word) == random_word(state, base + offset)
            await ctx.tick()

    simulate(generator, check)


@given(st.integers(0, MASK), st.integers(0, MASK))
def test_index_products_add_like_indices(one: int, other: int) -> None:
    assert (index_product(one) + index_product(other)) & MASK == index_product(one + other)
