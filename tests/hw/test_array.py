"""The whole array in Amaranth's simulator, against the golden engine."""

import random
from typing import Any

import pytest
import torch
from amaranth.sim import Simulator

from cosim.host import Access, coefficient_accesses, state_accesses
from hw.array import TileArray
from model.arithmetic import IntegerArithmetic
from model.engine import Engine, SlotRecord
from model.feed import Turn, training
from model.packets import packet_beats
from spec.bus import BUS_READ_LATENCY
from spec.packets import RESULT_FIELDS, Header, Kind, pack_fields
from spec.plan import Plan
from tests.model.small import encoded, small_data, small_engine, small_plan

SAMPLES = 6
LONGEST = 20_000


def slots(
    plan: Plan,
) -> tuple[Engine, Engine, list[tuple[Turn, torch.Tensor | None]], list[SlotRecord]]:
    """A short run: the engine before and after it, its input and its records."""
    arithmetic = IntegerArithmetic()
    data = small_data(SAMPLES)
    images = encoded(plan, arithmetic, data.train)
    turns = [Turn(Header(Kind.EVAL, True, 1), 0), *training(plan, data.train.labels, SAMPLES)]
    turns += [Turn(Header(Kind.BUBBLE), None)] * 6
    before, engine = (small_engine(plan, arithmetic) for _ in range(2))
    inputs = [(t, None if t.sample is None else images[t.sample]) for t in turns]
    return before, engine, inputs, [engine.slot(t.header, x) for t, x in inputs]


@pytest.mark.parametrize("hold", [0.0, 0.6])
def test_the_array_equals_the_golden_engine_whatever_the_host_s_pace(hold: float) -> None:
    plan = small_plan()
    before, after, inputs, records = slots(plan)
    layout = plan.hardware.edges[0].forward
    beats = [b for turn, x in inputs for b in packet_beats(layout, turn.header, x)]
    expected = []
    for record in records:
        result = record.result
        first = (int(result.kind), 0, result.prediction, int(result.loss))
        for values in (first, (int(record.done), 1, 0, 0)):
            names = [name for name, _ in RESULT_FIELDS]
            expected.append(pack_fields(RESULT_FIELDS, dict(zip(names, values, strict=True))))
    array = TileArray(plan.hardware)
    simulator = Simulator(array)
    simulator.add_clock(1e-6)
    received: list[int] = []
    mismatches: list[tuple[Access, int]] = []
    rng = random.Random(1)
    loaded = []

    async def feed(ctx: Any) -> None:
        ctx.set(array.bus.enable, 1)
        for access in (*coefficient_accesses(before), *state_accesses(before)):
            ctx.set(array.bus.address, access.address)
            ctx.set(array.bus.write, 1)
            ctx.set(array.bus.write_data, access.word)
            await ctx.tick()
        ctx.set(array.bus.enable, 0)  # the address stays: an idle bus must disturb nobody
        ctx.set(array.bus.write, 0)
        loaded.append(True)
        for beat in beats:
            while rng.random() < hold:
                await ctx.tick()
            ctx.set(array.i.valid, 1)
            ctx.set(array.i.payload.as_value(), beat)
            await ctx.tick().until(array.i.ready)
            ctx.set(array.i.valid, 0)

    async def collect(ctx: Any) -> None:
        for _ in range(LONGEST):
            if len(received) == len(expected):
                break
            ready = rng.random() >= hold
            ctx.set(array.o.ready, ready)
            _, _, valid, payload = await ctx.tick().sample(
                array.o.valid, array.o.payload.as_value()
            )
            if ready and valid:
                received.append(payload)
        assert received == expected
        await ctx.tick().repeat(100)
        ctx.set(array.bus.enable, 1)
        for access in state_accesses(after):
            ctx.set(array.bus.address, access.address)
            await ctx.tick().repeat(BUS_READ_LATENCY)
            if (word := ctx.get(array.bus.read_data)) != access.word:
                mismatches.append((access, word))

    simulator.add_testbench(feed)
    simulator.add_testbench(collect)
    simulator.run()
    assert received == expected
    assert not mismatches[:5]
