"""The address map: every register and memory that the host can reach, in one table.

From the top an address holds the block (0 the array's own registers, 1 + i the tile at position i),
the region within the tile, and the offset (see spec/bus).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from spec.bus import (
    COEFFICIENTS,
    REGION_BITS,
    STATE_BASE,
    TILE_REGISTER_BITS,
    ArrayRegister,
    LossRegister,
    Region,
    lane_bits,
    offset_bits,
)
from spec.plan import HardwarePlan
from spec.random_bits import Tensor
from spec.tile_plans import ConvPlan, NormPlan, ParameterPlan, TilePlan
from spec.tiles import AveragePool

Addresses = NDArray[np.int64]


@dataclass(frozen=True)
class AddressMap:
    """Addresses of one array."""

    hardware: HardwarePlan

    @cached_property
    def offset_bits(self) -> int:
        """Offset bits of the widest tile: all blocks have its size."""
        return max(self._offset_bits_of(planned) for planned in self.hardware.tiles)

    def _offset_bits_of(self, planned: TilePlan) -> int:
        if isinstance(planned, ConvPlan):
            return offset_bits(self.hardware.geometry(planned))
        if isinstance(planned, NormPlan) and planned.tile.affine:
            words = self.hardware.source_of(planned.tile.name).shape.channels // planned.lanes
            return max(TILE_REGISTER_BITS, (words - 1).bit_length() + lane_bits(planned.lanes))
        return TILE_REGISTER_BITS

    @cached_property
    def block_bits(self) -> int:
        return len(self.hardware.network.tiles).bit_length()

    @property
    def address_bits(self) -> int:
        return self.block_bits + REGION_BITS + self.offset_bits

    def array(self, register: ArrayRegister) -> int:
        return int(register)

    def tile(self, name: str, region: Region = Region.REGISTERS, offset: int = 0) -> int:
        """Address of an offset in a region of a tile."""
        block = 1 + self.hardware.index(name)
        return (block << REGION_BITS | region) << self.offset_bits | offset

    def coefficient(self, name: str, coefficient: str) -> int:
        return self.tile(name, offset=COEFFICIENTS.index(coefficient))

    def state(self, name: str, tensor: Tensor) -> int:
        """Random state of a tensor of any tile but the loss."""
        return self.tile(name, offset=STATE_BASE + tensor)

    def loss(self, register: LossRegister) -> int:
        return self.tile(self.hardware.network.tiles[-1].name, offset=register)

    def weights(self, planned: ParameterPlan, region: Region) -> Addresses:
        """Addresses of a memory's weights (or gains) in the order of their tensor."""
        if isinstance(planned, NormPlan):
            return self._by_channel(planned.tile.name, region, planned.lanes)
        outputs, rows, columns, inputs = planned.tile.weight_shape(
            self.hardware.source_of(planned.tile.name).shape
        )
        output, tap, source = np.ogrid[:outputs, : rows * columns, :inputs]
        lanes_in, lanes_out = planned.lanes_in, planned.lanes_out
        block = output // lanes_out * (rows * columns) + tap
        word = block * (inputs // lanes_in) + source // lanes_in
        lane = output % lanes_out * lanes_in + source % lanes_in
        offsets: Addresses = word << lane_bits(planned.folding.multipliers) | lane
        return self.tile(planned.tile.name, region) + offsets.reshape(-1)

    def biases(self, planned: ParameterPlan, region: Region) -> Addresses:
        """Addresses of a memory's biases (or offsets) by channel."""
        return self._by_channel(planned.tile.name, region, planned.lanes_out)

    def _by_channel(self, name: str, region: Region, lanes: int) -> Addresses:
        channel = np.arange(self.hardware.target_of(name).shape.channels)
        offsets: Addresses = channel // lanes << lane_bits(lanes) | channel % lanes
        return self.tile(name, region) + offsets


def tensors_of(planned: TilePlan) -> tuple[Tensor, ...]:
    """The tensors of a tile (but the loss) that have a random state on the bus."""
    if isinstance(planned, ConvPlan) or (isinstance(planned, NormPlan) and planned.tile.affine):
        return tuple(Tensor)
    if isinstance(planned, NormPlan) or isinstance(planned.tile, AveragePool):
        return (Tensor.GRADIENT,)
    return ()
