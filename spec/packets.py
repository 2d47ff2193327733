"""The bits of one beat on a stream, in one place for RTL, golden model and host.

A packet is one tensor of one sample: pixel by pixel, channels innermost, `lanes` channels a beat.
Fields are packed from the least significant bit in the order listed by `BeatLayout.fields`.
A bubble is one beat whose data are zero.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from spec.formats import Fixed

Fields = tuple[tuple[str, int], ...]
"""Names and widths, from the least significant bit up."""

LABEL_BITS = 10
"""Wide enough for the 1,000 classes of ImageNet."""
LOSS_BITS = 20

RESULT_FIELDS = (("kind", 2), ("done", 1), ("prediction", LABEL_BITS), ("loss", LOSS_BITS))
"""The output stream, two beats a slot. First the loss tile's result; then, with `done` set, the
kind of the backward packet that left the first tile: TRAIN when that sample is done."""


class Kind(IntEnum):
    """What a packet carries."""

    BUBBLE = 0
    TRAIN = 1
    EVAL = 2


@dataclass(frozen=True)
class Header:
    """The side signals of a packet; `commit` and `label` only travel forwards."""

    kind: Kind
    commit: bool = False
    label: int = 0


BUBBLE = Header(Kind.BUBBLE)


def pack_fields(fields: Fields, values: Mapping[str, int]) -> int:
    """Join fields, the first lowest."""
    packed, offset = 0, 0
    for name, width in fields:
        packed |= int(values[name]) << offset
        offset += width
    return packed


def unpack_fields(fields: Fields, packed: int) -> dict[str, int]:
    """The inverse of `pack_fields`."""
    values = {}
    for name, width in fields:
        values[name] = packed & ((1 << width) - 1)
        packed >>= width
    return values


@dataclass(frozen=True)
class BeatLayout:
    """How a beat of `lanes` elements in `format` is packed; `lanes` may be 0 (an empty packet)."""

    format: Fixed
    lanes: int
    forward: bool

    @property
    def fields(self) -> Fields:
        """Name and width of each field; `data` is `lanes` elements, lane 0 lowest."""
        side = [("kind", 2), ("last", 1)]
        if self.forward:
            side += [("commit", 1), ("label", LABEL_BITS)]
        return (*side, ("data", self.lanes * self.format.width))

    @property
    def width(self) -> int:
        return sum(width for _, width in self.fields)

    def pack(self, header: Header, data: Sequence[int], last: bool) -> int:
        """The bits of one beat."""
        mask = (1 << self.format.width) - 1
        values = {
            "kind": header.kind,
            "last": last,
            "commit": header.commit,
            "label": header.label,
            "data": sum((n & mask) << lane * self.format.width for lane, n in enumerate(data)),
        }
        return pack_fields(self.fields, values)

    def unpack(self, beat: int) -> tuple[Header, list[int], bool]:
        """The inverse of `pack`."""
        values = unpack_fields(self.fields, beat)
        header = Header(Kind(values["kind"]), bool(values.get("commit", 0)), values.get("label", 0))
        return header, self.elements(values["data"]), bool(values["last"])

    def elements(self, data: int) -> list[int]:
        """The numbers in a beat's `data` field, lane by lane."""
        width = self.format.width
        numbers = [(data >> lane * width) & ((1 << width) - 1) for lane in range(self.lanes)]
        if self.format.signed:
            numbers = [n - (1 << width) if n >> (width - 1) else n for n in numbers]
        return numbers

    def beats(self, header: Header, data: Sequence[int]) -> list[int]:
        """All beats of a packet; one beat of zeros for a bubble and for an empty packet."""
        if header.kind is Kind.BUBBLE or not self.lanes:
            return [self.pack(header, [0] * self.lanes, last=True)]
        count = len(data) // self.lanes
        return [
            self.pack(header, data[i * self.lanes : (i + 1) * self.lanes], last=i == count - 1)
            for i in range(count)
        ]


def packet_crc(beats: Sequence[int], width: int) -> int:
    """CRC-32 (as in zlib) over the beats of a packet, each `width` bits padded to whole bytes."""
    size = (width + 7) // 8
    return zlib.crc32(b"".join(beat.to_bytes(size, "little") for beat in beats))
