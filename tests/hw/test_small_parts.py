"""The queue at a tile's output, a memory of parameters, and a tile's registers."""

import random
from collections import deque
from typing import Any

import pytest
from amaranth.lib import data

from hw.bus import TILE_READ_LATENCY
from hw.parameter_memory import ParameterMemory
from hw.queue import QUEUE_DEPTH, OutputQueue
from hw.tile_registers import TileRegisters
from spec.bus import COEFFICIENTS, DATA_BITS, STATE_BASE, TILE_REGISTER_BITS, Region, lane_bits
from spec.formats import Fixed
from spec.mac import RESULT_LATENCY
from spec.random_bits import Tensor, xorshift32
from spec.update import COEFFICIENT_BITS
from tests.hw.conftest import simulate

CLOCKS = 800
WORD_MASK = (1 << DATA_BITS) - 1


@pytest.mark.parametrize("latency", [0, RESULT_LATENCY])
@pytest.mark.parametrize("hold", [0.0, 0.4, 0.95])
def test_a_queue_loses_nothing_and_promises_no_more_room_than_it_has(
    latency: int, hold: float
) -> None:
    rng = random.Random(7)
    queue = OutputQueue(data.StructLayout({"number": 16}))
    started: deque[int] = deque()
    moments = {"full": 0, "received": 0}

    async def check(ctx: Any) -> None:
        arriving: dict[int, int] = {}
        for clock in range(CLOCKS):
            assert ctx.get(queue.room) == (len(started) < QUEUE_DEPTH)
            moments["full"] += len(started) == QUEUE_DEPTH
            reserve = len(started) < QUEUE_DEPTH and (hold == 0.0 or rng.random() < 0.7)
            if reserve:
                started.append(clock)
                arriving[clock + latency] = clock
            ctx.set(queue.reserve, reserve)
            ctx.set(queue.push, clock in arriving)
            ctx.set(queue.beat.number, arriving.get(clock, 0))
            ready = rng.random() >= hold
            ctx.set(queue.o.ready, ready)
            valid = ctx.get(queue.o.valid)
            if valid:
                assert ctx.get(queue.o.payload.number) == started[0]
            await ctx.tick()
            if valid and ready:
                started.popleft()
                moments["received"] += 1

    simulate(queue, check)
    if hold == 0.0:
        assert moments["received"] > CLOCKS - 2 * QUEUE_DEPTH, "a result a clock must flow"
    else:
        assert moments["received"] > CLOCKS // 40
    assert moments["full"] or hold < 0.9


@pytest.mark.parametrize(("lanes", "words"), [(1, 1), (1, 5), (3, 1), (4, 4), (6, 3)])
@pytest.mark.parametrize("format", [Fixed(8, 4), Fixed(5, 0, signed=False)], ids=str)
def test_a_parameter_memory_serves_tile_and_host(format: Fixed, lanes: int, words: int) -> None:
    rng = random.Random(8)
    memory = ParameterMemory(format, lanes, words)
    content = [[0] * lanes for _ in range(words)]

    async def check(ctx: Any) -> None:
        due: list[int] | None = None
        answers = [0, 0]
        for _ in range(CLOCKS):
            if due is not None:
                assert [ctx.get(memory.data[lane]) for lane in range(lanes)] == due
            assert ctx.get(memory.host_data) == answers.pop(0) & WORD_MASK
            address, host = rng.randrange(words), rng.random() < 0.5
            host_write = rng.random() < 0.5
            word, lane = rng.randrange(words), rng.randrange(lanes)
            numbers = [rng.randint(format.minimum, format.maximum) for _ in range(lanes)]
            number = rng.randint(format.minimum, format.maximum)
            # Host and tile never write at once: the host comes first and the tile's is lost.
            mask = 0 if host and host_write else rng.randrange(1 << lanes)
            ctx.set(memory.address, address)
            ctx.set(memory.write_address, word)
            ctx.set(memory.write_data, numbers)
            ctx.set(memory.write_mask, mask)
            ctx.set(memory.host_select, host)
            ctx.set(memory.host_write, host_write)
            ctx.set(memory.host_offset, word << lane_bits(lanes) | lane)
            ctx.set(memory.host_write_data, number & WORD_MASK)
            due = list(content[word if host else address])
            reads = host and not host_write
            answers.append(content[word][lane] if reads else 0)
            await ctx.tick()
            for place in range(lanes):
                if mask >> place & 1:
                    content[word][place] = numbers[place]
            if host and host_write:
                content[word][lane] = number

    simulate(memory, check)


def test_registers_keep_shadows_until_a_commit_and_step_all_states_together() -> None:
    rng = random.Random(9)
    registers = TileRegisters(TILE_REGISTER_BITS)
    bus = registers.bus
    shadow = dict.fromkeys(COEFFICIENTS, 0)
    active = dict(shadow)
    states = [0] * len(Tensor)

    async def check(ctx: Any) -> None:
        answers = [0] * TILE_READ_LATENCY
        for _ in range(CLOCKS):
            assert ctx.get(bus.read_data) == answers.pop(0)
            found = {name: ctx.get(getattr(registers.coefficients, name)) for name in COEFFICIENTS}
            assert found == active
            assert [ctx.get(registers.states[tensor]) for tensor in Tensor] == states

            select, write = rng.random() < 0.7, rng.random() < 0.5
            region = rng.choice([Region.REGISTERS, Region.REGISTERS, *Region])
            offset = rng.randrange(1 << TILE_REGISTER_BITS)
            number = rng.randrange(1 << DATA_BITS)
            commit, updated = rng.random() < 0.1, rng.random() < 0.1
            ctx.set(bus.select, select)
            ctx.set(bus.write, write)
            ctx.set(bus.region, region)
            ctx.set(bus.offset, offset)
            ctx.set(bus.write_data, number)
            ctx.set(registers.commit, commit)
            ctx.set(registers.updated, updated)
            here = select and region == Region.REGISTERS and offset < STATE_BASE + len(Tensor)
            old = [*shadow.values(), *states]
            answers.append(old[offset] if here else 0)
            await ctx.tick()
            if commit:
                active.update(shadow)
            if updated:
                states[:] = [xorshift32(state) for state in states]
            if here and write and offset < STATE_BASE:
                name = COEFFICIENTS[offset]
                shadow[name] = number & ((1 << COEFFICIENT_BITS[name]) - 1)
            elif here and write:
                states[offset - STATE_BASE] = number

    simulate(registers, check)
