"""The loss tile: softmax cross-entropy on logits, in integers (design, section 5).

With z the logits (8 fractional bits), d = max(z) - z and n classes:

    e = table(d)                  exp(-d) scaled by 2**16, 0 beyond the table
    s = sum of e                  from 2**16 to n 2**16
    R = floor(2**36 / s)          by long division
    p = (e R + 2**20) >> 21       probability with 15 fractional bits
    gradient = p - (label)        then the gradient format of the edge
    loss = d[label] + ln(s)       8 fractional bits, ln by table of the leading 8 bits
    prediction = the first class with d = 0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, log1p

from spec.errors import InputError
from spec.formats import Fixed, requantize, round_half_up
from spec.packets import LABEL_BITS, LOSS_BITS
from spec.random_bits import random_word
from spec.shape import Shape

LOGITS = Fixed(16, 8)
LOSS = Fixed(LOSS_BITS, LOGITS.frac, signed=False)
EXPONENTIAL_FRAC = 16
PROBABILITY_FRAC = 15
RECIPROCAL_FRAC = 36
RECIPROCAL_BITS = RECIPROCAL_FRAC - EXPONENTIAL_FRAC + 1
"""Bits, and steps of the long division: the divisor is at least 2**EXPONENTIAL_FRAC."""
PROBABILITY_SHIFT = RECIPROCAL_FRAC - PROBABILITY_FRAC
LOGARITHM_FRAC = 16
MANTISSA_BITS = 8

EXPONENTIAL = tuple(
    round(exp(-d / (1 << LOGITS.frac)) * (1 << EXPONENTIAL_FRAC)) for d in range(4096)
)
LOGARITHM = tuple(
    round(log1p(m / (1 << MANTISSA_BITS)) * (1 << LOGARITHM_FRAC))
    for m in range(1 << MANTISSA_BITS)
)
LOG_OF_TWO = round(log(2) * (1 << LOGARITHM_FRAC))

ELEMENT_LATENCY = 3
"""Cycles from an element's address until the maximum, the sum or the output word has taken it."""
TURN_CYCLES = 3
"""Taking the packet, starting the division, handing out the result."""


@dataclass(frozen=True)
class Loss:
    """Softmax cross-entropy against the packet's label; the end of every network."""

    name: str

    def output_shape(self, source: Shape) -> Shape:
        if source.pixels != 1 or source.channels > 1 << LABEL_BITS:
            raise InputError(
                f"{self.name}: the loss takes one pixel of at most {1 << LABEL_BITS} classes, "
                f"not {source}"
            )
        return source

    def slot_cycles(self, source: Shape) -> int:
        """Cycles from a complete training packet to the next one: one element a cycle, thrice."""
        return TURN_CYCLES + 3 * (source.channels + ELEMENT_LATENCY) + RECIPROCAL_BITS


@dataclass(frozen=True)
class LossResult:
    """Integers of one sample; `loss` has 8 and `probabilities` 15 fractional bits."""

    prediction: int
    loss: int
    probabilities: tuple[int, ...]


def cross_entropy(logits: Sequence[int], label: int) -> LossResult:
    """The reference for the loss of one sample."""
    top = max(logits)
    distances = [top - z for z in logits]
    exponentials = [EXPONENTIAL[d] if d < len(EXPONENTIAL) else 0 for d in distances]
    total = sum(exponentials)
    reciprocal = (1 << RECIPROCAL_FRAC) // total
    return LossResult(
        prediction=logits.index(top),
        loss=LOSS.clamp(distances[label] + logarithm(total)),
        probabilities=tuple(round_half_up(e * reciprocal, PROBABILITY_SHIFT) for e in exponentials),
    )


def logarithm(total: int) -> int:
    """ln(total / 2**EXPONENTIAL_FRAC) with the fractional bits of the loss."""
    octave = total.bit_length() - 1
    mantissa = (total << MANTISSA_BITS >> octave) & ((1 << MANTISSA_BITS) - 1)
    exact = (octave - EXPONENTIAL_FRAC) * LOG_OF_TWO + LOGARITHM[mantissa]
    return round_half_up(exact, LOGARITHM_FRAC - LOSS.frac)


def logit_gradient(
    result: LossResult, label: int, target: Fixed, state: int | None = None
) -> list[int]:
    """probabilities - one-hot in `target`; rounded stochastically when given a random state."""
    return [
        requantize(
            p - ((i == label) << PROBABILITY_FRAC),
            PROBABILITY_FRAC,
            target,
            None if state is None else random_word(state, i),
        )
        for i, p in enumerate(result.probabilities)
    ]
