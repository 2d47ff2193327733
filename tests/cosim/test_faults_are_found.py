"""The bench can fail: every kind of fault is reported, and where it is."""

from dataclasses import replace
from typing import Any

import pytest
from amaranth import Signal

from cosim.host import Access
from cosim.report import report_data
from hw.array import TileArray
from tests.cosim.conftest import Laboratory, bench_plan, build_of


def changed(tile: str, tensor: str, element: int, flip: int) -> Any:
    """Flip bits of one word on its way into the array."""

    def tamper(accesses: list[Access]) -> list[Access]:
        found = [a for a in accesses if (a.tile, a.tensor, a.element) == (tile, tensor, element)]
        assert len(found) == 1
        return [replace(a, value=a.value ^ flip) if a is found[0] else a for a in accesses]

    return tamper


def test_a_corrupted_weight_is_reported_at_its_tile_and_lane(laboratory: Laboratory) -> None:
    output, source = 3, 1
    tamper = changed("two", "working copy", output * 6 + source, 1 << 6)
    difference = laboratory.run(bench_plan(), tamper=tamper).difference
    assert difference is not None
    assert (difference.tile, difference.tensor) == ("two", "activation to three")
    assert (difference.beat, difference.lane) == divmod(output, 2)
    assert difference.sample is not None
    assert difference.expected != difference.actual


def test_a_corrupted_velocity_is_found_though_it_shows_late(laboratory: Laboratory) -> None:
    tamper = changed("three", "velocity", 0, 1 << 12)
    assert laboratory.run(bench_plan(), tamper=tamper).difference is not None


@pytest.mark.parametrize("name", ["momentum_shift", "step_mantissa", "spike"])
def test_a_corrupted_coefficient_is_reported_at_its_tile(laboratory: Laboratory, name: str) -> None:
    tamper = changed("one", f"coefficient {name}", 0, 2)
    difference = laboratory.run(bench_plan(), tamper=tamper).difference
    assert difference is not None
    assert difference.tile == "one"


def test_a_dropped_token_is_reported_where_it_is_missing(laboratory: Laboratory) -> None:
    plan = bench_plan()
    tokens, packets = (0, 2, 1, 0), (5, 3, 2, 2)
    edges = tuple(
        replace(edge, tokens=held, packets=room)
        for edge, held, room in zip(plan.hardware.edges, tokens, packets, strict=True)
    )
    hardware = replace(plan.hardware, edges=edges)
    built = build_of(laboratory, hardware, plan, "dropped")
    difference = laboratory.run(plan, built=built).difference
    assert difference is not None
    assert (difference.tile, difference.tensor) == ("two", "gradient to one kind")


def test_a_swapped_lane_is_reported_on_its_stream(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = TileArray._probe

    def swap(self: TileArray, m: Any, place: int, source: Any) -> Any:
        return probe(self, m, place, _Swapped(m, source) if place == 1 else source)

    monkeypatch.setattr(TileArray, "_probe", swap)
    plan = bench_plan()
    built = build_of(laboratory, plan.hardware, plan, "swapped")
    difference = laboratory.run(plan, built=built).difference
    assert difference is not None
    assert (difference.tile, difference.tensor) == ("one", "activation to two")
    assert difference.lane == 0


def test_an_array_that_stops_is_reported_with_the_state_of_every_stream(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = TileArray._probe

    def cut(self: TileArray, m: Any, place: int, source: Any) -> Any:
        return probe(self, m, place, _Cut(m, source) if place == 2 else source)

    monkeypatch.setattr(TileArray, "_probe", cut)
    plan = bench_plan()
    built = build_of(laboratory, plan.hardware, plan, "cut")
    outcome = laboratory.run(plan, built=built)
    assert not outcome.bit_exact
    streams = report_data(plan, outcome, 20, {})["mismatch"]["streams"]
    assert streams.keys() == {stream.name for stream in plan.hardware.streams}
    assert streams["two->three forward"]["packets"] == 0


class _Swapped:
    """A stream whose two lanes have changed places."""

    def __init__(self, m: Any, source: Any) -> None:
        self.valid, self.ready = source.valid, source.ready
        self.payload = Signal(source.payload.shape(), name="swapped")
        m.d.comb += [
            self.payload.eq(source.payload),
            self.payload.data[0].eq(source.payload.data[1]),
            self.payload.data[1].eq(source.payload.data[0]),
        ]


class _Cut:
    """A stream that never offers anything."""

    def __init__(self, m: Any, source: Any) -> None:
        self.valid, self.ready, self.payload = Signal(name="cut"), source.ready, source.payload
