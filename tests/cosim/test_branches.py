"""A residual network: every method, its period, and faults in the tiles that are not dense."""

import operator
from dataclasses import replace

import pytest

from cosim.host import Access
from cosim.report import report_data
from cosim.run import Outcome
from hw.tiles import branch
from model.data import noise
from spec.method import PAPER_METHODS, Method
from spec.plan import Plan
from spec.throughput import slot_period, utilisation
from tests.cosim.conftest import CLASSES, Laboratory, build_of, residual_plan

SAMPLES = 24


def run(laboratory: Laboratory, plan: Plan, **settings: object) -> Outcome:
    data = noise(plan.network.input_shape, CLASSES, SAMPLES)
    return laboratory.run(plan, data=data, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", PAPER_METHODS, ids=str)
def test_every_method_on_branches_and_norms(laboratory: Laboratory, method: Method) -> None:
    outcome = run(laboratory, residual_plan(method), stall=20)
    assert outcome.difference is None
    assert outcome.bit_exact


def test_the_period_is_that_of_the_recursion_and_the_cycles_those_of_the_formulas(
    laboratory: Laboratory,
) -> None:
    plan = residual_plan()
    outcome = run(laboratory, plan, samples=160)
    report = report_data(plan, outcome, 160, {})
    assert report["slot_period"] == pytest.approx(slot_period(plan.hardware), rel=0.02)
    expected = utilisation(plan.hardware)
    for planned, activity in zip(plan.hardware.convs, outcome.activity, strict=True):
        geometry = plan.hardware.geometry(planned)
        assert activity.slots > 20
        assert activity.span - activity.waiting == activity.slots * geometry.slot_cycles
        measured = activity.busy / activity.span
        assert measured == pytest.approx(expected[planned.tile.name], rel=0.02)


def test_a_corrupted_gain_is_reported_at_its_norm(laboratory: Laboratory) -> None:
    channel, lanes, words = 3, 2, 2

    def tamper(accesses: list[Access]) -> list[Access]:
        gain = ("norm", "working copy", channel)
        found = [a for a in accesses if (a.tile, a.tensor, a.element) == gain]
        assert len(found) == 1
        return [replace(a, value=a.value ^ 1 << 5) if a is found[0] else a for a in accesses]

    difference = run(laboratory, residual_plan(), tamper=tamper).difference
    assert difference is not None
    assert (difference.tile, difference.tensor) == ("norm", "activation to main")
    assert difference.beat is not None
    assert (difference.beat % words, difference.lane) == divmod(channel, lanes)


def test_an_add_that_subtracts_is_reported_at_its_tile(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch, "add", operator.sub)
    plan = residual_plan()
    built = build_of(laboratory, plan.hardware, plan, "subtracts")
    difference = run(laboratory, plan, built=built).difference
    assert difference is not None
    assert (difference.tile, difference.tensor) == ("add", "activation to last")
