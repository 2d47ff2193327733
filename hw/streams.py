"""Stream payloads, built from the layouts in `spec.packets`."""

from amaranth import Shape, signed, unsigned
from amaranth.lib import data, stream

from spec.formats import Fixed
from spec.packets import LABEL_BITS, BeatLayout

KIND_BITS = 2


def element(format: Fixed) -> Shape:
    """The Amaranth shape of one number."""
    return signed(format.width) if format.signed else unsigned(format.width)


def word(format: Fixed, lanes: int) -> data.ArrayLayout:
    """`lanes` numbers side by side, lane 0 lowest."""
    return data.ArrayLayout(element(format), lanes)


def beat(layout: BeatLayout) -> data.StructLayout:
    """The payload of a stream whose beats are packed as `layout` says."""
    members = {
        name: word(layout.format, layout.lanes) if name == "data" else unsigned(width)
        for name, width in layout.fields
        if width
    }
    return data.StructLayout(members)


def packet_stream(layout: BeatLayout) -> stream.Signature:
    """A ready/valid stream of the beats of `layout`."""
    return stream.Signature(beat(layout))


HEADER = data.StructLayout({"kind": KIND_BITS, "commit": 1, "label": LABEL_BITS})
"""Side signals that a tile keeps of each packet; unused ones are optimised away."""
