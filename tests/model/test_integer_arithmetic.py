"""Integers on tensors against `spec`'s functions on Python integers."""

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.arithmetic import IntegerArithmetic
from model.random_bits import SAMPLES_AHEAD, RandomWords
from model.update import Moments, integer_update
from spec.errors import InputError
from spec.formats import Fixed, requantize
from spec.random_bits import MASK, Tensor, initial_state, random_word, xorshift32
from spec.update import (
    DECAY_SHIFT_LIMIT,
    HORIZON_BITS,
    MANTISSA_BITS,
    MOMENTUM_SHIFT_LIMIT,
    SHIFT_LIMIT,
    SPIKE_FRAC,
    ParameterFormats,
    UpdateCoefficients,
    update,
)
from tests.model.small import integers

ARITHMETIC = IntegerArithmetic()
ELEMENTS = 24
formats = st.builds(Fixed, st.integers(2, 24), st.integers(-8, 24), st.booleans())


@given(formats, st.integers(-8, 48), st.integers(0), st.booleans())
def test_requantize_equals_the_reference(
    target: Fixed, frac: int, seed: int, stochastic: bool
) -> None:
    if stochastic and frac - target.frac > 32:
        return
    rng = random.Random(seed)
    limit = 1 << rng.randint(1, 30)
    numbers = integers(rng, -limit, limit, ELEMENTS)
    words = [rng.choice((0, MASK, rng.getrandbits(32))) for _ in numbers]
    expected = [
        requantize(n, frac, target, word if stochastic else None)
        for n, word in zip(numbers, words, strict=True)
    ]
    drawn = torch.tensor(words) if stochastic else None
    assert ARITHMETIC.requantize(torch.tensor(numbers), frac, target, drawn).tolist() == expected


@given(formats, st.lists(st.floats(-(2.0**20), 2.0**20), min_size=1, max_size=8))
def test_encode_rounds_half_up_and_saturates(target: Fixed, values: list[float]) -> None:
    scale = Fraction(2) ** target.frac
    expected = [target.clamp((Fraction(v) * scale + Fraction(1, 2)).__floor__()) for v in values]
    assert ARITHMETIC.encode(np.array(values), target).tolist() == expected


@given(
    seed=st.integers(0),
    widths=st.tuples(st.integers(2, 12), *(st.integers(8, 24),) * 3),
    fracs=st.tuples(*(st.integers(0, 8),) * 3),
    stochastic=st.booleans(),
)
def test_update_equals_the_reference(
    seed: int,
    widths: tuple[int, int, int, int],
    fracs: tuple[int, int, int],
    stochastic: bool,
) -> None:
    rng = random.Random(seed)
    working = Fixed(widths[0], 4)
    gradient = Fixed(widths[3], fracs[0])
    try:
        parameters = ParameterFormats(
            working=working,
            master=Fixed(widths[1], 4 + fracs[1]),
            velocity=Fixed(widths[2], gradient.frac + fracs[2]),
            gradient=gradient,
            stochastic=stochastic,
        )
    except InputError:
        return
    coefficients = UpdateCoefficients(
        momentum_shift=rng.randint(0, MOMENTUM_SHIFT_LIMIT),
        step_mantissa=rng.randrange(1, 1 << MANTISSA_BITS),
        step_shift=rng.randint(0, SHIFT_LIMIT),
        spike=rng.choice((0, rng.randrange(1 << SPIKE_FRAC))),
        prediction_mantissa=rng.choice((0, rng.randrange(1 << MANTISSA_BITS + HORIZON_BITS))),
        prediction_shift=rng.randint(0, SHIFT_LIMIT - SPIKE_FRAC),
        decay=rng.choice((True, False)),
        decay_shift=rng.randint(0, DECAY_SHIFT_LIMIT),
    )
    gradients = integers(rng, gradient.minimum, gradient.maximum, ELEMENTS)
    velocity, master = parameters.velocity, parameters.master
    velocities = integers(rng, velocity.minimum, velocity.maximum, ELEMENTS)
    masters = integers(rng, master.minimum, master.maximum, ELEMENTS)
    words = [(rng.getrandbits(32), rng.getrandbits(32)) for _ in gradients]
    expected = [
        update(g, v, m, parameters, working, coefficients, w)
        for g, v, m, w in zip(gradients, velocities, masters, words, strict=True)
    ]
    drawn = [torch.tensor(list(part)) for part in zip(*words, strict=True)]
    moments, predicted = integer_update(
        Moments(torch.tensor(masters), torch.tensor(velocities)),
        torch.tensor(gradients),
        parameters,
        coefficients,
        (drawn[0], drawn[1]) if stochastic else (None, None),
    )
    copy = ARITHMETIC.requantize(predicted, master.frac, working)
    assert moments.velocity.tolist() == [e.velocity for e in expected]
    assert moments.master.tolist() == [e.master for e in expected]
    assert copy.tolist() == [e.working for e in expected]


@given(seed=st.integers(0, MASK), tile=st.integers(0, 200))
def test_words_are_those_of_the_reference_sample_after_sample(seed: int, tile: int) -> None:
    random_words = RandomWords(seed, tile, (6, 2), 3)
    states = {tensor: initial_state(seed, tile, tensor) for tensor in Tensor}
    for _ in range(SAMPLES_AHEAD + 2):
        assert random_words.states == tuple(states.values())
        words = random_words.draw()
        for actual, parts in (
            (words.velocity, ((Tensor.WEIGHT_VELOCITY, 6), (Tensor.BIAS_VELOCITY, 2))),
            (words.weight, ((Tensor.WEIGHT, 6), (Tensor.BIAS, 2))),
            (words.gradient, ((Tensor.GRADIENT, 3),)),
        ):
            expected = [random_word(states[tensor], i) for tensor, n in parts for i in range(n)]
            assert actual is not None
            assert actual.tolist() == expected
        states = {tensor: xorshift32(state) for tensor, state in states.items()}


def test_words_continue_from_restored_states() -> None:
    first = RandomWords(1, 2, (4, 0), 0)
    for _ in range(3):
        first.draw()
    second = RandomWords(9, 9, (4, 0), 0)
    second.draw()
    second.restore(first.states)
    assert first.draw().weight is not None
    first.restore(second.states)
    for _ in range(SAMPLES_AHEAD + 1):
        one, other = first.draw(), second.draw()
        assert one.weight is not None and other.weight is not None
        assert torch.equal(one.weight, other.weight)
        assert one.gradient is None


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_cross_entropy_takes_the_first_of_equal_logits(classes: int) -> None:
    result = ARITHMETIC.cross_entropy(torch.full((classes,), -5), 1)
    assert result.prediction == 0
    assert len(set(result.probabilities.tolist())) == 1
