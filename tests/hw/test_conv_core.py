"""The convolution core on its own, with its stashes: every bit, and its time to the cycle."""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.hdl import Elaboratable
from amaranth.lib import wiring

from hw.bus import TILE_READ_LATENCY
from hw.mac import MacParameters
from hw.stash import KeptStash, Stash
from hw.tiles.conv import ConvCore
from spec.bus import COEFFICIENTS, STATE_BASE, Region, lane_bits
from spec.formats import Fixed
from spec.mac import Folding
from spec.mac_formats import MacFormats, SumWidths
from spec.packets import BUBBLE, BeatLayout, Header, Kind
from spec.presets import Preset
from spec.random_bits import Tensor
from spec.shape import Shape
from spec.tiles.conv import Conv, dense
from spec.update import UpdateCoefficients
from tests.hw.conftest import preset_formats, receive, send, simulate
from tests.hw.conv_reference import ConvReference, Integers, Parameter

COEFFICIENT_SET = UpdateCoefficients(
    momentum_shift=1,
    step_mantissa=5,
    step_shift=14,
    spike=300,
    prediction_mantissa=10,
    prediction_shift=4,
    decay=True,
    decay_shift=6,
)
WEIGHTS = (Region.MASTER, Region.VELOCITY, Region.WORKING)
BIASES = (Region.BIAS_MASTER, Region.BIAS_VELOCITY, Region.BIAS_WORKING)


@dataclass(frozen=True)
class Case:
    """A tile, what it is built for, and how its streams behave."""

    conv: Conv
    source: Shape
    folding: Folding
    delay: int = 1
    first: bool = False
    preset: Preset = Preset.COMPACT
    signed_target: bool = False
    hold: float = 0.0

    @property
    def formats(self) -> MacFormats:
        formats = preset_formats(self.preset, self.conv.relu)
        if self.signed_target:
            formats = replace(formats, target=Fixed.covering(16, 4))
        return formats


class IsolatedTile(Elaboratable):
    """A core with its memories, none of which ever makes it wait but for data."""

    def __init__(self, case: Case) -> None:
        conv, source, folding, formats = case.conv, case.source, case.folding, case.formats
        target = conv.output_shape(source)
        lanes_in, lanes_out = folding.lanes_in, folding.lanes_out
        words_in = source.pixels * source.channels // lanes_in
        words_out = target.pixels * target.channels // lanes_out
        self.geometry = conv.geometry(source, folding, case.first)
        terms = (conv.fan_in(source), conv.kernel**2 * target.channels)
        widths = SumWidths.of(conv.name, formats, *terms, target.pixels)
        self.core = ConvCore(MacParameters(self.geometry, formats, widths), words_in, words_out)
        self.source = BeatLayout(formats.source, lanes_in, forward=True)
        self.target = BeatLayout(formats.target, lanes_out, forward=True)
        self.gradient = BeatLayout(formats.target_gradient, lanes_out, forward=False)
        lanes = 0 if case.first else lanes_in
        self.source_gradient = BeatLayout(formats.source_gradient, lanes, forward=False)
        entries = case.delay + 2
        self.stash = Stash(self.source, words_in, entries, delay=case.delay)
        self.channel = Stash(self.gradient, words_out, entries, tokens=case.delay)
        self.mask = KeptStash(lanes_out, words_out, entries, case.delay) if conv.relu else None

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core, m.submodules.stash = self.core, self.stash
        m.submodules.channel = self.channel
        wiring.connect(m, self.core.stash, self.stash.reader)
        wiring.connect(m, self.core.gradient, self.channel.reader)
        if self.mask is not None:
            m.submodules.mask = self.mask
            wiring.connect(m, self.core.mask, self.mask.port)
        return m


@dataclass
class Slots:
    """What activity said of each slot."""

    lengths: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)


