"""What the host reads of an array, and what the array refuses it: registers, not results."""

from collections.abc import Callable
from typing import Any

from hw.array import TileArray
from spec.bus import BUS_READ_LATENCY, IDENTITY, VERSION, ArrayRegister, LossRegister, Region
from spec.hyperparameters import Hyperparameters
from spec.mac import Folding
from spec.network import Network
from spec.packets import Header, Kind
from spec.random_bits import Tensor
from spec.registers import AddressMap
from spec.shape import Shape
from spec.tiles import Loss, dense
from spec.zoo import ZooEntry
from tests.hw.conftest import simulate
from tests.model.small import small_plan

TRAVELLING, REFUSED = 1, 2
"""Bits of ArrayRegister.STATUS."""
COMMIT = Header(Kind.BUBBLE, commit=True)
LONGEST_SLOT = 200
"""Clocks after which whatever can move has moved."""


def tiny_entry() -> ZooEntry:
    """2-2-2, so that every forward way has two tiles with weights before the loss."""
    network = Network.chain(
        "tiny", Shape(1, 1, 2), (dense("one", 2),), (dense("two", 2, relu=False), Loss("loss"))
    )
    return ZooEntry(network, "digits", Hyperparameters(2.0**-3, 0.75), (Folding(1, 1, 1),) * 2, 1)


class Host:
    """An array with bus and streams from a testbench's side; nothing leaves it unless taken."""

    def __init__(self) -> None:
        self.hardware = small_plan(entry=tiny_entry()).hardware
        self.map = AddressMap(self.hardware)
        self.array = TileArray(self.hardware)

    async def write(self, ctx: Any, address: int, word: int) -> None:
        bus = self.array.bus
        ctx.set(bus.enable, 1)
        ctx.set(bus.write, 1)
        ctx.set(bus.address, address)
        ctx.set(bus.write_data, word)
        await ctx.tick()
        ctx.set(bus.enable, 0)
        ctx.set(bus.write, 0)

    async def read(self, ctx: Any, address: int) -> int:
        bus = self.array.bus
        ctx.set(bus.enable, 1)
        ctx.set(bus.address, address)
        await ctx.tick().repeat(BUS_READ_LATENCY)
        ctx.set(bus.enable, 0)
        return int(ctx.get(bus.read_data))

    async def status(self, ctx: Any) -> int:
        return await self.read(ctx, self.map.array(ArrayRegister.STATUS))

    async def take_slot(self, ctx: Any) -> None:
        """Take the two beats of the next slot at the output."""
        ctx.set(self.array.o.ready, 1)
        for _ in range(2):
            await ctx.tick().until(self.array.o.valid)
        ctx.set(self.array.o.ready, 0)

    async def send(self, ctx: Any, header: Header) -> None:
        """A packet of zeros."""
        layout = self.hardware.edges[0].forward
        for beat in layout.beats(header, [0] * self.hardware.edges[0].shape.elements):
            ctx.set(self.array.i.valid, 1)
            ctx.set(self.array.i.payload.as_value(), beat)
            await ctx.tick().until(self.array.i.ready)
        ctx.set(self.array.i.valid, 0)

    def run(self, check: Callable[[Any], Any]) -> None:
        simulate(self.array, check)


def test_the_array_says_what_it_is() -> None:
    host = Host()

    async def check(ctx: Any) -> None:
        words = [await host.read(ctx, host.map.array(register)) for register in ArrayRegister]
        digest = int(host.hardware.hash, 16)
        assert words == [IDENTITY, VERSION, digest & 0xFFFF_FFFF, digest >> 32, 0]
        for register in ArrayRegister:
            if register != ArrayRegister.STATUS:
                await host.write(ctx, host.map.array(register), 0)
        assert words == [await host.read(ctx, host.map.array(r)) for r in ArrayRegister]

    host.run(check)


def test_shadows_are_locked_until_the_last_commit_on_its_way_has_left_the_last_tile() -> None:
    host = Host()
    shadows = [host.map.coefficient(name, "spike") for name in ("one", "two")]

    async def shadow_words(ctx: Any) -> list[int]:
        return [await host.read(ctx, shadow) for shadow in shadows]

    async def write_shadows(ctx: Any, word: int) -> None:
        for value, shadow in enumerate(shadows):
            await host.write(ctx, shadow, word + value)

    async def check(ctx: Any) -> None:
        await write_shadows(ctx, 100)
        await host.send(ctx, Header(Kind.EVAL))
        assert await host.status(ctx) == 0, "a packet without commit locks nothing"
        await write_shadows(ctx, 200)
        assert await shadow_words(ctx) == [200, 201]

        for header in (Header(Kind.EVAL, commit=True), Header(Kind.EVAL), COMMIT):
            await host.send(ctx, header)
        for behind in (3, 2, 1):
            await ctx.tick().repeat(LONGEST_SLOT)
            assert await host.status(ctx) == TRAVELLING, f"a commit is {behind} slots behind"
            await write_shadows(ctx, 300)
            assert await host.status(ctx) == TRAVELLING | REFUSED
            assert await shadow_words(ctx) == [200, 201]
            await host.write(ctx, host.map.array(ArrayRegister.STATUS), REFUSED)
            assert await host.status(ctx) == TRAVELLING
            await host.take_slot(ctx)
        await ctx.tick().repeat(LONGEST_SLOT)
        assert await host.status(ctx) == 0
        await write_shadows(ctx, 400)
        assert await shadow_words(ctx) == [400, 401]
        assert await host.status(ctx) == 0

    host.run(check)


def test_random_states_and_memories_are_not_locked_by_a_commit() -> None:
    host = Host()
    addresses = [
        host.map.state("one", Tensor.WEIGHT),
        host.map.loss(LossRegister.STATE),
        int(host.map.weights(host.hardware.convs[1], Region.VELOCITY)[0]),
    ]

    async def check(ctx: Any) -> None:
        await host.send(ctx, Header(Kind.EVAL))
        await host.send(ctx, COMMIT)
        await ctx.tick().repeat(LONGEST_SLOT)
        assert await host.status(ctx) == TRAVELLING
        for word, address in enumerate(addresses, 11):
            await host.write(ctx, address, word)
            assert await host.read(ctx, address) == word
        assert await host.status(ctx) == TRAVELLING

    host.run(check)
