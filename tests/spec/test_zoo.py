"""The big networks are the published ones: counts from tables of layers, not from our code."""

import pytest

from spec.schedule import Placement, Schedule, delays, edge_tokens
from spec.tiles import Norm
from spec.zoo import ZOO, zoo_entry

Layer = tuple[int, int, int, int]
"""Rows (and columns) of the output, kernel, inputs, outputs."""


def vgg_layers(groups: list[list[int]]) -> list[Layer]:
    layers, side, inputs = [], 32, 3
    for group in groups:
        for outputs in group:
            layers.append((side, 3, inputs, outputs))
            inputs = outputs
        side //= 2
    return [*layers, (1, 1, 512, 10)]


def cifar_layers(blocks: int) -> list[Layer]:
    layers = [(32, 3, 3, 16)]
    for side, inputs, width in ((32, 16, 16), (16, 16, 32), (8, 32, 64)):
        layers += [(side, 3, inputs, width), (side, 3, width, width)]
        layers += [(side, 3, width, width)] * (2 * (blocks - 1))
    return [*layers, (1, 1, 64, 10)]


def resnet50_layers() -> list[Layer]:
    layers = [(112, 7, 3, 64)]
    inputs = 64
    for side, width, blocks in ((56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3)):
        for block in range(blocks):
            before = 2 * side if side < 56 and not block else side
            layers += [
                (before, 1, inputs, width),
                (side, 3, width, width),
                (side, 1, width, 4 * width),
            ]
            if not block:
                layers.append((side, 1, inputs, 4 * width))
            inputs = 4 * width
    return [*layers, (1, 1, 2048, 1000)]


PUBLISHED = {
    "vgg11": vgg_layers([[64], [128], [256] * 2, [512] * 2, [512] * 2]),
    "vgg13": vgg_layers([[64] * 2, [128] * 2, [256] * 2, [512] * 2, [512] * 2]),
    "vgg16": vgg_layers([[64] * 2, [128] * 2, [256] * 3, [512] * 3, [512] * 3]),
    "resnet20": cifar_layers(3),
    "resnet32": cifar_layers(5),
    "resnet44": cifar_layers(7),
    "resnet56": cifar_layers(9),
    "resnet110": cifar_layers(18),
    "resnet50": resnet50_layers(),
}
WITH_NORMS = {
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet44": 658_586,
    "resnet56": 853_018,
    "resnet110": 1_727_962,
}
"""Published numbers of parameters, two of them for each normalised channel."""
STAGES = {
    "vgg11": 9, "vgg13": 11, "vgg16": 14, "resnet20": 20, "resnet32": 32, "resnet44": 44,
    "resnet56": 56, "resnet110": 110, "resnet50": 50, "fashion_cnn": 7, "deep_cnn": 20,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_and_macs_are_those_of_the_published_layers(name: str) -> None:
    network, layers = zoo_entry(name).network, PUBLISHED[name]
    classes = layers[-1][3]
    assert network.parameters == sum(k * k * i * o for _, k, i, o in layers) + classes
    assert network.macs == sum(side * side * k * k * i * o for side, k, i, o in layers)


@pytest.mark.parametrize("name", WITH_NORMS)
def test_affine_norms_would_make_the_published_number_of_parameters(name: str) -> None:
    network = zoo_entry(name).network
    normalised = sum(
        network.input_shape_of(tile).channels for tile in network.tiles if isinstance(tile, Norm)
    )
    assert network.parameters + 2 * normalised == WITH_NORMS[name]


def test_known_totals() -> None:
    assert zoo_entry("resnet50").network.parameters == 25_503_912
    assert zoo_entry("vgg16").network.parameters == 14_728_266 - 4_224 - 8_448
    assert zoo_entry("resnet20").network.macs == 40_551_040


@pytest.mark.parametrize("name", STAGES)
def test_stages_are_counted_on_the_longest_way(name: str) -> None:
    assert zoo_entry(name).network.depth == STAGES[name]


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("schedule", Schedule)
def test_tokens_of_every_branch_balance_wherever_they_lie(name: str, schedule: Schedule) -> None:
    network = zoo_entry(name).network
    trained = [tile.name for tile in network.tiles if network.has_parameters(tile.name)]
    found = [delays(network, edge_tokens(network, schedule, p)) for p in Placement]
    assert all(delay[name] == found[0][name] for name in trained for delay in found)
    assert found[0][trained[-1]] == 0
    assert found[0][trained[0]] == schedule.tokens_between_stages * (longest(name) - 1)


def longest(name: str) -> int:
    """Stages on the longest way."""
    return {**STAGES, "digits_mlp": 3, "digits_cnn": 5, "tiny_vgg": 4, "tiny_resnet": 6}[name]
