"""The pool tiles: 2x2 maximum and the average over all pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

from spec.errors import InputError
from spec.formats import Fixed
from spec.reciprocal import Reciprocal
from spec.shape import Shape

WINDOW = 2
"""Rows and columns of a window of the max pool, which are also its stride."""


@dataclass(frozen=True)
class MaxPool:
    """The largest of each 2x2 window; the first of equals, row by row, gets the gradient.

    A last odd row or column is left out, and its gradient is zero. Outputs have the format of the
    inputs, gradients on both sides share one.
    """

    name: str

    def output_shape(self, source: Shape) -> Shape:
        if min(source.rows, source.columns) < WINDOW:
            raise InputError(f"{self.name}: a 2x2 window does not fit into {source}")
        return Shape(source.rows // WINDOW, source.columns // WINDOW, source.channels)


@dataclass(frozen=True)
class AveragePool:
    """The mean of each channel over all pixels, rounded once."""

    name: str

    def output_shape(self, source: Shape) -> Shape:
        return Shape(1, 1, source.channels)


def maximum(window: Sequence[int]) -> tuple[int, int]:
    """The largest of a window's values and its place."""
    largest = max(window)
    return largest, window.index(largest)


def average(values: Sequence[int], source: Fixed, target: Fixed) -> int:
    """The mean of one channel's pixels."""
    return Reciprocal.of(len(values)).mean(sum(values), source.frac, target)


def average_gradient(
    gradient: int, pixels: int, target_gradient: Fixed, source_gradient: Fixed,
    random: int | None = None,
) -> int:  # fmt: skip
    """What each pixel of a channel gets of its gradient."""
    frac = target_gradient.frac
    return Reciprocal.of(pixels).mean(gradient, frac, source_gradient, random)
