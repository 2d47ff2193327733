"""VGG in its CIFAR-10 form: 3x3 convolutions, group norm, one linear layer (Simonyan and Zisserman,
arXiv 1409.1556, configurations A, B and D)."""

from spec.network import Network, NetworkBuilder
from spec.shape import Shape
from spec.tiles import Conv, Loss, MaxPool, Norm, dense
from spec.zoo.entry import SCALED, ZooEntry, folded

CLASSES = 10
EPOCHS = 30
GROUPS = {
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "vgg13": ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
    "vgg16": ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}
"""Channels of the convolutions before each pool."""


def vgg(name: str, groups: tuple[tuple[int, ...], ...], source: Shape, classes: int) -> Network:
    """A stage is a convolution, its norm and perhaps a pool; the linear layer is the last."""
    builder = NetworkBuilder(name, source)
    for group, widths in enumerate(groups, 1):
        for place, outputs in enumerate(widths, 1):
            builder.stage()
            builder.add(Conv(f"conv{group}_{place}", outputs))
            builder.add(Norm(f"norm{group}_{place}"))
        builder.add(MaxPool(f"pool{group}"))
    builder.stage()
    builder.add(dense("classes", classes, relu=False))
    builder.add(Loss("loss"))
    return builder.network()


def _entry(name: str) -> ZooEntry:
    network = vgg(name, GROUPS[name], Shape(32, 32, 3), CLASSES)
    return ZooEntry(network, "cifar10", SCALED, folded(network), EPOCHS)


def vgg11() -> ZooEntry:
    return _entry("vgg11")


def vgg13() -> ZooEntry:
    return _entry("vgg13")


def vgg16() -> ZooEntry:
    return _entry("vgg16")
