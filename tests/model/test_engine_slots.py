"""What a slot may change, what it reports, and that a run can stop and go on."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from model.arithmetic import ARITHMETICS, Arithmetic, arithmetic_of
from model.checkpoint import Progress, load_checkpoint, save_checkpoint
from model.engine import Engine, SlotRecord
from model.feed import Turn, evaluation, training
from spec.errors import InputError
from spec.packets import BUBBLE, Header, Kind
from spec.plan import Plan
from spec.presets import Preset
from tests.model.small import encoded, small_data, small_engine, small_plan

SAMPLES = 24


def equal(a: Any, b: Any) -> bool:
    """Equality of nested plain data with tensors."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def feed(
    engine: Engine, turns: Sequence[Turn], plan: Plan, arithmetic: Arithmetic
) -> list[SlotRecord]:
    images = encoded(plan, arithmetic, small_data(SAMPLES).train)
    return [engine.slot(header, None if i is None else images[i]) for header, i in turns]


@pytest.fixture(params=ARITHMETICS)
def arithmetic(request: pytest.FixtureRequest) -> Arithmetic:
    return arithmetic_of(request.param)


@pytest.fixture
def plan() -> Plan:
    return small_plan(seed=11)


@pytest.fixture
def turns(plan: Plan) -> list[Turn]:
    return list(training(plan, small_data(SAMPLES).train.labels, SAMPLES))


def test_bubbles_change_nothing(plan: Plan, arithmetic: Arithmetic, turns: list[Turn]) -> None:
    engine = small_engine(plan, arithmetic)
    feed(engine, turns, plan, arithmetic)
    engine.drain()
    before = copy.deepcopy(engine.state())
    for _ in range(3):
        record = engine.slot(BUBBLE)
        assert all(seen.packet.header == BUBBLE for seen in record.packets)
        assert record.result.kind is Kind.BUBBLE
    assert equal(engine.state(), before)


def test_evaluation_changes_nothing_but_its_counters(
    plan: Plan, arithmetic: Arithmetic, turns: list[Turn]
) -> None:
    engine = small_engine(plan, arithmetic)
    feed(engine, turns, plan, arithmetic)
    engine.drain()
    before = copy.deepcopy(engine.state())
    labels = small_data(SAMPLES).test.labels
    records = feed(engine, list(evaluation(labels)), plan, arithmetic)
    engine.drain()
    correct = sum(r.result.prediction == y for r, y in zip(records, labels, strict=True))
    counters = engine.loss.counters[Kind.EVAL]
    assert (counters.seen, counters.correct) == (SAMPLES, correct)
    assert counters.loss == pytest.approx(sum(record.result.loss for record in records))
    engine.loss.counters[Kind.EVAL] = type(counters)()
    assert equal(engine.state(), before)


def test_evaluation_reads_the_master_weights_and_training_the_predicted_copy(
    plan: Plan, turns: list[Turn]
) -> None:
    arithmetic = arithmetic_of("float64")
    engine = small_engine(plan, arithmetic)
    feed(engine, turns, plan, arithmetic)
    tile = engine.trained["one"]
    sample = encoded(plan, arithmetic, small_data(SAMPLES).train)[0]
    shape = tile.parameters.working.weights.flatten(1).shape
    count = shape.numel()
    master = tile.parameters.moments.master
    biases = tile.parameters.working.biases
    assert biases is not None
    by_master = master[:count].view(shape) @ sample + master[count:]
    by_copy = tile.parameters.working.weights.view(shape) @ sample + biases
    assert not torch.allclose(by_master, by_copy, rtol=1e-3)
    evaluated = engine.slot(Header(Kind.EVAL, label=1), sample).packets[1].packet.tensor
    torch.testing.assert_close(evaluated.flatten(), by_master.clamp(min=0))
    copy_now = tile.parameters.working
    assert copy_now.biases is not None
    expected = copy_now.weights.view(shape) @ sample + copy_now.biases
    trained = engine.slot(Header(Kind.TRAIN, label=1), sample).packets[1].packet.tensor
    torch.testing.assert_close(trained.flatten(), expected.clamp(min=0))


def test_every_packet_comes_back_after_the_delay(plan: Plan, arithmetic: Arithmetic) -> None:
    engine = small_engine(plan, arithmetic)
    kinds = [Kind.TRAIN, Kind.EVAL, Kind.BUBBLE, Kind.TRAIN, Kind.TRAIN, Kind.EVAL, Kind.TRAIN]
    turns = [
        Turn(Header(k, label=i % 3 if k else 0), i if k else None) for i, k in enumerate(kinds)
    ]
    records = feed(engine, turns, plan, arithmetic) + engine.drain()
    delay = plan.hardware.delay("one")
    back = [kind if kind is Kind.TRAIN else Kind.BUBBLE for kind in kinds]
    assert [record.done for record in records] == [Kind.BUBBLE] * delay + back
    assert [record.result.kind for record in records[: len(kinds)]] == kinds


def test_records_are_in_causal_order(plan: Plan, arithmetic: Arithmetic, turns: list[Turn]) -> None:
    record = feed(small_engine(plan, arithmetic), turns[:1], plan, arithmetic)[0]
    there = [(str(edge), True) for edge in plan.network.edges]
    back = [(str(edge), False) for edge in reversed(plan.network.edges)]
    assert [(str(seen.edge), seen.forward) for seen in record.packets] == there + back
    gradient = record.packets[len(there)].packet
    assert gradient.header.kind is Kind.TRAIN
    assert gradient.data is not None
    assert record.packets[-1].packet.data is None


@pytest.mark.parametrize("preset", Preset)
def test_a_run_resumed_from_a_checkpoint_is_the_same_run(
    preset: Preset, arithmetic: Arithmetic, turns: list[Turn], tmp_path: Path
) -> None:
    plan = small_plan(preset=preset, seed=11)
    whole = small_engine(plan, arithmetic)
    feed(whole, turns[:13], plan, arithmetic)
    save_checkpoint(tmp_path / "checkpoint.pt", whole, Progress(13, 0.25))
    resumed = small_engine(small_plan(preset=preset, seed=12), arithmetic)
    assert load_checkpoint(tmp_path / "checkpoint.pt", resumed) == Progress(13, 0.25)
    assert equal(resumed.state(), whole.state())
    ends = [feed(engine, turns[13:], plan, arithmetic)[-1] for engine in (whole, resumed)]
    assert equal([p.packet.data for p in ends[0].packets], [p.packet.data for p in ends[1].packets])
    assert equal(resumed.state(), whole.state())
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_checkpoint_of_other_hardware_is_refused_with_both_hashes(
    plan: Plan, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, small_engine(plan, arithmetic_of("fixed")), Progress(0, 0.0))
    other = small_plan(preset=Preset.WIDE)
    with pytest.raises(InputError, match=f"{plan.hardware.hash}.*{other.hardware.hash}"):
        load_checkpoint(path, small_engine(other, arithmetic_of("fixed")))
    with pytest.raises(InputError, match="arithmetic fixed, but this run has float32"):
        load_checkpoint(path, small_engine(plan, arithmetic_of("float32")))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="is not a checkpoint"):
        load_checkpoint(path, small_engine(plan, arithmetic_of("fixed")))
