"""The random words of `spec.random_bits` for all elements of a tile at once."""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from spec import random_bits
from spec.random_bits import GOLDEN, Tensor

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


SAMPLES_AHEAD = 8


class RandomWords:
    """One tile's random states, which all advance once for every training sample.

    `parameters` counts the weights and the biases that are rounded stochastically, `gradients` the
    elements of a packet that are; 0 where rounding is half up. Words are computed for
    SAMPLES_AHEAD samples at once, which spares most of the calls.
    """

    def __init__(
        self, seed: int, tile: int, parameters: tuple[int, int] = (0, 0), gradients: int = 0
    ) -> None:
        self.restore([random_bits.initial_state(seed, tile, tensor) for tensor in Tensor])
        counts = (*parameters, *parameters, gradients)
        indices = np.concatenate([np.arange(1, n + 1, dtype=np.uint32) for n in counts])
        self._offsets = indices * np.uint32(GOLDEN)
        self._owners = np.repeat(_ORDER, counts)
        ends = (0, sum(parameters), 2 * sum(parameters), sum(counts))
        self._spans = [slice(*span) if span[0] < span[1] else None for span in pairwise(ends)]

    def draw(self) -> Words:
        """The words of the next training sample; advances every state, used or not."""
        if not self._ahead:
            self._look_ahead()
        words, self.states = self._ahead.popleft()
        return words

    def restore(self, states: Sequence[int]) -> None:
        """Continue from `states`, indexed by `Tensor`."""
        self.states = tuple(states)
        self._ahead: deque[tuple[Words, tuple[int, ...]]] = deque()

    def _look_ahead(self) -> None:
        """Append the words of the next samples, each with the states that follow it."""
        states = [self.states]
        for _ in range(SAMPLES_AHEAD):
            states.append(tuple(random_bits.xorshift32(state) for state in states[-1]))
        spread = np.array(states[:-1], np.uint32)[:, self._owners]
        words = torch.from_numpy(random_words(spread, self._offsets).astype(np.int64))
        parts = [
            [None] * SAMPLES_AHEAD if span is None else words[:, span].unbind()
            for span in self._spans
        ]
        self._ahead.extend(
            (Words(*drawn), following) for *drawn, following in zip(*parts, states[1:], strict=True)
        )


def random_words(states: NDArray[np.uint32], offsets: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """`spec.random_bits.random_word` of each element.

    `offsets` [elements] are (index + 1) G mod 2**32, `states` [samples, elements].
    """
    words = xorshift32(states + offsets)
    words += states
    return xorshift32(words)


def xorshift32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """`spec.random_bits.xorshift32` of every element, in place."""
    x ^= x << 13
    x ^= x >> 17
    x ^= x << 5
    return x
