"""The address map: every register and memory that the host can reach, in one table.

The bus has 32-bit words and word addresses. From the top an address holds the block (0 the array's
own registers, 1 + i the tile at position i), the region within the tile, and the offset. In the
memory regions an offset is {word, lane}, lanes padded to a power of two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from spec.mac import MacGeometry
from spec.plan import HardwarePlan
from spec.random_bits import Tensor
from spec.update import COEFFICIENT_BITS

DATA_BITS = 32
IDENTITY = 0x54_49_44_45
VERSION = 1
BUS_READ_LATENCY = 4
"""Cycles from an address on the port to its word."""


class ArrayRegister(IntEnum):
    """Block 0."""

    IDENTITY = 0
    VERSION = 1
    HARDWARE_HASH_LOW = 2
    HARDWARE_HASH_HIGH = 3
    STATUS = 4
    """Bit 0: a commit is on its way. Bit 1: a coefficient write was refused; written 1 to clear."""


class Region(IntEnum):
    """What the offset means within a tile's block."""

    REGISTERS = 0
    MASTER = 1
    VELOCITY = 2
    WORKING = 3
    BIAS_MASTER = 4
    BIAS_VELOCITY = 5
    BIAS_WORKING = 6


REGION_BITS = 3
COEFFICIENTS = tuple(COEFFICIENT_BITS)
"""Shadow coefficients of a tile with weights: registers 0, 1, ... in this order."""
STATE_BASE = len(COEFFICIENTS)
"""Random states follow: register STATE_BASE + tensor."""
TILE_REGISTER_BITS = 4


class LossRegister(IntEnum):
    """Registers of the loss tile; counters are cleared by writing them."""

    STATE = 0
    TRAIN_SEEN = 1
    TRAIN_CORRECT = 2
    TRAIN_LOSS_LOW = 3
    TRAIN_LOSS_HIGH = 4
    EVAL_SEEN = 5
    EVAL_CORRECT = 6
    EVAL_LOSS_LOW = 7
    EVAL_LOSS_HIGH = 8


def lane_bits(lanes: int) -> int:
    """Address bits of one lane within a memory word."""
    return (lanes - 1).bit_length()


def offset_bits(geometry: MacGeometry) -> int:
    """Address bits below the region in a tile with weights."""
    folding = geometry.folding
    weights = (geometry.weight_words - 1).bit_length() + lane_bits(folding.multipliers)
    biases = max(0, geometry.bias_words - 1).bit_length() + lane_bits(folding.lanes_out)
    return max(weights, biases, TILE_REGISTER_BITS)


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
