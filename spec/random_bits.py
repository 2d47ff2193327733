"""Random words that depend on the element, never on the folding (design, section 5).

A word is r(i) = X(X(s + (i + 1) G) + s) mod 2**32, where X is xorshift32, s the state of the tensor
and i the element's index in the documented order of its tensor:

- weight and its velocity: output channel, kernel row, kernel column, input channel
- bias and its velocity: output channel
- gradient (a backward packet): pixel by pixel, channels innermost

The state advances by X once for every training sample whose backward packet the tile handles.
"""

from enum import IntEnum

MASK = 0xFFFF_FFFF
GOLDEN = 0x9E37_79B9


class Tensor(IntEnum):
    """The tensors of one tile that are rounded stochastically, each with a state of its own."""

    WEIGHT = 0
    WEIGHT_VELOCITY = 1
    BIAS = 2
    BIAS_VELOCITY = 3
    GRADIENT = 4


def xorshift32(x: int) -> int:
    """Marsaglia's xorshift with shifts 13, 17, 5; a bijection that keeps only 0 fixed."""
    x ^= (x << 13) & MASK
    x ^= x >> 17
    return x ^ (x << 5) & MASK


def random_word(state: int, index: int) -> int:
    """The 32 random bits of element `index` of the tensor in state `state`."""
    return xorshift32((xorshift32((state + (index + 1) * GOLDEN) & MASK) + state) & MASK)


def initial_state(seed: int, tile: int, tensor: Tensor) -> int:
    """The first state of a tensor of the tile at position `tile` of the network; never zero."""
    mixed = random_word((seed ^ GOLDEN) & MASK, len(Tensor) * tile + tensor)
    return mixed or GOLDEN
