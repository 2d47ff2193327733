"""The golden convolution tile: y = W * x + b with an optional ReLU, late gradients, its own update.

A convolution is a matrix product over windows of the input, so that integers stay exact.
"""

from typing import Any

import torch

from model.arithmetic import Arithmetic
from model.tiles.base import Kept, Parameters, ParameterTile
from spec.plan import Plan
from spec.shape import Shape
from spec.tile_plans import ConvPlan
from spec.tiles import Conv


class Windows:
    """The windows that a kernel sees of an input, as rows of a matrix, and back."""

    def __init__(self, conv: Conv, source: Shape) -> None:
        self._source, self._padding, self._stride = source, conv.padding, conv.stride
        self._kernel, self._target = conv.kernel, conv.output_shape(source)
        self._columns = source.columns + 2 * conv.padding
        self._rows = source.rows + 2 * conv.padding
        places = torch.arange(self._rows * self._columns).view(self._rows, self._columns, 1)
        self._places = self._view(places).reshape(-1)
        self._whole = conv.kernel == conv.stride == 1 and not conv.padding

    def unfold(self, source: torch.Tensor) -> torch.Tensor:
        """[rows, columns, channels] to [pixels of the output, kernel x kernel x channels]."""
        channels = source.shape[2]
        if self._whole:
            return source.reshape(-1, channels)
        padded = source
        if self._padding:
            padded = source.new_zeros(self._rows, self._columns, channels)
            end = self._padding
            padded[end : end + self._source.rows, end : end + self._source.columns] = source
        return self._view(padded).reshape(self._target.pixels, -1)

    def fold(self, windows: torch.Tensor) -> torch.Tensor:
        """Adds up what windows say of each input: the transpose of `unfold`."""
        channels, end = self._source.channels, self._padding
        if self._whole:
            return windows.view(self._source.rows, self._source.columns, channels)
        padded = windows.new_zeros(self._rows * self._columns, channels)
        padded.index_add_(0, self._places, windows.reshape(-1, channels))
        image = padded.view(self._rows, self._columns, channels)
        return image[end : end + self._source.rows, end : end + self._source.columns]

    def _view(self, padded: torch.Tensor) -> torch.Tensor:
        """[output rows, output columns, kernel rows, kernel columns, channels]"""
        padded = padded.contiguous()
        channels, row = padded.shape[2], padded.shape[1] * padded.shape[2]
        shape = (self._target.rows, self._target.columns, self._kernel, self._kernel, channels)
        strides = (self._stride * row, self._stride * channels, row, channels, 1)
        return padded.as_strided(shape, strides)


class ConvTile(ParameterTile):
    """Inputs [rows, columns, channels] in `formats.source`, outputs in `formats.target`.

    TRAIN forwards with the working copy, EVAL with the rounded master weights, which every backward
    pass reads too unless the method predicts or stashes what it reads. A backward bubble changes
    nothing. (Design, sections 3 and 5.)
    """

    def __init__(
        self, plan: Plan, planned: ConvPlan, arithmetic: Arithmetic, parameters: Parameters
    ) -> None:
        hardware, tile = plan.hardware, planned.tile
        self.first = plan.network.is_first(tile)
        super().__init__(plan, planned, arithmetic, parameters, gradients=not self.first)
        self.formats = hardware.formats(planned)
        source = hardware.source_of(tile.name).shape
        self.shape = tile.weight_shape(source)
        self._target = tile.output_shape(source)
        self._windows = Windows(tile, source)

    def _forward(self, source: torch.Tensor, training: bool) -> tuple[torch.Tensor, Kept]:
        formats, arithmetic = self.formats, self._arithmetic
        copy = self._copy(training)
        matrix = copy.weights.view(self.shape[0], -1)
        sums = arithmetic.product(self._windows.unfold(source), matrix.T)
        if copy.biases is not None:
            sums = arithmetic.preload(sums, copy.biases, formats.bias_shift)
        result = arithmetic.requantize(sums, formats.forward_frac, formats.target)
        if formats.relu:
            result = result.clamp(min=0)
        result = result.view(self._target.rows, self._target.columns, -1)
        stashed = None if self.first else self._stashed(copy)
        return result, (source, result > 0 if formats.relu else None, stashed)

    def _backward(self, gradient: torch.Tensor, *kept: Any) -> torch.Tensor | None:
        source, mask, stashed = kept
        formats, arithmetic = self.formats, self._arithmetic
        if mask is not None:
            gradient = gradient * mask
        gradient = gradient.reshape(-1, self.shape[0])
        words = self.random.draw()
        back = None
        if not self.first:
            weights = self._backward_weights(stashed).view(self.shape[0], -1)
            sums = self._windows.fold(arithmetic.product(gradient, weights))
            random = None if words.gradient is None else words.gradient.view(sums.shape)
            back = arithmetic.requantize(sums, formats.data_frac, formats.source_gradient, random)
        self._update(self._gradients(gradient, source), words)
        return back

    def _gradients(self, gradient: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Of the weights, flat, then of the biases."""
        formats, round_to = self.formats, self._arithmetic.requantize
        target = formats.parameters.gradient
        sums = self._arithmetic.product(gradient.T, self._windows.unfold(source))
        if self.rounding.standardised:
            sums = self.rounding.through(sums, self._backward_master(), self._arithmetic)
        flat = round_to(sums.reshape(-1), formats.weight_frac, target)
        if self.parameters.working.biases is None:
            return flat
        biases = round_to(gradient.sum(0), formats.target_gradient.frac, target)
        return torch.cat((flat, biases))
