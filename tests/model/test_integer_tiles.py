"""The integer tiles against `spec`'s functions on Python integers, bit for bit."""

import random

import pytest
import torch

from model.arithmetic import IntegerArithmetic
from model.packets import Packet
from model.tiles.base import Parameters, Rounding
from model.tiles.conv import ConvTile
from model.tiles.loss import LossTile
from model.update import Moments
from spec.formats import Fixed, requantize
from spec.packets import Header, Kind
from spec.plan import Plan
from spec.presets import Preset
from spec.random_bits import Tensor, initial_state, random_word, xorshift32
from spec.tile_plans import ConvPlan
from spec.tiles.loss import LOGITS, cross_entropy, logit_gradient
from spec.update import Updated, update
from tests.model.small import CLASSES, integers, small_entry, small_plan

SAMPLES = 12


class ReferenceTile:
    """One dense tile in loops over Python integers, written from the design alone."""

    def __init__(self, plan: Plan, name: str, master: list[int], velocity: list[int]) -> None:
        planned = plan.hardware.planned(name)
        assert isinstance(planned, ConvPlan)
        self.plan, self.planned = plan, planned
        self.formats = plan.hardware.formats(planned)
        self.coefficients = plan.coefficients(planned).integers
        self.inputs = plan.hardware.source_of(name).shape.channels
        self.outputs = planned.tile.outputs
        self.weights = self.inputs * self.outputs
        self.master, self.velocity = master, velocity
        self.working = self.rounded(master)
        index = plan.hardware.index(name)
        self.states = tuple(initial_state(plan.run.seed, index, tensor) for tensor in Tensor)

    def format_of(self, index: int) -> Fixed:
        parameters = self.formats.parameters
        return parameters.working if index < self.weights else self.formats.bias

    def rounded(self, numbers: list[int]) -> list[int]:
        frac = self.formats.parameters.master.frac
        return [requantize(n, frac, self.format_of(i)) for i, n in enumerate(numbers)]

    def forward(self, copy: list[int], x: list[int]) -> list[int]:
        result = []
        for out in range(self.outputs):
            total = sum(copy[out * self.inputs + i] * x[i] for i in range(self.inputs))
            if self.planned.tile.bias:
                total += copy[self.weights + out] << self.formats.bias_shift
            result.append(requantize(total, self.formats.forward_frac, self.formats.target))
        return result

    def backward(self, x: list[int], y: list[int], dy: list[int]) -> list[int]:
        dz = [d if v > 0 or not self.formats.relu else 0 for d, v in zip(dy, y, strict=True)]
        copy = self.rounded(self.master)
        dx = []
        for i in range(self.inputs):
            total = sum(copy[out * self.inputs + i] * dz[out] for out in range(self.outputs))
            word = random_word(self.states[Tensor.GRADIENT], i)
            dx.append(
                requantize(
                    total,
                    self.formats.data_frac,
                    self.formats.source_gradient,
                    word if self.formats.source_stochastic else None,
                )
            )
        self.update(x, dz)
        self.states = tuple(xorshift32(state) for state in self.states)
        return dx

    def update(self, x: list[int], dz: list[int]) -> None:
        target = self.formats.parameters.gradient
        for out in range(self.outputs):
            for i in range(self.inputs):
                gradient = requantize(dz[out] * x[i], self.formats.weight_frac, target)
                self.change(out * self.inputs + i, gradient)
            if self.planned.tile.bias:
                gradient = requantize(dz[out], self.formats.target_gradient.frac, target)
                self.change(self.weights + out, gradient)

    def change(self, index: int, gradient: int) -> None:
        bias = index >= self.weights
        position = index - self.weights if bias else index
        velocity = Tensor.BIAS_VELOCITY if bias else Tensor.WEIGHT_VELOCITY
        weight = Tensor.BIAS if bias else Tensor.WEIGHT
        new: Updated = update(
            gradient,
            self.velocity[index],
            self.master[index],
            self.formats.parameters,
            self.format_of(index),
            self.coefficients,
            (
                random_word(self.states[velocity], position),
                random_word(self.states[weight], position),
            ),
        )
        self.velocity[index], self.master[index] = new.velocity, new.master
        self.working[index] = new.working


