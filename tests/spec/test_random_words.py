"""Random words: bijective, balanced, uncorrelated, and known by the index alone."""

from itertools import islice, pairwise, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spec.random_bits import GOLDEN, MASK, Tensor, initial_state, random_word, xorshift32

WORDS = 40_000
LARGE_NET = 200
"""Tiles of a network larger than any that is planned."""

words = st.integers(0, MASK)
states = st.integers(1, MASK)


def correlation(a: list[int], b: list[int]) -> float:
    return float(np.corrcoef(np.array(a, dtype=np.float64), np.array(b, dtype=np.float64))[0, 1])


@given(words)
def test_xorshift_stays_in_32_bits_and_keeps_only_zero(x: int) -> None:
    assert 0 <= xorshift32(x) <= MASK
    assert (xorshift32(x) == 0) == (x == 0)
    assert x == 0 or xorshift32(x) != x


@given(words, words)
def test_xorshift_is_linear(x: int, y: int) -> None:
    assert xorshift32(x ^ y) == xorshift32(x) ^ xorshift32(y)


def test_xorshift_is_a_bijection() -> None:
    """A linear map is one exactly if no combination of the images of the bits vanishes."""
    rows = [xorshift32(1 << bit) for bit in range(32)]
    for bit in range(32):
        pivot = next(row for row in rows if row >> bit & 1)
        rows.remove(pivot)
        rows = [row ^ pivot if row >> bit & 1 else row for row in rows]
    assert not rows


@given(states)
def test_no_two_elements_of_a_tensor_share_a_word(state: int) -> None:
    assert len({random_word(state, i) for i in range(4096)}) == 4096


@given(states)
def test_a_state_never_reaches_zero(state: int) -> None:
    for _ in range(100):
        state = xorshift32(state)
        assert state != 0


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_words_of_neighbouring_elements_are_uncorrelated(seed: int) -> None:
    state = initial_state(seed, 0, Tensor.WEIGHT)
    drawn = [random_word(state, i) for i in range(WORDS)]
    for distance in (1, 2, 3, 16, 64):
        assert abs(correlation(drawn[:-distance], drawn[distance:])) < 0.02


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_words_of_consecutive_states_are_uncorrelated(seed: int) -> None:
    state, drawn = initial_state(seed, 1, Tensor.GRADIENT), []
    for _ in range(WORDS):
        drawn.append(random_word(state, 5))
        state = xorshift32(state)
    assert abs(correlation(drawn[:-1], drawn[1:])) < 0.02


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_the_mean_is_one_half_also_of_the_lowest_bits(seed: int) -> None:
    state = initial_state(seed, 2, Tensor.BIAS)
    drawn = np.array([random_word(state, i) for i in range(WORDS)], dtype=np.float64)
    for bits in (32, 20, 12, 4):
        assert abs((drawn % (1 << bits) + 0.5).mean() / (1 << bits) - 0.5) < 0.01


@pytest.mark.parametrize("one, other", list(pairwise(Tensor)))
def test_tensors_of_one_tile_are_uncorrelated(one: Tensor, other: Tensor) -> None:
    a, b = (initial_state(3, 0, tensor) for tensor in (one, other))
    pairs = [[random_word(state, i) for i in range(WORDS)] for state in (a, b)]
    assert abs(correlation(*pairs)) < 0.02


@given(st.one_of(words, st.sampled_from([0, GOLDEN, MASK])))
def test_first_states_are_not_zero_and_all_different(seed: int) -> None:
    places = list(product(range(LARGE_NET), Tensor))
    first = {initial_state(seed, tile, tensor) for tile, tensor in places}
    assert 0 not in first
    assert len(first) == len(places)
    assert max(first) <= MASK


@given(words, words)
@example(0, GOLDEN)
def test_seeds_give_different_first_states(one: int, other: int) -> None:
    states = [tuple(initial_state(seed, 0, tensor) for tensor in Tensor) for seed in (one, other)]
    assert (states[0] == states[1]) == (one == other)


@given(states, st.integers(1, 8), st.integers(1, 8), st.integers(1, 24))
def test_words_follow_the_index_whatever_the_lanes(
    state: int, lanes: int, other: int, count: int
) -> None:
    """Taking elements in words of any size yields the sequence of the tensor's order."""

    def taken(width: int) -> list[int]:
        starts = range(0, count + width, width)
        return list(
            islice((random_word(state, s + i) for s in starts for i in range(width)), count)
        )

    assert taken(lanes) == taken(other)
