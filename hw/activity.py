"""What a tile does now, for observers."""

from amaranth.lib import data

ACTIVITY = data.StructLayout({"started": 1, "busy": 1, "waiting": 1})
"""In this clock a slot starts; the multipliers work; the tile waits for others."""
