"""Networks refuse what is no graph; schedules, delays and cycle counts follow from the graph."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.errors import InputError
from spec.mac import TURN_CYCLES, UPDATE_TAIL, Folding, Pass
from spec.network import INPUT, Edge, Network
from spec.schedule import Schedule, channel_depth, delays, edge_tokens, stash_depth
from spec.shape import Shape, divisors
from spec.tiles import Loss, dense
from spec.zoo import ZOO, digits_mlp
from tests.spec.chains import chain, foldings_of, widths

MULTIPLIERS = 16
LOWEST_USE = 0.90

stage_counts = st.integers(1, 12)
deep_chains = stage_counts.map(lambda count: chain([3] * (count + 1)))


def stages_of_two(stages: int) -> Network:
    """Two tiles a stage, so that a stage has an inner edge."""
    layers = [tuple(dense(f"s{s}{half}", 2) for half in "ab") for s in range(stages)]
    return Network.chain("pairs", Shape(1, 1, 2), *layers[:-1], (*layers[-1], Loss("loss")))


@given(deep_chains, st.data())
def test_repeated_names_are_refused(network: Network, data: st.DataObject) -> None:
    taken = data.draw(st.sampled_from([INPUT, *(tile.name for tile in network.tiles)]))
    place = data.draw(st.integers(0, len(network.tiles) - 1))
    if network.tiles[place].name == taken:
        return
    tiles = list(network.tiles)
    tiles[place] = replace(tiles[place], name=taken)
    with pytest.raises(InputError, match="tile names must differ and not be 'input'"):
        replace(network, tiles=tuple(tiles))


@given(deep_chains, st.data())
def test_an_edge_bent_to_anywhere_else_is_refused(network: Network, data: st.DataObject) -> None:
    """A chain is the only graph in which every tile has one input and feeds one tile."""
    names = [INPUT, *(tile.name for tile in network.tiles), "nowhere"]
    bent = Edge(data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names)))
    place = data.draw(st.integers(0, len(network.edges) - 1))
    if bent == network.edges[place]:
        return
    if "nowhere" in (bent.source, bent.target):
        reason = f"edge {bent} joins tiles that do not exist"
    elif names.index(bent.source) >= names.index(bent.target):
        reason = f"edge {bent} leads backwards"
    else:
        reason = "exactly one|follow the order of the tiles"
    edges = (*network.edges[:place], bent, *network.edges[place + 1 :])
    with pytest.raises(InputError, match=reason):
        replace(network, edges=edges)


@given(deep_chains, st.data())
def test_a_missing_or_doubled_edge_is_refused(network: Network, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(network.edges) - 1))
    kept = data.draw(st.sampled_from([0, 2]))
    edges = [*network.edges[:place], *(network.edges[place],) * kept, *network.edges[place + 1 :]]
    with pytest.raises(InputError, match=r"exactly one|edges must differ"):
        replace(network, edges=tuple(edges))


@given(deep_chains)
def test_a_network_without_a_loss_at_its_end_is_refused(network: Network) -> None:
    with pytest.raises(InputError, match="the last tile must be the loss"):
        replace(network, tiles=network.tiles[:-1], stages=())
    with pytest.raises(InputError, match="the last tile must be the loss"):
        replace(network, tiles=(), stages=(), edges=())
    with pytest.raises(InputError, match="only the last tile may be a loss"):
        replace(network, tiles=(Loss("early"), *network.tiles))


@given(deep_chains.filter(lambda network: len(network.stages) > 1), st.data())
def test_stages_out_of_order_or_incomplete_are_refused(
    network: Network, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(network.stages))
    if tuple(shuffled) != network.stages:
        with pytest.raises(InputError, match="stages must list every tile once, in order"):
            replace(network, stages=tuple(shuffled))
    place = data.draw(st.integers(0, len(network.stages) - 1))
    with pytest.raises(InputError, match="stages must list every tile once, in order"):
        replace(network, stages=network.stages[:place] + network.stages[place + 1 :])


@given(st.integers(1, 4), st.integers(1, 4))
def test_the_loss_takes_one_pixel(rows: int, columns: int) -> None:
    if rows == columns == 1:
        return
    with pytest.raises(InputError, match=f"loss: .* one pixel .*, not {rows}x{columns}x3"):
        replace(chain([3, 3]), input_shape=Shape(rows, columns, 3))


@given(st.integers(1025, 4000))
def test_more_classes_than_labels_are_refused(classes: int) -> None:
    with pytest.raises(InputError, match="at most 1024 classes"):
        chain([1, classes])


@given(widths)
def test_shapes_follow_the_outputs(layers: list[int]) -> None:
    network = chain(layers)
    shapes = [network.output_shapes[name] for name in (INPUT, *(t.name for t in network.tiles))]
    assert [shape.channels for shape in shapes] == [*layers, layers[-1]]
    assert network.parameters == sum((a + 1) * b for a, b in pairwise(layers))


@given(st.integers(-4, 4), st.integers(-4, 4), st.integers(-4, 4))
def test_shapes_without_elements_are_refused(rows: int, columns: int, channels: int) -> None:
    if min(rows, columns, channels) > 0:
        assert Shape(rows, columns, channels).elements == rows * columns * channels
        return
    with pytest.raises(InputError, match="at least 1"):
        Shape(rows, columns, channels)


@given(stage_counts, st.sampled_from(Schedule), st.booleans())
def test_delays_are_those_of_the_schedule(stages: int, schedule: Schedule, pairs: bool) -> None:
    network = stages_of_two(stages) if pairs else chain([2] * (stages + 1))
    factor = 1 if schedule is Schedule.ONE_FORWARD_ONE_BACKWARD else 2
    tokens = edge_tokens(network, schedule)
    found = delays(network, tokens)
    for stage, names in enumerate(network.stages):
        for name in names:
            assert found[name] == factor * (stages - 1 - stage)
            assert stash_depth(found[name]) == found[name] + 2
    assert tokens[network.edges[0]] == 0
    assert tokens[network.edges[-1]] == 0


@given(stage_counts, st.data())
def test_moving_tokens_changes_only_the_delays_between(stages: int, data: st.DataObject) -> None:
    network = chain([2] * (stages + 1))
    tokens = {edge: data.draw(st.integers(0, 4)) for edge in network.edges}
    first, second = sorted(data.draw(st.integers(0, stages)) for _ in range(2))
    moved = dict(tokens)
    amount = data.draw(st.integers(0, tokens[network.edges[first]]))
    moved[network.edges[first]] -= amount
    moved[network.edges[second]] += amount
    before, after = delays(network, tokens), delays(network, moved)
    for position, tile in enumerate(network.tiles):
        gained = amount if first <= position < second else 0
        assert after[tile.name] == before[tile.name] + gained


@given(st.integers(0, 50))
def test_a_channel_holds_its_tokens_and_never_less_than_two(tokens: int) -> None:
    assert channel_depth(tokens) >= tokens
    assert channel_depth(tokens) == (tokens if tokens >= 2 else 2)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(-3, 70), st.booleans())
def test_refused_lanes_are_answered_with_the_legal_ones(
    inputs: int, outputs: int, lanes: int, into: bool
) -> None:
    tile, source = dense("dense", outputs), Shape(1, 1, inputs)
    folding = Folding(lanes, 1, 1) if into else Folding(1, lanes, 1)
    legal = divisors(inputs if into else outputs)
    if lanes in legal:
        tile.check_folding(source, folding)
        return
    with pytest.raises(InputError) as refusal:
        tile.check_folding(source, folding)
    assert f"(one of {', '.join(map(str, legal))}), not {lanes}" in str(refusal.value)
    assert str(refusal.value).startswith(f"dense: lanes_{'in' if into else 'out'} ")


@given(st.data())
def test_refused_update_lanes_are_answered_with_legal_ones(data: st.DataObject) -> None:
    layers = [12, 12]
    (folding,) = data.draw(foldings_of(layers))
    wanted = replace(folding, update_lanes=data.draw(st.integers(-1, 150)))
    tile, source = dense("dense", 12), Shape(1, 1, 12)
    try:
        tile.check_folding(source, wanted)
    except InputError as refusal:
        listed = str(refusal).split("one of ")[1].split(" at ")[0]
        assert str(wanted.update_lanes) not in listed.split(", ")
        for lanes in listed.split(", "):
            tile.check_folding(source, replace(folding, update_lanes=int(lanes)))
    else:
        assert folding.multipliers % wanted.update_lanes == 0


@given(st.lists(st.integers(1, 24), min_size=2, max_size=2), st.booleans(), st.data())
def test_every_pass_takes_each_product_once(
    layers: list[int], first: bool, data: st.DataObject
) -> None:
    (folding,) = data.draw(foldings_of(layers))
    tile, source = dense("dense", layers[1]), Shape(1, 1, layers[0])
    geometry = tile.geometry(source, folding, first)
    assert (geometry.backward_data is None) == first
    for one in (geometry.forward, geometry.backward_data, geometry.backward_weight):
        if one is not None:
            assert one.steps * folding.multipliers == tile.macs(source)
    assert geometry.weight_words * folding.multipliers == tile.macs(source)
    assert geometry.bias_words * folding.lanes_out == tile.outputs


@given(st.lists(st.integers(1, 24), min_size=2, max_size=2), st.booleans(), st.data())
def test_the_weight_pass_reaches_every_element_once(
    layers: list[int], first: bool, data: st.DataObject
) -> None:
    """Index of a step's first lane, output lane times the stride, and input lane."""
    (folding,) = data.draw(foldings_of(layers))
    geometry = dense("dense", layers[1]).geometry(Shape(1, 1, layers[0]), folding, first)
    words = indices(geometry.backward_weight)
    reached = [
        word + output * geometry.lane_stride + source
        for word, output, source in product(
            words, range(folding.lanes_out), range(folding.lanes_in)
        )
    ]
    assert sorted(reached) == list(range(layers[0] * layers[1]))


