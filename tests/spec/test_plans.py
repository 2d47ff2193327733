"""Plans: they survive their file, and nothing that does not fit becomes one."""

import json
from copy import deepcopy
from dataclasses import replace
from itertools import chain as joined
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec.bus import COEFFICIENTS, ArrayRegister, LossRegister, Region
from spec.errors import InputError
from spec.formats import EXACT_FLOAT64_BITS, Fixed, product_limit
from spec.mac import Folding
from spec.mac_formats import SumWidths
from spec.method import PAPER_METHODS, Method
from spec.plan import HardwarePlan, Plan
from spec.planner import Wishes, make_plan
from spec.presets import Preset
from spec.registers import AddressMap, tensors_of
from spec.schedule import Schedule
from spec.tiles.loss import LOGITS
from spec.zoo import ZOO, digits_mlp
from tests.random_networks import hardware_plans
from tests.spec.chains import chain_plan, foldings_of, widths

WEIGHTS = (Region.MASTER, Region.VELOCITY, Region.WORKING)
BIASES = (Region.BIAS_MASTER, Region.BIAS_VELOCITY, Region.BIAS_WORKING)
PLAN = make_plan(digits_mlp(), Wishes())
DATA = json.loads(PLAN.to_json())

wishes = st.builds(
    Wishes,
    st.sampled_from(PAPER_METHODS),
    st.sampled_from(Schedule),
    st.sampled_from(Preset),
    st.sampled_from([None, 2.0**-6, 0.01, 0.1]),
    st.integers(0, (1 << 32) - 1),
)
runs = st.tuples(
    st.sampled_from(PAPER_METHODS),
    st.sampled_from([2.0**-6, 0.01, 0.1]),
    st.integers(0, (1 << 32) - 1),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 20),
    st.sampled_from([(1 << 61) + 1, 1 << 62, 10**400, -(10**400)]),
    st.floats(),
    st.text(max_size=6),
)


def scalar_paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(data, dict | list):
        return [path]
    keys = data if isinstance(data, dict) else range(len(data))
    return [found for key in keys for found in scalar_paths(data[key], (*path, key))]


def with_hardware(**changes: Any) -> HardwarePlan:
    return replace(PLAN.hardware, **changes)


def with_edge(place: int, **changes: Any) -> HardwarePlan:
    edges = list(PLAN.hardware.edges)
    edges[place] = replace(edges[place], **changes)
    return with_hardware(edges=tuple(edges))


@settings(max_examples=40)
@given(st.sampled_from(sorted(ZOO)), wishes)
def test_a_plan_comes_back_from_its_file(name: str, wanted: Wishes) -> None:
    plan = make_plan(ZOO[name](), wanted)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert (again.hardware.hash, again.run_hash) == (plan.hardware.hash, plan.run_hash)
    assert again.to_json() == plan.to_json()


@settings(max_examples=200)
@given(st.sampled_from(scalar_paths(DATA)), scalars)
def test_a_single_edited_value_anywhere_is_refused_in_one_line(
    path: tuple[Any, ...], value: Any
) -> None:
    edited = deepcopy(DATA)
    place = edited
    for key in path[:-1]:
        place = place[key]
    if place[path[-1]] == value:
        return
    place[path[-1]] = value
    with pytest.raises(InputError) as refusal:
        Plan.from_json(json.dumps(edited))
    assert "\n" not in str(refusal.value)


@given(st.text(max_size=20) | st.sampled_from(["", "9" * 5000, "[]", "null"]))
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Plan.from_json(text)


@settings(max_examples=50)
@given(runs, runs, st.sampled_from(Schedule))
def test_the_run_changes_the_run_hash_alone(
    one: tuple[Method, float, int], other: tuple[Method, float, int], schedule: Schedule
) -> None:
    first, second = (
        make_plan(digits_mlp(), Wishes(method, schedule, eta=eta, seed=seed))
        for method, eta, seed in (one, other)
    )
    assert first.hardware.hash == second.hardware.hash
    assert (first.run_hash == second.run_hash) == (one == other)


@settings(max_examples=50)
@given(st.data())
def test_lanes_preset_and_tokens_change_the_hardware_hash(data: st.DataObject) -> None:
    layers = [4, 6, 4]
    drawn = st.tuples(foldings_of(layers), st.sampled_from(Preset), st.sampled_from(Schedule))

    def hardware(choice: tuple[tuple[Folding, ...], Preset, Schedule]) -> HardwarePlan:
        foldings, preset, schedule = choice
        return chain_plan(layers, foldings, Wishes(schedule=schedule, preset=preset)).hardware

    one, other = (hardware(data.draw(drawn)) for _ in range(2))
    assert (one.hash == other.hash) == (one == other)


