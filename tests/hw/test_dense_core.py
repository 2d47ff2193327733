"""A dense tile on its own, with its stashes: its first result, and its time to the cycle."""

import random
from itertools import pairwise
from typing import Any

import pytest
from amaranth import Module
from amaranth.hdl import Elaboratable
from amaranth.lib import wiring

from hw.mac import MacParameters
from hw.stash import MaskStash, Stash
from hw.tiles.dense import DenseCore
from spec.bus import Region, lane_bits
from spec.formats import requantize
from spec.mac import Folding
from spec.mac_formats import SumWidths
from spec.packets import BeatLayout, Header, Kind
from spec.presets import Preset
from spec.shape import Shape
from spec.tiles import Dense
from tests.hw.conftest import preset_formats, receive, send, simulate
from tests.model.small import integers

ENTRIES = 4
SLOTS = 6
NOT_HELD = random.Random(0)


class IsolatedTile(Elaboratable):
    """A core whose three memories take all that they are given."""

    def __init__(self, tile: Dense, inputs: int, folding: Folding, first: bool) -> None:
        source = Shape(1, 1, inputs)
        self.geometry = tile.geometry(source, folding, first)
        self.formats = preset_formats(Preset.COMPACT, tile.relu)
        widths = SumWidths.of(tile.name, self.formats, inputs, tile.outputs, 1)
        words_in, words_out = inputs // folding.lanes_in, tile.outputs // folding.lanes_out
        parameters = MacParameters(self.geometry, self.formats, widths)
        self.core = DenseCore(parameters, words_in, words_out)
        self.source = BeatLayout(self.formats.source, folding.lanes_in, forward=True)
        self.target = BeatLayout(self.formats.target, folding.lanes_out, forward=True)
        self.gradient = BeatLayout(self.formats.target_gradient, folding.lanes_out, forward=False)
        self.stash = Stash(self.source, words_in, ENTRIES)
        self.channel = Stash(self.gradient, words_out, ENTRIES, tokens=0)
        self.mask = MaskStash(folding.lanes_out, words_out, ENTRIES, 0) if tile.relu else None

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


async def write(ctx: Any, core: DenseCore, region: Region, offset: int, number: int) -> None:
    ctx.set(core.bus.select, 1)
    ctx.set(core.bus.write, 1)
    ctx.set(core.bus.region, region)
    ctx.set(core.bus.offset, offset)
    ctx.set(core.bus.write_data, number & 0xFFFF_FFFF)
    await ctx.tick()
    ctx.set(core.bus.select, 0)


@pytest.mark.parametrize("first", [False, True], ids=["inner", "first"])
@pytest.mark.parametrize(
    ("outputs", "inputs", "folding", "bias", "relu"),
    [
        (4, 6, Folding(3, 2, 6), True, False),
        (4, 6, Folding(3, 2, 2), True, True),
        (4, 6, Folding(3, 2, 1), True, True),
        (4, 6, Folding(2, 4, 2), False, True),
        (4, 6, Folding(1, 1, 1), False, False),
        (3, 2, Folding(2, 3, 3), True, True),
        (1, 1, Folding(1, 1, 1), True, False),
    ],
)
def test_a_slot_takes_what_the_formula_says_when_nothing_makes_it_wait(
    outputs: int, inputs: int, folding: Folding, bias: bool, relu: bool, first: bool
) -> None:
    rng = random.Random(3)
    tile = Dense("tile", outputs, bias, relu)
    isolated = IsolatedTile(tile, inputs, folding, first)
    core, formats, geometry = isolated.core, isolated.formats, isolated.geometry
    working, source = formats.parameters.working, formats.source
    weights = [integers(rng, working.minimum, working.maximum, inputs) for _ in range(outputs)]
    biases = integers(rng, formats.bias.minimum, formats.bias.maximum, outputs)
    samples = [integers(rng, source.minimum, source.maximum, inputs) for _ in range(SLOTS)]
    gradients = [
        integers(rng, formats.target_gradient.minimum, formats.target_gradient.maximum, outputs)
        for _ in range(SLOTS)
    ]
    header = Header(Kind.TRAIN, commit=True, label=5)
    starts: list[int] = []
    busy: list[int] = []
    results: list[int] = []
    loaded: list[bool] = []

    async def load(ctx: Any) -> None:
        """In the order {word, lane} of the memories, words output block by output block."""
        lanes_in, lanes_out = folding.lanes_in, folding.lanes_out
        for output, row in enumerate(weights):
            for place, number in enumerate(row):
                word = output // lanes_out * (inputs // lanes_in) + place // lanes_in
                lane = output % lanes_out * lanes_in + place % lanes_in
                offset = word << lane_bits(folding.multipliers) | lane
                await write(ctx, core, Region.WORKING, offset, number)
            if bias:
                offset = output // lanes_out << lane_bits(lanes_out) | output % lanes_out
                await write(ctx, core, Region.BIAS_WORKING, offset, biases[output])
        loaded.append(True)
        ctx.set(core.o_gradient.ready, 1)
        beats = [b for sample in samples for b in isolated.source.beats(header, sample)]
        await send(ctx, isolated.stash.i, beats, NOT_HELD)

    async def send_gradients(ctx: Any) -> None:
        while not loaded:
            await ctx.tick()
        packets = [isolated.gradient.beats(Header(Kind.TRAIN), g) for g in gradients]
        await send(ctx, isolated.channel.i, [b for beats in packets for b in beats], NOT_HELD)

    async def take_results(ctx: Any) -> None:
        beats = outputs // folding.lanes_out * SLOTS
        results.extend(await receive(ctx, core.o, beats, NOT_HELD))

    async def observe(ctx: Any) -> None:
        clock = 0
        while len(starts) < SLOTS:
            _, _, activity = await ctx.tick().sample(core.activity)
            clock += 1
            if activity.started:
                starts.append(clock)
                busy.append(0)
            if activity.busy:
                busy[-1] += 1
            assert not starts or len(starts) == SLOTS or not activity.waiting

    simulate(isolated, load, send_gradients, take_results, observe)
    lengths = {b - a for a, b in pairwise(starts)}
    assert lengths == {geometry.slot_cycles}
    assert set(busy[:-1]) == {geometry.busy_cycles}

    sums = [
        sum(w * x for w, x in zip(row, samples[0], strict=True))
        + (biases[output] << formats.bias_shift if bias else 0)
        for output, row in enumerate(weights)
    ]
    wanted = [requantize(total, formats.forward_frac, formats.target) for total in sums]
    assert results[: outputs // folding.lanes_out] == isolated.target.beats(header, wanted)
