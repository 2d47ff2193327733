"""Whole random networks in float64 against autograd: every tile, forward, backward and update.

Samples are drained one by one and nothing is corrected, so the array is SGD with momentum; the same
network is written down in PyTorch's own operations.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from model.arithmetic import FloatArithmetic, IntegerArithmetic
from model.data import noise
from model.engine import Engine
from model.initial import initial_parameters
from spec.errors import InputError
from spec.hyperparameters import Hyperparameters
from spec.method import Method
from spec.network import INPUT, Network, NetworkBuilder
from spec.packets import Header, Kind
from spec.plan import Plan, RunPlan
from spec.planner import plan_hardware
from spec.presets import Preset
from spec.ranges import Ranges
from spec.schedule import Schedule
from spec.shape import Shape
from spec.tiles import Add, AveragePool, Conv, Fork, Loss, Norm, dense
from tests.model.torch_tiles import in_torch
from tests.random_networks import networks

FLOAT64 = FloatArithmetic(torch.float64)
SAMPLES = 3
DIVERGED = 20.0
"""Beyond this loss the two sums part by more than rounding."""


def float_plan(network: Network) -> Plan:
    foldings = tuple(tile.folding(network.input_shape_of(tile), 1) for tile in network.convs)
    widths = Preset.WIDE.widths
    hardware = plan_hardware(
        network, Ranges.nominal(network), widths, foldings, Schedule.SEQUENTIAL
    )
    run = RunPlan(Method.PB, Schedule.SEQUENTIAL, Hyperparameters(0.25, 0.5), 3, "noise")
    return Plan(hardware, run)


def parameters_of(engine: Engine) -> dict[str, torch.Tensor]:
    return {
        name: tile.parameters.moments.master.clone().requires_grad_()
        for name, tile in engine.trained.items()
    }


def logits(network: Network, flats: dict[str, torch.Tensor], image: torch.Tensor) -> torch.Tensor:
    values = {INPUT: image.permute(2, 0, 1).unsqueeze(0)}
    for tile in network.tiles:
        inputs = [values[source] for source in network.sources(tile.name)]
        values[tile.name] = in_torch(tile, network, flats.get(tile.name), inputs)
    return values[network.tiles[-1].name].flatten()


def check(network: Network) -> None:
    plan = float_plan(network)
    engine = Engine(plan, FLOAT64, initial_parameters(plan, FLOAT64))
    flats = parameters_of(engine)
    run = plan.run.hyperparameters
    optimizer = torch.optim.SGD(flats.values(), run.learning_rate, run.momentum)
    data = noise(network.input_shape, network.classes, SAMPLES).train
    shape = network.input_shape
    images = FLOAT64.encode(data.images, plan.hardware.edges[0].activation)
    images = images.view(-1, shape.rows, shape.columns, shape.channels)
    for image, label in zip(images, data.labels, strict=True):
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits(network, flats, image), torch.tensor(label))
        loss.backward()  # type: ignore[no-untyped-call]
        if loss.item() > DIVERGED:
            return
        optimizer.step()
        record = engine.slot(Header(Kind.TRAIN, label=label), image)
        engine.drain()
        assert record.result.loss == pytest.approx(loss.item(), rel=1e-9, abs=1e-9)
    for name, tile in engine.trained.items():
        torch.testing.assert_close(
            tile.parameters.moments.master, flats[name].detach(), rtol=1e-7, atol=1e-8
        )


@settings(max_examples=60, deadline=None)
@given(networks())
def test_random_networks_train_as_autograd_does(network: Network) -> None:
    check(network)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([1, 3, 5]),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_odd_kernel_any_stride_and_standardised_weights(
    kernel: int, stride: int, bias: bool, relu: bool, standardised: bool
) -> None:
    builder = NetworkBuilder("kernels", Shape(7, 6, 2))
    padding = kernel // 2
    for name in ("one", "two"):
        builder.add(Conv(name, 4, kernel, stride, padding, bias, relu, standardised, gain=0.5))
    builder.add(Norm("norm"))
    builder.add(AveragePool("average"))
    builder.add(dense("dense", 3, relu=False))
    builder.add(Loss("loss"))
    check(builder.network())


def test_a_residual_branch_without_norm_starts_as_small_as_its_gain() -> None:
    builder = NetworkBuilder("residual", Shape(4, 4, 2))
    builder.add(Conv("stem", 4, bias=True))
    fork = builder.add(Fork("fork"))
    builder.add(Conv("a", 4, bias=True, relu=True))
    branch = builder.add(Conv("b", 4, bias=True, gain=0.23))
    builder.add(Add("add"), branch, fork)
    builder.add(AveragePool("average"))
    builder.add(dense("dense", 3, relu=False))
    builder.add(Loss("loss"))
    network = builder.network()
    check(network)
    plan = float_plan(network)
    masters = initial_parameters(plan, FLOAT64)
    largest = {name: float(masters[name].moments.master.abs().max()) for name in ("a", "b")}
    assert largest["b"] < 0.25 * largest["a"]


def test_weight_standardisation_has_no_integers() -> None:
    tile = replace(dense("dense", 2, relu=False), standardised=True)
    plan = float_plan(Network.chain("standard", Shape(1, 1, 2), (tile, Loss("loss"))))
    with pytest.raises(InputError, match="weight standardisation has no integers"):
        initial_parameters(plan, IntegerArithmetic())
