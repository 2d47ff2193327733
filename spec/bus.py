"""The bus of an array: widths, regions and registers, without the addresses of any one array.

The bus has 32-bit words and word addresses. In the memory regions of a tile an offset is {word,
lane}, lanes padded to a power of two.
"""

from enum import IntEnum

from spec.mac import MacGeometry
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
