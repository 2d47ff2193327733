"""The golden dense tile: y = W x + b with an optional ReLU, late gradients and its own update."""

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import torch

from model.arithmetic import Arithmetic
from model.packets import EMPTY, TRAIN_BACK, Packet
from model.random_bits import RandomWords, Words
from model.update import Coefficients, Moments
from spec.mac_formats import MacFormats
from spec.packets import Kind
from spec.plan import DensePlan, Plan


@dataclass
class Parameters:
    """What a tile stores; flat vectors of its weights in [out, in] order, then its biases.

    `working` is the rounded (and predicted) copy that the forward pass of training reads.
    """

    moments: Moments
    working: torch.Tensor


@dataclass(frozen=True)
class InFlight:
    """A stash entry: what the backward pass of a sample needs, nothing unless it trains."""

    kind: Kind
    source: torch.Tensor | None = None
    mask: torch.Tensor | None = None


FREED = InFlight(Kind.BUBBLE)


def working_copy(
    flat: torch.Tensor, formats: MacFormats, weights: int, arithmetic: Arithmetic
) -> torch.Tensor:
    """Round parameters in the master's binary point, the first `weights` of which are weights."""
    frac, round_to = formats.parameters.master.frac, arithmetic.requantize
    copy = round_to(flat[:weights], frac, formats.parameters.working)
    if weights == len(flat):
        return copy
    return torch.cat((copy, round_to(flat[weights:], frac, formats.bias)))


class DenseTile:
    """Handles one forward and then one backward packet a slot (design, sections 3 and 5).

    Vectors are x [inputs] in `formats.source` and y [outputs] in `formats.target`. Gradients have
    the formats of the two edges. TRAIN forwards with the working copy; EVAL, and every backward
    pass, read the rounded master weights. A backward bubble changes nothing.
    """

    def __init__(
        self, plan: Plan, planned: DensePlan, arithmetic: Arithmetic, parameters: Parameters
    ) -> None:
        hardware, tile = plan.hardware, planned.tile
        self.name = tile.name
        self.formats = hardware.formats(planned)
        self.first = plan.network.is_first(tile)
        self.inputs = hardware.source_of(tile.name).shape.channels
        self.outputs, self.bias = tile.outputs, tile.bias
        self.parameters = parameters
        self.shadow: Coefficients = arithmetic.coefficients(plan, planned)
        self.active = self.shadow
        self._arithmetic = arithmetic
        updates = arithmetic.stochastic and self.formats.parameters.stochastic
        gradients = arithmetic.stochastic and self.formats.source_stochastic and not self.first
        self.random = RandomWords(
            plan.run.seed,
            hardware.index(tile.name),
            (updates * self.weight_count, updates * self.bias * self.outputs),
            gradients * self.inputs,
        )
        self.stash = deque([FREED] * hardware.delay(tile.name))

    @property
    def weight_count(self) -> int:
        return self.outputs * self.inputs

    def forward(self, packet: Packet) -> Packet:
        """The tile's result; moves the shadow coefficients to the active set on `commit`."""
        header = packet.header
        if header.commit:
            self.active = self.shadow
        if header.kind is Kind.BUBBLE:
            self.stash.append(FREED)
            return packet
        training = header.kind is Kind.TRAIN
        flat = self.parameters.working if training else self.rounded(self.parameters.moments.master)
        source, target = packet.tensor, self.formats.target
        sums = self._arithmetic.product(self._weights(flat), source)
        if self.bias:
            biases = flat[self.weight_count :]
            sums = self._arithmetic.preload(sums, biases, self.formats.bias_shift)
        result = self._arithmetic.requantize(sums, self.formats.forward_frac, target)
        mask = result > 0 if self.formats.relu else None
        self.stash.append(InFlight(header.kind, source, mask) if training else FREED)
        return Packet(header, result)

    def backward(self, packet: Packet) -> Packet:
        """The gradient of x, by the weights before the update that this sample causes."""
        entry = self.stash.popleft()
        if packet.header.kind is not entry.kind:
            raise RuntimeError(f"{self.name}: {packet.header} came back for {entry.kind!r}")
        if entry.kind is Kind.BUBBLE or entry.source is None:
            return EMPTY
        gradient = packet.tensor if entry.mask is None else packet.tensor * entry.mask
        words = self.random.draw()
        back = None if self.first else self._source_gradient(gradient, words)
        self._update(gradient, entry.source, words)
        return Packet(TRAIN_BACK, back)

    def rounded(self, flat: torch.Tensor) -> torch.Tensor:
        """Master or predicted weights in the formats of the working copies."""
        return working_copy(flat, self.formats, self.weight_count, self._arithmetic)

    def _weights(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[: self.weight_count].view(self.outputs, self.inputs)

    def _source_gradient(self, gradient: torch.Tensor, words: Words) -> torch.Tensor:
        weights = self._weights(self.rounded(self.parameters.moments.master))
        sums = self._arithmetic.product(weights.T, gradient)
        formats = self.formats
        return self._arithmetic.requantize(
            sums, formats.data_frac, formats.source_gradient, words.gradient
        )

    def _update(self, gradient: torch.Tensor, source: torch.Tensor, words: Words) -> None:
        formats, round_to = self.formats, self._arithmetic.requantize
        target = formats.parameters.gradient
        sums = torch.outer(gradient, source).view(-1)
        flat = round_to(sums, formats.weight_frac, target)
        if self.bias:
            biases = round_to(gradient, formats.target_gradient.frac, target)
            flat = torch.cat((flat, biases))
        moments, predicted = self._arithmetic.update(
            self.parameters.moments,
            flat,
            formats.parameters,
            self.active,
            (words.velocity, words.weight),
        )
        self.parameters = Parameters(moments, self.rounded(predicted))

    def state(self) -> dict[str, Any]:
        """Everything that changes during a run, as plain data and tensors."""
        return {
            "parameters": [*self.parameters.moments, self.parameters.working],
            "random": list(self.random.states),
            "active": asdict(self.active),
            "shadow": asdict(self.shadow),
            "stash": [(int(entry.kind), entry.source, entry.mask) for entry in self.stash],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        master, velocity, working = state["parameters"]
        self.parameters = Parameters(Moments(master, velocity), working)
        self.random.states = list(state["random"])
        self.active = self._arithmetic.coefficients_from(state["active"])
        self.shadow = self._arithmetic.coefficients_from(state["shadow"])
        self.stash = deque(InFlight(Kind(kind), *rest) for kind, *rest in state["stash"])
