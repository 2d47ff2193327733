"""Tile cores: one file for each kind of tile, named as in spec/tiles and model/tiles."""
