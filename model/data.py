"""Data sets: images as rows of real numbers in [0, 1], with a fixed split."""

import gzip
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec.errors import InputError
from spec.shape import Shape

SPLIT_SEED = 2003_11666
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""
IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049
GARMENT_SIDE = 28
CLASSES = 10
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


def load_dataset(name: str, folder: Path | None = None) -> Dataset:
    """A data set by name; `folder` holds its official files, where it has some.

    Raises InputError that lists the data sets when there is none of this name, and one line that
    names the file when a file is missing, cut or not what it should be.
    """
    if name == "digits":
        return _digits()
    if name == "fashion":
        return fashion(folder or DEBIAN_FASHION)
    if name in ("cifar10", "imagenet"):
        raise InputError(f"data set {name} has no loader yet: give DATA=noise for random images")
    raise InputError(f"unknown data set {name!r}: must be one of digits, fashion")


def noise(shape: Shape, classes: int, samples: int = 256) -> Dataset:
    """Random images of any shape with random labels, always the same; nothing to learn there."""
    generator = np.random.Generator(np.random.PCG64([SPLIT_SEED, shape.elements, classes]))

    def split(count: int) -> Split:
        labels = generator.integers(classes, size=count)
        return Split(generator.random((count, shape.elements)), tuple(labels.tolist()))

    return Dataset("noise", split(samples), split(samples))


def _digits() -> Dataset:
    """scikit-learn's 1,797 real 8x8 images of handwritten digits: 1,437 to train, 360 to test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(labels))

    def split(part: NDArray[np.int64]) -> Split:
        return Split(images[part] / 16, tuple(labels[part].tolist()))

    return Dataset("digits", split(order[:DIGITS_TRAIN]), split(order[DIGITS_TRAIN:]))


def fashion(folder: Path) -> Dataset:
    """Fashion-MNIST from its IDX files (gz or not), averaged over 2x2 pixels to 14x14."""
    return Dataset("fashion", _garments(folder, "train"), _garments(folder, "t10k"))


def _garments(folder: Path, split: str) -> Split:
    images_file = _idx_file(folder, f"{split}-images-idx3-ubyte")
    labels_file = _idx_file(folder, f"{split}-labels-idx1-ubyte")
    images = _idx(images_file, IMAGES_MAGIC, 3)
    labels = _idx(labels_file, LABELS_MAGIC, 1)
    if images.shape[1:] != (GARMENT_SIDE, GARMENT_SIDE):
        rows, columns = images.shape[1:]
        raise InputError(f"{images_file}: images must be 28x28, not {rows}x{columns}")
    if len(images) != len(labels):
        raise InputError(f"{labels_file} has {len(labels)} labels for {len(images)} images")
    if len(labels) and labels.max() >= CLASSES:
        raise InputError(f"{labels_file}: labels must be below {CLASSES}, not {labels.max()}")
    half = GARMENT_SIDE // 2
    means = images.reshape(-1, half, 2, half, 2).mean(axis=(2, 4)) / 255
    return Split(means.reshape(len(images), -1), tuple(labels.tolist()))


def _idx_file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InputError(
        f"no {name}[.gz] in {folder}: name the folder of Fashion-MNIST by DATA=, "
        "or apt install dataset-fashion-mnist"
    )


def _idx(path: Path, magic: int, dimensions: int) -> NDArray[np.uint8]:
    """An array from a file in the IDX format of MNIST."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    header = np.frombuffer(raw[: 4 * (1 + dimensions)], ">u4")
    if len(header) < 1 + dimensions or header[0] != magic:
        raise InputError(f"{path} is not an IDX file of {dimensions} dimensions")
    shape = tuple(int(side) for side in header[1:])
    size = len(raw) - 4 * len(header)
    if size != prod(shape):
        raise InputError(f"{path} must hold {prod(shape)} bytes of data, not {size}")
    return np.frombuffer(raw, np.uint8, offset=4 * len(header)).reshape(shape)
