"""The whole array in Amaranth's simulator, against the golden engine."""

import random
from dataclasses import replace
from typing import Any

import pytest
from amaranth.sim import Simulator

from cosim.host import coefficient_accesses, state_accesses
from hw.array import TileArray
from model.arithmetic import IntegerArithmetic
from model.engine import Engine, SlotRecord
from model.feed import Turn, training
from model.packets import packet_beats
from spec.mac import Folding
from spec.network import Network
from spec.packets import RESULT_FIELDS, Header, Kind, pack_fields
from spec.plan import Plan
from spec.registers import BUS_READ_LATENCY, IDENTITY, VERSION, AddressMap, ArrayRegister
from spec.shape import Shape
from spec.tiles import Dense, Loss
from tests.hw.conftest import receive, send, simulate
from tests.model.small import encoded, small_data, small_engine, small_entry, small_plan

SAMPLES = 6
LONGEST = 20_000


def slots(plan: Plan) -> tuple[Engine, Engine, list[tuple[Turn, object]], list[SlotRecord]]:
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
    received, mismatches = [], []
    rng = random.Random(1)
    loaded = []

    async def feed(ctx) -> None:
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

    async def collect(ctx) -> None:
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


def tiny_plan() -> Plan:
    """2-2-2 in two stages."""
    network = Network.chain(
        "tiny",
        Shape(1, 1, 2),
        (Dense("one", 2),),
        (Dense("two", 2, relu=False), Loss("loss")),
    )
    entry = replace(small_entry(), network=network, foldings=(Folding(1, 1, 1),) * 2)
    return small_plan(entry=entry)


async def access(ctx: Any, array: TileArray, address: int, word: int | None = None) -> int:
    """Write a word over the bus, or read one."""
    ctx.set(array.bus.enable, 1)
    ctx.set(array.bus.address, address)
    ctx.set(array.bus.write, word is not None)
    ctx.set(array.bus.write_data, word or 0)
    await ctx.tick()
    ctx.set(array.bus.enable, 0)
    await ctx.tick().repeat(BUS_READ_LATENCY - 1)
    return int(ctx.get(array.bus.read_data))


def test_the_array_tells_the_hash_of_its_plan() -> None:
    plan = tiny_plan()
    array = TileArray(plan.hardware)

    async def check(ctx: Any) -> None:
        high, low, identity, version = [
            await access(ctx, array, register)
            for register in (
                ArrayRegister.HARDWARE_HASH_HIGH,
                ArrayRegister.HARDWARE_HASH_LOW,
                ArrayRegister.IDENTITY,
                ArrayRegister.VERSION,
            )
        ]
        assert f"{high:08x}{low:08x}" == plan.hardware.hash
        assert (identity, version) == (IDENTITY, VERSION)

    simulate(array, check)


@pytest.mark.parametrize("tile", ["one", "two"])
def test_a_coefficient_write_is_refused_while_a_commit_is_on_its_way(tile: str) -> None:
    plan = tiny_plan()
    array = TileArray(plan.hardware)
    layout = plan.hardware.edges[0].forward
    spike = AddressMap(plan.hardware).coefficient(tile, "spike")
    status = int(ArrayRegister.STATUS)
    travelling, refused = 1, 2
    bubble, commit = (layout.beats(Header(Kind.BUBBLE, c), [])[0] for c in (False, True))

    async def check(ctx: Any) -> None:
        rng = random.Random(0)
        await access(ctx, array, spike, 5)
        assert await access(ctx, array, status) == 0
        # Nobody takes results: the first bubble keeps the second from reaching the loss.
        await send(ctx, array.i, [bubble, commit], rng)
        await ctx.tick().repeat(100)
        assert await access(ctx, array, status) == travelling
        await access(ctx, array, spike, 9)
        assert await access(ctx, array, status) == travelling | refused
        assert await access(ctx, array, spike) == 5

        await receive(ctx, array.o, 4, rng)
        await ctx.tick().repeat(100)
        assert await access(ctx, array, status) == refused
        assert await access(ctx, array, spike) == 5
        await access(ctx, array, status, refused)
        assert await access(ctx, array, status) == 0
        await access(ctx, array, spike, 9)
        assert await access(ctx, array, spike) == 9
        await send(ctx, array.i, [commit], rng)
        await receive(ctx, array.o, 2, rng)
        assert await access(ctx, array, status) == 0
        assert await access(ctx, array, spike) == 9

    simulate(array, check)
