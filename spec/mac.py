"""The passes of a tile with weights, as loop nests, and its cycle formula (design, section 6).

A pass walks a loop nest and issues one step a cycle. Each step reads one word of the memories that
the pass needs and occupies the whole MAC array. Every kind of layer that runs on the MAC array is
described by four nests; the address generators of the hardware are built from nothing else.
"""

from dataclasses import dataclass
from math import prod

MEMORY_LATENCY = 1
"""Cycles from an address to its word."""
OPERAND_LATENCY = 1
"""Cycles in which operands are selected (padding, mask, evaluation) and registered."""
PRODUCT_LATENCY = 1
SUM_LATENCY = 1
"""Cycles of the adder tree; the block-stationary sums of the weight pass do not use it."""
ACCUMULATE_LATENCY = 1
ROUND_LATENCY = 1

RESULT_LATENCY = (
    MEMORY_LATENCY
    + OPERAND_LATENCY
    + PRODUCT_LATENCY
    + SUM_LATENCY
    + ACCUMULATE_LATENCY
    + ROUND_LATENCY
)
"""Cycles from the last step of a result to its beat at the tile's output queue."""
BLOCK_LATENCY = MEMORY_LATENCY + OPERAND_LATENCY + PRODUCT_LATENCY + ACCUMULATE_LATENCY
"""Cycles from the last step of a block of the weight pass to its complete sums."""

GRADIENT_ROUND_LATENCY = 1
GATHER_LATENCY = 1
"""Cycles in which gradient, weight and velocity of one turn are selected and registered."""
UPDATE_LATENCY = 12
"""Cycles from gathered operands to their successors."""

UPDATE_TAIL = BLOCK_LATENCY + GRADIENT_ROUND_LATENCY + GATHER_LATENCY + UPDATE_LATENCY
"""Cycles from the last step of the last block until the write of its new weights."""
TURN_CYCLES = 2
"""One cycle in a slot to take each of its two packets."""


@dataclass(frozen=True)
class Folding:
    """How much of a tile works in parallel: FINN's SIMD and PE, and the lanes of the update."""

    lanes_in: int
    lanes_out: int
    update_lanes: int

    @property
    def multipliers(self) -> int:
        return self.lanes_in * self.lanes_out


@dataclass(frozen=True)
class Loop:
    """One level of a nest: its trip count, and what one trip adds to each address (in words).

    `index` is what it adds to the element index, within its tensor, of the word's first lane.
    """

    count: int
    stash: int = 0
    gradient: int = 0
    weight: int = 0
    bias: int = 0
    index: int = 0


@dataclass(frozen=True)
class Pass:
    """A loop nest, outermost first, of which the `reduction` innermost loops form one sum.

    After the last step of each sum the pass idles for `idle` cycles, which it needs where the
    update unit takes longer over a block than the multipliers.
    """

    loops: tuple[Loop, ...]
    reduction: int
    idle: int = 0

    @property
    def results(self) -> int:
        """Sums that the pass yields."""
        return prod(loop.count for loop in self.loops[: len(self.loops) - self.reduction])

    @property
    def steps(self) -> int:
        """Cycles in which the pass issues."""
        return prod(loop.count for loop in self.loops)

    @property
    def cycles(self) -> int:
        return self.steps + self.results * self.idle

    @property
    def terms(self) -> int:
        """Steps that one sum adds up."""
        return self.steps // self.results


@dataclass(frozen=True)
class MacGeometry:
    """All that the hardware of a tile with weights needs to know of shapes and folding.

    Two tiles with equal geometry and formats are the same module. `backward_data` is None in the
    first tile, which has nobody to send a gradient to.
    """

    folding: Folding
    forward: Pass
    backward_data: Pass | None
    backward_weight: Pass
    backward_bias: Pass | None
    lane_stride: int
    """Distance in the weight tensor from one output channel to the next."""

    @property
    def weight_words(self) -> int:
        """Words of lanes_in x lanes_out weights, output lane major."""
        return self.backward_weight.results

    @property
    def bias_words(self) -> int:
        """Words of lanes_out biases."""
        return self.backward_bias.results if self.backward_bias else 0

    @property
    def update_turns(self) -> int:
        """Cycles in which the update unit folds in one block."""
        return self.folding.multipliers // self.folding.update_lanes

    @property
    def busy_cycles(self) -> int:
        """Multiplier-cycles of a slot over multipliers: what counts as use (padding included)."""
        data = self.backward_data.steps if self.backward_data else 0
        return self.forward.steps + data + self.backward_weight.steps

    @property
    def slot_cycles(self) -> int:
        """Cycles of a slot with a training sample both ways, when nothing makes it wait."""
        data = self.backward_data.cycles if self.backward_data else 0
        bias = self.backward_bias.cycles if self.backward_bias else 0
        passes = self.forward.cycles + data + self.backward_weight.cycles + bias
        return TURN_CYCLES + passes + UPDATE_TAIL

    @property
    def utilisation(self) -> float:
        """Share of the slot in which the multipliers work, when nothing makes it wait."""
        return self.busy_cycles / self.slot_cycles
