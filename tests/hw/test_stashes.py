# amaranth: UnusedElaboratable=no
"""The rings that keep packets, against Python lists, under random traffic."""

import random
from typing import Any

import pytest
from amaranth import Value

from hw.stash import KeptStash, Stash
from spec.formats import Fixed
from spec.packets import BUBBLE, BeatLayout, Header, Kind
from tests.hw.conftest import integers, simulate

CLOCKS = 700
FORMAT = Fixed(5, 2)
LANES = 2


def random_packet(rng: random.Random, layout: BeatLayout, beats: int) -> tuple[Header, list[int]]:
    """A header and the numbers of all beats; a bubble is one beat of zeros."""
    kind = rng.choice(list(Kind))
    header = Header(kind)
    if layout.forward:
        header = Header(kind, rng.random() < 0.5, rng.randrange(1 << 10))
    count = LANES * (1 if kind is Kind.BUBBLE else beats)
    low, high = (0, 0) if kind is Kind.BUBBLE else (FORMAT.minimum, FORMAT.maximum)
    return header, integers(rng, low, high, count)


@pytest.mark.parametrize("offered", [0.3, 0.9])
@pytest.mark.parametrize(
    ("beats", "entries", "tokens", "delay"),
    [
        (1, 1, 0, 0),
        (3, 2, 0, 0),
        (2, 3, 0, 1),
        (4, 4, 0, 2),
        (3, 5, 0, 3),
        (3, 2, 1, 0),
        (2, 2, 2, 0),
        (1, 4, 3, 2),
    ],
)
def test_a_stash_keeps_packets_in_order_until_their_gradient_is_done_and_holds_no_more(
    beats: int, entries: int, tokens: int, delay: int, offered: float
) -> None:
    rng = random.Random(beats * entries + tokens + delay)
    layout = BeatLayout(FORMAT, LANES, forward=not tokens)
    stash = Stash(layout, beats, entries, tokens, delay)
    reader = stash.reader
    packets: list[tuple[Header, list[int]]] = [(BUBBLE, [])] * tokens
    arriving: list[tuple[Header, list[int]]] = []
    most = [0]

    async def check(ctx: Any) -> None:
        taken = released = 0
        offer: list[int] = []
        valid = False
        due: list[int] | None = None
        for _ in range(CLOCKS):
            if due is not None:
                assert [ctx.get(reader.data[lane]) for lane in range(LANES)] == due
            if not offer:
                arriving[:] = [random_packet(rng, layout, beats)]
                offer = layout.beats(*arriving[0])
            valid = valid or rng.random() < offered
            ctx.set(stash.i.valid, valid)
            ctx.set(Value.cast(stash.i.payload), offer[0])

            pending = len(packets) > taken
            assert ctx.get(reader.pending) == pending
            if pending:
                header = ctx.get(reader.header)
                given = Header(Kind(header.kind), bool(header.commit), header.label)
                assert given == packets[taken][0]
            take = pending and taken == released and rng.random() < 0.3
            release = (take or taken > released) and rng.random() < 0.3
            late = rng.random() < 0.5
            beat = rng.randrange(beats)
            ctx.set(reader.take, take)
            ctx.set(reader.release, release)
            ctx.set(reader.late, late)
            ctx.set(reader.beat, beat)
            place = released - delay if late else taken
            due = None
            if 0 <= place < len(packets):
                due = packets[place][1][beat * LANES : (beat + 1) * LANES] or None

            used = len(packets) - max(0, released - delay)
            most[0] = max(most[0], used)
            ready = ctx.get(stash.i.ready)
            assert ready == (used < entries)
            await ctx.tick()
            taken, released = taken + take, released + release
            if valid and ready:
                valid = False
                offer.pop(0)
                if not offer:
                    packets.append(arriving[0])
        assert released > CLOCKS // 30

    simulate(stash, check)
    assert most[0] == entries or offered < 0.5


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
@pytest.mark.parametrize(("width", "words"), [(1, 1), (3, 4)])
def test_a_kept_stash_gives_back_the_words_of_delay_slots_ago_and_begins_no_packet_without_room(
    width: int, words: int, delay: int
) -> None:
    rng, entries = random.Random(delay), delay + 2
    stash = KeptStash(width, words, entries, delay)
    port = stash.port
    packets: list[list[int]] = []

    async def check(ctx: Any) -> None:
        begun = released = checked = full = 0
        arriving: list[int] = []
        length = 1
        due: int | None = None
        for clock in range(CLOCKS):
            if due is not None:
                assert ctx.get(port.data) == due
                checked += 1
            room = begun - max(0, released - delay) < entries
            assert ctx.get(port.room) == room
            full += not room
            eager = clock % 200 < 100
            begin = room and rng.random() < (0.5 if eager else 0.1)
            # Words may come in the clock that begins their packet, and while others are begun.
            valid = len(packets) < begun + begin and rng.random() < 0.5
            word = rng.randrange(1 << width)
            if not arriving:
                length = rng.choice((1, words))
            last = len(arriving) == length - 1
            # The first `delay` releases belong to bubbles of the reset.
            release = released - delay < len(packets) and rng.random() < (0.05 if eager else 0.3)
            beat = rng.randrange(words)
            ctx.set(port.begin, begin)
            ctx.set(port.valid, valid)
            ctx.set(port.last, last)
            ctx.set(port.word, word)
            ctx.set(port.beat, beat)
            ctx.set(port.release, release)
            place = released - delay
            complete = 0 <= place < len(packets) and beat < len(packets[place])
            due = packets[place][beat] if complete else None
            await ctx.tick()
            begun, released = begun + begin, released + release
            if valid:
                arriving.append(word)
                if last:
                    packets.append(list(arriving))
                    arriving.clear()
        assert checked > CLOCKS // 10
        assert full > CLOCKS // 20

    simulate(stash, check)


@pytest.mark.parametrize(
    ("entries", "tokens", "delay", "message"),
    [
        (2, 3, 0, "tokens must be at most the 2 entries, not 3"),
        (2, 0, 2, "delay must be below the 2 entries, not 2"),
    ],
)
def test_a_stash_refuses_what_its_ring_cannot_hold(
    entries: int, tokens: int, delay: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Stash(BeatLayout(FORMAT, LANES, forward=True), 2, entries, tokens, delay)
    with pytest.raises(ValueError, match="entries must be at least 5, not 4"):
        KeptStash(1, 1, 4, delay=3)
