"""What the host sends, and the data it sends."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.arithmetic import arithmetic_of
from model.calibrate import Magnitudes
from model.data import load_dataset
from model.feed import DRAIN, run_phases, sample_order, training
from model.packets import packet_beats
from spec.errors import InputError
from spec.formats import Fixed
from spec.packets import LABEL_BITS, BeatLayout, Header, Kind
from spec.schedule import Schedule
from tests.model.small import encoded, small_data, small_engine, small_plan

headers = st.builds(
    Header, st.sampled_from(Kind), st.booleans(), st.integers(0, (1 << LABEL_BITS) - 1)
)


@given(
    header=headers,
    width=st.integers(2, 24),
    signed=st.booleans(),
    lanes=st.integers(0, 17),
    forward=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_packet_beats_are_the_references(
    header: Header, width: int, signed: bool, lanes: int, forward: bool, seed: int
) -> None:
    layout = BeatLayout(Fixed(width, 0, signed), lanes, forward)
    low, high = layout.format.minimum, layout.format.maximum
    numbers = np.random.default_rng(seed).integers(low, high, 3 * lanes, endpoint=True)
    has_data = header.kind is not Kind.BUBBLE and lanes > 0
    tensor = torch.from_numpy(numbers) if has_data else None
    beats = packet_beats(layout, header, tensor)
    assert beats == layout.beats(header, numbers.tolist())
    assert all(type(beat) is int for beat in beats)


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    epochs = [list(islice(sample_order(5, 20), 20 * n, 20 * n + 20)) for n in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 2
    assert epochs[0] != epochs[1]
    assert epochs[0] == list(islice(sample_order(5, 20), 20))
    assert epochs[0] != list(islice(sample_order(6, 20), 20))


def test_a_run_tests_trains_drains_and_tests_again() -> None:
    plan, data = small_plan(seed=2), small_data(8)
    phases = run_phases(plan, data, samples=11)
    assert phases == run_phases(plan, data, samples=11)
    assert [phase.name for phase in phases] == ["before", "train", "drain", "after"]
    before, train, drain, after = (phase.turns for phase in phases)
    assert [turn.sample for turn in before] == [turn.sample for turn in after] == list(range(8))
    assert [turn.header.kind for turn in train] == [Kind.TRAIN] * 11
    assert drain == (DRAIN,) * plan.hardware.delay("one")
    commits = [turn.header.commit for phase in phases for turn in phase.turns]
    assert commits == [True] + [False] * (len(commits) - 1)
    for turn in train:
        assert turn.sample is not None
        assert turn.header.label == data.train.labels[turn.sample]


def test_the_sequential_feed_drains_every_sample() -> None:
    plan = small_plan(schedule=Schedule.SEQUENTIAL)
    turns = list(training(plan, (0, 1, 2), 2))
    kinds = [turn.header.kind for turn in turns]
    assert kinds == ([Kind.TRAIN] + [Kind.BUBBLE] * 4) * 2


def test_digits_are_split_the_same_way_every_time() -> None:
    data = load_dataset("digits")
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.train.images.shape == (1437, 64)
    assert (data.train.images.min(), data.train.images.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(data.test.images, load_dataset("digits").test.images)
    assert set(data.train.labels) == set(data.test.labels) == set(range(10))
    assert data.test.labels[:8] == (4, 4, 0, 7, 9, 4, 6, 5)


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown data set 'cats': must be one of digits"):
        load_dataset("cats")


def test_calibrated_ranges_hold_every_value_and_no_power_too_many() -> None:
    plan, arithmetic, data = small_plan(), arithmetic_of("float64"), small_data(20)
    engine = small_engine(plan, arithmetic)
    magnitudes = Magnitudes(engine)
    magnitudes.watch(encoded(plan, arithmetic, data.train), training(plan, data.train.labels, 20))
    ranges = magnitudes.ranges()
    again = small_engine(plan, arithmetic)
    images = encoded(plan, arithmetic, data.train)
    largest = {str(edge): 0.0 for edge in plan.network.edges}
    weight = 0.0
    for header, sample in training(plan, data.train.labels, 20):
        for seen in again.slot(header, images[sample or 0]).packets:
            if seen.forward:
                magnitude = seen.packet.tensor.abs().max().item()
                largest[str(seen.edge)] = max(largest[str(seen.edge)], magnitude)
        master = again.tiles["two"].parameters.moments.master
        weight = max(weight, master.abs().max().item())
    for edge in plan.network.edges:
        exponent = ranges.edge(edge).activation
        assert 2.0 ** (exponent - 1) < largest[str(edge)] <= 2.0**exponent
    assert 2.0 ** (ranges.parameter("two").weight - 1) < weight
    assert weight <= 2.0 ** ranges.parameter("two").weight
    for tile in plan.network.convs:
        assert ranges.parameter(tile.name).velocity <= ranges.parameter(tile.name).gradient
