"""The convolution tile, the only one with a MAC array: y = W * x + b, optionally with a ReLU.

A linear layer is its 1x1 case on an input of one pixel (`dense`).
"""

from dataclasses import dataclass

from spec.errors import InputError
from spec.mac import Folding, Loop, MacGeometry, Offset, Pass
from spec.shape import Shape, divisors


@dataclass(frozen=True)
class Conv:
    """A square kernel of odd size, zero padding, any stride.

    `standardised` trains on weights of zero mean and unit variance a filter (weight
    standardisation); there is no hardware for it. `gain` scales the initial weights: residual
    branches without normalisation start small (design, section 5).
    """

    name: str
    outputs: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    bias: bool = False
    relu: bool = False
    standardised: bool = False
    gain: float = 1.0

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise InputError(f"{self.name}: kernel must be odd, not {self.kernel}")
        if self.stride < 1 or self.outputs < 1:
            raise InputError(f"{self.name}: stride and outputs must be at least 1")
        if not 0 <= self.padding < self.kernel:
            raise InputError(
                f"{self.name}: padding must be from 0 to {self.kernel - 1}, not {self.padding}"
            )

    def output_shape(self, source: Shape) -> Shape:
        rows, columns = (self._positions(side) for side in (source.rows, source.columns))
        if min(rows, columns) < 1:
            raise InputError(f"{self.name}: a kernel of {self.kernel} does not fit into {source}")
        return Shape(rows, columns, self.outputs)

    def weight_shape(self, source: Shape) -> tuple[int, int, int, int]:
        """Outputs, kernel rows, kernel columns, inputs: the order of the random index."""
        return (self.outputs, self.kernel, self.kernel, source.channels)

    def parameter_counts(self, source: Shape) -> tuple[int, int]:
        """Weights and biases."""
        return (self.outputs * self.fan_in(source), self.outputs if self.bias else 0)

    def fan_in(self, source: Shape) -> int:
        return self.kernel**2 * source.channels

    def macs(self, source: Shape) -> int:
        """Multiplications of one forward pass, padded ones included."""
        return self.output_shape(source).pixels * self.outputs * self.fan_in(source)

    def check_folding(self, source: Shape, folding: Folding) -> None:
        """Raises InputError that lists the legal values unless `folding` divides the shapes."""
        _check_divides(self.name, "lanes_in", folding.lanes_in, source.channels, "inputs")
        _check_divides(self.name, "lanes_out", folding.lanes_out, self.outputs, "outputs")
        legal = legal_update_lanes(folding.lanes_in, folding.lanes_out)
        if folding.update_lanes not in legal:
            raise InputError(
                f"{self.name}: update_lanes must be one of {_listed(legal)} "
                f"at {folding.lanes_in}x{folding.lanes_out} lanes, not {folding.update_lanes}"
            )

    def folding(self, source: Shape, multipliers: int) -> Folding:
        """At most `multipliers` of them, as many as divide the shapes, as square as that allows.

        The update gets the fewest lanes with which it keeps up with the multipliers.
        """
        lanes_in, lanes_out = max(
            (
                (a, b)
                for a in divisors(source.channels)
                for b in divisors(self.outputs)
                if a * b <= multipliers
            ),
            key=lambda lanes: (lanes[0] * lanes[1], -abs(lanes[0] - lanes[1])),
        )
        pixels = self.output_shape(source).pixels
        keeps_up = [
            n for n in legal_update_lanes(lanes_in, lanes_out) if lanes_in * lanes_out <= n * pixels
        ]
        return Folding(lanes_in, lanes_out, min(keeps_up))

    def geometry(self, source: Shape, folding: Folding, first: bool) -> MacGeometry:
        """The four passes; `first` leaves out backward data."""
        self.check_folding(source, folding)
        target = self.output_shape(source)
        nests = _Nests(self, source, target, folding)
        return MacGeometry(
            folding=folding,
            forward=nests.forward(),
            backward_data=None if first else nests.backward_data(),
            backward_weight=nests.backward_weight(),
            backward_bias=nests.backward_bias() if self.bias else None,
            lane_stride=self.fan_in(source),
        )

    def taps(self, phase: int) -> "Taps":
        """Kernel positions through which a gradient reaches inputs of a phase (design, 6)."""
        first = (phase + self.padding) % self.stride
        return Taps(
            count=len(range(first, self.kernel, self.stride)),
            first=first,
            output=(phase + self.padding - first) // self.stride,
        )

    def _positions(self, side: int) -> int:
        return (side + 2 * self.padding - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class Taps:
    """Along one axis, for inputs whose position is `phase` modulo the stride: how many kernel
    positions meet an output, the first of them, and the output it meets (for the first such
    input); each further one is a stride further in the kernel and one output back."""

    count: int
    first: int
    output: int


def dense(name: str, outputs: int, bias: bool = True, relu: bool = True) -> Conv:
    """A linear layer on one pixel."""
    return Conv(name, outputs, kernel=1, padding=0, bias=bias, relu=relu)


def legal_update_lanes(lanes_in: int, lanes_out: int) -> list[int]:
    """Lanes of the update unit that cut blocks of weights and words of biases evenly."""
    return [
        lanes
        for lanes in divisors(lanes_in * lanes_out)
        if lanes % lanes_out == 0 or lanes_out % lanes == 0
    ]


@dataclass(frozen=True)
class _Nests:
    """Writes the loop nests of a convolution.

    Words: activations (row, column, block of inputs), gradients (row, column, block of outputs),
    weights (block of outputs, kernel row, kernel column, block of inputs).
    """

    conv: Conv
    source: Shape
    target: Shape
    folding: Folding

    @property
    def _inputs(self) -> int:
        return self.source.channels // self.folding.lanes_in

    @property
    def _outputs(self) -> int:
        return self.target.channels // self.folding.lanes_out

    @property
    def _source_row(self) -> int:
        return self.source.columns * self._inputs

    @property
    def _target_row(self) -> int:
        return self.target.columns * self._outputs

    @property
    def _origin(self) -> Offset:
        """The padded corner, from which forward and weight passes read activations."""
        padding = self.conv.padding
        corner = padding * (self._source_row + self._inputs)
        return Offset(stash=-corner, row=-padding, column=-padding)

    @property
    def _bounds(self) -> tuple[int, int] | None:
        """Activations beyond these are zero."""
        return (self.source.rows, self.source.columns) if self.conv.padding else None

    def _pixels(self) -> tuple[Loop, Loop]:
        """Over the outputs, by the activations that the first tap meets and the gradient there."""
        stride = self.conv.stride
        row = Offset(stash=stride * self._source_row, gradient=self._target_row, row=stride)
        column = Offset(stash=stride * self._inputs, gradient=self._outputs, column=stride)
        return Loop(self.target.rows, row), Loop(self.target.columns, column)

    def _kernel(self) -> tuple[Loop, Loop]:
        kernel, channels = self.conv.kernel, self.source.channels
        row = Offset(
            stash=self._source_row, weight=kernel * self._inputs, index=kernel * channels, row=1
        )
        column = Offset(stash=self._inputs, weight=self._inputs, index=channels, column=1)
        return Loop(kernel, row), Loop(kernel, column)

    def forward(self) -> Pass:
        kernel_words = self.conv.kernel**2 * self._inputs
        outputs = Loop(self._outputs, Offset(weight=kernel_words, bias=1))
        inputs = Loop(self._inputs, Offset(stash=1, weight=1))
        loops = (*self._pixels(), outputs, *self._kernel(), inputs)
        return Pass(loops, reduction=3, origin=self._origin, bounds=self._bounds)

    def backward_data(self) -> Pass:
        """Every input meets only the kernel positions that its phase allows, so that a stride
        wastes no step on zeros; inputs that no output saw take one padded step a block."""
        conv, source, target = self.conv, self.source, self.target
        rows, kernel_rows = self._axis(
            source.rows,
            output=Offset(gradient=self._target_row, row=1),
            tap=Offset(weight=conv.kernel * self._inputs),
            index=Offset(index=source.columns * source.channels),
            outside=Offset(row=target.rows),
            level=0,
        )
        columns, kernel_columns = self._axis(
            source.columns,
            output=Offset(gradient=self._outputs, column=1),
            tap=Offset(weight=self._inputs),
            index=Offset(index=source.channels),
            outside=Offset(column=target.columns),
            level=1,
        )
        inputs = Loop(self._inputs, Offset(weight=1, index=self.folding.lanes_in))
        outputs = Loop(self._outputs, Offset(gradient=1, weight=conv.kernel**2 * self._inputs))
        seen_by_all = conv.kernel == conv.stride == 1 and not conv.padding
        return Pass(
            (rows, columns, inputs, kernel_rows, kernel_columns, outputs),
            reduction=3,
            bounds=None if seen_by_all else (target.rows, target.columns),
        )

    def _axis(
        self, side: int, output: Offset, tap: Offset, index: Offset, outside: Offset, level: int
    ) -> tuple[Loop, Loop]:
        """Along one axis of the backward data pass, the loop over `side` inputs (at `level`) and
        that over their kernel positions. `output`, `tap` and `index` lead to the next output,
        kernel position and input; `outside` is a place in the padding."""
        stride = self.conv.stride
        phases = [self.conv.taps(phase) for phase in range(stride)]
        starts = tuple(
            (taps.output * output + taps.first * tap if taps.count else outside) + phase * index
            for phase, taps in enumerate(phases)
        )
        counts = tuple(max(1, taps.count) for taps in phases)
        inputs = Loop(side, output + stride * index, starts)
        return inputs, Loop(counts, stride * tap - output, by=level)

    def backward_weight(self) -> Pass:
        """Blocks in the order of their words; each adds up over all outputs."""
        kernel, lanes_out = self.conv.kernel, self.folding.lanes_out
        outputs = Loop(
            self._outputs,
            Offset(
                gradient=1,
                weight=kernel**2 * self._inputs,
                index=lanes_out * self.conv.fan_in(self.source),
            ),
        )
        inputs = Loop(self._inputs, Offset(stash=1, weight=1, index=self.folding.lanes_in))
        turns = self.folding.multipliers // self.folding.update_lanes
        return Pass(
            (outputs, *self._kernel(), inputs, *self._pixels()),
            reduction=2,
            idle=max(0, turns - self.target.pixels),
            origin=self._origin,
            bounds=self._bounds,
        )

    def backward_bias(self) -> Pass:
        turns = max(1, self.folding.lanes_out // self.folding.update_lanes)
        outputs = Loop(self._outputs, Offset(gradient=1, bias=1, index=self.folding.lanes_out))
        pixels = Loop(self.target.pixels, Offset(gradient=self._outputs))
        return Pass((outputs, pixels), reduction=1, idle=max(0, turns - self.target.pixels))


def _check_divides(tile: str, what: str, lanes: int, channels: int, side: str) -> None:
    if lanes < 1 or channels % lanes:
        raise InputError(
            f"{tile}: {what} must divide its {channels} {side} "
            f"(one of {_listed(divisors(channels))}), not {lanes}"
        )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
