# amaranth: UnusedElaboratable=no
"""The loss tile with its stash against the integer reference."""

import random
from itertools import pairwise
from typing import Any

import pytest
from amaranth import Module
from amaranth.hdl import Elaboratable
from amaranth.lib import wiring

from hw.bus import TILE_READ_LATENCY
from hw.stash import Stash
from hw.tiles.loss import RESULT, LossCore
from spec.bus import LossRegister
from spec.formats import Fixed
from spec.packets import BeatLayout, Header, Kind
from spec.random_bits import xorshift32
from spec.shape import Shape
from spec.tiles.loss import LOGITS, Loss, cross_entropy, logit_gradient
from tests.hw.conftest import integers, receive, send, simulate

GRADIENT = Fixed(12, 10)
STATE = 0x1234_5678
SPREADS = (0, 40, 700, 5000, LOGITS.maximum)
"""Largest magnitudes of logits: ties, close ones, and ones beyond the table."""
NOT_HELD = random.Random(0)


class IsolatedLoss(Elaboratable):
    """The core and the stash before it."""

    def __init__(self, classes: int, lanes: int, stochastic: bool) -> None:
        self.core = LossCore(classes, lanes, GRADIENT, stochastic)
        self.logits = BeatLayout(LOGITS, lanes, forward=True)
        self.gradient = BeatLayout(GRADIENT, lanes, forward=False)
        self.stash = Stash(self.logits, classes // lanes, 2)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core, m.submodules.stash = self.core, self.stash
        wiring.connect(m, self.core.stash, self.stash.reader)
        return m


def packets(rng: random.Random, classes: int, kinds: list[Kind]) -> list[tuple[Header, list[int]]]:
    """Every class is a label in turn."""
    result = []
    for i, kind in enumerate(kinds):
        spread = SPREADS[rng.randrange(len(SPREADS))]
        logits = integers(rng, -spread - (spread == LOGITS.maximum), spread, classes)
        header = Header(kind, rng.random() < 0.3, i % classes)
        result.append((header, logits if kind is not Kind.BUBBLE else []))
    return result


async def access(
    ctx: Any, core: LossCore, register: LossRegister, number: int | None = None
) -> int:
    """Write a register, or read it."""
    ctx.set(core.bus.select, 1)
    ctx.set(core.bus.offset, register)
    ctx.set(core.bus.write, number is not None)
    ctx.set(core.bus.write_data, number or 0)
    await ctx.tick()
    ctx.set(core.bus.select, 0)
    await ctx.tick().repeat(TILE_READ_LATENCY - 1)
    return int(ctx.get(core.bus.read_data))


@pytest.mark.parametrize("hold", [0.0, 0.7])
@pytest.mark.parametrize("stochastic", [False, True], ids=["nearest", "stochastic"])
@pytest.mark.parametrize(("classes", "lanes"), [(1, 1), (3, 1), (4, 2), (10, 2), (6, 6)])
def test_results_gradients_and_counters_equal_the_reference_whatever_the_stalls(
    classes: int, lanes: int, stochastic: bool, hold: float
) -> None:
    rng = random.Random(classes)
    isolated = IsolatedLoss(classes, lanes, stochastic)
    core = isolated.core
    kinds = [rng.choice([Kind.TRAIN, Kind.TRAIN, Kind.EVAL, Kind.BUBBLE]) for _ in range(24)]
    inputs = packets(rng, classes, [*[Kind.TRAIN] * classes, *kinds])
    results: list[int] = []
    gradients: list[int] = []
    state = STATE
    counters = {Kind.TRAIN: [0, 0, 0], Kind.EVAL: [0, 0, 0]}
    for header, logits in inputs:
        values = {"kind": header.kind, "prediction": 0, "loss": 0}
        beats = isolated.gradient.beats(Header(Kind.BUBBLE), [])
        if header.kind is not Kind.BUBBLE:
            result = cross_entropy(logits, header.label)
            values |= {"prediction": result.prediction, "loss": result.loss}
            counter = counters[header.kind]
            counter[0] += 1
            counter[1] += result.prediction == header.label
            counter[2] += result.loss
        if header.kind is Kind.TRAIN:
            rounding = state if stochastic else None
            numbers = logit_gradient(result, header.label, GRADIENT, rounding)
            beats = isolated.gradient.beats(Header(Kind.TRAIN), numbers)
            state = xorshift32(state)
        results.append(RESULT.const(values).as_value().value)
        gradients += beats
    commits: list[bool] = []
    ended: list[bool] = []

    async def feed(ctx: Any) -> None:
        await access(ctx, core, LossRegister.STATE, STATE)
        beats = [b for packet in inputs for b in isolated.logits.beats(*packet)]
        await send(ctx, isolated.stash.i, beats, random.Random(1), hold)

    async def take_results(ctx: Any) -> None:
        assert await receive(ctx, core.o, len(results), random.Random(2), hold) == results

    async def take_gradients(ctx: Any) -> None:
        beats = await receive(ctx, core.o_gradient, len(gradients), random.Random(3), hold)
        assert beats == gradients
        await ctx.tick().repeat(10)
        for base, kind in (
            (LossRegister.TRAIN_SEEN, Kind.TRAIN),
            (LossRegister.EVAL_SEEN, Kind.EVAL),
        ):
            seen, correct, loss = counters[kind]
            words = (seen, correct, loss & 0xFFFF_FFFF, loss >> 32)
            for offset, word in enumerate(words):
                assert await access(ctx, core, LossRegister(base + offset)) == word
        assert await access(ctx, core, LossRegister.STATE) == state
        ended.append(True)

    async def observe(ctx: Any) -> None:
        while not ended:
            _, _, started, committed = await ctx.tick().sample(core.started, core.committed)
            assert started or not committed
            if started:
                commits.append(bool(committed))

    simulate(isolated, feed, take_results, take_gradients, observe)
    assert commits == [header.commit for header, _ in inputs]


@pytest.mark.parametrize(("classes", "lanes"), [(1, 1), (3, 1), (4, 2), (10, 5)])
def test_a_training_slot_takes_what_the_formula_says_when_nothing_stalls(
    classes: int, lanes: int
) -> None:
    isolated = IsolatedLoss(classes, lanes, stochastic=True)
    core = isolated.core
    inputs = packets(random.Random(4), classes, [Kind.TRAIN] * 6)
    starts: list[int] = []

    async def feed(ctx: Any) -> None:
        ctx.set(core.o.ready, 1)
        ctx.set(core.o_gradient.ready, 1)
        beats = [b for packet in inputs for b in isolated.logits.beats(*packet)]
        await send(ctx, isolated.stash.i, beats, NOT_HELD)

    async def observe(ctx: Any) -> None:
        clock = 0
        while len(starts) < len(inputs):
            _, _, started = await ctx.tick().sample(core.started)
            clock += 1
            if started:
                starts.append(clock)

    simulate(isolated, feed, observe)
    lengths = {later - earlier for earlier, later in pairwise(starts)}
    assert lengths == {Loss("loss").slot_cycles(Shape(1, 1, classes))}


def test_writing_a_counter_clears_it_and_no_other() -> None:
    isolated = IsolatedLoss(3, 1, stochastic=False)
    core = isolated.core
    inputs = packets(random.Random(5), 3, [Kind.TRAIN] * 3)

    async def check(ctx: Any) -> None:
        ctx.set(core.o.ready, 1)
        ctx.set(core.o_gradient.ready, 1)
        beats = [b for packet in inputs for b in isolated.logits.beats(*packet)]
        await send(ctx, isolated.stash.i, beats, NOT_HELD)
        await ctx.tick().repeat(200)
        loss = sum(cross_entropy(logits, header.label).loss for header, logits in inputs)
        await access(ctx, core, LossRegister.TRAIN_SEEN, 0xFFFF_FFFF)
        assert await access(ctx, core, LossRegister.TRAIN_SEEN) == 0
        assert await access(ctx, core, LossRegister.TRAIN_LOSS_LOW) == loss
        await access(ctx, core, LossRegister.TRAIN_LOSS_LOW, 7)
        assert await access(ctx, core, LossRegister.TRAIN_LOSS_LOW) == 0

    simulate(isolated, check)


def test_lanes_must_divide_the_classes() -> None:
    with pytest.raises(ValueError, match="lanes must divide the 10 classes, not 3"):
        LossCore(10, 3, GRADIENT, stochastic=False)
