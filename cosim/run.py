"""A co-simulation: one plan, one data set, the array against the golden model, to the bit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cosim.compare import (
    Difference,
    StreamComparison,
    Suspect,
    expected_packet,
    explain,
    first_wrong_word,
)
from cosim.golden import Final, Golden, GoldenProcess, Slots
from cosim.harness import Build
from cosim.host import Access, coefficient_accesses, state_accesses
from cosim.messages import Finished, Report, Run, Setup, StreamState, TileActivity
from cosim.session import Session, simulate
from model.data import Dataset
from model.feed import Phase, Turn, run_phases
from spec.packets import RESULT_FIELDS, Kind, unpack_fields
from spec.plan import Plan
from spec.throughput import slot_period

PATIENCE_SLOTS = 50
"""Slots without a packet on any stream after which the array counts as stuck."""
NOTHING = 0xFFFF_FFFF
"""A packet number that is never reached: captures nothing."""


@dataclass(frozen=True)
class Settings:
    """How a co-simulation is run.

    `stall` is the percent of clocks that every stream is held, `tests` the number of test images
    before and after training (None: all). `tamper` changes what is written
    into the array, by which tests show that a fault is found.
    """

    samples: int
    log: Path
    stall: int = 0
    tamper: Callable[[list[Access]], list[Access]] = list
    tests: int | None = None


@dataclass(frozen=True)
class Progress:
    """How far the array is: slots, and what its results say so far."""

    phase: str
    slots: int
    total: int
    cycles: int
    accuracy: float | None


@dataclass(frozen=True)
class Outcome:
    """What a co-simulation found. Equal means equal in everything: packets, memories, states."""

    difference: Difference | None
    stuck: list[StreamState] | None
    tensors_compared: int
    words_compared: int
    slots: int
    cycles: int
    cycles_per_second: float
    seconds: float
    activity: list[TileActivity]
    accuracies: dict[str, float | None]
    """By phase of the run, from the predictions of the array; None for a phase without images."""
    wave_file: Path | None

    @property
    def bit_exact(self) -> bool:
        return self.difference is None and self.stuck is None


def cosimulate(
    build: Build,
    plan: Plan,
    dataset: Dataset,
    settings: Settings,
    report: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Evaluate, train, drain and evaluate again on the array, with the golden model beside it.

    Every packet on every stream is compared by its CRC while the run goes on, and everything that
    the array remembers at the end. On the first difference the run is repeated up to it, with that
    packet kept in full. Raises SimulationError when the simulator fails.
    """
    return _Cosimulation(build, plan, dataset, settings, report).run()


def measure_speed(build: Build, plan: Plan, dataset: Dataset, settings: Settings) -> float:
    """Cycles per second of the simulator under cocotb, with nobody beside it."""
    return _Cosimulation(build, plan, dataset, settings, lambda _: None).speed()


