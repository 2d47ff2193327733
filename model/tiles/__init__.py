"""The golden counterpart of each kind of tile, under the same file names as in `spec/tiles`."""
