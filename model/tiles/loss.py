"""The golden loss tile: softmax cross-entropy against the packet's label, with counters."""

from dataclasses import asdict, dataclass
from typing import Any

from model.arithmetic import Arithmetic
from model.packets import EMPTY, TRAIN_BACK, Packet
from model.random_bits import RandomWords
from spec.packets import Kind
from spec.plan import Plan
from spec.tiles.loss import PROBABILITY_FRAC


@dataclass(frozen=True)
class LossResult:
    """What leaves the array for one packet; zeros for a bubble.

    `loss` is in nats in floats, and has LOSS.frac fractional bits in integers.
    """

    kind: Kind
    prediction: int = 0
    loss: float = 0


NO_RESULT = LossResult(Kind.BUBBLE)


@dataclass
class Counters:
    """Sums over the packets of one kind since the last clear."""

    seen: int = 0
    correct: int = 0
    loss: float = 0

    def count(self, correct: bool, loss: float) -> None:
        self.seen += 1
        self.correct += correct
        self.loss += loss

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions; None when nothing was seen."""
        return self.correct / self.seen if self.seen else None


class LossTile:
    """Turns logits [classes] into p - onehot in the gradient format of its edge."""

    def __init__(self, plan: Plan, arithmetic: Arithmetic) -> None:
        name = plan.network.tiles[-1].name
        edge = plan.hardware.source_of(name)
        self._gradient = edge.gradient
        self._arithmetic = arithmetic
        stochastic = arithmetic.stochastic and edge.stochastic
        self.random = RandomWords(
            plan.run.seed,
            plan.hardware.index(name),
            gradients=stochastic * edge.shape.elements,
        )
        self.clear()

    def clear(self) -> None:
        """Reset all counters."""
        self.counters = {Kind.TRAIN: Counters(), Kind.EVAL: Counters()}

    def turn(self, packet: Packet) -> tuple[LossResult, Packet]:
        """The result of one packet, and the backward packet that answers it.

        Only TRAIN yields a gradient and advances the random state; EVAL is counted and comes back
        as a bubble.
        """
        header = packet.header
        if header.kind is Kind.BUBBLE:
            return NO_RESULT, EMPTY
        prediction, loss, probabilities = self._arithmetic.cross_entropy(
            packet.tensor.flatten(), header.label
        )
        self.counters[header.kind].count(prediction == header.label, loss)
        result = LossResult(header.kind, prediction, loss)
        if header.kind is Kind.EVAL:
            return result, EMPTY
        probabilities[header.label] -= self._arithmetic.one(PROBABILITY_FRAC)
        gradient = self._arithmetic.requantize(
            probabilities, PROBABILITY_FRAC, self._gradient, self.random.draw().gradient
        )
        return result, Packet(TRAIN_BACK, gradient.view(packet.tensor.shape))

    def state(self) -> dict[str, Any]:
        """Everything that changes during a run, as plain data."""
        return {
            "random": self.random.states,
            "counters": {int(kind): asdict(counters) for kind, counters in self.counters.items()},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.random.restore(state["random"])
        self.counters = {Kind(kind): Counters(**c) for kind, c in state["counters"].items()}
