"""The dense tile: y = W x + b, optionally followed by a ReLU."""

from dataclasses import dataclass

from spec.errors import InputError
from spec.mac import Folding, Loop, MacGeometry, Pass
from spec.shape import Shape, divisors


@dataclass(frozen=True)
class Dense:
    """A layer in which every output sees every input; its input is one pixel."""

    name: str
    outputs: int
    bias: bool = True
    relu: bool = True

    def output_shape(self, source: Shape) -> Shape:
        if source.pixels != 1:
            raise InputError(f"{self.name}: a dense tile takes one pixel, not {source}")
        return Shape(1, 1, self.outputs)

    def weight_shape(self, source: Shape) -> tuple[int, ...]:
        """Output channels, input channels: PyTorch's order, and that of the random index."""
        return (self.outputs, source.channels)

    def fan_in(self, source: Shape) -> int:
        return source.channels

    def macs(self, source: Shape) -> int:
        """Multiplications of one forward pass."""
        return self.outputs * source.channels

    def check_folding(self, source: Shape, folding: Folding) -> None:
        """Raises InputError that lists the legal values unless `folding` divides the shapes."""
        _check_divides(self.name, "lanes_in", folding.lanes_in, source.channels, "inputs")
        _check_divides(self.name, "lanes_out", folding.lanes_out, self.outputs, "outputs")
        legal = [
            lanes
            for lanes in divisors(folding.multipliers)
            if lanes % folding.lanes_out == 0 or folding.lanes_out % lanes == 0
        ]
        if folding.update_lanes not in legal:
            raise InputError(
                f"{self.name}: update_lanes must be one of {_listed(legal)} "
                f"at {folding.lanes_in}x{folding.lanes_out} lanes, not {folding.update_lanes}"
            )

    def geometry(self, source: Shape, folding: Folding, first: bool) -> MacGeometry:
        """The four passes; `first` leaves out backward data."""
        self.check_folding(source, folding)
        lanes_in, lanes_out = folding.lanes_in, folding.lanes_out
        inputs, outputs = source.channels // lanes_in, self.outputs // lanes_out
        turns = folding.multipliers // folding.update_lanes
        bias_turns = max(1, lanes_out // folding.update_lanes)
        return MacGeometry(
            folding=folding,
            forward=Pass((Loop(outputs, weight=inputs, bias=1), Loop(inputs, 1, weight=1)), 1),
            backward_data=None
            if first
            else Pass(
                (
                    Loop(inputs, weight=1, index=lanes_in),
                    Loop(outputs, gradient=1, weight=inputs),
                ),
                reduction=1,
            ),
            backward_weight=Pass(
                (
                    Loop(outputs, gradient=1, weight=inputs, index=lanes_out * source.channels),
                    Loop(inputs, stash=1, weight=1, index=lanes_in),
                ),
                reduction=0,
                idle=turns - 1,
            ),
            backward_bias=Pass(
                (Loop(outputs, gradient=1, bias=1, index=lanes_out),), 0, idle=bias_turns - 1
            )
            if self.bias
            else None,
            lane_stride=source.channels,
        )


def _check_divides(tile: str, what: str, lanes: int, channels: int, side: str) -> None:
    if lanes < 1 or channels % lanes:
        raise InputError(
            f"{tile}: {what} must divide its {channels} {side} "
            f"(one of {_listed(divisors(channels))}), not {lanes}"
        )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
