"""The address map: every register and memory that the host can reach, in one table.

From the top an address holds the block (0 the array's own registers, 1 + i the tile at position i),
the region within the tile, and the offset (see spec/bus).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from spec.bus import (
    COEFFICIENTS,
    REGION_BITS,
    STATE_BASE,
    ArrayRegister,
    LossRegister,
    Region,
    lane_bits,
    offset_bits,
)
from spec.plan import HardwarePlan
from spec.random_bits import Tensor


@dataclass(frozen=True)
class AddressMap:
    """Addresses of one array."""

    hardware: HardwarePlan

    @property
    def offset_bits(self) -> int:
        """Offset bits of the widest tile: all blocks have its size."""
        return max(offset_bits(self.hardware.geometry(p)) for p in self.hardware.dense)

    @property
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
        """Random state of a tensor of a tile with weights."""
        return self.tile(name, offset=STATE_BASE + tensor)

    def loss(self, register: LossRegister) -> int:
        return self.tile(self.hardware.network.tiles[-1].name, offset=register)

    def weights(self, name: str, region: Region) -> Iterator[int]:
        """Addresses of a weight memory's elements in the order of the weight tensor."""
        planned = self.hardware.planned(name)
        lanes_in, lanes_out = planned.folding.lanes_in, planned.folding.lanes_out
        inputs = self.hardware.source_of(name).shape.channels
        bits = lane_bits(planned.folding.multipliers)
        for output in range(planned.tile.outputs):
            for source in range(inputs):
                word = output // lanes_out * (inputs // lanes_in) + source // lanes_in
                lane = output % lanes_out * lanes_in + source % lanes_in
                yield self.tile(name, region, word << bits | lane)

    def biases(self, name: str, region: Region) -> Iterator[int]:
        """Addresses of a bias memory's elements by output channel."""
        planned = self.hardware.planned(name)
        lanes = planned.folding.lanes_out
        for output in range(planned.tile.outputs):
            yield self.tile(name, region, output // lanes << lane_bits(lanes) | output % lanes)