def pixel(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers).view(1, 1, -1)


@pytest.mark.parametrize("preset", Preset)
@pytest.mark.parametrize("name", ["one", "two", "three"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("decay", [0.0, 2.0**-6])
def test_dense_tile_equals_the_python_reference(
    preset: Preset, name: str, bias: bool, decay: float
) -> None:
    plan = small_plan(preset=preset, seed=5, entry=small_entry(decay, bias))
    planned = plan.hardware.planned(name)
    assert isinstance(planned, ConvPlan)
    rng = random.Random(f"{preset} {name} {bias} {decay}")
    parameters = planned.parameters
    count = planned.tile.outputs * plan.hardware.source_of(name).shape.channels
    count += planned.tile.outputs if planned.tile.bias else 0
    master = integers(rng, parameters.master.minimum, parameters.master.maximum, count)
    velocity = integers(rng, parameters.velocity.minimum, parameters.velocity.maximum, count)
    reference = ReferenceTile(plan, name, list(master), list(velocity))
    arithmetic, flat = IntegerArithmetic(), torch.tensor(master)
    outputs, *_, inputs = planned.tile.weight_shape(plan.hardware.source_of(name).shape)
    working = Rounding.of(plan, planned).copy(flat, arithmetic)
    stored = Parameters(Moments(flat, torch.tensor(velocity)), working)
    tile = ConvTile(plan, planned, arithmetic, stored)
    tile.stash.clear()
    for _ in range(SAMPLES):
        x = integers(rng, tile.formats.source.minimum, tile.formats.source.maximum, inputs)
        gradient = tile.formats.target_gradient
        dy = integers(rng, gradient.minimum, gradient.maximum, outputs)
        expected_eval = reference.forward(reference.rounded(reference.master), x)
        (evaluated,) = tile.forward(Packet(Header(Kind.EVAL), pixel(x)))
        assert evaluated.tensor.flatten().tolist() == expected_eval
        tile.stash.pop()
        expected = reference.forward(reference.working, x)
        (y,) = tile.forward(Packet(Header(Kind.TRAIN), pixel(x)))
        assert y.tensor.flatten().tolist() == expected
        (back,) = tile.backward(Packet(Header(Kind.TRAIN), pixel(dy)))
        dx = reference.backward(x, expected, dy)
        assert (back.data is None) if name == "one" else (back.tensor.flatten().tolist() == dx)
        assert tile.parameters.moments.master.tolist() == reference.master
        assert tile.parameters.moments.velocity.tolist() == reference.velocity
        weights, biases = tile.parameters.working
        copy = weights.view(-1).tolist() + ([] if biases is None else biases.tolist())
        assert copy == reference.working
        assert tile.random.states == reference.states


@pytest.mark.parametrize("preset", Preset)
def test_loss_tile_equals_the_python_reference(preset: Preset) -> None:
    plan = small_plan(preset=preset, seed=9)
    edge = plan.hardware.source_of("loss")
    tile = LossTile(plan, IntegerArithmetic())
    state = initial_state(9, plan.hardware.index("loss"), Tensor.GRADIENT)
    rng = random.Random(3)
    for trial in range(200):
        spread = (4, 300, 3000, LOGITS.maximum)[trial % 4]
        logits = integers(rng, -spread - 1, spread, CLASSES)
        label = rng.randrange(CLASSES)
        expected = cross_entropy(logits, label)
        result, back = tile.turn(Packet(Header(Kind.TRAIN, label=label), pixel(logits)))
        assert (result.prediction, result.loss) == (expected.prediction, expected.loss)
        word_state = state if edge.stochastic else None
        assert back.tensor.flatten().tolist() == logit_gradient(
            expected, label, edge.gradient, word_state
        )
        state = xorshift32(state)
    assert tile.counters[Kind.TRAIN].seen == 200


def test_evaluation_leaves_the_loss_random_state_alone() -> None:
    tile = LossTile(small_plan(), IntegerArithmetic())
    before = tile.random.states
    _, back = tile.turn(Packet(Header(Kind.EVAL, label=1), pixel([1, 2, 3])))
    assert back.header.kind is Kind.BUBBLE
    assert tile.random.states == before
    assert tile.counters[Kind.EVAL].seen == 1
