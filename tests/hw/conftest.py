"""What tests of single components share: bounded simulations, and streams from and to lists."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from amaranth import Value
from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator

from spec.formats import Fixed
from spec.mac_formats import MacFormats
from spec.presets import Preset
from spec.update import ParameterFormats

Testbench = Callable[[Any], Awaitable[None]]


def simulate(component: Elaboratable, *testbenches: Testbench, clocks: int = 20_000) -> None:
    """Run until every testbench has returned, for at most `clocks` clocks."""
    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    for testbench in testbenches:
        simulator.add_testbench(testbench)
    for _ in range(2 * clocks):
        if not simulator.advance():
            return
    raise AssertionError(f"no end after {clocks} clocks")


async def send(
    ctx: Any, stream: Any, payloads: Sequence[int], rng: random.Random, hold: float = 0.0
) -> None:
    """Offer the bits of one payload after the other, each after a random wait."""
    for payload in payloads:
        while rng.random() < hold:
            await ctx.tick()
        ctx.set(stream.valid, 1)
        ctx.set(Value.cast(stream.payload), payload)
        await ctx.tick().until(stream.ready)
        ctx.set(stream.valid, 0)


async def receive(
    ctx: Any, stream: Any, count: int, rng: random.Random, hold: float = 0.0
) -> list[int]:
    """The bits of the next `count` payloads, with a ready that is low at random."""
    received: list[int] = []
    while len(received) < count:
        ready = rng.random() >= hold
        ctx.set(stream.ready, ready)
        _, _, valid, payload = await ctx.tick().sample(stream.valid, Value.cast(stream.payload))
        if valid and ready:
            received.append(payload)
    ctx.set(stream.ready, 0)
    return received


def preset_formats(preset: Preset, relu: bool = False) -> MacFormats:
    """The formats of a tile in the middle of a small network."""
    widths = preset.widths
    gradient = Fixed.covering(widths.gradient, 0)
    return MacFormats(
        source=Fixed.covering(widths.activation, 2, signed=False),
        source_gradient=gradient,
        source_stochastic=widths.stochastic_gradient,
        target=Fixed.covering(widths.activation, 2, signed=not relu),
        target_gradient=gradient,
        parameters=ParameterFormats(
            working=Fixed.covering(widths.working, 1),
            master=Fixed.covering(widths.master, 1),
            velocity=Fixed.covering(widths.velocity, -2),
            gradient=Fixed.covering(widths.weight_gradient, 1),
            stochastic=widths.stochastic_update,
        ),
        relu=relu,
    )


def integers(rng: random.Random, low: int, high: int, count: int) -> list[int]:
    """Random integers, the extremes often among them."""
    return [rng.choice((low, high, rng.randint(low, high))) for _ in range(count)]
