"""The random words of `spec.random_bits` for all elements of a tile at once."""

from itertools import pairwise
from typing import NamedTuple

import torch

from spec import random_bits
from spec.random_bits import GOLDEN, MASK, Tensor

_ORDER = (
    Tensor.WEIGHT_VELOCITY,
    Tensor.BIAS_VELOCITY,
    Tensor.WEIGHT,
    Tensor.BIAS,
    Tensor.GRADIENT,
)


class Words(NamedTuple):
    """The words of one training sample, int64 below 2**32; None where nothing needs them.

    `velocity` and `weight` are flat: the tile's weights in [out, in] order, then its biases.
    """

    velocity: torch.Tensor | None
    weight: torch.Tensor | None
    gradient: torch.Tensor | None


class RandomWords:
    """One tile's random states, which all advance once for every training sample.

    `parameters` counts the weights and the biases that are rounded stochastically, `gradients` the
    elements of a packet that are; 0 where rounding is half up. `states` is indexed by `Tensor`.
    """

    def __init__(
        self, seed: int, tile: int, parameters: tuple[int, int] = (0, 0), gradients: int = 0
    ) -> None:
        self.states = [random_bits.initial_state(seed, tile, tensor) for tensor in Tensor]
        counts = (*parameters, *parameters, gradients)
        self._owner = torch.cat([torch.full((n,), t) for t, n in zip(_ORDER, counts, strict=True)])
        self._offset = torch.cat([(torch.arange(n) + 1) * GOLDEN & MASK for n in counts])
        ends = (0, sum(parameters), 2 * sum(parameters), sum(counts))
        self._spans = [slice(*span) if span[0] < span[1] else None for span in pairwise(ends)]

    def draw(self) -> Words:
        """The words of the next training sample; advances every state, used or not."""
        words = None
        if len(self._owner):
            words = random_words(torch.tensor(self.states)[self._owner], self._offset)
        self.states = [random_bits.xorshift32(state) for state in self.states]
        parts = [None if span is None or words is None else words[span] for span in self._spans]
        return Words(*parts)


def random_words(states: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """`spec.random_bits.random_word` of each element; `offsets` are (index + 1) G mod 2**32."""
    first = xorshift32((states + offsets).bitwise_and_(MASK))
    return xorshift32(first.add_(states).bitwise_and_(MASK))


def xorshift32(x: torch.Tensor) -> torch.Tensor:
    """`spec.random_bits.xorshift32` of int64 elements below 2**32."""
    x = (x << 13).bitwise_xor_(x).bitwise_and_(MASK)
    x = (x >> 17).bitwise_xor_(x)
    return (x << 5).bitwise_xor_(x).bitwise_and_(MASK)
