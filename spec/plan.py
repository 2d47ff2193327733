"""The plan: every decision about an array and its run, and nothing else crosses between parts.

`HardwarePlan` fixes the Verilog, `RunPlan` what the host programs into it; each has its own hash.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from spec.codec import content_hash, decode, encode
from spec.coefficients import QuantizedCoefficients, quantize_coefficients
from spec.errors import InputError
from spec.files import write_text
from spec.formats import Fixed
from spec.hyperparameters import FloatCoefficients, Hyperparameters, Method, float_coefficients
from spec.mac import Folding, MacGeometry
from spec.mac_formats import MacFormats, SumWidths
from spec.network import INPUT, Edge, Network
from spec.packets import RESULT_FIELDS, BeatLayout, Fields
from spec.schedule import Schedule, channel_depth, delays, stash_depth
from spec.shape import Shape
from spec.tiles import Dense
from spec.tiles.loss import LOGITS
from spec.update import ParameterFormats

LARGEST_DELAY = 1023


@dataclass(frozen=True)
class EdgePlan:
    """One edge of the network as two streams: activations forwards, gradients backwards."""

    edge: Edge
    shape: Shape
    activation: Fixed
    gradient: Fixed
    stochastic: bool
    """Whether gradients are rounded stochastically on this edge."""
    lanes: int
    tokens: int

    @property
    def beats(self) -> int:
        """Beats of a packet with data."""
        return self.shape.elements // self.lanes

    @property
    def forward(self) -> BeatLayout:
        return BeatLayout(self.activation, self.lanes, forward=True)

    @property
    def backward(self) -> BeatLayout:
        """Gradients; the host gets empty packets, since nobody wants the input's gradient."""
        lanes = 0 if self.edge.source == INPUT else self.lanes
        return BeatLayout(self.gradient, lanes, forward=False)


@dataclass(frozen=True)
class StreamPlan:
    """A stream's name in reports and the fields of its beats."""

    name: str
    fields: Fields

    @property
    def width(self) -> int:
        return sum(width for _, width in self.fields)


@dataclass(frozen=True)
class DensePlan:
    """Decisions about one tile with weights."""

    tile: Dense
    folding: Folding
    parameters: ParameterFormats


