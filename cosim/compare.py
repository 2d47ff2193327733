"""Finding the first difference between the array and the golden model, and naming it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

from cosim.golden import Golden
from cosim.host import WORD_MASK, Access
from spec.packets import Fields, unpack_fields
from spec.plan import HardwarePlan


@dataclass(frozen=True)
class Difference:
    """One place where the array and the golden model part.

    `tile` is the one that produced the value, `sample` its number among the packets sent (None
    where no sample is involved), `lane` None for a side signal.
    """

    tile: str
    tensor: str
    sample: int | None
    slot: int | None
    beat: int | None
    lane: int | None
    expected: int
    actual: int

    def __str__(self) -> str:
        place = ", ".join(
            f"{name} {value}"
            for name, value in asdict(self).items()
            if name not in ("tile", "tensor", "expected", "actual") and value is not None
        )
        return (
            f"{self.tile}: {self.tensor}{', ' if place else ''}{place}: "
            f"expected {self.expected}, array has {self.actual}"
        )


@dataclass(frozen=True)
class Suspect:
    """The first packet whose CRC differs: `slot` is its number on the stream (of results: / 2)."""

    stream: int
    packet: int
    slot: int


class StreamComparison:
    """Compares CRCs as they arrive from both sides, in any order and in pieces."""

    def __init__(self, streams: int) -> None:
        self._ours: list[list[int]] = [[] for _ in range(streams)]
        self._theirs: list[list[int]] = [[] for _ in range(streams)]
        self._checked = [0] * streams
        self._suspects: list[Suspect] = []
        self.compared = 0

    def golden(self, crcs: Sequence[Sequence[int]]) -> None:
        self._extend(self._ours, crcs)

    def array(self, crcs: Sequence[Sequence[int]]) -> None:
        self._extend(self._theirs, crcs)

    def first(self) -> Suspect | None:
        """The first difference so far in the order of cause and effect, slot by slot."""
        return min(self._suspects, key=lambda s: (s.slot, s.stream), default=None)

    @property
    def missing(self) -> int:
        """Packets of the golden model that the array has not shown.

        The array may have shown more: backward streams of tiles without parameters run ahead.
        """
        pairs = zip(self._ours, self._theirs, strict=True)
        return sum(max(0, len(ours) - len(theirs)) for ours, theirs in pairs)

    def _extend(self, side: list[list[int]], crcs: Sequence[Sequence[int]]) -> None:
        for stream, new in enumerate(crcs):
            side[stream] += new
            self._check(stream)

    def _check(self, stream: int) -> None:
        ours, theirs = self._ours[stream], self._theirs[stream]
        per_slot = 2 if stream == len(self._ours) - 1 else 1
        end = min(len(ours), len(theirs))
        for packet in range(self._checked[stream], end):
            if ours[packet] != theirs[packet]:
                self._suspects.append(Suspect(stream, packet, packet // per_slot))
        self.compared += end - self._checked[stream]
        self._checked[stream] = end


def expected_packet(golden: Golden, suspect: Suspect) -> list[int]:
    """Run the golden model up to the suspect and return that packet's beats."""
    record = next(islice(golden.records(), suspect.slot, None))
    packets = golden.beats(record)[suspect.stream]
    return packets[suspect.packet % len(packets)]


def explain(
    golden: Golden,
    suspect: Suspect,
    expected: Sequence[int],
    actual: Sequence[int],
    samples: Sequence[int | None],
) -> Difference | None:
    """The first element in which two packets differ; None when they are equal.

    `samples` has the number of the sample that each slot sends, or None.
    """
    hardware = golden.plan.hardware
    fields = hardware.streams[suspect.stream].fields
    tile, tensor, delay = _producer(hardware, suspect.stream)
    slot = suspect.slot - delay
    for beat, (ours, theirs) in enumerate(zip(expected, actual, strict=False)):
        for name, lane, a, b in _elements(golden, suspect.stream, fields, ours, theirs):
            if a != b:
                what = tensor if name == "data" else f"{tensor} {name}"
                sample = samples[slot] if slot >= 0 else None
                return Difference(tile, what, sample, suspect.slot, beat, lane, a, b)
    return None


def _producer(hardware: HardwarePlan, stream: int) -> tuple[str, str, int]:
    """The tile that feeds a stream, what it sends, and how many slots old its sample is."""
    planned = hardware.streams[stream]
    if planned.edge is None:
        return hardware.network.tiles[-1].name, "result", 0
    source, target = planned.edge.source, planned.edge.target
    adapted = ", adapted" if planned.name.endswith("adapted") else ""
    if planned.forward:
        return source, f"activation to {target}{adapted}", 0
    return target, f"gradient to {source}{adapted}", hardware.delay(target)


def _elements(
    golden: Golden, stream: int, fields: Fields, ours: int, theirs: int
) -> Iterator[tuple[str, int | None, int, int]]:
    """(field, lane, expected, actual) of a beat: side signals first, then the data by lane."""
    left, right = unpack_fields(fields, ours), unpack_fields(fields, theirs)
    for name in left:
        if name != "data":
            yield name, None, left[name], right[name]
    layout = golden.plan.hardware.streams[stream].layout
    if layout is not None:
        elements = layout.elements
        pairs = zip(elements(left["data"]), elements(right["data"]), strict=True)
        for lane, (a, b) in enumerate(pairs):
            yield "data", lane, a, b


def first_wrong_word(accesses: Sequence[Access], words: Sequence[int]) -> Difference | None:
    """The first word read back that is not what the golden model has."""
    for access, word in zip(accesses, words, strict=True):
        if word != access.word:
            actual = word - (1 << 32) if access.value < 0 or word >> 31 else word
            actual = word & WORD_MASK if access.value >= 0 and word < 1 << 31 else actual
            return Difference(
                access.tile, access.tensor, None, None, None, access.element, access.value, actual
            )
    return None
