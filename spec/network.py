"""A network is a graph of tiles, grouped into stages."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from spec.errors import InputError
from spec.shape import Shape
from spec.tiles import Add, Conv, Fork, Loss, ParameterTile, Tile

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

    Edges are sorted by the position of their source, then of their target. Only a fork feeds more
    than one tile and only an add has more than one input. The first tile is a convolution.

    Raises InputError when names repeat, an edge leads nowhere or backwards, a tile lacks an input,
    shapes do not fit, stages do not list the tiles in order, or the loss is not the end.
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
        if not isinstance(self.tiles[0], Conv):
            raise InputError(f"{self.name}: the first tile must be a convolution or dense")
        if [name for stage in self.stages for name in stage] != names:
            raise InputError(f"{self.name}: the stages must list every tile once, in order")
        self._check_edges(names)
        self._check_shapes()

    def _check_edges(self, names: list[str]) -> None:
        order = {name: position for position, name in enumerate([INPUT, *names])}
        for edge in self.edges:
            if edge.source not in order or edge.target not in order:
                raise InputError(f"{self.name}: edge {edge} joins tiles that do not exist")
            if order[edge.source] >= order[edge.target]:
                raise InputError(f"{self.name}: edge {edge} leads backwards")
        places = [(order[edge.source], order[edge.target]) for edge in self.edges]
        if places != sorted(set(places)):
            raise InputError(f"{self.name}: edges must differ and follow the order of the tiles")
        for tile in self.tiles:
            wanted = 2 if isinstance(tile, Add) else 1
            if len(self.sources(tile.name)) != wanted:
                inputs = "two inputs" if wanted == 2 else "one input"
                raise InputError(f"{self.name}: {tile.name} must have exactly {inputs}")
        forks = {tile.name for tile in self.tiles if isinstance(tile, Fork)}
        for name in [INPUT, *names[:-1]]:
            count = len(self.targets(name))
            if name in forks and count < 2:
                raise InputError(f"{self.name}: {name} must feed at least two tiles")
            if name not in forks and count != 1:
                raise InputError(f"{self.name}: {name} must feed exactly one tile")

    def _check_shapes(self) -> None:
        for tile in self.tiles:
            if isinstance(tile, Add):
                first, second = (self.output_shapes[name] for name in self.sources(tile.name))
                if first != second:
                    raise InputError(f"{tile.name}: inputs must be equal, not {first} and {second}")
        _ = self.output_shapes

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
            shapes[tile.name] = tile.output_shape(shapes[self.sources(tile.name)[0]])
        return shapes

    @cached_property
    def _by_name(self) -> dict[str, Tile]:
        return {tile.name: tile for tile in self.tiles}

    @cached_property
    def _sources(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {tile.name: () for tile in self.tiles}
        for edge in self.edges:
            found[edge.target] += (edge.source,)
        return found

    @cached_property
    def _targets(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = dict.fromkeys([INPUT, *self._by_name], ())
        for edge in self.edges:
            found[edge.source] += (edge.target,)
        return found

    def tile(self, name: str) -> Tile:
        return self._by_name[name]

    def sources(self, name: str) -> tuple[str, ...]:
        """The tiles (or the input) that feed a tile, in the order of its inputs."""
        return self._sources[name]

    def targets(self, name: str) -> tuple[str, ...]:
        """The tiles that a tile (or the input) feeds, in the order of its outputs."""
        return self._targets[name]

    def input_shape_of(self, tile: Tile) -> Shape:
        return self.output_shapes[self.sources(tile.name)[0]]

    def is_first(self, tile: Tile) -> bool:
        """Whether the tile's input comes from the host, so that nobody wants its gradient."""
        return self.sources(tile.name) == (INPUT,)

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """Number of each tile's stage."""
        return {name: i for i, stage in enumerate(self.stages) for name in stage}

    @cached_property
    def convs(self) -> tuple[Conv, ...]:
        """The tiles with a MAC array, in order."""
        return tuple(tile for tile in self.tiles if isinstance(tile, Conv))

    def has_parameters(self, name: str) -> bool:
        tile = self._by_name[name]
        return isinstance(tile, ParameterTile) and sum(self.parameter_counts(tile)) > 0

    def parameter_counts(self, tile: ParameterTile) -> tuple[int, int]:
        """Weights (or gains) and biases (or offsets) of a tile."""
        return tile.parameter_counts(self.input_shape_of(tile))

    @property
    def depth(self) -> int:
        """Stages with parameters: the S of the schedules."""
        return len({self.stage_of[t.name] for t in self.tiles if self.has_parameters(t.name)})

    @property
    def classes(self) -> int:
        return self.output_shapes[self.tiles[-1].name].channels

    @property
    def parameters(self) -> int:
        """Weights and biases in total."""
        tiles = [tile for tile in self.tiles if isinstance(tile, ParameterTile)]
        return sum(sum(self.parameter_counts(tile)) for tile in tiles)

    @property
    def macs(self) -> int:
        """Multiplications of one forward pass, padded ones included."""
        return sum(tile.macs(self.input_shape_of(tile)) for tile in self.convs)


class NetworkBuilder:
    """Writes a network down tile by tile, in topological order.

    `add` appends a tile behind the one before it, or behind `sources`; `stage` begins a new stage.
    """

    def __init__(self, name: str, input_shape: Shape) -> None:
        self._name, self._input_shape = name, input_shape
        self._tiles: list[Tile] = []
        self._edges: list[Edge] = []
        self._stages: list[list[str]] = [[]]

    def add(self, tile: Tile, *sources: str) -> str:
        """Returns the tile's name."""
        before = self._tiles[-1].name if self._tiles else INPUT
        self._edges += [Edge(source, tile.name) for source in sources or (before,)]
        self._tiles.append(tile)
        self._stages[-1].append(tile.name)
        return tile.name

    def stage(self) -> None:
        if self._stages[-1]:
            self._stages.append([])

    def network(self) -> Network:
        order = {tile.name: place for place, tile in enumerate(self._tiles, 1)} | {INPUT: 0}
        edges = sorted(self._edges, key=lambda e: (order.get(e.source, -1), order[e.target]))
        stages = tuple(tuple(stage) for stage in self._stages if stage)
        return Network(self._name, self._input_shape, tuple(self._tiles), tuple(edges), stages)
