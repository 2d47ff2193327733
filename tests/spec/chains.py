"""Chains of dense tiles, their foldings and their plans."""

from itertools import pairwise

from hypothesis import strategies as st

from spec.codec import content_hash
from spec.hyperparameters import Hyperparameters
from spec.mac import Folding
from spec.network import Network
from spec.plan import Plan
from spec.planner import Wishes, make_plan
from spec.ranges import EdgeRange, ParameterRange, Ranges
from spec.shape import Shape, divisors
from spec.tiles import Loss, dense
from spec.zoo import ZooEntry

HYPERPARAMETERS = Hyperparameters(2.0**-6, 1 - 2.0**-4)


def chain(widths: list[int], bias: bool = True) -> Network:
    """A stage for each layer from widths[i] to widths[i + 1]; the loss joins the last stage."""
    layers = [
        dense(f"dense{i}", width, bias, relu=i < len(widths) - 1)
        for i, width in enumerate(widths[1:], 1)
    ]
    stages = [(layer,) for layer in layers[:-1]] + [(layers[-1], Loss("loss"))]
    return Network.chain("chain", Shape(1, 1, widths[0]), *stages)


def ranges_of(network: Network) -> Ranges:
    return Ranges(
        content_hash(network),
        tuple(EdgeRange(edge, 2 if edge.source != "input" else 0, 0) for edge in network.edges),
        (),
        tuple(ParameterRange(tile.name, 1, 1, -2) for tile in network.convs),
    )


def chain_plan(
    widths: list[int], foldings: tuple[Folding, ...] | None = None, wishes: Wishes | None = None
) -> Plan:
    """A plan of a chain; one lane everywhere unless given."""
    network = chain(widths)
    foldings = foldings or (Folding(1, 1, 1),) * (len(widths) - 1)
    entry = ZooEntry(network, "digits", HYPERPARAMETERS, foldings, epochs=1)
    return make_plan(entry, wishes or Wishes(), ranges_of(network))


widths = st.lists(st.integers(1, 24), min_size=2, max_size=6)


@st.composite
def foldings_of(draw: st.DrawFn, layers: list[int]) -> tuple[Folding, ...]:
    """Legal foldings whose lanes agree between neighbours."""
    lanes = [draw(st.sampled_from(divisors(width))) for width in layers]
    foldings = []
    for lanes_in, lanes_out in pairwise(lanes):
        legal = [
            n for n in divisors(lanes_in * lanes_out) if n % lanes_out == 0 or lanes_out % n == 0
        ]
        foldings.append(Folding(lanes_in, lanes_out, draw(st.sampled_from(legal))))
    return tuple(foldings)
