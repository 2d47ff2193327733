"""What all golden tiles share: packets in and out, the stash, and a tile's parameters."""

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, NamedTuple

import torch

from model.arithmetic import Arithmetic
from model.packets import EMPTY, TRAIN_BACK, Packet
from model.random_bits import RandomWords, Words
from model.update import Coefficients, Moments
from spec.errors import InputError
from spec.formats import Fixed
from spec.packets import Kind
from spec.plan import Plan
from spec.tile_plans import ConvPlan, ParameterPlan
from spec.update import ParameterFormats


class Tile(ABC):
    """Handles one forward and then one backward packet a slot on each of its edges.

    Packet data are tensors [rows, columns, channels] in the formats of their edges.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def forward(self, *packets: Packet) -> tuple[Packet, ...]:
        """A packet for each output edge, from one of each input edge, in their orders."""

    @abstractmethod
    def backward(self, *packets: Packet) -> tuple[Packet, ...]:
        """A packet for each input edge, from one of each output edge, in their orders.

        A bubble changes nothing.
        """

    def state(self) -> dict[str, Any]:
        """Everything that changes during a run, as plain data and tensors."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        if state:
            raise ValueError(f"{self.name} keeps nothing, but was given {sorted(state)}")


Kept = tuple[torch.Tensor | None, ...]
"""What a tile keeps of a training sample for its backward pass."""


@dataclass(frozen=True)
class InFlight:
    """A stash entry: `kept` is empty unless the sample trains."""

    kind: Kind
    kept: Kept = ()


FREED = InFlight(Kind.BUBBLE)


class StashTile(Tile):
    """A tile with one input and one output that keeps something of every sample in flight."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__(name)
        self.stash = deque([FREED] * plan.hardware.delay(name))

    def forward(self, *packets: Packet) -> tuple[Packet, ...]:
        """EVAL frees its stash entry at once, a bubble passes."""
        (packet,) = packets
        if packet.header.commit:
            self._commit()
        if packet.header.kind is Kind.BUBBLE:
            self.stash.append(FREED)
            return (packet,)
        training = packet.header.kind is Kind.TRAIN
        result, kept = self._forward(packet.tensor, training)
        self.stash.append(InFlight(Kind.TRAIN, kept) if training else FREED)
        return (Packet(packet.header, result),)

    def backward(self, *packets: Packet) -> tuple[Packet, ...]:
        """The gradient of the input of the oldest sample in flight."""
        (packet,) = packets
        entry = self.stash.popleft()
        if packet.header.kind is not entry.kind:
            raise RuntimeError(f"{self.name}: {packet.header} came back for {entry.kind!r}")
        if entry.kind is Kind.BUBBLE:
            return (EMPTY,)
        return (Packet(TRAIN_BACK, self._backward(packet.tensor, *entry.kept)),)

    def _commit(self) -> None:
        """Called before the forward pass of a packet that commits."""

    @abstractmethod
    def _forward(self, source: torch.Tensor, training: bool) -> tuple[torch.Tensor, Kept]:
        """The result, and what the backward pass needs."""

    @abstractmethod
    def _backward(self, gradient: torch.Tensor, *kept: Any) -> torch.Tensor | None:
        """The gradient of the input; None where nobody wants it."""

    def state(self) -> dict[str, Any]:
        return {"stash": [(int(entry.kind), entry.kept) for entry in self.stash]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.stash = deque(InFlight(Kind(kind), tuple(kept)) for kind, kept in state["stash"])


class RandomTile(StashTile):
    """A tile whose random states advance once for every training sample that comes back.

    `parameters` counts the weights and biases, `gradients` tells whether gradients are wanted.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        arithmetic: Arithmetic,
        parameters: tuple[int, int] = (0, 0),
        gradients: bool = True,
    ) -> None:
        super().__init__(plan, name)
        source = plan.hardware.source_of(name)
        gradients &= source.stochastic and arithmetic.stochastic
        self._arithmetic = arithmetic
        self.random = RandomWords(
            plan.run.seed,
            plan.hardware.index(name),
            parameters if arithmetic.stochastic else (0, 0),
            gradients * source.shape.elements,
        )

    def state(self) -> dict[str, Any]:
        return {**super().state(), "random": self.random.states}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.random.restore(state["random"])


class WorkingCopy(NamedTuple):
    """Rounded weights (or gains) in their shape, and biases (or offsets) if the tile has some."""

    weights: torch.Tensor
    biases: torch.Tensor | None


@dataclass(frozen=True)
class Parameters:
    """What a tile stores.

    The moments are flat: the weights in the order of their shape, then the biases. `working` is the
    rounded (and predicted) copy that the forward pass of training reads.
    """

    moments: Moments
    working: WorkingCopy


