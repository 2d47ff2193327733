"""The tiles of branches: fork, add, and the identity shortcut between unequal shapes.

They keep nothing: streams pass through them. All edges of a fork or an add share one format in each
direction; the sum is exact, then saturates once.
"""

from dataclasses import dataclass

from spec.errors import InputError
from spec.shape import Shape


@dataclass(frozen=True)
class Fork:
    """Copies activations to every output, and adds the gradients that come back."""

    name: str

    def output_shape(self, source: Shape) -> Shape:
        return source


@dataclass(frozen=True)
class Add:
    """Adds the activations of two inputs, and copies the gradient to both."""

    name: str

    def output_shape(self, source: Shape) -> Shape:
        return source


@dataclass(frozen=True)
class Shortcut:
    """ResNet's option A: every `stride`-th pixel, the channels filled up with zeros at the end.

    Pixels left out and channels added have no gradient.
    """

    name: str
    outputs: int
    stride: int = 1

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise InputError(f"{self.name}: stride must be at least 1, not {self.stride}")

    def output_shape(self, source: Shape) -> Shape:
        if self.outputs < source.channels:
            raise InputError(
                f"{self.name}: outputs must be at least the {source.channels} inputs, "
                f"not {self.outputs}"
            )
        rows, columns = (-(-side // self.stride) for side in (source.rows, source.columns))
        return Shape(rows, columns, self.outputs)
