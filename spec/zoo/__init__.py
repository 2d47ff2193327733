"""The networks that come with the project, with their data and default settings."""

from collections.abc import Callable

from spec.errors import InputError
from spec.zoo.entry import ZooEntry
from spec.zoo.resnet import resnet20, resnet32, resnet44, resnet50, resnet56, resnet110
from spec.zoo.small import (
    deep_cnn,
    digits_cnn,
    digits_mlp,
    fashion_cnn,
    tiny_resnet,
    tiny_vgg,
)
from spec.zoo.vgg import vgg11, vgg13, vgg16

NETWORKS: tuple[Callable[[], ZooEntry], ...] = (
    deep_cnn,
    digits_cnn,
    digits_mlp,
    fashion_cnn,
    resnet20,
    resnet32,
    resnet44,
    resnet50,
    resnet56,
    resnet110,
    tiny_resnet,
    tiny_vgg,
    vgg11,
    vgg13,
    vgg16,
)
ZOO = {network.__name__: network for network in NETWORKS}


def zoo_entry(name: str) -> ZooEntry:
    """Raises InputError that lists the networks when there is none of this name."""
    if name not in ZOO:
        raise InputError(f"unknown network {name!r}: must be one of {', '.join(sorted(ZOO))}")
    return ZOO[name]()


__all__ = ["ZOO", "ZooEntry", "digits_mlp", "zoo_entry"]
