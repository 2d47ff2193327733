"""Train a network on the golden model alone: test, train, drain, test again."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter

from model.arithmetic import Arithmetic
from model.checkpoint import Progress, load_checkpoint, save_checkpoint
from model.data import Dataset
from model.engine import Engine
from model.feed import Phase, run_phases
from model.initial import initial_parameters
from model.options import preset_name
from model.progress import percent, progress_bar
from model.tiles.loss import Counters
from spec.errors import InputError
from spec.files import write_text
from spec.packets import Kind
from spec.plan import Plan

SLOTS_BETWEEN_REPORTS = 64
SECONDS_BETWEEN_CHECKPOINTS = 60.0

Report = Callable[[int], None]


@dataclass(frozen=True)
class TrainResult:
    """What `result.json` holds. Accuracies are shares from 0 to 1; `seconds` are of training.

    `loss_after` is the mean cross-entropy of the test split in nats.
    """

    net: str
    method: str
    schedule: str
    preset: str
    arithmetic: str
    seed: int
    samples: int
    seconds: float
    samples_per_second: float
    accuracy_before: float | None
    """Of the test images, as all that follow; None without any."""
    accuracy_after: float | None
    loss_after: float | None
    hardware_hash: str
    run_hash: str


class Trainer:
    """One run of an engine over the phases of `model.feed`, with checkpoints under `folder`."""

    def __init__(
        self,
        plan: Plan,
        arithmetic: Arithmetic,
        dataset: Dataset,
        samples: int,
        folder: Path,
        tests: int | None = None,
    ) -> None:
        self.engine = Engine(plan, arithmetic, initial_parameters(plan, arithmetic))
        self._coefficients = {name: tile.active for name, tile in self.engine.trained.items()}
        self.phases = {phase.name: phase for phase in run_phases(plan, dataset, samples, tests)}
        activation = plan.hardware.edges[0].activation
        self._images = {
            name: arithmetic.encode(phase.split.images, activation)
            for name, phase in self.phases.items()
        }
        self.samples = samples
        self.checkpoint = folder / "checkpoint.pt"
        self._progress = Progress(turns=0, accuracy_before=None)
        self._saved = perf_counter()

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint, with this run's coefficients."""
        self._progress = load_checkpoint(path, self.engine)
        if self._progress.turns >= len(self.phases["train"].turns):
            raise InputError(f"{path} has already seen {self.samples} samples: ask for more")
        for tile in self.engine.trained.values():
            tile.active = tile.shadow = self._coefficients[tile.name]

    def run(self, report: Report) -> TrainResult:
        """Everything that is left to do; calls `report` with the training turns done so far."""
        if not self._progress.turns:
            self._progress = Progress(0, self._test("before").accuracy)
        start, done = perf_counter(), self._progress.turns
        self._saved = start
        self._train(report)
        self._feed(self.phases["drain"])
        seconds = perf_counter() - start
        save_checkpoint(self.checkpoint, self.engine, self._progress)
        turns = self.phases["train"].turns
        samples = sum(header.kind is Kind.TRAIN for header, _ in islice(turns, done, None))
        return self._result(samples, seconds, self._test("after"))

    @property
    def accuracy_so_far(self) -> float | None:
        """Share of the training samples that were right when they passed."""
        return self.engine.loss.counters[Kind.TRAIN].accuracy

    def _train(self, report: Report) -> None:
        phase = self.phases["train"]
        while self._progress.turns < len(phase.turns):
            end = min(self._progress.turns + SLOTS_BETWEEN_REPORTS, len(phase.turns))
            self._feed(phase, self._progress.turns, end)
            self._progress = replace(self._progress, turns=end)
            report(end)
            if perf_counter() - self._saved > SECONDS_BETWEEN_CHECKPOINTS:
                save_checkpoint(self.checkpoint, self.engine, self._progress)
                self._saved = perf_counter()

    def _test(self, phase: str) -> Counters:
        self.engine.loss.clear()
        self._feed(self.phases[phase])
        counters = self.engine.loss.counters[Kind.EVAL]
        self.engine.loss.clear()
        return counters

    def _feed(self, phase: Phase, start: int = 0, end: int | None = None) -> None:
        images = self._images[phase.name]
        for header, sample in phase.turns[start:end]:
            self.engine.slot(header, None if sample is None else images[sample])

    def _result(self, samples: int, seconds: float, after: Counters) -> TrainResult:
        plan, scale = self.engine.plan, self.engine.arithmetic.loss_scale
        return TrainResult(
            net=plan.network.name,
            method=str(plan.run.method),
            schedule=plan.run.schedule.value,
            preset=preset_name(plan),
            arithmetic=self.engine.arithmetic.name,
            seed=plan.run.seed,
            samples=self.samples,
            seconds=seconds,
            samples_per_second=samples / seconds,
            accuracy_before=self._progress.accuracy_before,
            accuracy_after=after.accuracy,
            loss_after=after.loss / after.seen * scale if after.seen else None,
            hardware_hash=plan.hardware.hash,
            run_hash=plan.run_hash,
        )


def train(trainer: Trainer, folder: Path) -> TrainResult:
    """Run with a progress bar and write `folder`/result.json."""
    turns = len(trainer.phases["train"].turns)
    with progress_bar() as bar:
        task = bar.add_task("train", total=turns, note="")

        def report(done: int) -> None:
            bar.update(task, completed=done, note=f"accuracy {percent(trainer.accuracy_so_far)}")

        result = trainer.run(report)
    write_text(folder / "result.json", json.dumps(asdict(result), indent=1) + "\n")
    return result
