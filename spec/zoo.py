"""The networks that come with the project, with their data and default settings."""

from dataclasses import dataclass

from spec.errors import InputError
from spec.hyperparameters import Hyperparameters
from spec.mac import Folding
from spec.network import Network
from spec.shape import Shape
from spec.tiles import Loss, dense


@dataclass(frozen=True)
class ZooEntry:
    """A network with the data set, hyperparameters, lanes and epochs it is run with by default."""

    network: Network
    dataset: str
    hyperparameters: Hyperparameters
    foldings: tuple[Folding, ...]
    epochs: int


def digits_mlp() -> ZooEntry:
    """64-48-32-10 on 8x8 digits; the first tile is the bottleneck at 16 multipliers a tile."""
    network = Network.chain(
        "digits_mlp",
        Shape(1, 1, 64),
        (dense("dense1", 48),),
        (dense("dense2", 32),),
        (dense("dense3", 10, relu=False), Loss("loss")),
    )
    return ZooEntry(
        network,
        dataset="digits",
        hyperparameters=Hyperparameters(eta=2.0**-6, momentum=1 - 2.0**-4),
        foldings=(Folding(4, 4, 16), Folding(4, 4, 16), Folding(4, 2, 8)),
        epochs=3,
    )


ZOO = {"digits_mlp": digits_mlp}


def zoo_entry(name: str) -> ZooEntry:
    """Raises InputError that lists the networks when there is none of this name."""
    if name not in ZOO:
        raise InputError(f"unknown network {name!r}: must be one of {', '.join(sorted(ZOO))}")
    return ZOO[name]()
