"""The plan: every decision about an array and its run, and nothing else crosses between parts.

`HardwarePlan` fixes the Verilog, `RunPlan` what the host programs into it; each has its own hash.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from spec.codec import content_hash, decode, encode
from spec.coefficients import QuantizedCoefficients, quantize_coefficients
from spec.edge_plan import RESULTS, EdgePlan, StreamPlan, backward_streams, forward_streams
from spec.errors import InputError
from spec.files import write_text
from spec.hyperparameters import FloatCoefficients, Hyperparameters, float_coefficients
from spec.mac import MacGeometry
from spec.mac_formats import MacFormats, SumWidths
from spec.method import Method
from spec.network import INPUT, Edge, Network
from spec.schedule import Schedule, channel_depth, delays, stash_depth
from spec.tile_plans import ConvPlan, NormPlan, ParameterPlan, TilePlan
from spec.tiles import STREAMING, TRANSPARENT, Add, Conv, Fork, Loss, MaxPool
from spec.tiles.loss import LOGITS
from spec.tiles.norm import NormFormats

LARGEST_DELAY = 1023


@dataclass(frozen=True)
class HardwarePlan:
    """All that the generated Verilog depends on.

    Raises InputError when tiles or edges differ from the network's, lanes or formats of tiles and
    edges do not fit, formats could pass the exact range, branches carry unequal tokens, or a stash
    needs more than `stash_bits` bits.
    """

    network: Network
    edges: tuple[EdgePlan, ...]
    tiles: tuple[TilePlan, ...]
    stash_bits: int

    def __post_init__(self) -> None:
        if tuple(planned.edge for planned in self.edges) != self.network.edges:
            raise InputError(f"the plan must describe the edges of {self.network.name}, in order")
        if tuple(planned.tile for planned in self.tiles) != self.network.tiles:
            raise InputError(f"the plan must describe the tiles of {self.network.name}, in order")
        for edge in self.edges:
            self._check_edge(edge)
        for planned in self.tiles:
            self._check_lanes(planned)
            self._check_formats(planned)
            self._check_stash(planned)
        _ = [self.sum_widths(planned) for planned in self.convs]

    def _check_edge(self, planned: EdgePlan) -> None:
        shape = self.network.output_shapes[planned.edge.source]
        if planned.shape != shape:
            raise InputError(f"{planned.edge}: shape must be {shape}, not {planned.shape}")
        if planned.edge.source == INPUT and (planned.tokens or planned.adapted):
            raise InputError(f"{planned.edge}: the host's edge has no tokens and no adapter")

    def _check_lanes(self, planned: TilePlan) -> None:
        name, shape = planned.tile.name, self.source_of(planned.tile.name).shape
        if isinstance(planned, ConvPlan):
            planned.tile.check_folding(shape, planned.folding)
        if isinstance(planned, NormPlan):
            planned.tile.check_lanes(shape, planned.lanes)
        for edge in self.sources_of(name):
            if edge.target_lanes != planned.lanes_in:
                raise InputError(
                    f"{edge.edge}: {name} takes {planned.lanes_in} lanes, not {edge.target_lanes}"
                )
        for edge in self.targets_of(name):
            if edge.source_lanes != planned.lanes_out:
                raise InputError(
                    f"{edge.edge}: {name} sends {planned.lanes_out} lanes, not {edge.source_lanes}"
                )

    def _check_formats(self, planned: TilePlan) -> None:
        """Tiles that hand numbers through have one format in each direction; logits are fixed."""
        name = planned.tile.name
        if isinstance(planned.tile, Loss) and self.source_of(name).activation != LOGITS:
            logits = self.source_of(name).activation
            raise InputError(f"the loss takes logits in {LOGITS}, not {logits}")
        if isinstance(planned.tile, TRANSPARENT):
            edges = [*self.sources_of(name), *self.targets_of(name)]
            formats = {(edge.activation, edge.gradient) for edge in edges}
            if len(formats) > 1:
                raise InputError(f"{name}: all its edges must share one format in each direction")

    def _check_stash(self, planned: TilePlan) -> None:
        name, delay = planned.tile.name, self.delay(planned.tile.name)
        if delay > LARGEST_DELAY:
            raise InputError(f"{name}: delay must be at most {LARGEST_DELAY}, not {delay}")
        for edge in self.sources_of(name):
            least = least_packets(planned, edge.edge, delay, self.network)
            if edge.packets < least or (isinstance(planned, ConvPlan) and edge.packets != least):
                raise InputError(
                    f"{edge.edge}: {name} needs room for {least} packets, not {edge.packets}"
                )
        bits = self.stash_bits_of(name)
        if bits > self.stash_bits:
            raise InputError(
                f"{name}: a stash of {stash_depth(delay)} packets needs {bits} bits, more than "
                f"the {self.stash_bits} allowed: shorten the delay or raise STASH_BITS"
            )

    @cached_property
    def hash(self) -> str:
        return content_hash(self)

    @cached_property
    def delays(self) -> dict[str, int]:
        """Delay in samples of every tile."""
        return delays(self.network, {planned.edge: planned.tokens for planned in self.edges})

    def delay(self, name: str) -> int:
        return self.delays[name]

    @property
    def first_delay(self) -> int:
        """Slots after which a sample has left the array."""
        return self.delays[self.network.tiles[0].name]

    @cached_property
    def _edges(self) -> dict[Edge, EdgePlan]:
        return {planned.edge: planned for planned in self.edges}

    def sources_of(self, name: str) -> list[EdgePlan]:
        """The edges that bring a tile its activations, in the order of its inputs."""
        return [self._edges[Edge(source, name)] for source in self.network.sources(name)]

    def targets_of(self, name: str) -> list[EdgePlan]:
        """The edges that take a tile's activations on, in the order of its outputs."""
        return [self._edges[Edge(name, target)] for target in self.network.targets(name)]

    def source_of(self, name: str) -> EdgePlan:
        """The (first) edge that brings a tile its activations."""
        return self.sources_of(name)[0]

    def target_of(self, name: str) -> EdgePlan:
        """The (first) edge that takes a tile's activations on."""
        return self.targets_of(name)[0]

    @cached_property
    def _tiles(self) -> dict[str, TilePlan]:
        return {planned.tile.name: planned for planned in self.tiles}

    def planned(self, name: str) -> TilePlan:
        return self._tiles[name]

    @cached_property
    def convs(self) -> tuple[ConvPlan, ...]:
        """Tiles with a MAC array, in order."""
        return tuple(planned for planned in self.tiles if isinstance(planned, ConvPlan))

    @cached_property
    def parameterised(self) -> tuple[ParameterPlan, ...]:
        """Tiles with parameters, in order."""
        return tuple(
            planned
            for planned in self.tiles
            if isinstance(planned, ConvPlan | NormPlan) and planned.parameters is not None
        )

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {tile.name: place for place, tile in enumerate(self.network.tiles)}

    def index(self, name: str) -> int:
        """Position of a tile in the network."""
        return self._positions[name]

    def geometry(self, planned: ConvPlan) -> MacGeometry:
        first = self.network.is_first(planned.tile)
        return planned.tile.geometry(
            self.source_of(planned.tile.name).shape, planned.folding, first
        )

    def formats(self, planned: ConvPlan) -> MacFormats:
        source, target = self.source_of(planned.tile.name), self.target_of(planned.tile.name)
        return MacFormats(
            source=source.activation,
            source_gradient=source.gradient,
            source_stochastic=source.stochastic,
            target=target.activation,
            target_gradient=target.gradient,
            parameters=planned.parameters,
            relu=planned.tile.relu,
        )

    def norm_formats(self, planned: NormPlan) -> NormFormats:
        source, target = self.source_of(planned.tile.name), self.target_of(planned.tile.name)
        return NormFormats(
            source=source.activation,
            source_gradient=source.gradient,
            source_stochastic=source.stochastic,
            target=target.activation,
            target_gradient=target.gradient,
            normalised=planned.normalised,
            rstd=planned.rstd,
            relu=planned.tile.relu,
            parameters=planned.parameters,
        )

    def sum_widths(self, planned: ConvPlan) -> SumWidths:
        tile = planned.tile
        source, target = self.source_of(tile.name).shape, self.target_of(tile.name).shape
        terms = tile.fan_in(source), tile.kernel**2 * target.channels
        return SumWidths.of(tile.name, self.formats(planned), *terms, target.pixels)

    @cached_property
    def streams(self) -> tuple[StreamPlan, ...]:
        """Every stream of the array: forward ones in order, backward ones from the loss back, and
        the results. Within a slot this is the order of cause and effect."""
        backwards = sorted(self.edges, key=lambda p: -self.index(p.edge.target))
        return (
            *(stream for planned in self.edges for stream in forward_streams(planned)),
            *(stream for planned in backwards for stream in backward_streams(planned)),
            RESULTS,
        )

    def stash_bits_of(self, name: str) -> int:
        """Bits of the memories that keep a tile's packets: inputs, and what norms and pools keep
        for their backward pass."""
        planned, depth = self.planned(name), stash_depth(self.delay(name))
        bits = sum(p.packets * p.shape.elements * p.activation.width for p in self.sources_of(name))
        shape = self.source_of(name).shape
        if isinstance(planned, NormPlan):
            groups = shape.channels // planned.tile.group
            mask = planned.tile.affine and planned.tile.relu
            kept = shape.elements * (planned.normalised.width + mask)
            bits += depth * (kept + groups * planned.rstd.width)
        if isinstance(planned.tile, MaxPool):
            bits += depth * self.target_of(name).shape.elements * 2
        if isinstance(planned.tile, Conv) and planned.tile.relu:
            bits += depth * self.target_of(name).shape.elements
        return bits

    def channel_packets(self, planned: EdgePlan) -> int:
        """Backward packets that fit before an edge's producer; 0 where gradients pass straight
        through it.

        What comes back to a fork past all memories of the longer way has to wait for that way.
        """
        source, target = planned.edge.source, planned.edge.target
        if source == INPUT:
            return 0
        passes_on = isinstance(self.network.tile(source), STREAMING)
        waits = isinstance(self.network.tile(source), Fork) and isinstance(
            self.network.tile(target), STREAMING
        )
        return (
            0 if passes_on and not planned.tokens and not waits else channel_depth(planned.tokens)
        )

    def channel_bits_of(self, name: str) -> int:
        """Bits of the backward channels from which a tile takes its gradients."""
        return sum(
            self.channel_packets(p) * p.shape.elements * p.gradient.width
            for p in self.targets_of(name)
        )


