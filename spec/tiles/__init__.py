"""One file for each kind of tile: its description, shapes and cycle counts.

`hw/tiles` and `model/tiles` hold the hardware and the golden counterpart under the same names.
"""

from spec.tiles.dense import Dense
from spec.tiles.loss import Loss

Tile = Dense | Loss

__all__ = ["Dense", "Loss", "Tile"]
