"""A network is a graph of tiles, grouped into stages."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from spec.errors import InputError
from spec.shape import Shape
from spec.tiles import Dense, Loss, Tile

INPUT = "input"
"""The name under which edges leave the host's input stream."""


@dataclass(frozen=True)
class Edge:
    """Packets go from `source` forwards to `target`, and gradients come back."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True)
class Network:
    """Tiles in topological order, their edges, and the stages that share one pipeline delay.

    Raises InputError when names repeat, an edge leads nowhere or backwards, a tile lacks its
    input, shapes do not fit, stages do not list the tiles in order, or the loss is not the end.
    """

    name: str
    input_shape: Shape
    tiles: tuple[Tile, ...]
    edges: tuple[Edge, ...]
    stages: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        names = [tile.name for tile in self.tiles]
        if len(set(names)) < len(names) or INPUT in names:
            raise InputError(f"{self.name}: tile names must differ and not be {INPUT!r}: {names}")
        if not self.tiles or not isinstance(self.tiles[-1], Loss):
            raise InputError(f"{self.name}: the last tile must be the loss")
        if any(isinstance(tile, Loss) for tile in self.tiles[:-1]):
            raise InputError(f"{self.name}: only the last tile may be a loss")
        if [name for stage in self.stages for name in stage] != names:
            raise InputError(f"{self.name}: the stages must list every tile once, in order")
        self._check_edges(names)
        _ = self.output_shapes

    def _check_edges(self, names: list[str]) -> None:
        order = {name: position for position, name in enumerate([INPUT, *names])}
        for edge in self.edges:
            if edge.source not in order or edge.target not in order:
                raise InputError(f"{self.name}: edge {edge} joins tiles that do not exist")
            if order[edge.source] >= order[edge.target]:
                raise InputError(f"{self.name}: edge {edge} leads backwards")
        for name in [INPUT, *names[:-1]]:
            if sum(edge.source == name for edge in self.edges) != 1:
                raise InputError(f"{self.name}: {name} must feed exactly one tile")
        for name in names:
            if sum(edge.target == name for edge in self.edges) != 1:
                raise InputError(f"{self.name}: {name} must have exactly one input")

    @classmethod
    def chain(cls, name: str, input_shape: Shape, *stages: tuple[Tile, ...]) -> "Network":
        """A network without branches, given stage by stage."""
        tiles = tuple(tile for stage in stages for tile in stage)
        names = [INPUT, *(tile.name for tile in tiles)]
        edges = tuple(Edge(a, b) for a, b in pairwise(names))
        return cls(
            name, input_shape, tiles, edges, tuple(tuple(t.name for t in stage) for stage in stages)
        )

    @cached_property
    def output_shapes(self) -> dict[str, Shape]:
        """Shape that each tile (and the input) sends forwards."""
        shapes = {INPUT: self.input_shape}
        for tile in self.tiles:
            shapes[tile.name] = tile.output_shape(shapes[self.input_edge(tile).source])
        return shapes

    def input_edge(self, tile: Tile) -> Edge:
        return next(edge for edge in self.edges if edge.target == tile.name)

    def output_edge(self, tile: Tile) -> Edge | None:
        """The edge to the next tile; None for the loss, whose results leave the array."""
        return next((edge for edge in self.edges if edge.source == tile.name), None)

    def input_shape_of(self, tile: Tile) -> Shape:
        return self.output_shapes[self.input_edge(tile).source]

    def is_first(self, tile: Tile) -> bool:
        """Whether the tile's input comes from the host, so that nobody wants its gradient."""
        return self.input_edge(tile).source == INPUT

    def stage_of(self, name: str) -> int:
        return next(i for i, stage in enumerate(self.stages) if name in stage)

    @property
    def dense_tiles(self) -> tuple[Dense, ...]:
        """The tiles with weights, in order."""
        return tuple(tile for tile in self.tiles if isinstance(tile, Dense))

    @property
    def classes(self) -> int:
        return self.output_shapes[self.tiles[-1].name].channels

    @property
    def parameters(self) -> int:
        """Weights and biases in total."""
        return sum(
            self.input_shape_of(t).channels * t.outputs + t.bias * t.outputs
            for t in self.dense_tiles
        )
