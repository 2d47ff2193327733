"""One file for each kind of tile: its description, shapes and cycle counts.

`hw/tiles` and `model/tiles` hold the hardware and the golden counterpart under the same names.
"""

from spec.tiles.branch import Add, Fork, Shortcut
from spec.tiles.conv import Conv, dense
from spec.tiles.loss import Loss
from spec.tiles.norm import Norm
from spec.tiles.pool import AveragePool, MaxPool

Tile = Conv | Norm | MaxPool | AveragePool | Fork | Add | Shortcut | Loss
ParameterTile = Conv | Norm
"""The kinds that can have parameters."""
TRANSPARENT = (MaxPool, Fork, Add, Shortcut)
"""The kinds that hand numbers through: all their edges share one format in each direction."""

STREAMING = (Fork, Add, Shortcut)
"""The kinds that packets pass straight through, beat by beat."""

__all__ = [
    "STREAMING",
    "TRANSPARENT",
    "Add",
    "AveragePool",
    "Conv",
    "Fork",
    "Loss",
    "MaxPool",
    "Norm",
    "ParameterTile",
    "Shortcut",
    "Tile",
    "dense",
]
