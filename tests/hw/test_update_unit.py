"""The update unit against the reference on integers."""

import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from hw.random_bits import index_product
from hw.update import SCALED, STEP_PRODUCT, UpdateLane, UpdateUnit
from spec.formats import Fixed
from spec.mac import UPDATE_LATENCY, Folding
from spec.mac_formats import MacFormats
from spec.presets import Preset
from spec.random_bits import random_word
from spec.shape import Shape
from spec.tiles.conv import dense
from spec.update import COEFFICIENT_BITS, SHIFT_LIMIT, UpdateCoefficients, update
from tests.hw.conftest import integers, preset_formats, simulate

FORMATS = {
    "compact": preset_formats(Preset.COMPACT),
    "wide": preset_formats(Preset.WIDE),
    "wide stochastic": replace(
        preset_formats(Preset.WIDE),
        parameters=replace(preset_formats(Preset.WIDE).parameters, stochastic=True),
    ),
}
LARGEST_WORD = (1 << 32) - 1


def numbers(rng: random.Random, format: Fixed, count: int) -> list[int]:
    return integers(rng, format.minimum, format.maximum, count)


def coefficients(rng: random.Random, decay: bool, mantissa: int = 15) -> UpdateCoefficients:
    """Anything that the registers and the shift limits allow."""
    values: dict[str, Any] = {
        name: rng.randrange(1 << bits) for name, bits in COEFFICIENT_BITS.items()
    }
    values["step_shift"] = rng.randint(0, SHIFT_LIMIT)
    values["step_mantissa"] = rng.randint(0, mantissa)
    return UpdateCoefficients(**{**values, "decay": decay})


def coefficient_sets(rng: random.Random, count: int) -> list[UpdateCoefficients]:
    """Random ones, among them every momentum shift and every step shift."""
    sets = [coefficients(rng, bool(i % 2)) for i in range(count)]
    return [
        replace(
            c,
            momentum_shift=i % 16,
            step_shift=i % (SHIFT_LIMIT + 1),
            decay_shift=i % 32,
            prediction_shift=i % 24,
        )
        for i, c in enumerate(sets)
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_a_lane_equals_the_reference_at_one_operand_a_clock(name: str) -> None:
    formats, rng = FORMATS[name], random.Random(1)
    parameters = formats.parameters
    lane = UpdateLane(parameters, formats.bias)
    sets, count = coefficient_sets(rng, 66), 24
    half = [1 << 31] * count

    async def check(ctx: Any) -> None:
        for chosen in sets:
            ctx.set(lane.coefficients, {**asdict(chosen)})
            gradient = numbers(rng, parameters.gradient, count)
            velocity = numbers(rng, parameters.velocity, count)
            master = numbers(rng, parameters.master, count)
            words = [integers(rng, 0, LARGEST_WORD, count) for _ in range(2)]
            given = words if parameters.stochastic else [half, half]
            for clock in range(count + UPDATE_LATENCY):
                if clock < count:
                    ctx.set(lane.gradient, gradient[clock])
                    ctx.set(lane.velocity, velocity[clock])
                    ctx.set(lane.master, master[clock])
                if 0 <= (i := clock - (SCALED - 1)) < count:
                    ctx.set(lane.velocity_random, given[0][i])
                if 0 <= (i := clock - (STEP_PRODUCT - 1)) < count:
                    ctx.set(lane.master_random, given[1][i])
                await ctx.tick()
                if (i := clock - (UPDATE_LATENCY - 1)) < 0:
                    continue
                if i == count:
                    break
                operands = (gradient[i], velocity[i], master[i], parameters)
                random_pair = (words[0][i], words[1][i])
                weight = update(*operands, parameters.working, chosen, random_pair)
                bias = update(*operands, formats.bias, chosen, random_pair)
                assert (
                    ctx.get(lane.new_velocity),
                    ctx.get(lane.new_master),
                    ctx.get(lane.new_working),
                    ctx.get(lane.new_bias),
                ) == (weight.velocity, weight.master, weight.working, bias.working), (chosen, i)

    simulate(lane, check)


@pytest.mark.parametrize(
    "folding",
    [Folding(3, 2, 6), Folding(3, 2, 2), Folding(3, 2, 1), Folding(2, 4, 8), Folding(1, 4, 2)],
    ids=str,
)
@pytest.mark.parametrize("name", ["compact", "wide"])
def test_a_unit_uses_the_random_words_of_its_elements_in_every_turn(
    name: str, folding: Folding
) -> None:
    formats: MacFormats = FORMATS[name]
    parameters, rng, lanes = formats.parameters, random.Random(2), folding.update_lanes
    geometry = dense("tile", 4).geometry(Shape(1, 1, 6), folding, first=False)
    unit = UpdateUnit(geometry, formats)
    chosen = replace(coefficients(rng, True), momentum_shift=9, step_shift=20, decay_shift=3)
    bias_turns = max(1, folding.lanes_out // lanes)
    operands: list[dict[str, Any]] = []
    for _ in range(60):
        of_bias = rng.random() < 0.5
        operands.append(
            {
                "gradient": numbers(rng, parameters.gradient, lanes),
                "velocity": numbers(rng, parameters.velocity, lanes),
                "master": numbers(rng, parameters.master, lanes),
                "element": rng.randrange(1000),
                "turn": rng.randrange(bias_turns if of_bias else geometry.update_turns),
                "of_bias": of_bias,
                "velocity_state": rng.randint(1, LARGEST_WORD),
                "master_state": rng.randint(1, LARGEST_WORD),
            }
        )

    def expected(given: dict[str, Any], lane: int) -> tuple[int, ...]:
        place = given["turn"] * lanes + lane
        if not given["of_bias"]:
            output, source = divmod(place, folding.lanes_in)
            place = output * 6 + source
        index = given["element"] + place
        words = tuple(random_word(given[f"{kind}_state"], index) for kind in ("velocity", "master"))
        numbers = (given[kind][lane] for kind in ("gradient", "velocity", "master"))
        working = formats.bias if given["of_bias"] else parameters.working
        updated = update(*numbers, parameters, working, chosen, words)
        return updated.velocity, updated.master, updated.working

    async def check(ctx: Any) -> None:
        ctx.set(unit.coefficients, {**asdict(chosen)})
        for clock in range(len(operands) + UPDATE_LATENCY - 1):
            if clock < len(operands):
                given = operands[clock]
                for member in given.keys() - {"element"}:
                    ctx.set(getattr(unit, member), given[member])
                ctx.set(unit.index, index_product(given["element"]))
            await ctx.tick()
            if (i := clock - (UPDATE_LATENCY - 1)) < 0:
                continue
            used = folding.lanes_out if operands[i]["of_bias"] else lanes
            working = unit.new_bias if operands[i]["of_bias"] else unit.new_working
            for lane in range(min(lanes, used)):
                results = (unit.new_velocity[lane], unit.new_master[lane], working[lane])
                assert tuple(map(ctx.get, results)) == expected(operands[i], lane), (i, lane)

    simulate(unit, check)
