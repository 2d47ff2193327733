"""Fashion-MNIST comes from its official files, and a wrong file gets one line that names it."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.data import DEBIAN_FASHION, load_dataset, noise
from spec.errors import InputError
from spec.shape import Shape

IMAGES, LABELS = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"
SIDE = 28


def idx(magic: int, array: np.ndarray) -> bytes:
    header = np.array([magic, *array.shape], ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write_files(folder: Path, packed: bool = False, count: int = 3) -> None:
    """Both splits in the official format."""
    pixels = np.arange(count * SIDE * SIDE).reshape(count, SIDE, SIDE) % 256
    for split in ("train", "t10k"):
        contents = {
            IMAGES.format(split): idx(2051, pixels),
            LABELS.format(split): idx(2049, np.arange(count) % 10),
        }
        for name, raw in contents.items():
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(raw) if packed else raw)


@pytest.mark.parametrize("packed", [False, True])
def test_images_are_averaged_over_two_by_two_pixels(tmp_path: Path, packed: bool) -> None:
    write_files(tmp_path, packed)
    data = load_dataset("fashion", tmp_path)
    assert data.train.images.shape == (3, 14 * 14)
    first = np.array([0, 1, SIDE, SIDE + 1]).mean() / 255
    assert data.train.images[0, 0] == pytest.approx(first)
    assert data.test.labels == (0, 1, 2)


def cut(folder: Path) -> str:
    path = folder / IMAGES.format("train")
    path.write_bytes(path.read_bytes()[:-1])
    return "train-images-idx3-ubyte must hold 2352 bytes of data, not 2351"


def swapped(folder: Path) -> str:
    path = folder / LABELS.format("t10k")
    path.write_bytes((folder / IMAGES.format("t10k")).read_bytes())
    return "t10k-labels-idx1-ubyte is not an IDX file of 1 dimensions"


def mislabelled(folder: Path) -> str:
    (folder / LABELS.format("train")).write_bytes(idx(2049, np.array([1, 10, 2])))
    return "train-labels-idx1-ubyte: labels must be below 10, not 10"


def short(folder: Path) -> str:
    (folder / LABELS.format("train")).write_bytes(idx(2049, np.array([1, 2])))
    return "train-labels-idx1-ubyte has 2 labels for 3 images"


def missing(folder: Path) -> str:
    (folder / LABELS.format("train")).unlink()
    return r"no train-labels-idx1-ubyte\[.gz\] in .*DATA="


def damaged(folder: Path) -> str:
    path = folder / IMAGES.format("train")
    path.rename(path.with_suffix(".gz"))
    return "cannot read .*train-images-idx3-ubyte.gz"


@pytest.mark.parametrize("fault", [cut, swapped, mislabelled, short, missing, damaged])
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, fault: Callable[[Path], str]) -> None:
    write_files(tmp_path)
    with pytest.raises(InputError, match=fault(tmp_path)) as refusal:
        load_dataset("fashion", tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.skipif(not DEBIAN_FASHION.is_dir(), reason="needs Debian's dataset-fashion-mnist")
def test_the_real_files_have_the_official_sizes() -> None:
    data = load_dataset("fashion")
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert np.bincount(data.train.labels).tolist() == [6000] * 10


@given(st.builds(Shape, *[st.integers(1, 6)] * 3), st.integers(2, 5))
def test_noise_fits_any_network_and_is_always_the_same(shape: Shape, classes: int) -> None:
    one, other = noise(shape, classes, 8), noise(shape, classes, 8)
    assert one.train.images.shape == (8, shape.elements)
    assert (one.train.images == other.train.images).all()
    assert set(one.train.labels) <= set(range(classes))
