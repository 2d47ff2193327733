"""The golden dense tile: y = W x + b with an optional ReLU, late gradients and its own update."""

from collections import deque
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, NamedTuple

import torch

from model.arithmetic import Arithmetic
from model.packets import EMPTY, TRAIN_BACK, Packet
from model.random_bits import RandomWords, Words
from model.update import Coefficients, Moments
from spec.mac_formats import MacFormats
from spec.packets import Kind
from spec.plan import DensePlan, Plan
from spec.tiles import Dense


class WorkingCopy(NamedTuple):
    """Rounded weights [out, in], and biases [out] if the tile has some."""

    weights: torch.Tensor
    biases: torch.Tensor | None


@dataclass(frozen=True)
class Parameters:
    """What a tile stores.

    The moments are flat: the weights in [out, in] order, then the biases. `working` is the rounded
    (and predicted) copy that the forward pass of training reads.
    """

    moments: Moments
    working: WorkingCopy


@dataclass(frozen=True)
class InFlight:
    """A stash entry: what the backward pass of a sample needs, nothing unless it trains."""

    kind: Kind
    source: torch.Tensor | None = None
    mask: torch.Tensor | None = None


FREED = InFlight(Kind.BUBBLE)


def rounded_weights(
    flat: torch.Tensor, formats: MacFormats, shape: tuple[int, ...], arithmetic: Arithmetic
) -> torch.Tensor:
    """The weights of flat master (or predicted) parameters in the working format, as `shape`."""
    frac, working = formats.parameters.master.frac, formats.parameters.working
    return arithmetic.requantize(flat[: prod(shape)], frac, working).view(shape)


def working_copy(
    flat: torch.Tensor, formats: MacFormats, shape: tuple[int, ...], arithmetic: Arithmetic
) -> WorkingCopy:
    """Round master (or predicted) parameters, flat, to what the multipliers and sums read.

    `shape` is that of the weights, [out, in].
    """
    frac, round_to, count = formats.parameters.master.frac, arithmetic.requantize, prod(shape)
    weights = rounded_weights(flat, formats, shape, arithmetic)
    biases = round_to(flat[count:], frac, formats.bias) if len(flat) > count else None
    return WorkingCopy(weights, biases)


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
        self.shape = tile.weight_shape(hardware.source_of(tile.name).shape)
        self.parameters = parameters
        self.shadow: Coefficients = arithmetic.coefficients(plan, planned)
        self.active = self.shadow
        self._arithmetic = arithmetic
        self.random = RandomWords(
            plan.run.seed, hardware.index(tile.name), *self._stochastic_counts(tile)
        )
        self.stash = deque([FREED] * hardware.delay(tile.name))

    def _stochastic_counts(self, tile: Dense) -> tuple[tuple[int, int], int]:
        """Weights and biases, and gradients, that need random words."""
        updates = gradients = self._arithmetic.stochastic
        updates &= self.formats.parameters.stochastic
        gradients &= self.formats.source_stochastic and not self.first
        biases = tile.outputs if tile.bias else 0
        return (updates * prod(self.shape), updates * biases), gradients * self.shape[1]

    def forward(self, packet: Packet) -> Packet:
        """The tile's result; moves the shadow coefficients to the active set on `commit`."""
        header = packet.header
        if header.commit:
            self.active = self.shadow
        if header.kind is Kind.BUBBLE:
            self.stash.append(FREED)
            return packet
        training = header.kind is Kind.TRAIN
        copy = self.parameters.working if training else self.rounded_master()
        sums = self._arithmetic.product(copy.weights, packet.tensor)
        if copy.biases is not None:
            sums = self._arithmetic.preload(sums, copy.biases, self.formats.bias_shift)
        result = self._arithmetic.requantize(sums, self.formats.forward_frac, self.formats.target)
        mask = result > 0 if self.formats.relu else None
        self.stash.append(InFlight(header.kind, packet.tensor, mask) if training else FREED)
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

    def rounded_master(self) -> WorkingCopy:
        """What EVAL reads in place of the working copy; backward passes read its weights too."""
        return self._rounded(self.parameters.moments.master)

    def _rounded(self, flat: torch.Tensor) -> WorkingCopy:
        return working_copy(flat, self.formats, self.shape, self._arithmetic)

    def _source_gradient(self, gradient: torch.Tensor, words: Words) -> torch.Tensor:
        formats, master = self.formats, self.parameters.moments.master
        weights = rounded_weights(master, formats, self.shape, self._arithmetic)
        sums = self._arithmetic.product(weights.T, gradient)
        return self._arithmetic.requantize(
            sums, formats.data_frac, formats.source_gradient, words.gradient
        )

    def _update(self, gradient: torch.Tensor, source: torch.Tensor, words: Words) -> None:
        formats, round_to = self.formats, self._arithmetic.requantize
        target = formats.parameters.gradient
        sums = torch.outer(gradient, source).view(-1)
        flat = round_to(sums, formats.weight_frac, target)
        if self.parameters.working.biases is not None:
            biases = round_to(gradient, formats.target_gradient.frac, target)
            flat = torch.cat((flat, biases))
        moments, predicted = self._arithmetic.update(
            self.parameters.moments,
            flat,
            formats.parameters,
            self.active,
            (words.velocity, words.weight),
        )
        self.parameters = Parameters(moments, self._rounded(predicted))

    def state(self) -> dict[str, Any]:
        """Everything that changes during a run, as plain data and tensors."""
        return {
            "moments": tuple(self.parameters.moments),
            "working": tuple(self.parameters.working),
            "random": self.random.states,
            "active": asdict(self.active),
            "shadow": asdict(self.shadow),
            "stash": [(int(entry.kind), entry.source, entry.mask) for entry in self.stash],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.parameters = Parameters(Moments(*state["moments"]), WorkingCopy(*state["working"]))
        self.random.restore(state["random"])
        self.active = self._arithmetic.coefficients_from(state["active"])
        self.shadow = self._arithmetic.coefficients_from(state["shadow"])
        self.stash = deque(InFlight(Kind(kind), *rest) for kind, *rest in state["stash"])
