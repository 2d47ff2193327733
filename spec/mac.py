"""The passes of a tile with weights, as loop nests, and its cycle formula (design, section 6).

A pass walks a loop nest and issues one step a cycle. Each step reads one word of the memories that
the pass needs and occupies the whole MAC array. Every kind of layer that runs on the MAC array is
described by four nests; the address generators of the hardware are built from nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from math import prod
from operator import add

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
"""Cycles from the last step of a block until the first write of its new weights."""
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
class Offset:
    """What a step or a trip adds to each address (in words).

    `index` counts elements of the tensor that the pass yields, to the word's first lane. `row` and
    `column` locate the operand that may lie in the padding.
    """

    stash: int = 0
    gradient: int = 0
    weight: int = 0
    bias: int = 0
    index: int = 0
    row: int = 0
    column: int = 0

    def __add__(self, other: "Offset") -> "Offset":
        return Offset(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: "Offset") -> "Offset":
        return self + -1 * other

    def __rmul__(self, times: int) -> "Offset":
        return Offset(*(times * member for member in astuple(self)))


@dataclass(frozen=True)
class Loop:
    """One level of a nest.

    With P the number of `starts`, trip t adds (t // P) * step + starts[t % P]; t % P is its phase.
    `count` is the number of trips; where it depends on the phase of an outer loop, `by` is that
    loop's level and `count` has one number for each of its phases.
    """

    count: int | tuple[int, ...]
    step: Offset = Offset()
    starts: tuple[Offset, ...] = (Offset(),)
    by: int | None = None

    @property
    def trips(self) -> int:
        """Of a loop whose count depends on no other."""
        if not isinstance(self.count, int):
            raise TypeError(f"count must be one number, not {self.count!r}")
        return self.count

    def at(self, trip: int) -> Offset:
        """What trip number `trip` adds."""
        turn, phase = divmod(trip, len(self.starts))
        return turn * self.step + self.starts[phase]


@dataclass(frozen=True)
class Pass:
    """A loop nest, outermost first, of which the `reduction` innermost loops form one sum.

    Addresses start at `origin`. An operand whose row or column lies outside `bounds` (rows,
    columns) is zero. After the last step of each sum the pass idles for `idle` cycles, which it
    needs where the update unit takes longer over a block than the multipliers.
    """

    loops: tuple[Loop, ...]
    reduction: int
    idle: int = 0
    origin: Offset = Offset()
    bounds: tuple[int, int] | None = None

    @property
    def results(self) -> int:
        """Sums that the pass yields."""
        return prod(loop.trips for loop in self.loops[: len(self.loops) - self.reduction])

    @cached_property
    def steps(self) -> int:
        """Cycles in which the pass issues."""
        total = 1
        inner: dict[int, list[int]] = {}
        for loop in self.loops:
            if loop.by is not None:
                counts = inner.setdefault(loop.by, [1] * len(self.loops[loop.by].starts))
                inner[loop.by] = [a * b for a, b in zip(counts, self._counts(loop), strict=True)]
        for level, loop in enumerate(self.loops):
            if level in inner:
                total *= sum(inner[level][trip % len(loop.starts)] for trip in range(loop.trips))
            elif loop.by is None:
                total *= loop.trips
        return total

    @property
    def cycles(self) -> int:
        return self.steps + self.results * self.idle

    def walk(self) -> Iterator["Step"]:
        """Every step in order: the reference for the address generators."""
        yield from self._walk((), self.origin)

    def trips(self, level: int, outer: Sequence[int]) -> int:
        """Trips of a loop, given those of the loops around it."""
        loop = self.loops[level]
        if loop.by is None:
            return loop.trips
        return self._counts(loop)[outer[loop.by] % len(self.loops[loop.by].starts)]

    def _walk(self, outer: tuple[int, ...], at: Offset) -> Iterator["Step"]:
        level = len(outer)
        if level == len(self.loops):
            yield self._step(outer, at)
            return
        for trip in range(self.trips(level, outer)):
            yield from self._walk((*outer, trip), at + self.loops[level].at(trip))

    def _step(self, trips: tuple[int, ...], at: Offset) -> "Step":
        ends = [trip == self.trips(level, trips) - 1 for level, trip in enumerate(trips)]
        inner = len(trips) - self.reduction
        padded = self.bounds is not None and not (
            0 <= at.row < self.bounds[0] and 0 <= at.column < self.bounds[1]
        )
        first = not any(trips[inner:])
        return Step(at, first, all(ends[inner:]), all(ends), padded)

    @staticmethod
    def _counts(loop: Loop) -> tuple[int, ...]:
        return loop.count if isinstance(loop.count, tuple) else (loop.count,)


@dataclass(frozen=True)
class Step:
    """One step of a pass: its addresses, whether it is the first and last of its sum and the last
    of all, and whether its operand is padding."""

    at: Offset
    first: bool
    last: bool
    final: bool
    padded: bool


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
    def bias_turns(self) -> int:
        """Cycles in which the update unit folds in one word of biases."""
        return max(1, self.folding.lanes_out // self.folding.update_lanes)

    @property
    def update_tail(self) -> int:
        """Cycles from the end of the last pass until the last write of new parameters: the turns
        of its last block begin with its last step, and may outlast its idle cycles."""
        last, turns = self.backward_weight, self.update_turns
        if self.backward_bias:
            last, turns = self.backward_bias, self.bias_turns
        return UPDATE_TAIL + turns - 1 - last.idle

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
        return TURN_CYCLES + passes + self.update_tail

    @property
    def utilisation(self) -> float:
        """Share of the slot in which the multipliers work, when nothing makes it wait."""
        return self.busy_cycles / self.slot_cycles
