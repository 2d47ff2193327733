"""Group normalisation on tensors [rows, columns, channels] in both number systems.

The integers repeat spec/tiles/norm.py element by element; what there is once a group is computed by
those functions themselves.
"""

import torch

from model.update import rounded
from spec.tiles.norm import (
    EPSILON,
    NormFormats,
    finish_statistics,
    gradient_means,
)


def integer_normalise(
    source: torch.Tensor, group: int, formats: NormFormats
) -> tuple[torch.Tensor, torch.Tensor]:
    """x^ in `formats.normalised`, and rstd [groups]."""
    groups = _groups(source, group)
    elements = groups.shape[0] * group
    sums = groups.sum((0, 2)).tolist()
    squares = groups.square().sum((0, 2)).tolist()
    found = [
        finish_statistics(total, square, elements, formats)
        for total, square in zip(sums, squares, strict=True)
    ]
    mean = torch.tensor([statistics.mean for statistics in found])
    rstd = torch.tensor([statistics.rstd for statistics in found])
    product = ((groups << formats.guard) - _spread(mean)) * _spread(rstd)
    target = formats.normalised
    shift = formats.mean.frac + formats.rstd.frac - target.frac
    normalised = rounded(product, shift).clamp_(target.minimum, target.maximum)
    return normalised.view(source.shape), rstd


def integer_norm_gradient(
    gradient: torch.Tensor,
    normalised: torch.Tensor,
    rstd: torch.Tensor,
    group: int,
    formats: NormFormats,
    words: torch.Tensor | None,
) -> torch.Tensor:
    """dx in `formats.source_gradient` of d in `formats.gradient`."""
    d, x = _groups(gradient, group), _groups(normalised, group)
    sums = d.sum((0, 2)).tolist()
    weighted = (d * x).sum((0, 2)).tolist()
    elements = d.shape[0] * group
    found = [gradient_means(*pair, elements, formats) for pair in zip(sums, weighted, strict=True)]
    plain = torch.tensor([means.plain for means in found])
    pulled = torch.tensor([means.weighted for means in found])
    frac = formats.normalised.frac
    exact = (d << formats.gradient_guard + frac) - _spread(plain << frac) - x * _spread(pulled)
    centred = rounded(exact, frac).clamp_(formats.centred.minimum, formats.centred.maximum)
    product = (centred * _spread(rstd)).view(gradient.shape)
    target = formats.source_gradient
    shift = formats.centred.frac + formats.rstd.frac - target.frac
    return rounded(product, shift, words).clamp_(target.minimum, target.maximum)


def float_normalise(source: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x^ = (y - mean) / sqrt(variance + epsilon), and the reciprocal deviations [groups]."""
    groups = _groups(source, group)
    variance, mean = torch.var_mean(groups, dim=(0, 2), correction=0)
    rstd = torch.rsqrt(variance + EPSILON)
    return ((groups - _spread(mean)) * _spread(rstd)).view(source.shape), rstd


def float_norm_gradient(
    gradient: torch.Tensor, normalised: torch.Tensor, rstd: torch.Tensor, group: int
) -> torch.Tensor:
    """dx = rstd (d - mean(d) - x^ mean(d x^)), group by group."""
    d, x = _groups(gradient, group), _groups(normalised, group)
    plain, pulled = d.mean((0, 2)), (d * x).mean((0, 2))
    result = _spread(rstd) * (d - _spread(plain) - x * _spread(pulled))
    return result.view(gradient.shape)


def _groups(tensor: torch.Tensor, group: int) -> torch.Tensor:
    """[pixels, groups, channels of a group]"""
    return tensor.reshape(-1, tensor.shape[2] // group, group)


def _spread(by_group: torch.Tensor) -> torch.Tensor:
    return by_group.view(1, -1, 1)
