"""The engine against a naive simulation of the pipeline that keeps every version of every weight.

The simulation knows nothing of packets, queues or slots, only of the rule (design, section 3):
forward of sample i uses parameters that have seen 0 to i - D - 1, backward those of 0 to i - 1.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.arithmetic import FloatArithmetic
from model.data import Split
from model.engine import Engine
from model.feed import run_phases, sample_order, training
from spec.hyperparameters import FloatCoefficients
from spec.method import PAPER_METHODS, Method
from spec.packets import Header, Kind
from spec.plan import Plan
from spec.schedule import Schedule
from tests.model.small import encoded, small_data, small_engine, small_entry, small_plan

Vector = NDArray[np.float64]
SAMPLES = 40
METHODS = (
    *PAPER_METHODS,
    *map(
        Method.parse,
        (
            "nesterov",
            "sc=0.5,2",
            "lwp*2",
            "lwpw+sc",
            "spectrain",
            "stash",
            "lwp+stash",
            "shrink=0.9",
        ),
    ),
)


class NaiveStage:
    """One dense layer and all its versions: `masters[n]` has seen n samples."""

    def __init__(self, flat: Vector, inputs: int, relu: bool) -> None:
        self.masters, self.predicted = [flat], [flat]
        self.velocity = np.zeros_like(flat)
        self.inputs, self.relu = inputs, relu

    def split(self, flat: Vector) -> tuple[Vector, Vector]:
        outputs = flat.size // (self.inputs + 1)
        return flat[: -outputs or None].reshape(outputs, self.inputs), flat[-outputs:]

    def update(self, gradient: Vector, c: FloatCoefficients) -> None:
        master = self.masters[-1]
        gradient = c.shrink * gradient + c.weight_decay * master
        self.velocity = c.momentum * self.velocity + gradient
        step = c.learning_rate * (c.a * self.velocity + c.b * gradient)
        ahead = step if c.weight_form else c.learning_rate * self.velocity
        self.masters.append(master - step)
        self.predicted.append(master - step - c.horizon * ahead)

    def backward_version(self, read: int, seen: int, c: FloatCoefficients, stashed: bool) -> Vector:
        """What the backward pass of a sample reads whose forward pass read version `read`."""
        if stashed:
            return self.predicted[read]
        return self.masters[seen] - c.learning_rate * c.backward_horizon * self.velocity


class NaivePipeline:
    """Samples pass one after the other; stage s reads the weights of `delays[s]` samples ago."""

    def __init__(self, stages: list[NaiveStage], delays: list[int], stashes: bool) -> None:
        self.stages, self.delays, self.stashes = stages, delays, stashes

    def train(
        self, x: Vector, label: int, coefficients: Callable[[int], FloatCoefficients]
    ) -> None:
        seen = len(self.stages[0].masters) - 1
        inputs, masks = [], []
        for stage, delay in zip(self.stages, self.delays, strict=True):
            weights, biases = stage.split(stage.predicted[max(0, seen - delay)])
            inputs.append(x)
            x = weights @ x + biases
            masks.append(x > 0 if stage.relu else np.ones(x.size, bool))
            x = np.where(masks[-1], x, 0)
        gradient = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
        gradient[label] -= 1
        for index in reversed(range(len(self.stages))):
            stage = self.stages[index]
            gradient = gradient * masks[index]
            both = np.concatenate((np.outer(gradient, inputs[index]).ravel(), gradient))
            c, read = coefficients(index), max(0, seen - self.delays[index])
            weights, _ = stage.split(stage.backward_version(read, seen, c, self.stashes))
            stage.update(both, c)
            gradient = weights.T @ gradient


def naive_pipeline(plan: Plan, engine: Engine) -> NaivePipeline:
    stages, delays = [], []
    for planned in plan.hardware.convs:
        flat = engine.trained[planned.tile.name].parameters.moments.master.numpy().copy()
        inputs = plan.hardware.source_of(planned.tile.name).shape.channels
        stages.append(NaiveStage(flat, inputs, planned.tile.relu))
        delays.append(0 if plan.run.sequential else plan.hardware.delay(planned.tile.name))
    return NaivePipeline(stages, delays, plan.run.method.stashes_weights)


def assert_same(engine: Engine, naive: NaivePipeline) -> None:
    for tile, stage in zip(engine.trained.values(), naive.stages, strict=True):
        moments = tile.parameters.moments
        working = tile.parameters.working
        assert working.biases is not None
        flat = torch.cat((working.weights.reshape(-1), working.biases))
        for actual, expected in (
            (moments.master, stage.masters[-1]),
            (moments.velocity, stage.velocity),
            (flat, stage.predicted[-1]),
        ):
            np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_every_sample_meets_the_weight_versions_of_the_rule(
    method: Method, schedule: Schedule, decay: float
) -> None:
    plan = small_plan(method, schedule, entry=small_entry(decay), seed=3)
    arithmetic, data = FloatArithmetic(torch.float64), small_data(SAMPLES)
    engine = small_engine(plan, arithmetic)
    naive = naive_pipeline(plan, engine)
    coefficients = [plan.float_coefficients(planned) for planned in plan.hardware.convs]
    images = encoded(plan, arithmetic, data.train)
    for header, sample in training(plan, data.train.labels, SAMPLES):
        engine.slot(header, None if sample is None else images[sample])
    engine.drain()
    order = [sample for _, sample in zip(range(SAMPLES), sample_order(3, SAMPLES), strict=False)]
    for sample in order:
        naive.train(data.train.images[sample], data.train.labels[sample], coefficients.__getitem__)
    assert_same(engine, naive)


def test_delays_are_those_of_the_schedules() -> None:
    expected = {Schedule.PAPER: [4, 2, 0], Schedule.ONE_FORWARD_ONE_BACKWARD: [2, 1, 0]}
    for schedule, delays in expected.items():
        plan = small_plan(schedule=schedule)
        assert [plan.hardware.delay(tile) for tile in ("one", "two", "three")] == delays


@pytest.mark.parametrize("commit_slot", [0, 1, 5, 11])
def test_a_commit_counts_from_its_slot_on_whatever_sample_comes_back(commit_slot: int) -> None:
    plan, arithmetic, data = small_plan(), FloatArithmetic(torch.float64), small_data(SAMPLES)
    engine = small_engine(plan, arithmetic)
    naive = naive_pipeline(plan, engine)
    old = [plan.float_coefficients(planned) for planned in plan.hardware.convs]
    new = [FloatCoefficients(0.3 * c.learning_rate, 0.6, c.a, 0.2, 7, 0.001) for c in old]
    images = encoded(plan, arithmetic, data.train)
    for slot in range(SAMPLES):
        if slot == max(0, commit_slot - 1):
            for tile, coefficients in zip(engine.tiles, new, strict=True):
                engine.set_shadow(tile, coefficients)
        header = Header(Kind.TRAIN, slot == commit_slot, data.train.labels[slot])
        engine.slot(header, images[slot])
    engine.drain()
    for sample in range(SAMPLES):

        def at_slot(tile: int, sample: int = sample) -> FloatCoefficients:
            return (new if sample + naive.delays[tile] >= commit_slot else old)[tile]

        naive.train(data.train.images[sample], data.train.labels[sample], at_slot)
    assert_same(engine, naive)


def test_a_shadow_without_a_commit_changes_nothing() -> None:
    plan, arithmetic, data = small_plan(), FloatArithmetic(torch.float64), small_data(SAMPLES)
    engines = [small_engine(plan, arithmetic) for _ in range(2)]
    engines[0].set_shadow("two", FloatCoefficients(1.0, 0.0, 1.0, 0.0, 0, 0.0))
    _train(engines, plan, data.train)
    masters = [engine.trained["two"].parameters.moments.master for engine in engines]
    assert torch.equal(*masters)


def test_a_bubble_carries_a_commit() -> None:
    plan = small_plan()
    engine = small_engine(plan, FloatArithmetic(torch.float64))
    coefficients = FloatCoefficients(1.0, 0.0, 1.0, 0.0, 0, 0.0)
    engine.set_shadow("three", coefficients)
    record = engine.slot(Header(Kind.BUBBLE, commit=True, label=7))
    assert engine.trained["three"].active == coefficients
    headers = [seen.packet.header for seen in record.packets if seen.forward]
    assert headers == [Header(Kind.BUBBLE, commit=True)] * 4


def test_sequential_training_is_plain_sgd_with_momentum() -> None:
    plan = small_plan(Method.LWP_SC, Schedule.SEQUENTIAL)
    arithmetic, data = FloatArithmetic(torch.float64), small_data(SAMPLES)
    engine = small_engine(plan, arithmetic)
    layers = torch.nn.Sequential()
    for tile, planned in zip(engine.trained.values(), plan.hardware.convs, strict=True):
        outputs, inputs = planned.tile.outputs, plan.network.input_shape_of(planned.tile).channels
        linear = torch.nn.Linear(inputs, outputs, dtype=torch.float64)
        torch.nn.utils.vector_to_parameters(
            tile.parameters.moments.master.clone(), linear.parameters()
        )
        layers.append(linear)
        if planned.tile.relu:
            layers.append(torch.nn.ReLU())
    hyperparameters = plan.run.hyperparameters
    optimizer = torch.optim.SGD(
        layers.parameters(), hyperparameters.learning_rate, hyperparameters.momentum
    )
    for phase in run_phases(plan, data, SAMPLES):
        images = encoded(plan, arithmetic, phase.split)
        for header, sample in phase.turns:
            engine.slot(header, None if sample is None else images[sample])
            if header.kind is Kind.TRAIN and sample is not None:
                optimizer.zero_grad()
                logits = layers(images[sample])
                loss = torch.nn.functional.cross_entropy(logits, torch.tensor(header.label))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    trained = torch.cat([t.parameters.moments.master for t in engine.trained.values()])
    expected = torch.nn.utils.parameters_to_vector(layers.parameters())
    torch.testing.assert_close(trained, expected.detach(), rtol=1e-9, atol=1e-9)


def _train(engines: list[Engine], plan: Plan, split: Split) -> None:
    for engine in engines:
        images = encoded(plan, engine.arithmetic, split)
        for header, sample in training(plan, split.labels, len(split)):
            engine.slot(header, None if sample is None else images[sample])