@dataclass(frozen=True)
class Rounding:
    """How flat parameters become what the multipliers and sums read.

    `shape` is that of the weights. `standardised` weights get zero mean and unit variance over
    everything but their first dimension.
    """

    formats: ParameterFormats
    bias: Fixed
    shape: tuple[int, ...]
    standardised: bool = False

    @classmethod
    def of(cls, plan: Plan, planned: ParameterPlan) -> "Rounding":
        hardware, name = plan.hardware, planned.tile.name
        source = hardware.source_of(name).shape
        assert planned.parameters is not None
        if isinstance(planned, ConvPlan):
            bias, shape = hardware.formats(planned).bias, planned.tile.weight_shape(source)
            return cls(planned.parameters, bias, shape, planned.tile.standardised)
        return cls(planned.parameters, hardware.norm_formats(planned).offset, (source.channels,))

    def weights(self, flat: torch.Tensor, arithmetic: Arithmetic) -> torch.Tensor:
        """The weights of flat master (or predicted) parameters."""
        frac, working = self.formats.master.frac, self.formats.working
        rounded = arithmetic.requantize(flat[: prod(self.shape)], frac, working).view(self.shape)
        return arithmetic.standardise(rounded)[0] if self.standardised else rounded

    def through(
        self, gradient: torch.Tensor, flat: torch.Tensor, arithmetic: Arithmetic
    ) -> torch.Tensor:
        """The gradient of the weights from that of the standardised ones:
        (g - mean(g) - w^ mean(g w^)) / sigma, filter by filter."""
        raw = flat[: prod(self.shape)].view(self.shape)
        standard, sigma = (part.flatten(1) for part in arithmetic.standardise(raw))
        rows = gradient.reshape(self.shape[0], -1)
        pulled = (rows * standard).mean(1, keepdim=True)
        result: torch.Tensor = (rows - rows.mean(1, keepdim=True) - standard * pulled) / sigma
        return result

    def copy(self, flat: torch.Tensor, arithmetic: Arithmetic) -> WorkingCopy:
        """Weights and biases of flat master (or predicted) parameters."""
        frac, count = self.formats.master.frac, prod(self.shape)
        biases = None
        if len(flat) > count:
            biases = arithmetic.requantize(flat[count:], frac, self.bias)
        return WorkingCopy(self.weights(flat, arithmetic), biases)


class ParameterTile(RandomTile):
    """A tile with parameters of its own, which it updates for every training sample."""

    def __init__(
        self,
        plan: Plan,
        planned: ParameterPlan,
        arithmetic: Arithmetic,
        parameters: Parameters,
        gradients: bool = True,
    ) -> None:
        assert planned.parameters is not None
        counts = plan.network.parameter_counts(planned.tile)
        stochastic = planned.parameters.stochastic
        random = (stochastic * counts[0], stochastic * counts[1])
        super().__init__(plan, planned.tile.name, arithmetic, random, gradients)
        self.parameters = parameters
        self.rounding = Rounding.of(plan, planned)
        self._stashes = plan.run.method.stashes_weights
        if self._stashes and self.rounding.standardised:
            raise InputError(f"{self.name}: standardised weights cannot be stashed")
        self.shadow: Coefficients = arithmetic.coefficients(plan, planned)
        self.active = self.shadow

    def rounded_master(self) -> WorkingCopy:
        """What EVAL reads in place of the working copy."""
        return self.rounding.copy(self.parameters.moments.master, self._arithmetic)

    def _copy(self, training: bool) -> WorkingCopy:
        return self.parameters.working if training else self.rounded_master()

    def _stashed(self, copy: WorkingCopy) -> torch.Tensor | None:
        """What a forward pass keeps of its weights for the backward pass of the same sample."""
        return copy.weights if self._stashes else None

    def _backward_weights(self, stashed: torch.Tensor | None) -> torch.Tensor:
        """The weights that a backward pass reads: the rounded master (or predicted) ones, or those
        of its own forward pass."""
        if stashed is not None:
            return stashed
        return self.rounding.weights(self._backward_master(), self._arithmetic)

    def _backward_master(self) -> torch.Tensor:
        return self._arithmetic.backward_master(self.parameters.moments, self.active)

    def _commit(self) -> None:
        self.active = self.shadow

    def _update(self, gradient: torch.Tensor, words: Words) -> None:
        """Fold flat gradients in, rounded as the update wants them."""
        moments, predicted = self._arithmetic.update(
            self.parameters.moments,
            gradient,
            self.rounding.formats,
            self.active,
            (words.velocity, words.weight),
        )
        self.parameters = Parameters(moments, self.rounding.copy(predicted, self._arithmetic))

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "moments": tuple(self.parameters.moments),
            "working": tuple(self.parameters.working),
            "active": asdict(self.active),
            "shadow": asdict(self.shadow),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.parameters = Parameters(Moments(*state["moments"]), WorkingCopy(*state["working"]))
        self.active = self._arithmetic.coefficients_from(state["active"])
        self.shadow = self._arithmetic.coefficients_from(state["shadow"])
