"""Pools, branches, lane adapters and buffers of packets against plain Python, with held streams."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from amaranth import Module
from amaranth.hdl import Elaboratable
from amaranth.lib import wiring
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.adapter import LaneAdapter
from hw.channel import PacketFifo
from hw.stash import KeptStash, Stash
from hw.tiles.branch import AddCore, ForkCore, ShortcutCore
from hw.tiles.pool import AveragePoolCore, MaxPoolCore
from spec.bus import STATE_BASE
from spec.formats import Fixed
from spec.packets import BeatLayout, Header, Kind
from spec.random_bits import Tensor, random_word, xorshift32
from spec.shape import Shape
from spec.tiles import AveragePool, MaxPool, Shortcut
from spec.tiles.pool import average, average_gradient, maximum
from tests.hw.conftest import integers, receive, send, simulate

ACTIVATION, GRADIENT = Fixed(8, 4), Fixed(10, 6)
KINDS = (Kind.TRAIN, Kind.EVAL, Kind.TRAIN, Kind.BUBBLE, Kind.TRAIN)
STATE = 0x1234_5678

Packet = tuple[Header, list[int]]
shapes = st.builds(Shape, st.integers(2, 5), st.integers(2, 5), st.sampled_from([2, 4, 6]))
holds = st.sampled_from([0.0, 0.5])


def packets(rng: random.Random, format: Fixed, elements: int, forward: bool) -> list[Packet]:
    """Of every kind; a gradient of an EVAL is a bubble."""
    made = []
    for slot, kind in enumerate(KINDS):
        if not forward and kind is Kind.EVAL:
            kind = Kind.BUBBLE
        label = slot if forward and kind is not Kind.BUBBLE else 0
        data = integers(rng, format.minimum, format.maximum, elements)
        made.append((Header(kind, label=label), [] if kind is Kind.BUBBLE else data))
    return made


def beats(layout: BeatLayout, made: Sequence[Packet]) -> list[list[int]]:
    return [layout.beats(header, data) for header, data in made]


def flat(made: Sequence[Sequence[int]]) -> list[int]:
    return [beat for packet in made for beat in packet]


def mapped(made: Sequence[Packet], function: Callable[[list[int]], list[int]]) -> list[Packet]:
    return [(h, data if h.kind is Kind.BUBBLE else function(data)) for h, data in made]


def run(
    component: Elaboratable,
    inputs: Sequence[tuple[Any, Sequence[Sequence[int]]]],
    outputs: Sequence[tuple[Any, Sequence[Sequence[int]]]],
    hold: float,
    setup: Callable[[Any], Any] | None = None,
) -> None:
    """Send all packets, and demand exactly those that are expected on every output."""
    found: dict[int, list[int]] = {}

    def sender(place: int) -> Callable[[Any], Any]:
        async def bench(ctx: Any) -> None:
            if setup and not place:
                await setup(ctx)
            stream, made = inputs[place]
            await send(ctx, stream, flat(made), random.Random(place), hold)

        return bench

    def receiver(place: int) -> Callable[[Any], Any]:
        async def bench(ctx: Any) -> None:
            stream, made = outputs[place]
            count = sum(map(len, made))
            found[place] = await receive(ctx, stream, count, random.Random(place + 9), hold)

        return bench

    simulate(
        component,
        *(sender(place) for place in range(len(inputs))),
        *(receiver(place) for place in range(len(outputs))),
    )
    for place, (_, made) in enumerate(outputs):
        assert found[place] == flat(made)


class Pool(Elaboratable):
    """A pool between the memories that hw/array.py gives it, without delay."""

    def __init__(self, core: Any, source: Shape, target: Shape, lanes: int, *, kept: bool) -> None:
        forward = BeatLayout(ACTIVATION, lanes, forward=True)
        backward = BeatLayout(GRADIENT, lanes, forward=False)
        self.core = core
        self.stash = Stash(forward, source.elements // lanes, 2)
        self.channel = Stash(backward, target.elements // lanes, 2)
        words = target.elements // lanes
        self.kept = KeptStash(len(core.kept.word), words, 8, 0) if kept else None

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules += [self.core, self.stash, self.channel]
        wiring.connect(m, self.core.stash, self.stash.reader)
        wiring.connect(m, self.core.gradient, self.channel.reader)
        if self.kept is not None:
            m.submodules += self.kept
            wiring.connect(m, self.core.kept, self.kept.port)
        return m


def windows(shape: Shape, data: list[int]) -> list[tuple[list[int], list[int]]]:
    """Values and element indices of each output's window, in order."""
    found = []
    for row in range(shape.rows // 2):
        for column in range(shape.columns // 2):
            for channel in range(shape.channels):
                places = [
                    ((2 * row + i) * shape.columns + 2 * column + j) * shape.channels + channel
                    for i in range(2)
                    for j in range(2)
                ]
                found.append(([data[place] for place in places], places))
    return found


@settings(max_examples=15, deadline=None)
@given(shapes, st.sampled_from([1, 2]), holds, st.integers(0, 99))
def test_the_max_pool_sends_gradients_to_the_first_of_the_largest(
    shape: Shape, lanes: int, hold: float, seed: int
) -> None:
    rng = random.Random(seed)
    target = MaxPool("pool").output_shape(shape)
    made = packets(rng, Fixed(3, 0), shape.elements, forward=True)
    results = mapped(made, lambda d: [maximum(w)[0] for w, _ in windows(shape, d)])
    back = packets(rng, GRADIENT, target.elements, forward=False)
    spread = []
    for (header, gradient), (_, data) in zip(back, made, strict=True):
        dx = [0] * shape.elements
        if header.kind is not Kind.BUBBLE:
            for (values, places), d in zip(windows(shape, data), gradient, strict=True):
                dx[places[maximum(values)[1]]] = d
        spread.append((header, dx if header.kind is not Kind.BUBBLE else []))
    core = MaxPoolCore(shape, lanes, ACTIVATION, GRADIENT)
    bench = Pool(core, shape, target, lanes, kept=True)
    forward = BeatLayout(ACTIVATION, lanes, forward=True)
    backward = BeatLayout(GRADIENT, lanes, forward=False)

    async def after_the_forward_pass(ctx: Any) -> None:
        await ctx.tick().repeat(6 * len(KINDS) * shape.elements)

    run(
        bench,
        [(bench.channel.i, beats(backward, back)), (bench.stash.i, beats(forward, made))],
        [(core.o, beats(forward, results)), (core.o_gradient, beats(backward, spread))],
        hold,
        after_the_forward_pass,
    )


@settings(max_examples=15, deadline=None)
@given(shapes, st.sampled_from([1, 2]), st.booleans(), holds, st.integers(0, 99))
def test_the_average_pool_rounds_once_each_way(
    shape: Shape, lanes: int, stochastic: bool, hold: float, seed: int
) -> None:
    rng = random.Random(seed)
    target = AveragePool("pool").output_shape(shape)
    channels, mean, dx_format = shape.channels, Fixed(8, 6), Fixed(9, 8)
    made = packets(rng, ACTIVATION, shape.elements, forward=True)
    results = mapped(
        made, lambda d: [average(d[c::channels], ACTIVATION, mean) for c in range(channels)]
    )
    back = packets(rng, GRADIENT, target.elements, forward=False)
    state, spread = STATE, []
    for header, gradient in back:
        if header.kind is Kind.BUBBLE:
            spread.append((header, []))
            continue
        dx = [
            average_gradient(
                gradient[i % channels], shape.pixels, GRADIENT, dx_format,
                random_word(state, i) if stochastic else None,
            )
            for i in range(shape.elements)
        ]  # fmt: skip
        spread.append((header, dx))
        state = xorshift32(state)
    core = AveragePoolCore(shape, lanes, ACTIVATION, mean, dx_format, GRADIENT, stochastic)
    bench = Pool(core, shape, target, lanes, kept=False)
    forward = BeatLayout(ACTIVATION, lanes, forward=True)
    backward = BeatLayout(GRADIENT, lanes, forward=False)

    async def load(ctx: Any) -> None:
        ctx.set(core.bus.select, 1)
        ctx.set(core.bus.write, 1)
        ctx.set(core.bus.offset, STATE_BASE + Tensor.GRADIENT)
        ctx.set(core.bus.write_data, STATE)
        await ctx.tick()
        ctx.set(core.bus.select, 0)

    run(
        bench,
        [(bench.channel.i, beats(backward, back)), (bench.stash.i, beats(forward, made))],
        [
            (core.o, beats(replace(forward, format=mean), results)),
            (core.o_gradient, beats(replace(backward, format=dx_format), spread)),
        ],
        hold,
        load,
    )


@pytest.mark.parametrize("shape", [Shape(2, 2, 2), Shape(4, 3, 4), Shape(5, 5, 2)])
@pytest.mark.parametrize("tile", [MaxPool("pool"), AveragePool("pool")])
def test_pools_take_the_cycles_of_their_formulas(shape: Shape, tile: Any) -> None:
    lanes, count = 2, 4
    target = tile.output_shape(shape)
    if isinstance(tile, MaxPool):
        core: Any = MaxPoolCore(shape, lanes, ACTIVATION, GRADIENT)
    else:
        core = AveragePoolCore(shape, lanes, ACTIVATION, ACTIVATION, GRADIENT, GRADIENT, False)
    bench = Pool(core, shape, target, lanes, kept=isinstance(tile, MaxPool))
    forward = BeatLayout(ACTIVATION, lanes, forward=True)
    backward = BeatLayout(GRADIENT, lanes, forward=False)
    starts: dict[str, list[int]] = {"stash": [], "gradient": []}

    async def feed(ctx: Any) -> None:
        made = forward.beats(Header(Kind.TRAIN), [1] * shape.elements) * count
        await send(ctx, bench.stash.i, made, random.Random(0))

    async def answer(ctx: Any) -> None:
        while len(starts["stash"]) < count:
            await ctx.tick()
        made = backward.beats(Header(Kind.TRAIN), [1] * target.elements) * count
        await send(ctx, bench.channel.i, made, random.Random(0))

    async def watch(ctx: Any) -> None:
        ctx.set(core.o.ready, 1)
        ctx.set(core.o_gradient.ready, 1)
        clock = 0
        while len(starts["gradient"]) < count:
            await ctx.tick()
            clock += 1
            for name, times in starts.items():
                if ctx.get(getattr(core, name).take):
                    times.append(clock)

    simulate(bench, feed, answer, watch)
    apart = {name: times[3] - times[2] for name, times in starts.items()}
    assert apart["gradient"] == tile.backward_cycles(shape, lanes)
    assert apart["stash"] == max(tile.forward_cycles(shape, lanes), shape.elements // lanes)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 3), st.sampled_from([1, 2, 4]), holds, st.integers(0, 99))
def test_a_fork_copies_forwards_and_adds_backwards(
    outputs: int, lanes: int, hold: float, seed: int
) -> None:
    rng, elements = random.Random(seed), 8
    forward = BeatLayout(ACTIVATION, lanes, forward=True)
    backward = BeatLayout(GRADIENT, lanes, forward=False)
    made = packets(rng, ACTIVATION, elements, forward=True)
    back = [packets(rng, GRADIENT, elements, forward=False) for _ in range(outputs)]
    total = [
        (header, [GRADIENT.clamp(sum(n)) for n in zip(*(d for _, d in together), strict=True)])
        for (header, _), together in zip(back[0], zip(*back, strict=True), strict=True)
    ]
    core = ForkCore(forward, backward, outputs)
    places = range(outputs)
    run(
        core,
        [
            (core.i, beats(forward, made)),
            *((getattr(core, f"gradient{i}"), beats(backward, back[i])) for i in places),
        ],
        [
            (core.o_gradient, beats(backward, total)),
            *((getattr(core, f"o{i}"), beats(forward, made)) for i in places),
        ],
        hold,
    )


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([1, 2, 4]), holds, st.integers(0, 99))
def test_an_add_adds_forwards_and_copies_backwards(lanes: int, hold: float, seed: int) -> None:
    rng, elements = random.Random(seed), 8
    forward = BeatLayout(ACTIVATION, lanes, forward=True)
    backward = BeatLayout(GRADIENT, lanes, forward=False)
    made = [packets(rng, ACTIVATION, elements, forward=True) for _ in range(2)]
    total = [
        (header, [ACTIVATION.clamp(a + b) for a, b in zip(one, other, strict=True)])
        for (header, one), (_, other) in zip(*made, strict=True)
    ]
    back = packets(rng, GRADIENT, elements, forward=False)
    core = AddCore(forward, backward)
    run(
        core,
        [
            (core.i0, beats(forward, made[0])),
            (core.i1, beats(forward, made[1])),
            (core.gradient, beats(backward, back)),
        ],
        [
            (core.o, beats(forward, total)),
            (core.o_gradient0, beats(backward, back)),
            (core.o_gradient1, beats(backward, back)),
        ],
        hold,
    )


@settings(max_examples=20, deadline=None)
@given(
    shapes, st.integers(1, 2), st.sampled_from([0, 2, 4]), st.sampled_from([1, 2]), holds,
    st.integers(0, 99),
)  # fmt: skip
def test_a_shortcut_keeps_pixels_and_fills_up_channels(
    shape: Shape, stride: int, added: int, lanes: int, hold: float, seed: int
) -> None:
    rng = random.Random(seed)
    tile = Shortcut("shortcut", shape.channels + added, stride)
    target, channels = tile.output_shape(shape), shape.channels
    kept = [
        (r * shape.columns + c) * channels
        for r in range(0, shape.rows, stride)
        for c in range(0, shape.columns, stride)
    ]

    def down(data: list[int]) -> list[int]:
        return [n for at in kept for n in (*data[at : at + channels], *[0] * added)]

    def up(gradient: list[int]) -> list[int]:
        dx = [0] * shape.elements
        for place, at in enumerate(kept):
            start = place * (channels + added)
            dx[at : at + channels] = gradient[start : start + channels]
        return dx

    forward = BeatLayout(ACTIVATION, lanes, forward=True)
    backward = BeatLayout(GRADIENT, lanes, forward=False)
    made = packets(rng, ACTIVATION, shape.elements, forward=True)
    back = packets(rng, GRADIENT, target.elements, forward=False)
    core = ShortcutCore(shape, tile, lanes, ACTIVATION, GRADIENT)
    run(
        core,
        [(core.i, beats(forward, made)), (core.gradient, beats(backward, back))],
        [
            (core.o, beats(forward, mapped(made, down))),
            (core.o_gradient, beats(backward, mapped(back, up))),
        ],
        hold,
    )


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from([1, 2, 3, 4, 6, 12]), st.booleans(),
    holds, st.integers(0, 99),
)  # fmt: skip
def test_an_adapter_cuts_packets_into_beats_of_other_lanes(
    before: int, after: int, forward: bool, hold: float, seed: int
) -> None:
    layout = BeatLayout(ACTIVATION, before, forward)
    made = packets(random.Random(seed), ACTIVATION, 24, forward)
    adapter = LaneAdapter(layout, after)
    expected = beats(replace(layout, lanes=after), made)
    run(adapter, [(adapter.i, beats(layout, made))], [(adapter.o, expected)], hold)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(0, 3), holds, st.integers(0, 99))
def test_a_packet_fifo_yields_its_tokens_and_then_what_came(
    room: int, tokens: int, hold: float, seed: int
) -> None:
    layout = BeatLayout(GRADIENT, 2, forward=False)
    made = packets(random.Random(seed), GRADIENT, 8, forward=False)
    bubbles = [(Header(Kind.BUBBLE), [])] * tokens
    channel = PacketFifo(layout, 4, room, tokens)
    run(channel, [(channel.i, beats(layout, made))],
        [(channel.o, beats(layout, [*bubbles, *made]))], hold)  # fmt: skip
