"""A small network whose simulators build in seconds, shared by all tests of the co-simulation."""

import fcntl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cosim.harness import Build, build, compile_sources, write_sources
from cosim.run import Outcome, Settings, cosimulate
from cosim.toolchain import Simulator
from hw.array import TileArray
from model.data import Dataset, Split
from spec.codec import content_hash
from spec.hyperparameters import Hyperparameters
from spec.mac import Folding
from spec.method import Method
from spec.network import Network, NetworkBuilder
from spec.plan import HardwarePlan, Plan
from spec.planner import Wishes, make_plan
from spec.presets import Preset
from spec.ranges import EdgeRange, ParameterRange, Ranges
from spec.schedule import Schedule
from spec.shape import Shape
from spec.tiles import Add, AveragePool, Conv, Fork, Loss, Norm, dense
from spec.zoo import ZooEntry

INPUTS, CLASSES = 8, 4
TRAIN, TEST = 24, 5
FOLDINGS = (Folding(2, 2, 4), Folding(2, 2, 4), Folding(2, 2, 4))


def bench_plan(
    method: Method = Method.LWP_SC,
    schedule: Schedule = Schedule.PAPER,
    preset: Preset = Preset.COMPACT,
    foldings: tuple[Folding, ...] = FOLDINGS,
    weight_decay: float = 0.0,
) -> Plan:
    """8-6-4-4, three stages, one of its tiles without a bias."""
    network = Network.chain(
        "bench",
        Shape(1, 1, INPUTS),
        (dense("one", 6),),
        (dense("two", 4, bias=False),),
        (dense("three", CLASSES, relu=False), Loss("loss")),
    )
    ranges = Ranges(
        content_hash(network),
        tuple(EdgeRange(edge, 0 if edge.source == "input" else 2, 0) for edge in network.edges),
        (),
        tuple(ParameterRange(tile.name, 1, 1, -2) for tile in network.convs),
    )
    hyperparameters = Hyperparameters(2.0**-3, 1 - 2.0**-2, weight_decay)
    entry = ZooEntry(network, "digits", hyperparameters, foldings, epochs=1)
    wishes = Wishes(method, schedule, preset, foldings=foldings)
    return make_plan(entry, wishes, ranges)


def residual_plan(method: Method = Method.LWP_SC) -> Plan:
    """A stem, a block with an affine norm and a projection, and neighbours of unequal lanes."""
    builder = NetworkBuilder("residual", Shape(4, 4, 2))
    builder.add(Conv("stem", 4))
    builder.stage()
    fork = builder.add(Fork("fork"))
    builder.add(Norm("norm", 2, affine=True))
    main = builder.add(Conv("main", 6, stride=2))
    side = builder.add(Conv("side", 6, kernel=1, stride=2, padding=0), fork)
    builder.add(Add("add"), main, side)
    builder.stage()
    builder.add(Norm("last", 3))
    builder.add(AveragePool("average"))
    builder.add(dense("classes", CLASSES, relu=False))
    builder.add(Loss("loss"))
    network = builder.network()
    foldings = (Folding(2, 2, 1), Folding(4, 3, 3), Folding(2, 2, 1), Folding(3, 2, 2))
    hyperparameters = Hyperparameters(2.0**-3, 1 - 2.0**-2)
    entry = ZooEntry(network, "noise", hyperparameters, foldings, epochs=1)
    return make_plan(entry, Wishes(method, foldings=foldings), Ranges.nominal(network))


def bench_data() -> Dataset:
    """Random images with a label that follows from them."""
    generator = np.random.Generator(np.random.PCG64(7))

    def split(count: int) -> Split:
        images = generator.random((count, INPUTS))
        labels = images.reshape(count, CLASSES, 2).sum(2).argmax(1)
        return Split(images, tuple(labels.tolist()))

    return Dataset("random", split(TRAIN), split(TEST))


@dataclass(frozen=True)
class Laboratory:
    """Builds (once for all workers) and runs small co-simulations."""

    builds: Path
    logs: Path

    def build(self, plan: Plan, simulator: Simulator = Simulator.VERILATOR) -> Build:
        """Two tests that want the same simulator shall not compile it twice."""
        self.builds.mkdir(exist_ok=True)
        with (self.builds / f"{plan.hardware.hash}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return build(plan.hardware, simulator, optimisation="-O0", folder=self.builds)

    def run(
        self,
        plan: Plan,
        *,
        built: Build | None = None,
        samples: int = 20,
        stall: int = 0,
        tamper: Callable[..., list] = list,
        data: Dataset | None = None,
    ) -> Outcome:
        settings = Settings(samples, self.logs / "simulator.log", stall, tamper)
        return cosimulate(built or self.build(plan), plan, data or bench_data(), settings)


def build_of(laboratory: Laboratory, hardware: HardwarePlan, plan: Plan, name: str) -> Build:
    """A simulator of other hardware that claims to be that of `plan`."""
    directory = laboratory.logs / name
    sources = write_sources(
        TileArray(hardware, probes=True), hardware, laboratory.logs / f"{name}-sources"
    )
    compile_sources(sources, directory, optimisation="-O0")
    return Build(plan.hardware, Simulator.VERILATOR, directory, waves=False, cached=False)


@pytest.fixture
def laboratory(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "popen-" in base.name else base
    return Laboratory(shared / "simulators", tmp_path)
