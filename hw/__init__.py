"""Amaranth hardware: shared parts, one core for each kind of tile, the array, and its Verilog."""
