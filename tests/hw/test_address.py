# amaranth: UnusedElaboratable=no
"""The address generator against the enumeration of its nest."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.address import ADDRESSES, AddressGenerator
from hw.random_bits import index_product
from spec.mac import Folding, Loop, Offset, Pass
from spec.shape import Shape
from spec.tiles.conv import Conv
from tests.hw.conftest import simulate

STRIDES = st.integers(-3, 5)
OFFSETS = st.builds(
    Offset, STRIDES, STRIDES, STRIDES, STRIDES, st.integers(0, 99), st.integers(-2, 2), STRIDES
)
VALUES = (*ADDRESSES, "index", "first", "last", "final", "padded")


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    """Nests of up to four loops, some with phases, and some whose trips depend on those."""
    loops: list[Loop] = []
    for _ in range(draw(st.integers(1, 4))):
        leaders = [outer for outer, loop in enumerate(loops) if loop.by is None]
        by = draw(st.sampled_from([None, *leaders]))
        count: int | tuple[int, ...] = draw(st.integers(1, 4))
        if by is not None:
            count = tuple(draw(st.integers(1, 3)) for _ in loops[by].starts)
        starts = draw(st.lists(OFFSETS, min_size=1, max_size=3))
        loops.append(Loop(count, draw(OFFSETS), tuple(starts), by))
    # How many sums there are depends on no phase.
    dependent = [len(loops) - level for level, loop in enumerate(loops) if loop.by is not None]
    reduction, bounds = draw(st.integers(max(dependent, default=0), len(loops))), st.integers(1, 5)
    outside = draw(st.none() | st.tuples(bounds, bounds))
    return Pass(tuple(loops), reduction, draw(st.integers(0, 3)), draw(OFFSETS), outside)


@st.composite
def passes_of_convolutions(draw: st.DrawFn) -> Pass:
    kernel = draw(st.sampled_from([1, 3, 5]))
    padding = draw(st.integers(0, kernel - 1))
    conv = Conv("tile", 4, kernel, draw(st.integers(1, 3)), padding, bias=True)
    sides = st.integers(max(1, kernel - 2 * padding), 5)
    source = Shape(draw(sides), draw(sides), 4)
    lanes = st.sampled_from([2, 4])
    folding = Folding(draw(lanes), draw(lanes), 1)
    geometry = conv.geometry(source, folding, first=False)
    nests = (
        geometry.forward,
        geometry.backward_data,
        geometry.backward_weight,
        geometry.backward_bias,
    )
    walk = draw(st.sampled_from(nests))
    assert walk is not None
    return walk


def steps_of(walk: Pass, widths: dict[str, int]) -> list[tuple[int, ...]]:
    """VALUES of every step; addresses modulo their width, and 0 for an operand in the padding."""
    steps = []
    for step in walk.walk():
        addresses = [
            0
            if step.padded and name in ("stash", "gradient")
            else getattr(step.at, name) % (1 << widths[name])
            for name in ADDRESSES
        ]
        index = index_product(step.at.index)
        steps.append((*addresses, index, step.first, step.last, step.final, step.padded))
    return steps


def follow(walk: Pass, hold: float, seed: int, rounds: int) -> None:
    """Compare the generator with the walk of its nest in every clock, several times over."""
    generator, rng = AddressGenerator(walk), random.Random(seed)
    steps = steps_of(walk, {name: len(getattr(generator, name)) for name in ADDRESSES})
    members = [generator.step, generator.over, *(getattr(generator, name) for name in VALUES)]

    async def check(ctx: Any) -> None:
        for _ in range(rounds):
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


@settings(max_examples=40, deadline=None)
@given(passes(), st.sampled_from([0.0, 0.5]), st.integers(0))
def test_every_pass_walks_the_nest_and_idles_after_each_sum(
    walk: Pass, hold: float, seed: int
) -> None:
    follow(walk, hold, seed, rounds=2)


@settings(max_examples=25, deadline=None)
@given(passes_of_convolutions(), st.integers(0))
def test_all_passes_of_convolutions_are_walked(walk: Pass, seed: int) -> None:
    follow(walk, 0.1, seed, rounds=1)


def test_an_address_is_as_wide_as_its_memory_unless_padding_lies_beyond() -> None:
    geometry = Conv("tile", 4, 1, 2, padding=0).geometry(
        Shape(4, 4, 4), Folding(2, 2, 1), first=False
    )
    assert len(AddressGenerator(geometry.forward).stash) == (4 * 4 * 4 // 2 - 1).bit_length()
    assert len(AddressGenerator(geometry.backward_weight).weight) == 2


def test_a_reduction_of_more_loops_than_there_are_is_refused() -> None:
    walk = Pass((Loop(2), Loop(3)), 2)
    with pytest.raises(ValueError, match=r"^reduction must be at most 2, not 3$"):
        AddressGenerator(replace(walk, reduction=3))
