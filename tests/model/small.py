"""Small networks, their plans and their engines."""

import random

import numpy as np
import torch

from model.arithmetic import Arithmetic
from model.data import Dataset, Split
from model.engine import Engine
from model.initial import initial_parameters
from spec.codec import content_hash
from spec.hyperparameters import Hyperparameters
from spec.mac import Folding
from spec.method import Method
from spec.network import Network
from spec.plan import Plan
from spec.planner import Wishes, make_plan
from spec.presets import Preset
from spec.ranges import EdgeRange, ParameterRange, Ranges
from spec.schedule import Schedule
from spec.shape import Shape
from spec.tiles import Loss, dense
from spec.zoo import ZooEntry

CLASSES = 3


def small_entry(weight_decay: float = 0.0, bias: bool = True) -> ZooEntry:
    """6-5-4-3: four stages deep enough for delays of 4, 2 and 0."""
    network = Network.chain(
        "small",
        Shape(1, 1, 6),
        (dense("one", 5, bias=bias),),
        (dense("two", 4),),
        (dense("three", CLASSES, relu=False), Loss("loss")),
    )
    hyperparameters = Hyperparameters(2.0**-3, 1 - 2.0**-2, weight_decay)
    return ZooEntry(network, "digits", hyperparameters, (Folding(1, 1, 1),) * 3, epochs=1)


def small_plan(
    method: Method = Method.LWP_SC,
    schedule: Schedule = Schedule.PAPER,
    preset: Preset = Preset.COMPACT,
    seed: int = 0,
    entry: ZooEntry | None = None,
) -> Plan:
    entry = entry or small_entry()
    network = entry.network
    ranges = Ranges(
        content_hash(network),
        tuple(EdgeRange(edge, 2 if edge.source != "input" else 0, 0) for edge in network.edges),
        (),
        tuple(ParameterRange(tile.name, 1, 1, -2) for tile in network.convs),
    )
    return make_plan(entry, Wishes(method, schedule, preset, seed=seed), ranges)


def small_data(samples: int, seed: int = 1) -> Dataset:
    """Random images with a label that depends on them, so that there is something to learn."""
    generator = np.random.Generator(np.random.PCG64(seed))
    images = generator.random((samples, 6))
    labels = tuple((images.reshape(samples, 3, 2).sum(2)).argmax(1).tolist())
    split = Split(images, labels)
    return Dataset("random", split, split)


def small_engine(plan: Plan, arithmetic: Arithmetic) -> Engine:
    return Engine(plan, arithmetic, initial_parameters(plan, arithmetic))


def encoded(plan: Plan, arithmetic: Arithmetic, split: Split) -> torch.Tensor:
    """A split's images as the engine takes them."""
    return arithmetic.encode(split.images, plan.hardware.edges[0].activation)


def integers(rng: random.Random, low: int, high: int, count: int) -> list[int]:
    """Random integers, the extremes often among them."""
    return [rng.choice((low, high, rng.randint(low, high))) for _ in range(count)]
