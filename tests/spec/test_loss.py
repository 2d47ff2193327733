"""The integer loss against softmax cross-entropy in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.errors import InputError
from spec.formats import Fixed
from spec.random_bits import MASK, random_word
from spec.shape import Shape
from spec.tiles import Loss
from spec.tiles.loss import (
    LOGITS,
    LOSS,
    PROBABILITY_FRAC,
    cross_entropy,
    logarithm,
    logit_gradient,
)

CLASSES = 64
EXPONENTIAL_ERROR = 2.0**-17
"""Half a unit of the table, of which the sum of exponentials collects one a class."""

near = st.integers(-2048, 2047)
anywhere = st.integers(LOGITS.minimum, LOGITS.maximum)
logit_lists = st.one_of(
    st.lists(near, min_size=1, max_size=CLASSES), st.lists(anywhere, min_size=1, max_size=CLASSES)
)
gradient_formats = st.builds(Fixed, st.integers(10, 24), st.integers(8, 20))


def softmax(logits: list[int]) -> list[float]:
    values = np.array(logits, dtype=np.float64) / (1 << LOGITS.frac)
    powers = np.exp(values - values.max())
    return [float(power) for power in powers / powers.sum()]


def float_loss(logits: list[int], label: int) -> float:
    values = np.array(logits, dtype=np.float64) / (1 << LOGITS.frac)
    return float(np.logaddexp.reduce(values) - values[label])


@given(logit_lists, st.data())
def test_the_loss_is_within_three_steps_of_float(logits: list[int], data: st.DataObject) -> None:
    label = data.draw(st.integers(0, len(logits) - 1))
    loss = cross_entropy(logits, label).loss
    assert LOSS.minimum <= loss <= LOSS.maximum
    assert abs(loss / (1 << LOSS.frac) - float_loss(logits, label)) <= 3 / 256


@given(logit_lists)
def test_probabilities_miss_float_by_the_errors_of_table_and_rounding(logits: list[int]) -> None:
    found = np.array(cross_entropy(logits, 0).probabilities) / (1 << PROBABILITY_FRAC)
    bound = len(logits) * EXPONENTIAL_ERROR + 2.0 ** -(PROBABILITY_FRAC + 1) + 2.0**-18
    assert np.abs(found - softmax(logits)).max() <= bound


@given(st.lists(near, min_size=1, max_size=CLASSES), st.data())
def test_a_shift_of_all_logits_changes_nothing(logits: list[int], data: st.DataObject) -> None:
    label = data.draw(st.integers(0, len(logits) - 1))
    shift = data.draw(st.integers(-8000, 8000))
    assert cross_entropy([z + shift for z in logits], label) == cross_entropy(logits, label)


@given(logit_lists)
def test_the_prediction_is_the_first_maximum(logits: list[int]) -> None:
    assert cross_entropy(logits, 0).prediction == int(np.argmax(logits))


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=CLASSES))
def test_the_prediction_is_the_first_of_equal_maxima(logits: list[int]) -> None:
    assert cross_entropy(logits, 0).prediction == int(np.argmax(logits))


@given(logit_lists, gradient_formats, st.data())
def test_gradients_sum_to_zero_but_for_rounding(
    logits: list[int], target: Fixed, data: st.DataObject
) -> None:
    """The formats hold -1 to 1 unless saturation is what they show."""
    label = data.draw(st.integers(0, len(logits) - 1))
    gradients = logit_gradient(cross_entropy(logits, label), label, target)
    if target.width - 2 < target.frac:
        return
    step = 2.0**-target.frac
    classes = len(logits)
    bound = classes * (step / 2 + 2.0 ** -(PROBABILITY_FRAC + 1)) + classes * 2.0**-20
    assert abs(sum(gradients) * step) <= bound
    assert gradients[label] <= 0
    assert all(g >= 0 for i, g in enumerate(gradients) if i != label)


@given(logit_lists, gradient_formats, st.integers(1, MASK), st.data())
def test_stochastic_gradients_miss_by_less_than_a_step(
    logits: list[int], target: Fixed, state: int, data: st.DataObject
) -> None:
    label = data.draw(st.integers(0, len(logits) - 1))
    result = cross_entropy(logits, label)
    gradients = logit_gradient(result, label, target, state)
    for i, (p, gradient) in enumerate(zip(result.probabilities, gradients, strict=True)):
        exact = (p / (1 << PROBABILITY_FRAC) - (i == label)) * 2.0**target.frac
        nearest = min(max(exact, target.minimum), target.maximum)
        assert abs(gradient - nearest) < 1
        if target.frac == PROBABILITY_FRAC - 1 and target.width > PROBABILITY_FRAC:
            odd, drawn = p & 1, random_word(state, i) >> 31
            assert gradient == (p - ((i == label) << PROBABILITY_FRAC) + (odd & drawn)) >> 1


@given(st.integers(1 << 16, 1024 << 16), st.integers(0, 1 << 20))
def test_the_logarithm_never_falls_and_is_within_two_steps(total: int, more: int) -> None:
    assert logarithm(total) <= logarithm(total + more)
    assert abs(logarithm(total) / (1 << LOSS.frac) - np.log(total / (1 << 16))) <= 2 / 256


@given(anywhere)
def test_a_single_class_is_certain(logit: int) -> None:
    result = cross_entropy([logit], 0)
    assert (result.prediction, result.loss, result.probabilities) == (0, 0, (1 << 15,))


@pytest.mark.parametrize("classes", [2, 10, 1000, 1024])
def test_the_worst_loss_does_not_saturate(classes: int) -> None:
    logits = [LOGITS.maximum] * (classes - 1) + [LOGITS.minimum]
    loss = cross_entropy(logits, classes - 1).loss
    assert loss < LOSS.maximum
    assert loss / (1 << LOSS.frac) == pytest.approx(float_loss(logits, classes - 1), abs=3 / 256)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2000))
def test_the_loss_takes_one_pixel_of_at_most_1024_classes(
    rows: int, columns: int, classes: int
) -> None:
    source = Shape(rows, columns, classes)
    if rows == columns == 1 and classes <= 1024:
        assert Loss("loss").output_shape(source) == source
        return
    with pytest.raises(InputError, match=f"at most 1024 classes, not {source}"):
        Loss("loss").output_shape(source)
