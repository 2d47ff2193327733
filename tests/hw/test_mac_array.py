"""The MAC array against integer matrix products, at the extremes of its formats."""

import random
from dataclasses import replace
from typing import Any

import pytest

from hw.mac import MacArray, MacParameters, PassKind
from hw.random_bits import index_product
from spec.formats import Fixed, requantize
from spec.mac import (
    BLOCK_LATENCY,
    GRADIENT_ROUND_LATENCY,
    MEMORY_LATENCY,
    RESULT_LATENCY,
    Folding,
)
from spec.mac_formats import SumWidths
from spec.presets import Preset
from spec.random_bits import random_word
from spec.shape import Shape
from spec.tiles.conv import Conv
from tests.hw.conftest import preset_formats, simulate

STATE = 0x9876_5432
SUMS = 60
KINDS = list(PassKind)


def extremes(rng: random.Random, format: Fixed, count: int) -> list[int]:
    """Often all at one end, so that sums reach their widest."""
    end = rng.choice((None, format.minimum, format.maximum))
    return [
        rng.choice((format.minimum, format.maximum, rng.randint(format.minimum, format.maximum)))
        if end is None
        else end
        for _ in range(count)
    ]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("folding", [Folding(3, 2, 6), Folding(1, 4, 4), Folding(2, 1, 2)], ids=str)
@pytest.mark.parametrize(
    ("preset", "signed_source", "relu"),
    [
        (Preset.COMPACT, False, True),
        (Preset.COMPACT, True, False),
        (Preset.WIDE, False, True),
    ],
)
def test_every_pass_is_an_exact_product_rounded_once_at_a_step_a_clock(
    preset: Preset, signed_source: bool, relu: bool, folding: Folding, bias: bool
) -> None:
    rng = random.Random(6)
    lanes_in, lanes_out = folding.lanes_in, folding.lanes_out
    inputs, outputs = 6, 4
    formats = preset_formats(preset)
    # The target stays signed after a ReLU too, as in the trunk of a residual network.
    formats = replace(formats, source=replace(formats.source, signed=signed_source), relu=relu)
    parameters = formats.parameters
    geometry = Conv("tile", outputs, bias=bias).geometry(Shape(2, 2, inputs), folding, first=False)
    pixels = 4
    widths = SumWidths.of("tile", formats, inputs, outputs, pixels)
    array = MacArray(MacParameters(geometry, formats, widths))
    terms = {
        PassKind.FORWARD: inputs // lanes_in,
        PassKind.BACKWARD_DATA: outputs // lanes_out,
        PassKind.BACKWARD_WEIGHT: pixels,
        PassKind.BACKWARD_BIAS: pixels,
    }
    steps: list[dict[str, Any]] = []
    due: dict[int, tuple[str, list[int]]] = {}

    def expect(kind: PassKind, parts: list[dict[str, Any]], evaluate: bool, element: int) -> None:
        """What the sum over `parts` must be, and when it must be there."""
        last = parts[-1]
        rounded = [
            [requantize(w, parameters.master.frac, parameters.working) for w in part["master"]]
            for part in parts
        ]
        clock = len(steps) + RESULT_LATENCY
        if kind is PassKind.FORWARD:
            used = rounded if evaluate else [part["working"] for part in parts]
            words = last["bias"]
            if evaluate:
                words = [
                    requantize(b, parameters.master.frac, formats.bias) for b in last["bias_master"]
                ]
            results = []
            for o in range(lanes_out):
                total = words[o] << formats.bias_shift if bias else 0
                for part, weights in zip(parts, used, strict=True):
                    total += sum(weights[o * lanes_in + j] * part["x"][j] for j in range(lanes_in))
                result = requantize(total, formats.forward_frac, formats.target)
                results.append(max(0, result) if relu else result)
            due[clock] = ("target", results)
        elif kind is PassKind.BACKWARD_DATA:
            results = []
            for j in range(lanes_in):
                total = sum(
                    weights[o * lanes_in + j] * part["dy"][o]
                    for part, weights in zip(parts, rounded, strict=True)
                    for o in range(lanes_out)
                )
                word = random_word(STATE, element + j) if formats.source_stochastic else None
                results.append(requantize(total, formats.data_frac, formats.source_gradient, word))
            due[clock] = ("source", results)
        else:
            of_bias = kind is PassKind.BACKWARD_BIAS
            count = lanes_out if of_bias else folding.multipliers
            frac = formats.target_gradient.frac if of_bias else formats.weight_frac
            results = []
            for lane in range(count):
                o, j = (lane, 0) if of_bias else divmod(lane, lanes_in)
                total = sum(p["dy"][o] * (1 if of_bias else p["x"][j]) for p in parts)
                results.append(requantize(total, frac, parameters.gradient))
            due[len(steps) + BLOCK_LATENCY + GRADIENT_ROUND_LATENCY] = ("block", results)

    for _ in range(SUMS):
        kind = rng.choice(KINDS if bias else KINDS[:3])
        evaluate, element = rng.random() < 0.4, rng.randrange(1 << 10)
        parts: list[dict[str, Any]] = []
        ends = {
            name: extremes(rng, format, 1)[0]
            for name, format in (("x", formats.source), ("dy", formats.target_gradient))
        }
        for term in range(terms[kind]):
            while rng.random() < 0.1:
                steps.append({})
            words = {
                "x": extremes(rng, formats.source, lanes_in),
                "dy": extremes(rng, formats.target_gradient, lanes_out),
                "working": extremes(rng, parameters.working, folding.multipliers),
                "master": extremes(rng, parameters.master, folding.multipliers),
                "bias": extremes(rng, formats.bias, lanes_out),
                "bias_master": extremes(rng, parameters.master, lanes_out),
            }
            if element % 2:
                words["x"] = [ends["x"]] * lanes_in
                words["dy"] = [ends["dy"]] * lanes_out
            step = {
                "valid": 1,
                "kind": kind,
                "first": term == 0,
                "last": term == terms[kind] - 1,
                "evaluate": evaluate,
                "padded": kind is not PassKind.BACKWARD_BIAS and rng.random() < 0.2,
                "index": index_product(element),
            }
            operands = dict(words)
            if step["padded"]:
                operands["dy" if kind is PassKind.BACKWARD_DATA else "x"] = [0] * max(
                    lanes_in, lanes_out
                )
            parts.append(operands)
            if step["last"]:
                # A forward sum is preloaded with the bias of its first step.
                parts[-1] |= {name: parts[0][name] for name in ("bias", "bias_master")}
                expect(kind, parts, evaluate, element)
            steps.append({"step": step, "words": words})

    async def check(ctx: Any) -> None:
        ctx.set(array.state, STATE)
        checked = 0
        for clock in range(len(steps) + RESULT_LATENCY + 1):
            given = steps[clock] if clock < len(steps) else {}
            ctx.set(array.step, given.get("step", {"valid": 0}))
            words = steps[clock - MEMORY_LATENCY] if 0 < clock <= len(steps) else {}
            for name, numbers in words.get("words", {}).items():
                ctx.set(getattr(array, name), numbers)
            if clock in due:
                name, results = due[clock]
                output = getattr(array, name)
                assert [ctx.get(output[i]) for i in range(len(results))] == results, (clock, name)
                checked += 1
            await ctx.tick()
        assert checked == len(due) == SUMS

    simulate(array, check)
