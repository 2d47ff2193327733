"""Networks small enough to train in simulation, and two for experiments on Fashion-MNIST."""

from spec.mac import Folding
from spec.network import Network, NetworkBuilder
from spec.shape import Shape
from spec.tiles import Add, AveragePool, Conv, Fork, Loss, MaxPool, Norm, dense
from spec.zoo.entry import DIGITS, DIGITS_CONVOLUTIONS, SCALED, ZooEntry, folded

DIGIT = Shape(8, 8, 1)
GARMENT = Shape(14, 14, 1)
"""Fashion-MNIST averaged over 2x2 pixels."""
CLASSES = 10


def digits_mlp() -> ZooEntry:
    """64-48-32-10 on 8x8 digits; the first tile is the bottleneck at 16 multipliers a tile."""
    network = Network.chain(
        "digits_mlp",
        Shape(1, 1, 64),
        (dense("dense1", 48),),
        (dense("dense2", 32),),
        (dense("dense3", CLASSES, relu=False), Loss("loss")),
    )
    foldings = (Folding(4, 4, 16), Folding(4, 4, 16), Folding(4, 2, 8))
    return ZooEntry(network, "digits", DIGITS, foldings, epochs=3)


def digits_cnn() -> ZooEntry:
    """Four convolutions with group norm; lanes in proportion to the work of each."""
    builder = NetworkBuilder("digits_cnn", DIGIT)
    builder.add(Conv("conv1", 8))
    builder.stage()
    builder.add(Norm("norm1"))
    builder.add(Conv("conv2", 8))
    builder.stage()
    builder.add(Norm("norm2"))
    builder.add(MaxPool("pool2"))
    builder.add(Conv("conv3", 16))
    builder.stage()
    builder.add(Norm("norm3"))
    builder.add(Conv("conv4", 16))
    _finish(builder)
    foldings = (
        Folding(1, 4, 1),
        Folding(4, 4, 1),
        Folding(4, 2, 1),
        Folding(4, 4, 1),
        Folding(4, 2, 8),
    )
    return ZooEntry(builder.network(), "digits", DIGITS_CONVOLUTIONS, foldings, epochs=4)


def tiny_vgg() -> ZooEntry:
    """A convolution with bias and ReLU of its own, then two with norm, and two pools."""
    builder = NetworkBuilder("tiny_vgg", DIGIT)
    builder.add(Conv("conv1", 4, bias=True, relu=True))
    builder.stage()
    builder.add(Conv("conv2", 8))
    builder.add(Norm("norm2"))
    builder.add(MaxPool("pool2"))
    builder.stage()
    builder.add(Conv("conv3", 16))
    builder.add(Norm("norm3"))
    builder.add(MaxPool("pool3"))
    builder.stage()
    builder.add(Conv("classes", CLASSES, kernel=1, padding=0, bias=True))
    builder.add(AveragePool("average"))
    builder.add(Loss("loss"))
    network = builder.network()
    return ZooEntry(network, "digits", DIGITS_CONVOLUTIONS, folded(network), epochs=4)


def tiny_resnet() -> ZooEntry:
    """Two residual blocks, the second with stride and a projection."""
    builder = NetworkBuilder("tiny_resnet", DIGIT)
    trunk = builder.add(Conv("stem", 8))
    for block, (outputs, stride) in enumerate(((8, 1), (16, 2)), 1):
        side = fork = builder.add(Fork(f"fork{block}"), trunk)
        builder.stage()
        builder.add(Norm(f"norm{block}a"), fork)
        builder.add(Conv(f"conv{block}a", outputs, stride=stride))
        builder.stage()
        builder.add(Norm(f"norm{block}b"))
        main = builder.add(Conv(f"conv{block}b", outputs))
        if stride > 1:
            projection = Conv(f"projection{block}", outputs, kernel=1, stride=stride, padding=0)
            side = builder.add(projection, fork)
        trunk = builder.add(Add(f"add{block}"), main, side)
    builder.stage()
    builder.add(Norm("norm"))
    _finish(builder)
    network = builder.network()
    return ZooEntry(network, "digits", DIGITS_CONVOLUTIONS, folded(network), epochs=4)


def fashion_cnn() -> ZooEntry:
    """Seven stages: the setting in which plain PB does as well as SGD with momentum."""
    return _garments("fashion_cnn", ((8, 1), (8, 1), (12, 2), (12, 1), (16, 2), (16, 1)))


def deep_cnn() -> ZooEntry:
    """Twenty stages: the setting in which plain PB loses and the corrections win."""
    widths = ((8, 1),) * 7 + ((12, 2),) + ((12, 1),) * 5 + ((16, 2),) + ((16, 1),) * 5
    return _garments("deep_cnn", widths)


def _garments(name: str, convs: tuple[tuple[int, int], ...]) -> ZooEntry:
    """Convolutions (outputs, stride), each behind the first with a norm before it."""
    builder = NetworkBuilder(name, GARMENT)
    for place, (outputs, stride) in enumerate(convs, 1):
        if place > 1:
            builder.stage()
            builder.add(Norm(f"norm{place - 1}"))
        builder.add(Conv(f"conv{place}", outputs, stride=stride))
    builder.stage()
    builder.add(Norm(f"norm{len(convs)}"))
    _finish(builder)
    network = builder.network()
    return ZooEntry(network, "fashion", SCALED, folded(network), epochs=1)


def _finish(builder: NetworkBuilder) -> None:
    """Average and linear layer; the stage of the latter begins where its producer ends."""
    builder.stage()
    builder.add(AveragePool("average"))
    builder.add(dense("classes", CLASSES, relu=False))
    builder.add(Loss("loss"))