def indices(nest: Pass) -> list[int]:
    return [step.at.index for step in nest.walk()]


@given(
    st.lists(st.integers(1, 24), min_size=2, max_size=2), st.booleans(), st.booleans(), st.data()
)
def test_a_slot_lasts_as_long_as_its_parts(
    layers: list[int], first: bool, bias: bool, data: st.DataObject
) -> None:
    """Passes one after the other; the update stretches each block to its turns."""
    (folding,) = data.draw(foldings_of(layers))
    inputs, outputs = layers[0] // folding.lanes_in, layers[1] // folding.lanes_out
    tile = dense("dense", layers[1], bias=bias)
    geometry = tile.geometry(Shape(1, 1, layers[0]), folding, first)
    words = inputs * outputs
    forward_and_data = words if first else 2 * words
    weight = words * folding.multipliers // folding.update_lanes
    biases = outputs * max(1, folding.lanes_out // folding.update_lanes) if bias else 0
    parts = TURN_CYCLES + forward_and_data + weight + biases + UPDATE_TAIL
    assert geometry.slot_cycles == parts
    assert geometry.busy_cycles == forward_and_data + words
    assert 0 < geometry.utilisation < 1


def test_the_bottleneck_of_digits_mlp_is_used_well_with_few_multipliers() -> None:
    entry = digits_mlp()
    geometries = [
        tile.geometry(entry.network.input_shape_of(tile), folding, entry.network.is_first(tile))
        for tile, folding in zip(entry.network.convs, entry.foldings, strict=True)
    ]
    assert max(geometry.folding.multipliers for geometry in geometries) <= MULTIPLIERS
    slowest = max(geometries, key=lambda geometry: geometry.slot_cycles)
    assert slowest.utilisation >= LOWEST_USE


@pytest.mark.parametrize("name", ZOO)
def test_networks_of_the_zoo_carry_the_name_they_are_called_by(name: str) -> None:
    assert ZOO[name]().network.name == name
