"""Any legal network on any lanes and schedule equals the golden model in every bit.

TIDEMILL_FUZZ=N (`make fuzz N=`) draws N other networks each time. A failure shrinks, and the
smallest plan found is kept in build/fuzz, from where `make sim PLAN=` replays it.
"""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from cosim.harness import build
from cosim.run import Settings, cosimulate
from model.data import noise
from spec.plan import Plan
from tests.cosim.conftest import Laboratory
from tests.random_networks import plans

FAILURES = Path(__file__).resolve().parents[2] / "build" / "fuzz"
FUZZ = int(os.environ.get("TIDEMILL_FUZZ", "0"))
PARTS = 10
"""Tests that share the examples, so that two of them are built at a time."""
EXAMPLES = max(1, -(-FUZZ // PARTS))
SAMPLES, TESTS = 10, 3

# Hypothesis always begins with the simplest example. Were it legal, it would be the only one of
# every part; as a refused one it does not count.
not_the_simplest = st.integers(0, 255).filter(bool)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_random_network_equals_the_golden_model(laboratory: Laboratory, part: int) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @seed(part if not FUZZ else int.from_bytes(os.urandom(4)))
    @given(not_the_simplest, plans(), st.sampled_from([0, 0, 30, 70]))
    def check(_: int, plan: Plan, stall: int) -> None:
        compare(laboratory, plan, stall, FAILURES / f"part{part}")

    check()


def compare(laboratory: Laboratory, plan: Plan, stall: int, failures: Path) -> None:
    kept = failures / f"{plan.hardware.hash}-{plan.run_hash}" / "plan.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    plan.save(kept)
    note(f"make sim PLAN={kept} SAMPLES={SAMPLES} TESTS={TESTS} STALL={stall}")
    # In a folder of this test's own: another part may draw the same hardware at the same time.
    builds = laboratory.logs / "simulators"
    built = build(plan.hardware, optimisation="-O0", folder=builds)
    data = noise(plan.network.input_shape, plan.network.classes)
    log = laboratory.logs / "simulator.log"
    outcome = cosimulate(built, plan, data, Settings(SAMPLES, log, stall, tests=TESTS))
    shutil.rmtree(built.directory)
    assert outcome.stuck is None, f"stuck: {outcome.stuck}"
    assert outcome.difference is None, str(outcome.difference)
    shutil.rmtree(kept.parent)
