"""The norm core equals the reference functions in every bit, and its cycles the formulas."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from amaranth import Module
from amaranth.lib import wiring

from hw.norm_layouts import NormParameters
from hw.stash import KeptStash, Stash
from hw.tiles.norm import NormCore
from spec.bus import COEFFICIENTS, STATE_BASE, Region, lane_bits
from spec.formats import Fixed, requantize
from spec.packets import BeatLayout, Header, Kind
from spec.presets import Preset
from spec.random_bits import Tensor, random_word, xorshift32
from spec.shape import Shape
from spec.tiles import Norm
from spec.tiles import norm as reference
from spec.tiles.norm import NormFormats
from spec.update import UpdateCoefficients, update
from tests.hw.conftest import integers, preset_formats, receive, send, simulate

COEFFICIENT_VALUES = UpdateCoefficients(2, 3, 12, 100, 5, 9, False, 4)
SIGNED = Fixed(8, 4)


@dataclass(frozen=True)
class Case:
    shape: Shape
    group: int
    lanes: int
    affine: bool = False
    relu: bool = True
    delay: int = 1
    preset: Preset = Preset.COMPACT
    source: Fixed = SIGNED

    @property
    def formats(self) -> NormFormats:
        mac = preset_formats(self.preset, self.relu)
        parameters = replace(mac.parameters, working=Fixed(8, 6), master=Fixed(16, 14))
        return NormFormats(
            source=self.source,
            source_gradient=mac.source_gradient,
            source_stochastic=mac.source_stochastic,
            target=Fixed(8, 5, signed=not self.relu),
            target_gradient=replace(mac.target_gradient, frac=9),
            normalised=Fixed(self.preset.widths.normalised, self.preset.widths.normalised - 4),
            rstd=Fixed(17, 13, signed=False),
            relu=self.relu,
            parameters=parameters if self.affine else None,
        )

    @property
    def parameters(self) -> NormParameters:
        return NormParameters(self.shape, self.group, self.lanes, self.formats)


class Bench(wiring.Elaboratable):
    """A core between its rings, as hw/array.py joins them."""

    def __init__(self, case: Case) -> None:
        self.case, p, f = case, case.parameters, case.formats
        self.core = NormCore(p)
        source = BeatLayout(f.source, case.lanes, forward=True)
        gradient = BeatLayout(f.target_gradient, case.lanes, forward=False)
        self.stash = Stash(source, p.beats, 2)
        self.channel = Stash(gradient, p.beats, max(2, case.delay), tokens=case.delay)
        entries = case.delay + 2
        self.kept = KeptStash(p.kept.size, p.beats, entries, case.delay)
        self.rstd = KeptStash(f.rstd.width, p.groups, entries, case.delay)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules += [self.core, self.stash, self.channel, self.kept, self.rstd]
        wiring.connect(m, self.core.stash, self.stash.reader)
        wiring.connect(m, self.core.gradient, self.channel.reader)
        wiring.connect(m, self.core.kept, self.kept.port)
        wiring.connect(m, self.core.rstd, self.rstd.port)
        return m


@dataclass
class Model:
    """The norm on Python integers, one slot after the other."""

    case: Case
    states: list[int] = field(default_factory=lambda: [7 * t + 3 for t in Tensor])
    flight: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        channels = self.case.shape.channels
        self.gain, self.gain_velocity = [1 << 14] * channels, [0] * channels
        self.offset, self.offset_velocity = [0] * channels, [0] * channels
        self.working = [self.rounded(g) for g in self.gain]
        self.working_offset = [0] * channels
        self.flight = [None] * self.case.delay

    def rounded(self, master: int) -> int:
        return requantize(master, 14, Fixed(8, 6))

    def forward(self, kind: Kind, packet: Sequence[int]) -> list[int]:
        case, f = self.case, self.case.formats
        channels = case.shape.channels
        gains, offsets = self.working, self.working_offset
        if kind is Kind.EVAL and case.affine:
            gains = [self.rounded(g) for g in self.gain]
            offsets = [requantize(o, 14, f.offset) for o in self.offset]
        groups = [
            reference.statistics(
                [v for i, v in enumerate(packet) if i % channels // case.group == g], f
            )
            for g in range(channels // case.group)
        ]
        xs = [
            reference.normalise(v, groups[i % channels // case.group], f)
            for i, v in enumerate(packet)
        ]
        out = [
            reference.activation(x, f, gains[i % channels], offsets[i % channels])
            for i, x in enumerate(xs)
        ]
        self.flight.append((xs, out, [g.rstd for g in groups]) if kind is Kind.TRAIN else None)
        return out

    def backward(self, packet: Sequence[int] | None) -> list[int] | None:
        entry = self.flight.pop(0)
        assert (entry is None) == (packet is None)
        if packet is None:
            return None
        case, f = self.case, self.case.formats
        channels, (xs, out, rstd) = case.shape.channels, entry
        masked = [d * reference.passes(x, y, f) for d, x, y in zip(packet, xs, out, strict=True)]
        gains = [self.rounded(g) for g in self.gain]
        ds = [reference.scaled_gradient(d, f, gains[i % channels]) for i, d in enumerate(masked)]
        means = []
        for g in range(channels // case.group):
            mine = [i for i in range(len(xs)) if i % channels // case.group == g]
            sums = sum(ds[i] for i in mine), sum(ds[i] * xs[i] for i in mine)
            means.append(reference.gradient_means(*sums, len(mine), f))
        state = self.states[Tensor.GRADIENT]
        dx = [
            reference.source_gradient(
                d, x, means[g := i % channels // case.group], rstd[g], f,
                random_word(state, i) if f.source_stochastic else None,
            )
            for i, (d, x) in enumerate(zip(ds, xs, strict=True))
        ]  # fmt: skip
        if case.affine:
            self.update(masked, xs)
        if case.affine:
            self.states = [xorshift32(s) for s in self.states]
        else:
            self.states[Tensor.GRADIENT] = xorshift32(state)
        return dx

    def update(self, masked: list[int], xs: list[int]) -> None:
        f, channels = self.case.formats, self.case.shape.channels
        parameters = f.parameters
        assert parameters is not None
        for c in range(channels):
            mine = range(c, len(xs), channels)
            gain = requantize(
                sum(masked[i] * xs[i] for i in mine), f.gain_gradient_frac, parameters.gradient
            )
            offset = requantize(
                sum(masked[i] for i in mine), f.target_gradient.frac, parameters.gradient
            )
            for master, velocity, working, g, format, tensors in (
                (self.gain, self.gain_velocity, self.working, gain, parameters.working,
                 (Tensor.WEIGHT_VELOCITY, Tensor.WEIGHT)),
                (self.offset, self.offset_velocity, self.working_offset, offset, f.offset,
                 (Tensor.BIAS_VELOCITY, Tensor.BIAS)),
            ):  # fmt: skip
                words = tuple(random_word(self.states[t], c) for t in tensors)
                new = update(
                    g, velocity[c], master[c], parameters, format, COEFFICIENT_VALUES, words
                )
                master[c], velocity[c], working[c] = new.master, new.velocity, new.working


KINDS = (Kind.TRAIN, Kind.TRAIN, Kind.EVAL, Kind.TRAIN, Kind.BUBBLE, Kind.TRAIN, Kind.TRAIN)

CASES = [
    Case(Shape(1, 1, 4), 4, 4, delay=0),
    Case(Shape(2, 2, 4), 4, 2),
    Case(Shape(3, 2, 8), 4, 4, delay=2),
    Case(Shape(2, 3, 8), 2, 8, relu=False),
    Case(Shape(2, 2, 12), 3, 6, preset=Preset.WIDE, delay=3),
    Case(Shape(2, 2, 4), 4, 1, source=Fixed(16, 10)),
    Case(Shape(2, 2, 6), 3, 3, source=Fixed(8, 5, signed=False)),
    Case(Shape(2, 2, 4), 4, 4, affine=True),
    Case(Shape(2, 2, 8), 4, 2, affine=True, delay=2),
    Case(Shape(2, 1, 8), 2, 4, affine=True, relu=False, preset=Preset.WIDE),
    Case(Shape(1, 2, 4), 1, 2, affine=True, delay=0),
]


@pytest.mark.parametrize("hold", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_core_equals_the_reference(case: Case, hold: float) -> None:
    rng = random.Random(str(case))
    f, elements = case.formats, case.shape.elements
    model, bench = Model(case), Bench(case)
    packets = [integers(rng, f.source.minimum, f.source.maximum, elements) for _ in KINDS]
    back = [
        [rng.randint(f.target_gradient.minimum, f.target_gradient.maximum) for _ in range(elements)]
        for _ in KINDS
    ]
    source = BeatLayout(f.source, case.lanes, forward=True)
    target = BeatLayout(f.target, case.lanes, forward=True)
    gradient = BeatLayout(f.target_gradient, case.lanes, forward=False)
    source_gradient = BeatLayout(f.source_gradient, case.lanes, forward=False)
    inputs, outputs, gradients, results = [], [], [], []
    bubble = Header(Kind.BUBBLE)
    returning = [None] * case.delay
    for slot, kind in enumerate(KINDS):
        header = Header(kind, commit=slot == 0, label=slot if kind is not Kind.BUBBLE else 0)
        inputs += source.beats(header, packets[slot])
        if kind is Kind.BUBBLE:
            outputs.append(target.beats(header, []))
            model.flight.append(None)
        else:
            outputs.append(target.beats(header, model.forward(kind, packets[slot])))
        returning.append(back[slot] if kind is Kind.TRAIN else None)
        given = returning[-1]
        gradients.append(gradient.beats(Header(Kind.TRAIN if given else Kind.BUBBLE), given or []))
        dx = model.backward(returning[slot])
        kept = Header(Kind.TRAIN) if dx is not None else bubble
        results += source_gradient.beats(kept, dx or [])
    received: list[list[int]] = []
    returned: list[int] = []
    core = bench.core

    async def setup(ctx: Any) -> None:
        states = {STATE_BASE + t: 7 * t + 3 for t in Tensor}
        registers = {i: getattr(COEFFICIENT_VALUES, n) for i, n in enumerate(COEFFICIENTS)}
        writes = [(Region.REGISTERS, o, v) for o, v in (registers | states).items()]
        if case.affine:
            for c in range(case.shape.channels):
                offset = c // case.lanes << lane_bits(case.lanes) | c % case.lanes
                writes += [
                    (Region.MASTER, offset, 1 << 14),
                    (Region.WORKING, offset, model.rounded(1 << 14)),
                ]
        for region, offset, value in writes:
            ctx.set(core.bus.select, 1)
            ctx.set(core.bus.write, 1)
            ctx.set(core.bus.region, region)
            ctx.set(core.bus.offset, offset)
            ctx.set(core.bus.write_data, value)
            await ctx.tick()
        ctx.set(core.bus.select, 0)
        ctx.set(core.bus.write, 0)
        await send(ctx, bench.stash.i, inputs, random.Random(1), hold)

    async def answer(ctx: Any) -> None:
        """No gradient comes before the packet that it belongs to has left."""
        for slot, beats in enumerate(gradients):
            while len(received) <= slot:
                await ctx.tick()
            await send(ctx, bench.channel.i, beats, random.Random(2), hold)

    async def forwards(ctx: Any) -> None:
        for beats in outputs:
            received.append(await receive(ctx, core.o, len(beats), random.Random(3), hold))

    async def backwards(ctx: Any) -> None:
        returned.extend(await receive(ctx, core.o_gradient, len(results), random.Random(4), hold))

    simulate(bench, setup, answer, forwards, backwards)
    assert received == outputs
    assert returned == results


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_packet_takes_the_cycles_of_the_formula(case: Case) -> None:
    """Forward packets come all at once, gradients when the forward pass is over; not affine, the
    rings have room for all of them."""
    f, elements, count = case.formats, case.shape.elements, 4
    bench, rng = Bench(replace(case, delay=2)), random.Random(1)
    core, tile = bench.core, Norm("norm", case.group, case.affine, case.relu)
    source = BeatLayout(f.source, case.lanes, forward=True)
    gradient = BeatLayout(f.target_gradient, case.lanes, forward=False)
    packet = [rng.randint(f.source.minimum, f.source.maximum) for _ in range(elements)]
    forwards: list[int] = []
    backwards: list[int] = []

    async def feed(ctx: Any) -> None:
        await send(ctx, bench.stash.i, source.beats(Header(Kind.TRAIN), packet) * count, rng)

    async def answer(ctx: Any) -> None:
        while len(forwards) < (2 if case.affine else count):
            await ctx.tick()
        beats = gradient.beats(Header(Kind.TRAIN), [1] * elements)
        await send(ctx, bench.channel.i, beats * count, rng)

    async def watch(ctx: Any) -> None:
        ctx.set(core.o.ready, 1)
        ctx.set(core.o_gradient.ready, 1)
        clock = 0
        while len(backwards) < count:
            await ctx.tick()
            clock += 1
            if ctx.get(core.stash.take):
                forwards.append(clock)
            if ctx.get(core.gradient.take):
                backwards.append(clock)

    simulate(bench, feed, answer, watch)
    forward = tile.forward_cycles(case.shape, case.lanes)
    backward = tile.backward_cycles(case.shape, case.lanes)
    if case.affine:
        assert backwards[3] - backwards[2] == forward + backward
    else:
        assert forwards[2] - forwards[1] == forward
        assert backwards[3] - backwards[2] == backward
