"""Packets: what is packed comes back, and the bits lie where the host expects them."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from spec.formats import Fixed
from spec.packets import (
    BUBBLE,
    LABEL_BITS,
    RESULT_FIELDS,
    BeatLayout,
    Fields,
    Header,
    Kind,
    pack_fields,
    packet_crc,
    unpack_fields,
)

formats = st.builds(Fixed, st.integers(2, 40), st.integers(-8, 40), st.booleans())
layouts = st.builds(BeatLayout, formats, st.integers(0, 9), st.booleans())
field_lists = st.lists(st.integers(0, 70), max_size=6).map(
    lambda widths: tuple((f"field{i}", width) for i, width in enumerate(widths))
)


@st.composite
def headers(draw: st.DrawFn, layout: BeatLayout) -> Header:
    kind = draw(st.sampled_from(Kind))
    if not layout.forward:
        return Header(kind)
    return Header(kind, draw(st.booleans()), draw(st.integers(0, (1 << LABEL_BITS) - 1)))


def elements(layout: BeatLayout, count: int) -> st.SearchStrategy[list[int]]:
    target = layout.format
    return st.lists(st.integers(target.minimum, target.maximum), min_size=count, max_size=count)


@given(layouts, st.booleans(), st.data())
def test_unpack_inverts_pack(layout: BeatLayout, last: bool, data: st.DataObject) -> None:
    header = data.draw(headers(layout))
    numbers = data.draw(elements(layout, layout.lanes))
    beat = layout.pack(header, numbers, last)
    assert 0 <= beat < 1 << layout.width
    assert layout.unpack(beat) == (header, numbers, last)


@given(layouts, st.integers(1, 5), st.data())
def test_the_beats_of_a_packet_hold_its_elements_in_order_and_end_with_last(
    layout: BeatLayout, count: int, data: st.DataObject
) -> None:
    header = data.draw(headers(layout).filter(lambda drawn: drawn.kind is not Kind.BUBBLE))
    numbers = data.draw(elements(layout, count * layout.lanes))
    unpacked = [layout.unpack(beat) for beat in layout.beats(header, numbers)]
    assert [n for _, part, _ in unpacked for n in part] == numbers
    assert {found for found, _, _ in unpacked} == {header}
    lasts = [last for _, _, last in unpacked]
    assert lasts == [False] * (len(lasts) - 1) + [True]
    assert len(lasts) == (count if layout.lanes else 1)


@given(layouts, st.integers(0, 5), st.data())
def test_a_bubble_is_one_beat_of_zeros_whatever_its_data(
    layout: BeatLayout, count: int, data: st.DataObject
) -> None:
    numbers = data.draw(elements(layout, count * layout.lanes))
    (beat,) = layout.beats(BUBBLE, numbers)
    assert layout.unpack(beat) == (BUBBLE, [0] * layout.lanes, True)
    assert beat == 1 << 2, "nothing but the bit of last"


@given(layouts)
def test_fields_join_without_gaps(layout: BeatLayout) -> None:
    ones = {name: (1 << width) - 1 for name, width in layout.fields}
    assert pack_fields(layout.fields, ones) == (1 << layout.width) - 1


@given(field_lists, st.data())
def test_unpack_fields_inverts_pack_fields(fields: Fields, data: st.DataObject) -> None:
    values = {name: data.draw(st.integers(0, (1 << width) - 1)) for name, width in fields}
    packed = pack_fields(fields, values)
    assert unpack_fields(fields, packed) == values
    assert packed < 1 << sum(width for _, width in fields)


def test_a_result_fits_the_host_word_of_33_bits() -> None:
    assert sum(width for _, width in RESULT_FIELDS) == 33


def test_beats_packed_by_hand() -> None:
    """Three lanes of 4 bits: 1, -1, 7, -8, 0, 2 of a training sample with label 5."""
    layout = BeatLayout(Fixed(4, 0), 3, forward=True)
    first = 0b0111_1111_0001 << 14 | 5 << 4 | 0b1 << 3 | 0b0 << 2 | 0b01
    second = 0b0010_0000_1000 << 14 | 5 << 4 | 0b1 << 3 | 0b1 << 2 | 0b01
    beats = layout.beats(Header(Kind.TRAIN, commit=True, label=5), [1, -1, 7, -8, 0, 2])
    assert layout.width == 26
    assert beats == [first, second]
    laid_out = bytes([0x59, 0x40, 0xFC, 0x01, 0x5D, 0x00, 0x82, 0x00])
    assert packet_crc(beats, layout.width) == zlib.crc32(laid_out)


@given(st.integers(1, 80), st.data())
def test_the_crc_is_that_of_the_beats_as_little_endian_bytes(
    width: int, data: st.DataObject
) -> None:
    beats = data.draw(st.lists(st.integers(0, (1 << width) - 1), max_size=4))
    size = -(-width // 8)
    laid_out = bytes(beat >> 8 * i & 0xFF for beat in beats for i in range(size))
    assert packet_crc(beats, width) == zlib.crc32(laid_out)


@given(st.lists(st.integers(0, (1 << 26) - 1), min_size=1, max_size=6), st.data())
def test_the_crc_finds_any_single_wrong_bit(beats: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(beats) - 1))
    wrong = list(beats)
    wrong[place] ^= 1 << data.draw(st.integers(0, 25))
    assert packet_crc(wrong, 26) != packet_crc(beats, 26)
