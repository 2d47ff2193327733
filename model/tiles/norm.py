"""The golden norm tile: group norm with a fused ReLU, not affine (`NormTile`) or affine."""

from typing import Any

import torch

from model.arithmetic import Arithmetic
from model.random_bits import Words
from model.tiles.base import Kept, Parameters, ParameterTile, RandomTile
from spec.plan import Plan
from spec.tile_plans import NormPlan


class _Normaliser:
    """What both kinds of norm compute, on [rows, columns, channels] (spec/tiles/norm.py)."""

    def __init__(self, plan: Plan, planned: NormPlan, arithmetic: Arithmetic) -> None:
        self.formats = plan.hardware.norm_formats(planned)
        self._group, self._arithmetic = planned.tile.group, arithmetic

    def normalise(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x^ and rstd [groups]."""
        return self._arithmetic.normalise(source, self._group, self.formats)

    def output(
        self,
        normalised: torch.Tensor,
        gains: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The activation for x^."""
        result = self._arithmetic.affine(normalised, gains, offsets, self.formats)
        return result.clamp(min=0) if self.formats.relu else result

    def source_gradient(
        self,
        gradient: torch.Tensor,
        normalised: torch.Tensor,
        rstd: torch.Tensor,
        words: Words,
    ) -> torch.Tensor:
        """dx for d, the masked (and scaled) gradient."""
        random = None if words.gradient is None else words.gradient.view(gradient.shape)
        return self._arithmetic.norm_gradient(
            gradient, normalised, rstd, self._group, self.formats, random
        )


class NormTile(RandomTile):
    """Group norm without parameters: keeps x^ and one rstd a group; x^ says what a ReLU passes."""

    def __init__(self, plan: Plan, planned: NormPlan, arithmetic: Arithmetic) -> None:
        super().__init__(plan, planned.tile.name, arithmetic)
        self._norm = _Normaliser(plan, planned, arithmetic)
        self.formats = self._norm.formats

    def _forward(self, source: torch.Tensor, training: bool) -> tuple[torch.Tensor, Kept]:
        normalised, rstd = self._norm.normalise(source)
        return self._norm.output(normalised), (normalised, rstd)

    def _backward(self, gradient: torch.Tensor, *kept: Any) -> torch.Tensor:
        normalised, rstd = kept
        if self.formats.relu:
            gradient = gradient * (normalised > 0)
        return self._norm.source_gradient(gradient, normalised, rstd, self.random.draw())


class AffineNormTile(ParameterTile):
    """Group norm with a gain and an offset a channel, trained like weights and biases."""

    def __init__(
        self, plan: Plan, planned: NormPlan, arithmetic: Arithmetic, parameters: Parameters
    ) -> None:
        super().__init__(plan, planned, arithmetic, parameters)
        self._norm = _Normaliser(plan, planned, arithmetic)
        self.formats = self._norm.formats

    def _forward(self, source: torch.Tensor, training: bool) -> tuple[torch.Tensor, Kept]:
        normalised, rstd = self._norm.normalise(source)
        copy = self._copy(training)
        result = self._norm.output(normalised, *copy)
        mask = result > 0 if self.formats.relu else None
        return result, (normalised, rstd, mask, self._stashed(copy))

    def _backward(self, gradient: torch.Tensor, *kept: Any) -> torch.Tensor:
        normalised, rstd, mask, stashed = kept
        if mask is not None:
            gradient = gradient * mask
        words = self.random.draw()
        gains = self._backward_weights(stashed)
        scaled = self._arithmetic.scale_gradient(gradient, gains, self.formats)
        back = self._norm.source_gradient(scaled, normalised, rstd, words)
        self._update(self._gradients(gradient, normalised), words)
        return back

    def _gradients(self, gradient: torch.Tensor, normalised: torch.Tensor) -> torch.Tensor:
        """Of the gains, then of the offsets."""
        target, round_to = self.rounding.formats.gradient, self._arithmetic.requantize
        gains = (gradient * normalised).sum((0, 1))
        offsets = gradient.sum((0, 1))
        return torch.cat(
            (
                round_to(gains, self.formats.gain_gradient_frac, target),
                round_to(offsets, self.formats.target_gradient.frac, target),
            )
        )