def run_image(plan: Plan, dataset: Dataset, settings: Settings) -> str:
    """The same run for cosim/verilog/plain.cpp: words in hexadecimal."""
    phases = run_phases(plan, dataset, settings.samples, settings.tests)
    golden = Golden(plan, dataset, phases)
    writes = [*coefficient_accesses(golden.engine), *state_accesses(golden.engine)]
    packets = _pack(golden)
    entrance = plan.hardware.edges[0]
    layout = entrance.forward
    bits = layout.width + (entrance.beats - 1) * layout.lanes * layout.format.width
    count = -(-bits // 32)
    words = [count, len(writes)]
    words += (word for access in writes for word in (access.address, access.word))
    words.append(len(packets))
    words += (packet >> 32 * i & 0xFFFF_FFFF for packet in packets for i in range(count))
    return "\n".join(f"{word:x}" for word in words)


@dataclass
class _Score:
    """Predictions of the array, counted by phase."""

    phases: Sequence[Phase]
    seen: dict[str, int] = field(default_factory=dict)
    correct: dict[str, int] = field(default_factory=dict)
    phase: str = ""
    slots: int = 0

    def __post_init__(self) -> None:
        self._turns: Iterator[tuple[str, Turn]] = (
            (phase.name, turn) for phase in self.phases for turn in phase.turns
        )

    def take(self, words: Sequence[int]) -> None:
        """Words of the output stream; each slot's result comes before its `done`."""
        for word in words:
            result = unpack_fields(RESULT_FIELDS, word)
            if result["done"]:
                continue
            self.phase, turn = next(self._turns)
            self.slots += 1
            if turn.header.kind is not Kind.BUBBLE:
                hit = result["prediction"] == turn.header.label
                self.seen[self.phase] = self.seen.get(self.phase, 0) + 1
                self.correct[self.phase] = self.correct.get(self.phase, 0) + hit

    def accuracy(self, phase: str) -> float | None:
        seen = self.seen.get(phase, 0)
        return self.correct[phase] / seen if seen else None


class _Cosimulation:
    def __init__(
        self,
        build: Build,
        plan: Plan,
        dataset: Dataset,
        settings: Settings,
        report: Callable[[Progress], None],
    ) -> None:
        self._build, self._plan, self._dataset = build, plan, dataset
        self._settings, self._report = settings, report
        self._phases = run_phases(plan, dataset, settings.samples, settings.tests)
        self._comparison = StreamComparison(len(plan.hardware.streams))
        self._score = _Score(self._phases)
        golden = self._golden()
        self._initial = settings.tamper(
            [*coefficient_accesses(golden.engine), *state_accesses(golden.engine)]
        )
        self._packets = _pack(golden)

    def run(self) -> Outcome:
        final: Final | None = None
        words = 0
        with GoldenProcess(self._plan, self._dataset, self._phases) as golden:

            def take(report: Report) -> None:
                nonlocal final
                final = self._take_golden(golden.poll()) or final
                self._take_array(report)

            with self._simulate(NOTHING, self._settings.log) as session:
                finished = session.run(self._run(self._packets), take)
                while final is None:
                    final = self._take_golden([golden.wait()])
                suspect = self._comparison.first()
                difference = None
                if suspect is None and finished.stuck is None:
                    self._check_complete()
                    difference = self._check_memories(session, final)
                    words = len(final.accesses)
        if suspect is not None:
            difference = self._look_closer(suspect)
        return self._outcome(finished, difference, words, session.wave_file)

    def speed(self) -> float:
        with self._simulate(NOTHING, self._settings.log) as session:
            finished = session.run(self._run(self._packets), lambda _: None)
        return finished.simulated / finished.seconds

    def _golden(self) -> Golden:
        return Golden(self._plan, self._dataset, self._phases)

    @contextmanager
    def _simulate(self, capture: int, log: Path) -> Iterator[Session]:
        """A simulator with the initial state loaded."""
        hardware = self._plan.hardware
        setup = Setup(
            streams=len(hardware.streams),
            tiles=len(hardware.convs),
            stall=self._settings.stall,
            seed=self._plan.run.seed,
            capture=capture,
        )
        with simulate(self._build, setup, log) as session:
            session.write([(access.address, access.word) for access in self._initial])
            yield session

    def _run(self, packets: list[int]) -> Run:
        """Counts activity while only training samples are in the array."""
        hardware = self._plan.hardware
        start = len(self._phases[0].turns)
        stop = start + len(self._phases[1].turns)
        margin = 4 * (hardware.first_delay + 2)
        slot = self._slot_cycles()
        return Run(packets, (start + margin, stop), slot, PATIENCE_SLOTS * slot)

    def _slot_cycles(self) -> int:
        """Cycles of a slot, as good a guess as is needed to pace the driver."""
        return round(slot_period(self._plan.hardware)) * 100 // (100 - self._settings.stall)

    def _take_golden(self, messages: Iterator[Slots | Final] | list[Slots | Final]) -> Final | None:
        for message in messages:
            if isinstance(message, Final):
                return message
            self._comparison.golden(message.crcs)
        return None

    def _take_array(self, report: Report) -> None:
        self._comparison.array(report.crcs)
        score = self._score
        score.take(report.results)
        accuracy = score.accuracy(score.phase)
        total = len(self._packets)
        self._report(Progress(score.phase, score.slots, total, report.cycles, accuracy))

    def _check_complete(self) -> None:
        if self._comparison.missing:
            raise AssertionError(f"{self._comparison.missing} packets were never compared")

    def _check_memories(self, session: Session, final: Final) -> Difference | None:
        words = session.read([access.address for access in final.accesses])
        return first_wrong_word(final.accesses, words)

    def _look_closer(self, suspect: Suspect) -> Difference:
        """Repeat the run up to the suspect and compare that packet beat by beat."""
        golden = self._golden()
        expected = expected_packet(golden, suspect)
        log = self._settings.log.with_name("repeat.log")
        with self._simulate(suspect.packet, log) as session:
            session.run(self._run(self._packets[: suspect.slot + 1]), lambda _: None)
            actual = session.captured(suspect.stream, len(expected))
        samples = [turn.sample for phase in self._phases for turn in phase.turns]
        difference = explain(golden, suspect, expected, actual, samples)
        if difference is None:
            name = self._plan.hardware.streams[suspect.stream].name
            raise AssertionError(f"{name}: packet {suspect.packet} differed once, but not again")
        return difference

    def _outcome(
        self,
        finished: Finished,
        difference: Difference | None,
        words: int,
        wave_file: Path | None,
    ) -> Outcome:
        return Outcome(
            difference=difference,
            stuck=finished.stuck,
            tensors_compared=self._comparison.compared,
            words_compared=words,
            slots=self._score.slots,
            cycles=finished.cycles,
            cycles_per_second=finished.simulated / finished.seconds,
            seconds=finished.seconds,
            activity=finished.activity,
            accuracies={phase.name: self._score.accuracy(phase.name) for phase in self._phases},
            wave_file=wave_file,
        )


def _pack(golden: Golden) -> list[int]:
    """Every slot's input packet as the bench's memory holds it: data above side signals."""
    layout = golden.plan.hardware.edges[0].forward
    side = layout.width - layout.lanes * layout.format.width
    kept: dict[int, int] = {}
    packets = []
    for header, sample in golden.inputs():
        packet = layout.pack(header, [0] * layout.lanes, last=True)
        if sample is not None:
            key = sample.data_ptr()
            if key not in kept:
                kept[key] = _join(sample.flatten().tolist(), layout.format.width)
            packet |= kept[key] << side
        packets.append(packet)
    return packets


def _join(numbers: Sequence[int], width: int) -> int:
    mask = (1 << width) - 1
    return sum((number & mask) << place * width for place, number in enumerate(numbers))