def test_sequential_runs_on_the_hardware_of_the_paper_schedule() -> None:
    paper, sequential = (
        make_plan(digits_mlp(), Wishes(schedule=s)) for s in (Schedule.PAPER, Schedule.SEQUENTIAL)
    )
    assert sequential.hardware.hash == paper.hardware.hash
    assert sequential.run_hash != paper.run_hash
    for planned in sequential.hardware.convs:
        integers = sequential.coefficients(planned).integers
        assert (integers.spike, integers.prediction_mantissa) == (0, 0)


@settings(max_examples=50)
@given(widths, st.sampled_from(Schedule), st.data())
def test_a_stash_deeper_than_allowed_is_refused_with_both_numbers(
    layers: list[int], schedule: Schedule, data: st.DataObject
) -> None:
    hardware = chain_plan(layers, wishes=Wishes(schedule=schedule)).hardware
    needed = [
        (hardware.delay(p.tile.name) + 2)
        * (inputs * hardware.source_of(p.tile.name).activation.width + p.tile.relu * p.tile.outputs)
        for p, inputs in zip(hardware.convs, layers[:-1], strict=True)
    ]
    assert [hardware.stash_bits_of(p.tile.name) for p in hardware.convs] == needed
    needed.append(hardware.stash_bits_of("loss"))
    allowed = data.draw(st.integers(0, 2 * max(needed)))
    if max(needed) <= allowed:
        assert replace(hardware, stash_bits=allowed).stash_bits == allowed
        return
    first = next(bits for bits in needed if bits > allowed)
    with pytest.raises(InputError, match=f"needs {first} bits, more than the {allowed} allowed"):
        replace(hardware, stash_bits=allowed)


@given(st.integers(0, 3), st.integers(1, 1 << 70), st.integers(-(1 << 70), -1))
def test_edges_have_the_shape_of_the_network_and_no_negative_tokens(
    place: int, channels: int, tokens: int
) -> None:
    shape = PLAN.hardware.edges[place].shape
    with pytest.raises(InputError, match=f"must be at least 0, not {tokens} and"):
        with_edge(place, tokens=tokens)
    if channels != shape.channels:
        wrong = replace(shape, channels=channels)
        with pytest.raises(InputError, match=f"shape must be {shape}, not {wrong}"):
            with_edge(place, shape=wrong, source_lanes=1, target_lanes=1)


@given(st.integers(900, 1 << 20))
def test_a_delay_beyond_the_horizon_register_is_refused(tokens: int) -> None:
    """The loss edge delays every tile, the first of them by the four tokens behind it too."""
    rooms = [tokens + delay + 2 for delay in (4, 2, 0)]
    stashes = [
        replace(edge, packets=room)
        for edge, room in zip(PLAN.hardware.edges[:-1], rooms, strict=True)
    ]
    edges = (*stashes, replace(PLAN.hardware.edges[-1], tokens=tokens))
    if tokens + 4 <= 1023:
        assert with_hardware(edges=edges).delay("dense1") == tokens + 4
        return
    with pytest.raises(InputError, match=f"delay must be at most 1023, not {tokens + 4}"):
        with_hardware(edges=edges)


@given(st.integers(1, 3), st.integers(45, 64))
def test_edge_formats_whose_sums_could_pass_the_exact_range_are_refused(
    place: int, width: int
) -> None:
    edge = PLAN.hardware.edges[place]
    with pytest.raises(InputError, match=r"sums need .* bits, more than the exact 53"):
        with_edge(place, gradient=Fixed(width, edge.gradient.frac))


@given(st.integers(60, 64))
def test_a_weight_gradient_whose_update_could_pass_the_exact_range_is_refused(width: int) -> None:
    parameters = PLAN.hardware.convs[0].parameters
    with pytest.raises(InputError, match=r"sums need .* bits, more than the exact 63"):
        replace(parameters, gradient=Fixed(width, parameters.gradient.frac))


@given(st.integers(2, 48), st.integers(2, 48), st.integers(1, 4096), st.integers(1, 4096))
def test_sums_are_accepted_exactly_up_to_the_exact_range(
    activation: int, gradient: int, inputs: int, outputs: int
) -> None:
    formats = replace(
        PLAN.hardware.formats(PLAN.hardware.convs[0]),
        source=Fixed(activation, 7),
        target_gradient=Fixed(gradient, 9),
    )
    weights = formats.parameters.working
    bias = -formats.bias.minimum << formats.bias_shift
    limits = (
        inputs * product_limit(weights, formats.source) + bias,
        outputs * product_limit(weights, formats.target_gradient),
        product_limit(formats.source, formats.target_gradient),
        -formats.target_gradient.minimum,
    )
    try:
        found = SumWidths.of("tile", formats, inputs, outputs, 1)
    except InputError:
        assert max(limits) >= 1 << EXACT_FLOAT64_BITS
        return
    assert max(limits) < 1 << EXACT_FLOAT64_BITS
    for width, limit in zip(
        (found.forward, found.backward_data, found.backward_weight, found.backward_bias),
        limits,
        strict=True,
    ):
        assert limit < 1 << width - 1 <= 2 * limit


