"""Data sets: images as rows of real numbers in [0, 1], with a fixed split."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spec.errors import InputError

SPLIT_SEED = 2003_11666
DIGITS_TRAIN = 1437


@dataclass(frozen=True)
class Split:
    """Images [samples, features], pixel by pixel with channels innermost, and their labels."""

    images: NDArray[np.float64]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Split":
        """The first samples alone."""
        return Split(self.images[:count], self.labels[:count])


@dataclass(frozen=True)
class Dataset:
    """The same split for every run, whatever its seed."""

    name: str
    train: Split
    test: Split


def load_dataset(name: str) -> Dataset:
    """Raises InputError that lists the data sets when there is none of this name."""
    loaders: dict[str, Callable[[], Dataset]] = {"digits": _digits}
    if name not in loaders:
        legal = ", ".join(sorted(loaders))
        raise InputError(f"unknown data set {name!r}: must be one of {legal}")
    return loaders[name]()


def _digits() -> Dataset:
    """scikit-learn's 1,797 real 8x8 images of handwritten digits: 1,437 to train, 360 to test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(labels))

    def split(part: NDArray[np.int64]) -> Split:
        return Split(images[part] / 16, tuple(labels[part].tolist()))

    return Dataset("digits", split(order[:DIGITS_TRAIN]), split(order[DIGITS_TRAIN:]))