def least_packets(planned: TilePlan, edge: Edge, delay: int, network: Network) -> int:
    """Forward packets that a tile must have room for on one of its input edges.

    Convolutions stash what is in flight; norms, pools and the loss read a whole packet while the
    next one arrives; an add keeps what comes by a branch that has no memory of its own.
    """
    if isinstance(planned, ConvPlan):
        return stash_depth(delay)
    if isinstance(planned.tile, Add):
        return 1 if isinstance(network.tile(edge.source), STREAMING) else 0
    return 0 if isinstance(planned.tile, STREAMING) else 2


@dataclass(frozen=True)
class RunPlan:
    """What the host programs and sends: changes no Verilog."""

    method: Method
    schedule: Schedule
    hyperparameters: Hyperparameters
    seed: int
    dataset: str

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 32:
            raise InputError(f"seed must be from 0 to {(1 << 32) - 1}, not {self.seed}")

    @property
    def sequential(self) -> bool:
        """Whether each sample is drained before the next one enters."""
        return self.schedule is Schedule.SEQUENTIAL


@dataclass(frozen=True)
class Plan:
    """An array and a run on it."""

    hardware: HardwarePlan
    run: RunPlan

    def __post_init__(self) -> None:
        if self.run.method.has_hardware:
            for planned in self.hardware.parameterised:
                _ = self.coefficients(planned)

    @property
    def network(self) -> Network:
        return self.hardware.network

    @cached_property
    def run_hash(self) -> str:
        """Covers the coefficients too, since they follow from the run and the hardware."""
        exact = self.run.method.has_hardware
        coefficients = tuple(
            self.coefficients(planned).integers if exact else self.float_coefficients(planned)
            for planned in self.hardware.parameterised
        )
        return content_hash((self.run, coefficients))

    def float_coefficients(self, planned: ParameterPlan) -> FloatCoefficients:
        """Of a tile, at its own delay; at none when samples do not overlap."""
        delay, first_delay = self.hardware.delay(planned.tile.name), self.hardware.first_delay
        if self.run.sequential:
            delay = first_delay = 0
        return float_coefficients(self.run.hyperparameters, self.run.method, delay, first_delay)

    def coefficients(self, planned: ParameterPlan) -> QuantizedCoefficients:
        """Raises InputError for a method that has no hardware."""
        self.run.method.check_hardware()
        assert planned.parameters is not None
        return quantize_coefficients(self.float_coefficients(planned), planned.parameters)

    def to_json(self) -> str:
        """A text that `from_json` turns back into an equal plan."""
        return json.dumps(
            {
                "hardware_hash": self.hardware.hash,
                "run_hash": self.run_hash,
                "hardware": encode(self.hardware),
                "run": encode(self.run),
                "derived": {p.tile.name: self._derived(p) for p in self.hardware.parameterised},
            },
            indent=1,
        )

    def _derived(self, planned: ParameterPlan) -> dict[str, object]:
        """For the reader: what follows for a tile, and the error of each coefficient."""
        cycles: dict[str, object] = {}
        if isinstance(planned, ConvPlan):
            geometry = self.hardware.geometry(planned)
            cycles = {
                "slot_cycles": geometry.slot_cycles,
                "utilisation": round(geometry.utilisation, 6),
            }
        delay = self.hardware.delay(planned.tile.name)
        if not self.run.method.has_hardware:
            floats = encode(self.float_coefficients(planned))
            return {"delay": delay, **cycles, "coefficients": floats}
        coefficients = self.coefficients(planned)
        return {
            "delay": delay,
            **cycles,
            "coefficients": encode(coefficients.integers),
            "coefficient_errors": {
                error.name: {"wanted": error.wanted, "used": error.used, "relative": error.relative}
                for error in coefficients.errors
            },
        }

    @classmethod
    def from_json(cls, text: str, name: str = "plan") -> "Plan":
        """Raises InputError when the text is not a plan or its hashes do not match."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(f"{name} is not JSON: {error}") from None
        expected = {"hardware_hash", "run_hash", "hardware", "run", "derived"}
        if not isinstance(data, dict) or data.keys() != expected:
            raise InputError(f"{name} must have exactly the keys {', '.join(sorted(expected))}")
        hardware = decode(HardwarePlan, data["hardware"], f"{name}: hardware")
        plan = cls(hardware, decode(RunPlan, data["run"], f"{name}: run"))
        for key, actual in (("hardware_hash", plan.hardware.hash), ("run_hash", plan.run_hash)):
            if data[key] != actual:
                raise InputError(
                    f"{name} was edited: its {key} says {data[key]}, its content has {actual}"
                )
        if data["derived"] != json.loads(plan.to_json())["derived"]:
            raise InputError(f"{name} was edited: its derived values do not follow from the rest")
        return plan

    @classmethod
    def load(cls, path: Path) -> "Plan":
        try:
            return cls.from_json(path.read_text(), str(path))
        except OSError as error:
            raise InputError(f"cannot read plan {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"{path} is not a plan: it is not text") from None

    def save(self, path: Path) -> None:
        write_text(path, self.to_json() + "\n")
