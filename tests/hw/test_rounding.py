"""Rounding and saturation in gates: exhaustive for small widths."""

from itertools import product
from typing import Any

import pytest
from amaranth import ClockDomain, Module, Signal, Value, signed, unsigned
from amaranth.hdl import Elaboratable

from hw import rounding
from hw.streams import element
from spec import formats
from spec.formats import Fixed
from tests.hw.conftest import simulate

WIDTH = 6
SHIFTS = range(-2, 8)
TARGETS = [Fixed(width, 0, signed) for width in (2, 4, 6, 9) for signed in (False, True)]


class Rounded(Elaboratable):
    """Every rounding of one number."""

    def __init__(self, is_signed: bool, frac: int) -> None:
        self.number = Signal(signed(WIDTH) if is_signed else unsigned(WIDTH))
        self.random = Signal(32)
        self.frac = frac
        self.half_up = Signal(signed(16))
        self.stochastic = Signal(signed(16))
        self.to_targets = [(Signal(element(t)), Signal(element(t)), t) for t in TARGETS]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.domains.sync = ClockDomain()  # the simulation wants a clock
        m.d.comb += [
            self.half_up.eq(rounding.round_half_up(self.number, self.frac)),
            self.stochastic.eq(rounding.round_stochastic(self.number, self.frac, self.random)),
        ]
        for nearest, drawn, target in self.to_targets:
            m.d.comb += [
                nearest.eq(rounding.requantize(self.number, self.frac, target)),
                drawn.eq(rounding.requantize(self.number, self.frac, target, self.random)),
            ]
        return m


def numbers_of(is_signed: bool) -> range:
    return range(-(1 << WIDTH - 1), 1 << WIDTH - 1) if is_signed else range(1 << WIDTH)


@pytest.mark.parametrize("is_signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("frac", SHIFTS)
def test_every_number_rounds_and_saturates_as_the_reference(is_signed: bool, frac: int) -> None:
    """With all words whose top bits differ where rounding looks, and a word that differs below."""
    dut = Rounded(is_signed, frac)
    tops = range(0, 1 << max(0, frac), 1 if frac < 5 else 5)
    words = [top << 32 - max(0, frac) for top in tops]
    words += [word | (1 << 32 - max(0, frac)) - 1 for word in words]

    async def check(ctx: Any) -> None:
        for number in numbers_of(is_signed):
            ctx.set(dut.number, number)
            assert ctx.get(dut.half_up) == formats.round_half_up(number, frac)
            for nearest, _, target in dut.to_targets:
                assert ctx.get(nearest) == formats.requantize(number, frac, target)
        for number, word in product(numbers_of(is_signed), words):
            ctx.set(dut.number, number)
            ctx.set(dut.random, word)
            assert ctx.get(dut.stochastic) == formats.round_stochastic(number, frac, word)
        for number, word in product(numbers_of(is_signed), words[:: max(1, len(words) // 4)]):
            ctx.set(dut.number, number)
            ctx.set(dut.random, word)
            for _, drawn, target in dut.to_targets:
                assert ctx.get(drawn) == formats.requantize(number, frac, target, word)

    simulate(dut, check)


@pytest.mark.parametrize("shift", [31, 32, 33, 40])
def test_shifts_around_the_width_of_the_random_word_follow_the_reference(shift: int) -> None:
    number, random = Signal(signed(44)), Signal(32)
    result = Signal(signed(16))
    dut = Module()
    dut.domains.sync = ClockDomain()
    dut.d.comb += result.eq(rounding.round_stochastic(Value.cast(number), shift, random))
    edges = [0, 1, -1, 1 << shift, (1 << shift) - 1, -(1 << shift), -(1 << shift) - 1]

    async def check(ctx: Any) -> None:
        for value, word in product(edges, (0, 1, 1 << 31, (1 << 32) - 1)):
            ctx.set(number, value)
            ctx.set(random, word)
            assert ctx.get(result) == formats.round_stochastic(value, shift, word), (value, word)

    simulate(dut, check)
