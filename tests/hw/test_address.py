# amaranth: UnusedElaboratable=no
"""The address generator against nested loops in Python."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.address import ADDRESSES, AddressGenerator
from hw.random_bits import index_product
from spec.mac import Loop, Pass
from tests.hw.conftest import simulate

strides = st.integers(0, 5)
loops = st.builds(Loop, st.integers(1, 4), strides, strides, strides, strides, st.integers(0, 99))
passes = st.lists(loops, min_size=1, max_size=4).flatmap(
    lambda nest: st.builds(Pass, st.just(tuple(nest)), st.integers(0, len(nest)), st.integers(0, 3))
)
VALUES = (*ADDRESSES, "index", "first", "last", "final")


def steps_of(walk: Pass) -> list[tuple[int, ...]]:
    """VALUES of every step, from the definition of a nest."""
    inner = range(len(walk.loops) - walk.reduction, len(walk.loops))
    steps = []
    for counters in product(*(range(loop.count) for loop in walk.loops)):
        trips = list(zip(counters, walk.loops, strict=True))
        addresses = [sum(c * getattr(loop, name) for c, loop in trips) for name in ADDRESSES]
        ends = [c == loop.count - 1 for c, loop in trips]
        first = all(counters[level] == 0 for level in inner)
        last = all(ends[level] for level in inner)
        index = index_product(sum(c * loop.index for c, loop in trips))
        steps.append((*addresses, index, first, last, all(ends)))
    return steps


@settings(max_examples=40, deadline=None)
@given(passes, st.sampled_from([0.0, 0.5]), st.integers(0))
def test_every_pass_walks_the_nest_and_idles_after_each_sum(
    walk: Pass, hold: float, seed: int
) -> None:
    generator, rng, steps = AddressGenerator(walk), random.Random(seed), steps_of(walk)
    members = [generator.step, generator.over, *(getattr(generator, name) for name in VALUES)]

    async def check(ctx: Any) -> None:
        for _ in range(3):
            clocks = held = idle = 0
            left, over = list(steps), False
            ctx.set(generator.run, 1)
            while not over:
                advance = rng.random() >= hold
                ctx.set(generator.advance, advance)
                _, _, step, seen_over, *values = await ctx.tick().sample(*members)
                clocks += 1
                assert step == (idle == 0)
                if idle:
                    idle -= 1
                    over = idle == 0 and not left
                else:
                    assert tuple(values) == left[0]
                    held += not advance
                    if advance and left.pop(0)[VALUES.index("last")]:
                        idle = walk.idle
                    over = advance and not left and not idle
                assert seen_over == over
            assert clocks - held == walk.cycles
            ctx.set(generator.run, 0)
            ctx.set(generator.advance, 1)
            for _ in range(rng.randrange(3)):
                _, _, step, seen_over = await ctx.tick().sample(generator.step, generator.over)
                assert not step and not seen_over

    simulate(generator, check)


def test_a_reduction_of_more_loops_than_there_are_is_refused() -> None:
    walk = Pass((Loop(2), Loop(3)), 2)
    with pytest.raises(ValueError, match=r"^reduction must be at most 2, not 3$"):
        AddressGenerator(replace(walk, reduction=3))
