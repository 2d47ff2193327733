"""The golden pool tiles: 2x2 maximum and global average."""

from typing import Any

import torch

from model.arithmetic import Arithmetic
from model.tiles.base import Kept, RandomTile, StashTile
from spec.plan import Plan
from spec.tile_plans import LanePlan
from spec.tiles.pool import WINDOW


class MaxPoolTile(StashTile):
    """Keeps the place of each maximum: the first of equals, row by row."""

    def __init__(self, plan: Plan, planned: LanePlan) -> None:
        super().__init__(plan, planned.tile.name)
        self._source = plan.hardware.source_of(planned.tile.name).shape
        self._target = plan.hardware.target_of(planned.tile.name).shape

    def _forward(self, source: torch.Tensor, training: bool) -> tuple[torch.Tensor, Kept]:
        windows = self._windows(source)
        places = windows.argmax(dim=2, keepdim=True)
        return windows.gather(2, places).squeeze(2), (places,)

    def _backward(self, gradient: torch.Tensor, *kept: Any) -> torch.Tensor:
        (places,) = kept
        rows, columns, channels = gradient.shape
        windows = gradient.new_zeros(rows, columns, WINDOW * WINDOW, channels)
        windows.scatter_(2, places, gradient.unsqueeze(2))
        result = gradient.new_zeros(self._source.rows, self._source.columns, channels)
        image = windows.view(rows, columns, WINDOW, WINDOW, channels).transpose(1, 2)
        result[: rows * WINDOW, : columns * WINDOW] = image.reshape(
            rows * WINDOW, columns * WINDOW, channels
        )
        return result

    def _windows(self, source: torch.Tensor) -> torch.Tensor:
        """[rows, columns, places in the window, channels]"""
        rows, columns, channels = self._target.rows, self._target.columns, source.shape[2]
        image = source[: rows * WINDOW, : columns * WINDOW]
        split = image.reshape(rows, WINDOW, columns, WINDOW, channels).transpose(1, 2)
        return split.reshape(rows, columns, WINDOW * WINDOW, channels)


class AveragePoolTile(RandomTile):
    """The mean of each channel over all pixels, and an equal share of its gradient for each."""

    def __init__(self, plan: Plan, planned: LanePlan, arithmetic: Arithmetic) -> None:
        super().__init__(plan, planned.tile.name, arithmetic)
        hardware = plan.hardware
        self._source = hardware.source_of(planned.tile.name)
        self._target = hardware.target_of(planned.tile.name)

    def _forward(self, source: torch.Tensor, training: bool) -> tuple[torch.Tensor, Kept]:
        result = self._arithmetic.mean(
            source.sum((0, 1), keepdim=True),
            self._source.shape.pixels,
            self._source.activation.frac,
            self._target.activation,
        )
        return result, ()

    def _backward(self, gradient: torch.Tensor, *kept: Any) -> torch.Tensor:
        shape = self._source.shape
        words = self.random.draw().gradient
        spread = gradient.expand(shape.rows, shape.columns, shape.channels)
        return self._arithmetic.mean(
            spread,
            shape.pixels,
            self._target.gradient.frac,
            self._source.gradient,
            None if words is None else words.view(spread.shape),
        )
