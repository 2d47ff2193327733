"""The pool tiles: 2x2 maximum and the average over all pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

from spec.errors import InputError
from spec.formats import Fixed
from spec.mac import Loop, Offset, Pass
from spec.reciprocal import Reciprocal
from spec.shape import Shape

WINDOW = 2
"""Rows and columns of a window of the max pool, which are also its stride."""
TURN_CYCLES = 1
"""Taking a packet."""
MAXIMUM_LATENCY = 2
"""Cycles from the address of a window's last pixel to its result."""
AVERAGE_TAIL = 2
"""Cycles after the last share until the random state may move on."""


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

    def forward_cycles(self, source: Shape, lanes: int) -> int:
        """From one training packet to the next when nothing makes it wait: one read a cycle."""
        return TURN_CYCLES + maximum_forward(source, lanes).cycles

    def backward_cycles(self, source: Shape, lanes: int) -> int:
        """The same for gradients: one beat a cycle."""
        return TURN_CYCLES + maximum_backward(source, lanes).cycles


@dataclass(frozen=True)
class AveragePool:
    """The mean of each channel over all pixels, rounded once."""

    name: str

    def output_shape(self, source: Shape) -> Shape:
        return Shape(1, 1, source.channels)

    def forward_cycles(self, source: Shape, lanes: int) -> int:
        """From one training packet to the next when nothing makes it wait: one read a cycle."""
        return TURN_CYCLES + average_forward(source, lanes).cycles

    def backward_cycles(self, source: Shape, lanes: int) -> int:
        """The same for gradients: one beat a cycle."""
        return TURN_CYCLES + average_backward(source, lanes).cycles + AVERAGE_TAIL


def maximum_forward(source: Shape, lanes: int) -> Pass:
    """Each output beat reads the four words of its window, row by row."""
    words = source.channels // lanes
    row = source.columns * words
    target = MaxPool("").output_shape(source)
    return Pass(
        (
            Loop(target.rows, Offset(stash=WINDOW * row)),
            Loop(target.columns, Offset(stash=WINDOW * words)),
            Loop(words, Offset(stash=1)),
            Loop(WINDOW, Offset(stash=row)),
            Loop(WINDOW, Offset(stash=words)),
        ),
        reduction=2,
    )


def maximum_backward(source: Shape, lanes: int) -> Pass:
    """Each input beat reads the gradient of its window; `weight` is its place in there."""
    words = source.channels // lanes
    target = MaxPool("").output_shape(source)
    row = target.columns * words
    return Pass(
        (
            Loop(source.rows, Offset(gradient=row, row=1), (Offset(), Offset(weight=WINDOW))),
            Loop(source.columns, Offset(gradient=words, column=1), (Offset(), Offset(weight=1))),
            Loop(words, Offset(gradient=1)),
        ),
        reduction=0,
        bounds=(target.rows, target.columns),
    )


def average_forward(source: Shape, lanes: int) -> Pass:
    """Each beat of the result adds up the words of its channels."""
    words = source.channels // lanes
    loops = (Loop(words, Offset(stash=1)), Loop(source.pixels, Offset(stash=words)))
    return Pass(loops, reduction=1)


def average_backward(source: Shape, lanes: int) -> Pass:
    """Every pixel reads the gradients of all channels."""
    words = source.channels // lanes
    pixels = Loop(source.pixels, Offset(index=source.channels))
    return Pass((pixels, Loop(words, Offset(gradient=1, index=lanes))), reduction=0)


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
