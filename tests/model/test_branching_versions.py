"""Any graph against a naive simulation that keeps every version of every parameter.

The simulation knows nothing of packets, stashes or forks' sums of gradients, only of the rule
(design, section 3): forward of sample i uses parameters that have seen 0 to i - D - 1, backward
those of 0 to i - 1, on the tensors that the forward pass saw.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from model.arithmetic import FloatArithmetic
from model.data import noise
from model.engine import Engine
from model.initial import initial_parameters
from spec.hyperparameters import FloatCoefficients, Hyperparameters
from spec.method import PAPER_METHODS
from spec.network import INPUT
from spec.packets import Header, Kind
from spec.plan import Plan, RunPlan
from spec.schedule import Schedule
from spec.tiles import Conv, Norm, Tile
from tests.model.torch_tiles import in_torch
from tests.random_networks import hardware_plans

FLOAT64 = FloatArithmetic(torch.float64)
SAMPLES = 12
DIVERGED = 20.0
"""Beyond this loss the two sums part by more than rounding."""
Versions = dict[str, "Version"]


@dataclass
class Version:
    """Parameters of one tile: `predicted[n]` and `masters[n]` have seen n samples."""

    coefficients: FloatCoefficients
    masters: list[torch.Tensor]
    predicted: list[torch.Tensor] = field(default_factory=list)
    velocity: torch.Tensor | float = 0.0

    def __post_init__(self) -> None:
        self.predicted = list(self.masters)

    def update(self, gradient: torch.Tensor) -> None:
        c = self.coefficients
        gradient = gradient + c.weight_decay * self.masters[-1]
        self.velocity = c.momentum * self.velocity + gradient
        step = c.learning_rate * (c.a * self.velocity + c.b * gradient)
        self.masters.append(self.masters[-1] - step)
        ahead = c.learning_rate * c.horizon * self.velocity
        self.predicted.append(self.masters[-1] - ahead)


def without_relu(tile: Tile) -> Tile:
    return replace(tile, relu=False) if isinstance(tile, Conv | Norm) else tile


def train(plan: Plan, versions: Versions, image: torch.Tensor, label: int, seen: int) -> float:
    """One sample through the graph and back; returns its loss."""
    network = plan.network
    values = {INPUT: image.permute(2, 0, 1).unsqueeze(0)}
    for tile in network.tiles:
        parameters = None
        if tile.name in versions:
            old = max(0, seen - plan.hardware.delay(tile.name))
            parameters = versions[tile.name].predicted[old]
        inputs = [values[source] for source in network.sources(tile.name)]
        values[tile.name] = in_torch(tile, network, parameters, inputs)
    logits = values[network.tiles[-1].name].flatten().detach().requires_grad_()
    loss = functional.cross_entropy(logits, torch.tensor(label))
    (slope,) = torch.autograd.grad(loss, logits)
    gradients: dict[str, Any] = {network.tiles[-1].name: slope.view(values["loss"].shape)}
    for tile in reversed(network.tiles):
        back = gradients[tile.name]
        if getattr(tile, "relu", False):
            back = back * (values[tile.name] > 0)
        sources = network.sources(tile.name)
        inputs = [values[source].detach().requires_grad_() for source in sources]
        leaves, flat = list(inputs), None
        if tile.name in versions:
            flat = versions[tile.name].masters[seen].detach().requires_grad_()
            leaves.append(flat)
        result = in_torch(without_relu(tile), network, flat, inputs)
        found = torch.autograd.grad(result, leaves, back)
        for source, gradient in zip(sources, found, strict=False):
            gradients[source] = gradients.get(source, 0) + gradient
        if flat is not None:
            versions[tile.name].update(found[-1])
    return loss.item()


@st.composite
def delayed_plans(draw: st.DrawFn) -> Plan:
    schedule = draw(st.sampled_from([Schedule.PAPER, Schedule.ONE_FORWARD_ONE_BACKWARD]))
    hyperparameters = Hyperparameters(0.125, 0.5, draw(st.sampled_from([0.0, 0.01])))
    run = RunPlan(draw(st.sampled_from(PAPER_METHODS)), schedule, hyperparameters, 3, "noise")
    return Plan(draw(hardware_plans(st.just(schedule))), run)


@settings(max_examples=60, deadline=None)
@given(delayed_plans())
def test_every_sample_meets_the_weight_versions_of_the_rule_on_any_graph(plan: Plan) -> None:
    engine = Engine(plan, FLOAT64, initial_parameters(plan, FLOAT64))
    versions = {
        planned.tile.name: Version(
            plan.float_coefficients(planned),
            [engine.trained[planned.tile.name].parameters.moments.master.clone()],
        )
        for planned in plan.hardware.parameterised
    }
    shape = plan.network.input_shape
    data = noise(shape, plan.network.classes, SAMPLES).train
    images = FLOAT64.encode(data.images, plan.hardware.edges[0].activation)
    images = images.view(-1, shape.rows, shape.columns, shape.channels)
    for seen, (image, label) in enumerate(zip(images, data.labels, strict=True)):
        if train(plan, versions, image, label, seen) > DIVERGED:
            return
        engine.slot(Header(Kind.TRAIN, label=label), image)
    engine.drain()
    for name, tile in engine.trained.items():
        moments, version = tile.parameters.moments, versions[name]
        torch.testing.assert_close(moments.master, version.masters[-1], rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(moments.velocity, version.velocity, rtol=1e-7, atol=1e-8)
