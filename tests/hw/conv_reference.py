"""A tile with weights in integers, straight from the definition of a convolution."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spec.formats import requantize
from spec.mac_formats import MacFormats
from spec.random_bits import Tensor, random_word, xorshift32
from spec.shape import Shape
from spec.tiles.conv import Conv
from spec.update import UpdateCoefficients, update

Integers = npt.NDArray[np.int64]


@dataclass
class Parameter:
    """Master, velocity and working copy of a tensor."""

    master: Integers
    velocity: Integers
    working: Integers


@dataclass
class ConvReference:
    """Forward and backward passes of one sample at a time, and their updates."""

    conv: Conv
    source: Shape
    formats: MacFormats
    coefficients: UpdateCoefficients
    weight: Parameter
    bias: Parameter
    states: list[int]

    def forward(self, x: Integers, evaluate: bool) -> Integers:
        """The rounded output of an input (rows, columns, channels)."""
        formats = self.formats
        weight, bias = self.weight.working, self.bias.working
        if evaluate:
            weight = self._rounded_master()
            frac = formats.parameters.master.frac
            bias = _each(self.bias.master, lambda b, _: requantize(b, frac, formats.bias))
        target = self.conv.output_shape(self.source)
        sums = np.zeros((target.rows, target.columns, target.channels), np.int64)
        for pixel, window in self._windows(x):
            sums[pixel] = np.einsum("orci,rci->o", weight, window)
        if self.conv.bias:
            sums += bias << formats.bias_shift
        floor = 0 if self.conv.relu else formats.target.minimum
        return _each(
            sums, lambda s, _: max(floor, requantize(s, formats.forward_frac, formats.target))
        )

    def backward(self, x: Integers, y: Integers, dy: Integers) -> Integers:
        """The rounded gradient of an input, from that of its output; then the update."""
        formats, padding = self.formats, self.conv.padding
        if self.conv.relu:
            dy = np.where(y != 0, dy, 0)
        rows, columns, channels = x.shape
        padded = np.zeros((rows + 2 * padding, columns + 2 * padding, channels), np.int64)
        weight, gradient = self._rounded_master(), np.zeros_like(self.weight.master)
        kernel, stride = self.conv.kernel, self.conv.stride
        for (row, column), window in self._windows(x):
            top, left = row * stride, column * stride
            padded[top : top + kernel, left : left + kernel] += np.einsum(
                "orci,o->rci", weight, dy[row, column]
            )
            gradient += np.einsum("o,rci->orci", dy[row, column], window)
        dx = padded[padding : padding + rows, padding : padding + columns]
        state = self.states[Tensor.GRADIENT] if formats.source_stochastic else None
        result = _each(
            dx,
            lambda s, i: requantize(
                s,
                formats.data_frac,
                formats.source_gradient,
                None if state is None else random_word(state, i),
            ),
        )
        self._update(self.weight, gradient, formats.weight_frac, Tensor.WEIGHT)
        if self.conv.bias:
            summed = dy.sum(axis=(0, 1))
            self._update(self.bias, summed, formats.target_gradient.frac, Tensor.BIAS)
        self.states = [xorshift32(state) for state in self.states]
        return result

    def _windows(self, x: Integers) -> list[tuple[tuple[int, int], Integers]]:
        """What each output sees."""
        target, padding = self.conv.output_shape(self.source), self.conv.padding
        kernel, stride = self.conv.kernel, self.conv.stride
        padded = np.pad(x, ((padding, padding), (padding, padding), (0, 0)))
        return [
            ((r, c), padded[r * stride : r * stride + kernel, c * stride : c * stride + kernel])
            for r in range(target.rows)
            for c in range(target.columns)
        ]

    def _rounded_master(self) -> Integers:
        formats = self.formats.parameters
        return _each(
            self.weight.master, lambda w, _: requantize(w, formats.master.frac, formats.working)
        )

    def _update(self, parameter: Parameter, gradient: Integers, frac: int, tensor: Tensor) -> None:
        formats = self.formats.parameters
        of_bias = tensor is Tensor.BIAS
        velocity_tensor = Tensor.BIAS_VELOCITY if of_bias else Tensor.WEIGHT_VELOCITY
        states = (self.states[velocity_tensor], self.states[tensor])
        for index in range(gradient.size):
            new = update(
                requantize(int(gradient.flat[index]), frac, formats.gradient),
                int(parameter.velocity.flat[index]),
                int(parameter.master.flat[index]),
                formats,
                self.formats.bias if of_bias else formats.working,
                self.coefficients,
                (random_word(states[0], index), random_word(states[1], index)),
            )
            parameter.velocity.flat[index] = new.velocity
            parameter.master.flat[index] = new.master
            parameter.working.flat[index] = new.working


def _each(numbers: Integers, function: Callable[[int, int], int]) -> Integers:
    """function(number, its place) of every number."""
    results = [function(int(number), place) for place, number in enumerate(numbers.flat)]
    return np.array(results, np.int64).reshape(numbers.shape)
