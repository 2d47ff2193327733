"""The bus inside the array: 32-bit words, one request a clock, answers after a fixed time."""

from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from spec.bus import DATA_BITS, REGION_BITS

TILE_READ_LATENCY = 2
"""Clocks from a tile's selection to its word."""


def host_bus(address_bits: int) -> wiring.Signature:
    """The port of the array, from the host's side.

    `enable` asks for a read, or for a write if `write` is high too; what was read follows
    BUS_READ_LATENCY clocks later.
    """
    return wiring.Signature(
        {
            "enable": Out(1),
            "address": Out(address_bits),
            "write": Out(1),
            "write_data": Out(DATA_BITS),
            "read_data": wiring.In(DATA_BITS),
        }
    )


def tile_bus(offset_bits: int) -> wiring.Signature:
    """What the array passes to a tile; `read_data` is zero unless the tile was selected."""
    return wiring.Signature(
        {
            "select": Out(1),
            "write": Out(1),
            "region": Out(REGION_BITS),
            "offset": Out(offset_bits),
            "write_data": Out(DATA_BITS),
            "read_data": wiring.In(DATA_BITS),
        }
    )
