"""Every tile in PyTorch's own operations, to compare with."""

import torch
from torch.nn import functional

from spec.network import Network
from spec.tiles import Add, AveragePool, Conv, MaxPool, Norm, Shortcut, Tile
from spec.tiles.norm import EPSILON


def in_torch(
    tile: Tile, network: Network, flat: torch.Tensor | None, inputs: list[torch.Tensor]
) -> torch.Tensor:
    """A tile in PyTorch's operations, on images [1, channels, rows, columns]."""
    x = inputs[0]
    if isinstance(tile, Conv):
        assert flat is not None
        shape = tile.weight_shape(network.input_shape_of(tile))
        count = shape[0] * shape[1] * shape[2] * shape[3]
        weights = flat[:count].view(shape).permute(0, 3, 1, 2)
        if tile.standardised:
            rows = weights.flatten(1)
            variance, mean = torch.var_mean(rows, 1, correction=0, keepdim=True)
            weights = ((rows - mean) / torch.sqrt(variance + EPSILON)).view(weights.shape)
        bias = flat[count:] if tile.bias else None
        y = functional.conv2d(x, weights, bias, tile.stride, tile.padding)
        return torch.relu(y) if tile.relu else y
    if isinstance(tile, Norm):
        groups = x.reshape(x.shape[1] // tile.group, -1)
        variance, mean = torch.var_mean(groups, 1, correction=0, keepdim=True)
        y = ((groups - mean) / torch.sqrt(variance + EPSILON)).view(x.shape)
        if flat is not None:
            gain, offset = flat.view(2, 1, -1, 1, 1)
            y = y * gain + offset
        return torch.relu(y) if tile.relu else y
    if isinstance(tile, MaxPool):
        return functional.max_pool2d(x, 2)
    if isinstance(tile, AveragePool):
        return x.mean((2, 3), keepdim=True)
    if isinstance(tile, Add):
        return x + inputs[1]
    if isinstance(tile, Shortcut):
        added = tile.outputs - x.shape[1]
        return functional.pad(x[:, :, :: tile.stride, :: tile.stride], (0, 0, 0, 0, 0, added))
    return x