@given(st.builds(Fixed, st.integers(2, 20), st.integers(0, 12), st.booleans()))
def test_logits_have_the_format_of_the_loss(logits: Fixed) -> None:
    if logits == LOGITS:
        assert with_edge(-1, activation=logits) == PLAN.hardware
        return
    with pytest.raises(InputError, match="the loss takes logits in Fixed"):
        with_edge(-1, activation=logits)


@given(st.data())
def test_neighbours_of_different_lanes_get_an_adapter_on_both_streams(data: st.DataObject) -> None:
    first, _ = data.draw(foldings_of([6, 12, 4]))
    _, second = data.draw(foldings_of([6, 12, 4]))
    hardware = chain_plan([6, 12, 4], (first, second)).hardware
    edge = hardware.edges[1]
    assert (edge.source_lanes, edge.target_lanes) == (first.lanes_out, second.lanes_in)
    adapted = [stream.name for stream in hardware.streams if stream.name.endswith("adapted")]
    assert len(adapted) == (2 if first.lanes_out != second.lanes_in else 0)


@given(st.integers(1, 3), st.sampled_from(["source_lanes", "target_lanes"]), st.integers(1, 99))
def test_an_edge_with_other_lanes_than_its_tiles_is_refused(
    place: int, end: str, lanes: int
) -> None:
    if lanes == getattr(PLAN.hardware.edges[place], end):
        return
    with pytest.raises(InputError, match=r"lanes must divide|(takes|sends) \d lanes, not"):
        with_edge(place, **{end: lanes})


@given(st.integers(0, 6).filter(lambda count: count != 3))
def test_each_tile_with_weights_needs_its_folding(count: int) -> None:
    with pytest.raises(InputError, match=f"needs as many foldings, not {count}"):
        make_plan(digits_mlp(), Wishes(foldings=(Folding(1, 1, 1),) * count))


@given(st.integers().filter(lambda seed: not 0 <= seed < 1 << 32))
def test_seeds_beyond_32_bits_are_refused(seed: int) -> None:
    with pytest.raises(InputError, match=f"seed must be from 0 to 4294967295, not {seed}"):
        replace(PLAN.run, seed=seed)


@given(st.integers(0, 3), st.sampled_from(["missing", "swapped"]))
def test_a_plan_describes_every_edge_and_tile_in_order(place: int, fault: str) -> None:
    edges, tiles = list(PLAN.hardware.edges), list(PLAN.hardware.tiles)
    if fault == "missing":
        edges.pop(place)
        tiles.pop(place)
    else:
        edges.insert(0, edges.pop(place or 1))
        tiles.insert(0, tiles.pop(place or 1))
    with pytest.raises(InputError, match="describe the edges of digits_mlp, in order"):
        with_hardware(edges=tuple(edges))
    with pytest.raises(InputError, match="describe the tiles of digits_mlp, in order"):
        with_hardware(tiles=tuple(tiles))


@settings(max_examples=50, deadline=None)
@given(hardware_plans(st.sampled_from(Schedule)))
def test_addresses_are_distinct_and_fit_the_port(hardware: HardwarePlan) -> None:
    where = AddressMap(hardware)
    trained = hardware.parameterised
    biased = [p for p in trained if hardware.network.parameter_counts(p.tile)[1]]
    addresses = [
        *(where.array(register) for register in ArrayRegister),
        *(where.loss(register) for register in LossRegister),
        *(where.coefficient(p.tile.name, c) for p in trained for c in COEFFICIENTS),
        *(where.state(p.tile.name, t) for p in hardware.tiles for t in tensors_of(p)),
        *joined.from_iterable(where.weights(p, region) for p in trained for region in WEIGHTS),
        *joined.from_iterable(where.biases(p, region) for p in biased for region in BIASES),
    ]
    registers = len(ArrayRegister) + len(LossRegister) + len(trained) * len(COEFFICIENTS)
    registers += sum(len(tensors_of(planned)) for planned in hardware.tiles)
    assert len(addresses) == registers + 3 * hardware.network.parameters
    assert len(set(addresses)) == len(addresses)
    assert min(addresses) == 0
    assert max(addresses) < 1 << where.address_bits
