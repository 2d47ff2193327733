"""The recursion: exact periods, the design's table, deadlocks, and plans of random networks."""

from collections.abc import Hashable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec.errors import InputError
from spec.network import NetworkBuilder
from spec.plan import HardwarePlan
from spec.planner import plan_hardware
from spec.presets import Preset
from spec.ranges import Ranges
from spec.recursion import Arc, deadlock, slowest_cycle
from spec.schedule import Schedule, channel_depth
from spec.shape import Shape
from spec.throughput import critical_cycle, slot_period, utilisation
from spec.tiles import Add, AveragePool, Conv, Fork, Loss, Norm, dense
from spec.zoo import ZOO, digits_mlp
from tests.random_networks import hardware_plans

TILES = 12
SLOTS = 400


def simulated_period(arcs: list[Arc]) -> float:
    """Slope of the recursion, walked slot by slot."""
    events = list(dict.fromkeys(e for arc in arcs for e in (arc.source, arc.target)))
    times: list[dict[Hashable, Fraction]] = []
    for slot in range(SLOTS):
        now = dict.fromkeys(events, Fraction(0))
        for _ in events:
            for arc in arcs:
                if arc.lag <= slot:
                    before = now if not arc.lag else times[slot - arc.lag]
                    now[arc.target] = max(now[arc.target], before[arc.source] + arc.cycles)
        times.append(now)
    half = SLOTS // 2
    return float(max((times[-1][e] - times[half - 1][e]) / half for e in events))


arcs = st.lists(
    st.builds(
        Arc,
        st.integers(0, 4),
        st.integers(0, 4),
        st.builds(Fraction, st.integers(0, 20), st.sampled_from([1, 2, 5])),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(arcs)
def test_the_slowest_ring_is_the_slope_of_the_recursion(graph: list[Arc]) -> None:
    if deadlock(graph):
        with pytest.raises(ValueError, match="wait for each other within a slot"):
            slowest_cycle(graph)
        return
    try:
        found = slowest_cycle(graph)
    except ValueError as error:
        assert "no event waits for itself" in str(error)
        return
    assert float(found.period) == pytest.approx(simulated_period(graph), rel=0.05, abs=0.5)


@given(arcs)
def test_a_deadlock_is_a_ring_without_lag(graph: list[Arc]) -> None:
    ring = deadlock(graph)
    direct = {(arc.source, arc.target) for arc in graph if not arc.lag}
    for event, following in zip(ring, (*ring[1:], *ring[:1]), strict=True):
        assert (event, following) in direct


def chain_arcs(tokens: int, depth: int) -> list[Arc]:
    """The design's chain of tiles: forward 1, backward 2 time units, strict slots."""
    graph = []
    for tile in range(TILES):
        forward, backward = (tile, "forward"), (tile, "backward")
        graph.append(Arc(forward, backward, Fraction(2), 0))
        graph.append(Arc(backward, forward, Fraction(1), 1))
        if tile + 1 < TILES:
            following = ((tile + 1, "forward"), (tile + 1, "backward"))
            graph.append(Arc(forward, following[0], Fraction(1), 0))
            graph.append(Arc(following[1], backward, Fraction(2), tokens))
            graph.append(Arc(following[0], forward, Fraction(1), depth))
            graph.append(Arc(backward, following[1], Fraction(2), max(tokens, depth) - tokens))
    return graph


@pytest.mark.parametrize(("tokens", "depth", "period"), [(0, 2, 36), (1, 2, 3), (2, 2, 3)])
def test_the_periods_of_the_designs_chain(tokens: int, depth: int, period: int) -> None:
    graph = chain_arcs(tokens, depth)
    if not tokens:
        graph = [arc for arc in graph if arc.lag < depth]
    assert slowest_cycle(graph).period == period


def test_a_chain_without_tokens_is_sequential_and_one_token_an_edge_frees_it() -> None:
    periods = {}
    for schedule in (Schedule.PAPER, Schedule.ONE_FORWARD_ONE_BACKWARD):
        entry = ZOO["deep_cnn"]()
        network = entry.network
        hardware = plan_hardware(
            network, Ranges.nominal(network), Preset.COMPACT.widths, entry.foldings, schedule
        )
        periods[schedule] = slot_period(hardware)
        slowest = max(hardware.geometry(planned).slot_cycles for planned in hardware.convs)
        assert slowest <= periods[schedule] <= 1.02 * slowest


@settings(max_examples=60, deadline=None)
@given(hardware_plans(st.sampled_from(Schedule)))
def test_every_plan_is_live_and_no_faster_than_its_slowest_tile(hardware: HardwarePlan) -> None:
    slowest = max(hardware.geometry(planned).slot_cycles for planned in hardware.convs)
    assert slot_period(hardware) >= slowest
    assert all(0 < share <= 1 for share in utilisation(hardware).values())


def test_a_branch_without_room_would_deadlock_and_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder = NetworkBuilder("stuck", Shape(4, 4, 2))
    builder.add(Conv("stem", 4))
    fork = builder.add(Fork("fork"))
    branch = builder.add(Conv("branch", 4))
    builder.add(Add("add"), branch, fork)
    builder.add(AveragePool("average"))
    builder.add(dense("dense", 2, relu=False))
    builder.add(Loss("loss"))
    network = builder.network()
    foldings = tuple(tile.folding(network.input_shape_of(tile), 4) for tile in network.convs)

    def plan() -> HardwarePlan:
        return plan_hardware(
            network, Ranges.nominal(network), Preset.COMPACT.widths, foldings, Schedule.PAPER
        )

    assert slot_period(plan()) > 0
    monkeypatch.setattr(HardwarePlan, "channel_packets", lambda self, edge: (
        0 if edge.edge.source == "fork" else channel_depth(edge.tokens)
    ))  # fmt: skip
    with pytest.raises(InputError, match=r"stuck would deadlock, each waits for the next: .*add"):
        plan()


def test_the_bottleneck_of_digits_mlp_sets_its_period() -> None:
    entry = digits_mlp()
    hardware = plan_hardware(
        entry.network,
        Ranges.nominal(entry.network),
        Preset.COMPACT.widths,
        entry.foldings,
        Schedule.PAPER,
    )
    assert slot_period(hardware) == 416
    assert {event[0] for event in critical_cycle(hardware).events} == {"dense1"}


def test_convolutions_of_digits_cnn_are_busy() -> None:
    """At least 85 % on average over all but the first, as the lanes are balanced."""
    entry = ZOO["digits_cnn"]()
    network = entry.network
    hardware = plan_hardware(
        network, Ranges.nominal(network), Preset.COMPACT.widths, entry.foldings, Schedule.PAPER
    )
    convs = [t.name for t in network.convs if t.kernel > 1][1:]
    shares = utilisation(hardware)
    assert sum(shares[name] for name in convs) / len(convs) >= 0.85


def test_a_norm_costs_no_period() -> None:
    builder = NetworkBuilder("pair", Shape(6, 6, 4))
    builder.add(Conv("one", 4))
    builder.stage()
    builder.add(Norm("norm"))
    builder.add(Conv("two", 4))
    builder.stage()
    builder.add(AveragePool("average"))
    builder.add(dense("dense", 2, relu=False))
    builder.add(Loss("loss"))
    network = builder.network()
    foldings = tuple(tile.folding(network.input_shape_of(tile), 4) for tile in network.convs)
    hardware = plan_hardware(
        network, Ranges.nominal(network), Preset.COMPACT.widths, foldings, Schedule.PAPER
    )
    slowest = max(hardware.geometry(planned).slot_cycles for planned in hardware.convs)
    assert slot_period(hardware) == slowest