@dataclass(frozen=True)
class HardwarePlan:
    """All that the generated Verilog depends on.

    Raises InputError when edges differ from the network's, lanes do not divide their channels or
    differ between neighbours, formats could pass the exact range, or a stash needs more than
    `stash_bits` bits.
    """

    network: Network
    edges: tuple[EdgePlan, ...]
    dense: tuple[DensePlan, ...]
    stash_bits: int

    def __post_init__(self) -> None:
        if tuple(planned.edge for planned in self.edges) != self.network.edges:
            raise InputError(f"the plan must describe the edges of {self.network.name}, in order")
        if tuple(planned.tile for planned in self.dense) != self.network.dense_tiles:
            raise InputError(f"the plan must describe the tiles of {self.network.name}, in order")
        for edge in self.edges:
            self._check_edge(edge)
        for planned in self.dense:
            self._check_lanes(planned)
            self._check_stash(planned.tile.name)
            _ = self.sum_widths(planned)
        logits = self.source_of(self.network.tiles[-1].name).activation
        if logits != LOGITS:
            raise InputError(f"the loss takes logits in {LOGITS}, not {logits}")

    def _check_edge(self, planned: EdgePlan) -> None:
        shape = self.network.output_shapes[planned.edge.source]
        if planned.shape != shape:
            raise InputError(f"{planned.edge}: shape must be {shape}, not {planned.shape}")
        if planned.tokens < 0:
            raise InputError(f"{planned.edge}: tokens must be at least 0, not {planned.tokens}")

    def _check_lanes(self, planned: DensePlan) -> None:
        name, folding = planned.tile.name, planned.folding
        source, target = self.source_of(name), self.target_of(name)
        planned.tile.check_folding(source.shape, folding)
        if (source.lanes, target.lanes) != (folding.lanes_in, folding.lanes_out):
            raise InputError(
                f"{name}: lanes {folding.lanes_in}x{folding.lanes_out} must equal those of its "
                f"neighbours, {source.lanes} in and {target.lanes} out"
            )

    def _check_stash(self, name: str) -> None:
        delay = self.delay(name)
        if delay > LARGEST_DELAY:
            raise InputError(f"{name}: delay must be at most {LARGEST_DELAY}, not {delay}")
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

    def source_of(self, name: str) -> EdgePlan:
        """The edge that brings a tile its activations."""
        return next(planned for planned in self.edges if planned.edge.target == name)

    def target_of(self, name: str) -> EdgePlan:
        """The edge that takes a tile's activations on."""
        return next(planned for planned in self.edges if planned.edge.source == name)

    def planned(self, name: str) -> DensePlan:
        return next(planned for planned in self.dense if planned.tile.name == name)

    def index(self, name: str) -> int:
        """Position of a tile in the network."""
        return [tile.name for tile in self.network.tiles].index(name)

    def geometry(self, planned: DensePlan) -> MacGeometry:
        name = planned.tile.name
        first = self.network.is_first(planned.tile)
        return planned.tile.geometry(self.source_of(name).shape, planned.folding, first)

    def formats(self, planned: DensePlan) -> MacFormats:
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

    def sum_widths(self, planned: DensePlan) -> SumWidths:
        name = planned.tile.name
        source, target = self.source_of(name).shape, self.target_of(name).shape
        return SumWidths.of(
            name, self.formats(planned), source.channels, target.channels, target.pixels
        )

    @cached_property
    def streams(self) -> tuple["StreamPlan", ...]:
        """Every stream of the array: forward ones in order, backward ones from the loss back, and
        the results. Within a slot this is the order of cause and effect."""
        forward = [StreamPlan(f"{p.edge} forward", p.forward.fields) for p in self.edges]
        backward = [StreamPlan(f"{p.edge} backward", p.backward.fields) for p in self.edges]
        return (*forward, *reversed(backward), StreamPlan("results", RESULT_FIELDS))

    def stash_bits_of(self, name: str) -> int:
        """Bits of the memory that keeps a tile's in-flight inputs."""
        source = self.source_of(name)
        return stash_depth(self.delay(name)) * source.shape.elements * source.activation.width

    def channel_bits_of(self, name: str) -> int:
        """Bits of the backward channel from which a tile takes its gradients."""
        target = self.target_of(name)
        return channel_depth(target.tokens) * target.shape.elements * target.gradient.width


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
        for planned in self.hardware.dense:
            _ = self.coefficients(planned)

    @property
    def network(self) -> Network:
        return self.hardware.network

    @cached_property
    def run_hash(self) -> str:
        """Covers the coefficients too, since they follow from the run and the hardware."""
        integers = tuple(self.coefficients(planned).integers for planned in self.hardware.dense)
        return content_hash((self.run, integers))

    def float_coefficients(self, planned: DensePlan) -> FloatCoefficients:
        """Of a tile, at its own delay; at none when samples do not overlap."""
        delay = 0 if self.run.sequential else self.hardware.delay(planned.tile.name)
        return float_coefficients(self.run.hyperparameters, self.run.method, delay)

    def coefficients(self, planned: DensePlan) -> QuantizedCoefficients:
        return quantize_coefficients(self.float_coefficients(planned), planned.parameters)

    def to_json(self) -> str:
        """A text that `from_json` turns back into an equal plan."""
        return json.dumps(
            {
                "hardware_hash": self.hardware.hash,
                "run_hash": self.run_hash,
                "hardware": encode(self.hardware),
                "run": encode(self.run),
                "derived": {p.tile.name: self._derived(p) for p in self.hardware.dense},
            },
            indent=1,
        )

    def _derived(self, planned: DensePlan) -> dict[str, object]:
        """For the reader: what follows for a tile, and the error of each coefficient."""
        coefficients = self.coefficients(planned)
        geometry = self.hardware.geometry(planned)
        return {
            "delay": self.hardware.delay(planned.tile.name),
            "slot_cycles": geometry.slot_cycles,
            "utilisation": round(geometry.utilisation, 6),
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
