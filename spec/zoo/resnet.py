"""Pre-activation residual networks (He et al., arXiv 1512.03385 and 1603.05027)."""

from spec.network import Network, NetworkBuilder
from spec.shape import Shape
from spec.tiles import Add, AveragePool, Conv, Fork, Loss, MaxPool, Norm, Shortcut, dense
from spec.zoo.entry import SCALED, ZooEntry, folded

CIFAR_WIDTHS = (16, 32, 64)
IMAGENET_GROUPS = ((3, 64), (4, 128), (6, 256), (3, 512))
"""Blocks and inner channels of each group of ResNet50."""
EXPANSION = 4
EPOCHS = 30


def cifar_resnet(name: str, blocks: int) -> Network:
    """Three groups of `blocks` blocks of two 3x3 convolutions; shortcuts of option A."""
    builder = NetworkBuilder(name, Shape(32, 32, 3))
    trunk = builder.add(Conv("stem", CIFAR_WIDTHS[0]))
    channels = CIFAR_WIDTHS[0]
    for group, width in enumerate(CIFAR_WIDTHS, 1):
        for block in range(1, blocks + 1):
            label, stride = f"{group}_{block}", 2 if group > 1 and block == 1 else 1
            fork = side = builder.add(Fork(f"fork{label}"), trunk)
            builder.stage()
            builder.add(Norm(f"norm{label}a"), fork)
            builder.add(Conv(f"conv{label}a", width, stride=stride))
            builder.stage()
            builder.add(Norm(f"norm{label}b"))
            main = builder.add(Conv(f"conv{label}b", width))
            if (stride, width) != (1, channels):
                side = builder.add(Shortcut(f"shortcut{label}", width, stride), fork)
            trunk = builder.add(Add(f"add{label}"), main, side)
            channels = width
    return _classified(builder, 10)


def imagenet_resnet50() -> Network:
    """Bottleneck blocks, stride in the 3x3 convolution, projections where a group begins.

    The pool behind the stem is 2x2 where the published one is 3x3 with stride 2.
    """
    builder = NetworkBuilder("resnet50", Shape(224, 224, 3))
    builder.add(Conv("stem", 64, kernel=7, stride=2, padding=3))
    trunk = builder.add(MaxPool("pool"))
    for group, (blocks, width) in enumerate(IMAGENET_GROUPS, 1):
        for block in range(1, blocks + 1):
            stride = 2 if group > 1 and block == 1 else 1
            trunk = _bottleneck(builder, f"{group}_{block}", trunk, width, stride, block == 1)
    return _classified(builder, 1000)


def _bottleneck(
    builder: NetworkBuilder, label: str, trunk: str, width: int, stride: int, projected: bool
) -> str:
    """1x1, 3x3, 1x1; a projection belongs to the stage of the last, beside which it lies."""
    side = fork = builder.add(Fork(f"fork{label}"), trunk)
    builder.stage()
    builder.add(Norm(f"norm{label}a"), fork)
    builder.add(Conv(f"conv{label}a", width, kernel=1, padding=0))
    builder.stage()
    builder.add(Norm(f"norm{label}b"))
    builder.add(Conv(f"conv{label}b", width, stride=stride))
    builder.stage()
    builder.add(Norm(f"norm{label}c"))
    outputs = EXPANSION * width
    main = builder.add(Conv(f"conv{label}c", outputs, kernel=1, padding=0))
    if projected:
        projection = Conv(f"projection{label}", outputs, kernel=1, stride=stride, padding=0)
        side = builder.add(projection, fork)
    return builder.add(Add(f"add{label}"), main, side)


def _classified(builder: NetworkBuilder, classes: int) -> Network:
    builder.stage()
    builder.add(Norm("norm"))
    builder.add(AveragePool("average"))
    builder.add(dense("classes", classes, relu=False))
    builder.add(Loss("loss"))
    return builder.network()


def _cifar_entry(name: str, blocks: int) -> ZooEntry:
    network = cifar_resnet(name, blocks)
    return ZooEntry(network, "cifar10", SCALED, folded(network), EPOCHS)


def resnet20() -> ZooEntry:
    return _cifar_entry("resnet20", 3)


def resnet32() -> ZooEntry:
    return _cifar_entry("resnet32", 5)


def resnet44() -> ZooEntry:
    return _cifar_entry("resnet44", 7)


def resnet56() -> ZooEntry:
    return _cifar_entry("resnet56", 9)


def resnet110() -> ZooEntry:
    return _cifar_entry("resnet110", 18)


def resnet50() -> ZooEntry:
    network = imagenet_resnet50()
    return ZooEntry(network, "imagenet", SCALED, folded(network), EPOCHS)
