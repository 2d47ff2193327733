"""The array equals the golden model in every bit, whatever is run on it and however fast."""

import pytest

from cosim.golden import Golden
from cosim.toolchain import Simulator
from model.feed import run_phases
from spec.mac import Folding
from spec.method import PAPER_METHODS, Method
from spec.plan import Plan
from spec.presets import Preset
from spec.schedule import Schedule
from tests.cosim.conftest import FOLDINGS, Laboratory, bench_data, bench_plan

UNEQUAL = (Folding(4, 3, 3), Folding(2, 4, 4), Folding(1, 4, 1))
"""Neighbours that differ, so that adapters stand between them."""


def final_state(plan: Plan, samples: int = 20) -> dict[tuple[str, str, int], int]:
    """Everything the golden model remembers after a run, by name."""
    data = bench_data()
    golden = Golden(plan, data, run_phases(plan, data, samples))
    for _ in golden.records():
        pass
    return {(a.tile, a.tensor, a.element): a.value for a in golden.final().accesses}


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("method", PAPER_METHODS, ids=str)
def test_every_method_on_every_schedule(
    laboratory: Laboratory, method: Method, schedule: Schedule
) -> None:
    outcome = laboratory.run(bench_plan(method, schedule), stall=20)
    assert outcome.difference is None
    assert outcome.bit_exact
    streams = len(bench_plan().hardware.streams)
    assert outcome.tensors_compared == (streams + 1) * outcome.slots


def test_the_wide_preset_with_weight_decay(laboratory: Laboratory) -> None:
    outcome = laboratory.run(bench_plan(preset=Preset.WIDE, weight_decay=2.0**-6))
    assert outcome.difference is None


@pytest.mark.parametrize("foldings", [(Folding(1, 1, 1),) * 3, FOLDINGS, UNEQUAL])
def test_folding_changes_no_bit(laboratory: Laboratory, foldings: tuple[Folding, ...]) -> None:
    plan = bench_plan(foldings=foldings)
    assert laboratory.run(plan).difference is None
    assert final_state(plan) == final_state(bench_plan())


@pytest.mark.parametrize("stall", [50, 90])
def test_stalls_cost_time_but_change_no_bit(laboratory: Laboratory, stall: int) -> None:
    plan = bench_plan()
    free, held = laboratory.run(plan), laboratory.run(plan, stall=stall)
    assert held.difference is None
    assert held.cycles > free.cycles
    assert held.accuracies == free.accuracies


def test_icarus_agrees(laboratory: Laboratory) -> None:
    plan = bench_plan()
    built = laboratory.build(plan, Simulator.ICARUS)
    assert laboratory.run(plan, built=built, samples=4).difference is None


@pytest.mark.parametrize("foldings", [FOLDINGS, UNEQUAL])
def test_slots_are_as_long_as_the_formula_says(
    laboratory: Laboratory, foldings: tuple[Folding, ...]
) -> None:
    plan = bench_plan(foldings=foldings)
    outcome = laboratory.run(plan, samples=160)
    assert outcome.bit_exact
    for planned, activity in zip(plan.hardware.convs, outcome.activity, strict=True):
        geometry = plan.hardware.geometry(planned)
        assert activity.slots > 20
        assert activity.span - activity.waiting == activity.slots * geometry.slot_cycles
        assert activity.busy == activity.slots * geometry.busy_cycles