class Run:
    """One simulation: packets of the given kinds, then bubbles until their gradients are back."""

    def __init__(self, case: Case, kinds: list[Kind]) -> None:
        self.case, self.kinds = case, [*kinds, *[Kind.BUBBLE] * case.delay]
        self.tile, self.rng = IsolatedTile(case), random.Random(5)
        self.states = [self.rng.randrange(1, 1 << 32) for _ in Tensor]
        self.reference = self._reference()
        self.initial = {region: self.memory(region).copy() for region in self.regions}
        target = case.conv.output_shape(case.source)
        source, gradient = case.formats.source, case.formats.target_gradient
        self.inputs = [self._tensor(source, case.source) for _ in self.kinds]
        self.gradients = [self._tensor(gradient, target) for _ in self.kinds]
        self.outputs: list[int] = []
        self.source_gradients: list[int] = []
        self.found: dict[Region, list[int]] = {}
        self.slots = Slots()
        self.loaded = False

    @property
    def regions(self) -> tuple[Region, ...]:
        return (*WEIGHTS, *BIASES) if self.case.conv.bias else WEIGHTS

    def memory(self, region: Region) -> Integers:
        """The numbers of a region in the order of its tensor, by the reference."""
        of_bias = region >= Region.BIAS_MASTER
        parameter = self.reference.bias if of_bias else self.reference.weight
        members = (parameter.master, parameter.velocity, parameter.working)
        return members[region - (Region.BIAS_MASTER if of_bias else Region.MASTER)]

    def _reference(self) -> ConvReference:
        conv, formats = self.case.conv, self.case.formats
        parameters = formats.parameters

        def parameter(shape: tuple[int, ...], working: Fixed) -> Parameter:
            formats = (parameters.master, parameters.velocity, working)
            return Parameter(*(self._numbers(format, shape, 3) for format in formats))

        return ConvReference(
            conv,
            self.case.source,
            formats,
            COEFFICIENT_SET,
            parameter(conv.weight_shape(self.case.source), parameters.working),
            parameter((conv.outputs,), formats.bias),
            list(self.states),
        )

    def _numbers(self, format: Fixed, shape: tuple[int, ...], shift: int) -> Integers:
        """Mostly small ones, so that sums do not always saturate."""
        count = int(np.prod(shape))
        low, high = format.minimum, format.maximum
        small = [self.rng.randint(low >> shift, high >> shift) for _ in range(count)]
        mixed = [self.rng.choice((low, high)) if self.rng.random() < 0.05 else n for n in small]
        return np.array(mixed, np.int64).reshape(shape)

    def _tensor(self, format: Fixed, shape: Shape) -> Integers:
        return self._numbers(format, (shape.rows, shape.columns, shape.channels), 3)

    def _offsets(self, region: Region) -> Iterator[int]:
        """Bus offsets of a region in the order of its tensor."""
        folding = self.case.folding
        lanes_in, lanes_out = folding.lanes_in, folding.lanes_out
        if region >= Region.BIAS_MASTER:
            for output in range(self.case.conv.outputs):
                yield output // lanes_out << lane_bits(lanes_out) | output % lanes_out
            return
        outputs, kernel, _, inputs = self.case.conv.weight_shape(self.case.source)
        for output, row, column, place in np.ndindex(outputs, kernel, kernel, inputs):
            tap = (output // lanes_out * kernel + row) * kernel + column
            word = tap * (inputs // lanes_in) + place // lanes_in
            lane = output % lanes_out * lanes_in + place % lanes_in
            yield word << lane_bits(folding.multipliers) | lane

    async def _write(self, ctx: Any, region: Region, offset: int, number: int) -> None:
        bus = self.tile.core.bus
        ctx.set(bus.select, 1)
        ctx.set(bus.write, 1)
        ctx.set(bus.region, region)
        ctx.set(bus.offset, offset)
        ctx.set(bus.write_data, number & 0xFFFF_FFFF)
        await ctx.tick()
        ctx.set(bus.select, 0)

    async def _load(self, ctx: Any) -> None:
        for region in self.regions:
            for offset, number in zip(
                self._offsets(region), self.initial[region].flat, strict=True
            ):
                await self._write(ctx, region, offset, int(number))
        for name, value in asdict(COEFFICIENT_SET).items():
            await self._write(ctx, Region.REGISTERS, COEFFICIENTS.index(name), int(value))
        for tensor, state in zip(Tensor, self.states, strict=True):
            await self._write(ctx, Region.REGISTERS, STATE_BASE + tensor, state)
        self.loaded = True

    async def send_inputs(self, ctx: Any) -> None:
        await self._load(ctx)
        for slot, numbers in enumerate(self.inputs):
            beats = self.tile.source.beats(self.header(slot), [int(n) for n in numbers.flat])
            await send(ctx, self.tile.stash.i, beats, self.rng, self.case.hold)

    def header(self, slot: int) -> Header:
        return Header(self.kinds[slot], commit=slot == 0, label=slot % 10)

    async def send_gradients(self, ctx: Any) -> None:
        """Each after the output that it belongs to."""
        due = 0
        for slot in range(len(self.kinds) - self.case.delay):
            due += self.beats_out(slot)
            while len(self.outputs) < due:
                await ctx.tick()
            trains = self.kinds[slot] is Kind.TRAIN
            header = Header(Kind.TRAIN) if trains else BUBBLE
            beats = self.tile.gradient.beats(header, [int(n) for n in self.gradients[slot].flat])
            await send(ctx, self.tile.channel.i, beats, self.rng, self.case.hold)

    def beats_out(self, slot: int) -> int:
        target = self.case.conv.output_shape(self.case.source)
        words = target.pixels * target.channels // self.case.folding.lanes_out
        return 1 if self.kinds[slot] is Kind.BUBBLE else words

    async def take_outputs(self, ctx: Any) -> None:
        for slot in range(len(self.kinds)):
            for _ in range(self.beats_out(slot)):
                self.outputs += await receive(ctx, self.tile.core.o, 1, self.rng, self.case.hold)

    async def take_gradients(self, ctx: Any) -> None:
        """When the last is there, read what the memories hold."""
        words = self.case.source.pixels * self.case.source.channels // self.case.folding.lanes_in
        for slot in range(len(self.kinds)):
            origin = slot - self.case.delay
            trains = origin >= 0 and self.kinds[origin] is Kind.TRAIN
            count = words if trains and not self.case.first else 1
            stream = self.tile.core.o_gradient
            self.source_gradients += await receive(ctx, stream, count, self.rng, self.case.hold)
        await ctx.tick().repeat(self.tile.geometry.slot_cycles)
        bus = self.tile.core.bus
        for region in self.regions:
            self.found[region] = []
            ctx.set(bus.select, 1)
            ctx.set(bus.write, 0)
            ctx.set(bus.region, region)
            for offset in self._offsets(region):
                ctx.set(bus.offset, offset)
                await ctx.tick().repeat(TILE_READ_LATENCY)
                number = ctx.get(bus.read_data)
                self.found[region].append(number - (1 << 32) if number >> 31 else number)

    async def observe(self, ctx: Any) -> None:
        starts: list[int] = []
        waiting: list[int] = []
        busy: list[int] = []
        clock = 0
        while len(starts) < len(self.kinds):
            _, _, activity = await ctx.tick().sample(self.tile.core.activity)
            clock += 1
            if activity.started:
                starts.append(clock)
                waiting.append(0)
                busy.append(0)
            if starts:
                waiting[-1] += activity.waiting
                busy[-1] += activity.busy
        self.slots = Slots([b - a for a, b in pairwise(starts)], waiting[:-1], busy[:-1])

    def simulate(self) -> None:
        simulate(
            self.tile,
            self.send_inputs,
            self.send_gradients,
            self.take_outputs,
            self.take_gradients,
            self.observe,
        )

    def check_bits(self) -> None:
        """Compare streams and memories with what the reference makes of the same packets."""
        tile, reference, delay = self.tile, self.reference, self.case.delay
        outputs: list[int] = []
        gradients: list[int] = []
        results: list[Integers] = []
        for slot, kind in enumerate(self.kinds):
            results.append(reference.forward(self.inputs[slot], kind is Kind.EVAL))
            outputs += tile.target.beats(self.header(slot), [int(n) for n in results[-1].flat])
            origin = slot - delay
            if origin >= 0 and self.kinds[origin] is Kind.TRAIN:
                dx = reference.backward(
                    self.inputs[origin], results[origin], self.gradients[origin]
                )
                numbers = [int(n) for n in dx.flat]
                gradients += tile.source_gradient.beats(Header(Kind.TRAIN), numbers)
            else:
                gradients += tile.source_gradient.beats(BUBBLE, [])
        assert self.outputs == outputs
        assert self.source_gradients == gradients
        for region in self.regions:
            assert self.found[region] == list(self.memory(region).flat), region

    def check_time(self) -> None:
        """Slots with a training sample both ways take what the formula says, waiting apart.

        The first of them may wait, for a gradient whose forward pass has just ended.
        """
        checked = 0
        for slot in range(self.case.delay, len(self.slots.lengths)):
            if self.kinds[slot] is self.kinds[slot - self.case.delay] is Kind.TRAIN:
                working = self.slots.lengths[slot] - self.slots.waiting[slot]
                assert working == self.tile.geometry.slot_cycles
                assert self.slots.busy[slot] == self.tile.geometry.busy_cycles
                if 0 < self.case.delay < slot and not self.case.hold:
                    assert self.slots.waiting[slot] == 0
                checked += 1
        assert checked


def conv(kernel: int, stride: int, padding: int, bias: bool, relu: bool, outputs: int = 4) -> Conv:
    return Conv("tile", outputs, kernel, stride, padding, bias, relu)


CASES = {
    "3x3": Case(conv(3, 1, 1, True, True), Shape(4, 3, 2), Folding(2, 4, 2)),
    "3x3 of few update lanes": Case(conv(3, 1, 1, False, True), Shape(3, 4, 4), Folding(4, 4, 1)),
    "3x3 without padding, D = 2": Case(
        conv(3, 1, 0, True, False), Shape(3, 4, 4), Folding(2, 2, 4), delay=2
    ),
    "3x3 with stride": Case(conv(3, 2, 1, True, True), Shape(4, 4, 2), Folding(2, 2, 1)),
    "3x3 with stride, first, odd": Case(
        conv(3, 2, 1, False, False), Shape(5, 3, 2), Folding(1, 4, 2), first=True
    ),
    "3x3 with stride, without padding": Case(
        conv(3, 2, 0, True, True), Shape(4, 5, 2), Folding(2, 1, 1), delay=0
    ),
    "1x1 with stride": Case(conv(1, 2, 0, False, False), Shape(4, 3, 4), Folding(2, 2, 2)),
    "1x1": Case(conv(1, 1, 0, True, True), Shape(2, 3, 4), Folding(1, 2, 1), preset=Preset.WIDE),
    "one word of weights": Case(conv(1, 1, 0, False, True, 2), Shape(3, 4, 4), Folding(4, 2, 1)),
    "one word of biases": Case(conv(1, 1, 0, True, True), Shape(3, 3, 2), Folding(2, 4, 1)),
    "signed ReLU": Case(
        conv(3, 1, 1, False, True), Shape(3, 3, 2), Folding(2, 4, 8), signed_target=True
    ),
    "wide": Case(conv(3, 2, 1, True, False), Shape(3, 3, 4), Folding(4, 2, 2), preset=Preset.WIDE),
    "linear": Case(dense("tile", 4), Shape(1, 1, 6), Folding(3, 2, 1), delay=2),
    "linear, first": Case(
        dense("tile", 4, relu=False), Shape(1, 1, 6), Folding(3, 2, 6), first=True
    ),
    "linear without bias, D = 0": Case(
        dense("tile", 3, bias=False), Shape(1, 1, 2), Folding(2, 3, 3), delay=0
    ),
    "one multiplier": Case(dense("tile", 1), Shape(1, 1, 1), Folding(1, 1, 1)),
}
STALLED = (
    "3x3",
    "3x3 with stride",
    "3x3 with stride, first, odd",
    "1x1",
    "linear",
    "one multiplier",
)


@pytest.mark.parametrize("name", CASES)
def test_training_slots_are_exact_to_the_bit_and_to_the_cycle(name: str) -> None:
    case = CASES[name]
    run = Run(case, [Kind.TRAIN] * max(3, case.delay + 2))
    run.simulate()
    run.check_bits()
    run.check_time()


@pytest.mark.parametrize("name", STALLED)
def test_stalls_bubbles_and_evaluation_change_no_bit_and_no_working_cycle(name: str) -> None:
    kinds = [Kind.TRAIN, Kind.EVAL, Kind.BUBBLE, *[Kind.TRAIN] * 3]
    run = Run(replace(CASES[name], hold=0.6), kinds)
    run.simulate()
    run.check_bits()
    run.check_time()
