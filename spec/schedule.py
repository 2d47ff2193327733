"""Schedules: how many tokens lie on each backward edge, and the delays that follow.

A tile's delay D is the sum of the tokens on the way from the loss back to it (design, section 3).
The delay of a tile with parameters is that of its stage: tokens_between_stages for every stage with
parameters behind it on the longest way to the loss. Tiles without parameters may have any delay
between those of their neighbours; moving a token across them changes no result.
"""

from enum import Enum

from spec.errors import InputError
from spec.network import INPUT, Edge, Network


class Schedule(Enum):
    """`paper` delays stage s of S by 2(S-1-s) samples, `1f1b` by half of that.

    `sequential` has the tokens of `paper` but feeds one sample and then bubbles until it has come
    back, and uses the coefficients of no delay: undelayed SGD on the same hardware.
    """

    PAPER = "paper"
    ONE_FORWARD_ONE_BACKWARD = "1f1b"
    SEQUENTIAL = "sequential"

    @property
    def tokens_between_stages(self) -> int:
        return 1 if self is Schedule.ONE_FORWARD_ONE_BACKWARD else 2


class Placement(Enum):
    """Where tokens lie between two tiles with parameters: half way, behind the producer's output,
    or before the consumer's input."""

    SPREAD = "spread"
    LATE = "late"
    EARLY = "early"


def edge_tokens(
    network: Network, schedule: Schedule, placement: Placement = Placement.SPREAD
) -> dict[Edge, int]:
    """Bubbles that each edge's backward channel holds at reset; the sums of branches agree.

    The edge from the host has none: the first tile's backward packets leave the array.
    """
    low, high = _delay_bounds(network, schedule.tokens_between_stages)
    delay = {name: _place(low[name], high[name], placement) for name in low}
    delay[INPUT] = delay[network.tiles[0].name]
    return {edge: delay[edge.source] - delay[edge.target] for edge in network.edges}


def delays(network: Network, tokens: dict[Edge, int]) -> dict[str, int]:
    """Delay of every tile, in samples.

    Raises InputError when the ways from a fork to the loss carry different sums.
    """
    result: dict[str, int] = {}
    for tile in reversed(network.tiles):
        sums = {
            target: result[target] + tokens[Edge(tile.name, target)]
            for target in network.targets(tile.name)
        }
        if len(set(sums.values())) > 1:
            listed = " and ".join(f"{total} by {target}" for target, total in sums.items())
            raise InputError(f"{tile.name}: branches must carry equal tokens, not {listed}")
        result[tile.name] = next(iter(sums.values()), 0)
    return result


def stash_depth(delay: int) -> int:
    """Packets that a tile's stash holds: those in flight, one in work, one arriving."""
    return delay + 2


def channel_depth(tokens: int) -> int:
    """Packets that a backward channel holds."""
    return max(2, tokens)


def _place(low: int, high: int, placement: Placement) -> int:
    if placement is Placement.SPREAD:
        return (low + high) // 2
    return low if placement is Placement.LATE else high


def _delay_bounds(network: Network, tokens: int) -> tuple[dict[str, int], dict[str, int]]:
    """The smallest and largest delay of each tile: equal for those with parameters."""
    low: dict[str, int] = {}
    following: dict[str, frozenset[str]] = {}
    for tile in reversed(network.tiles):
        name, stage = tile.name, network.stage_of[tile.name]
        next_ones = [
            frozenset({target}) if network.has_parameters(target) else following[target]
            for target in network.targets(name)
        ]
        following[name] = frozenset().union(*next_ones)
        if network.has_parameters(name):
            low[name] = max(
                (
                    low[other] + tokens * (network.stage_of[other] != stage)
                    for other in following[name]
                ),
                default=0,
            )
        else:
            low[name] = max((low[target] for target in network.targets(name)), default=0)
    high: dict[str, int] = {}
    for tile in network.tiles:
        name, sources = tile.name, network.sources(tile.name)
        if network.has_parameters(name) or not network.targets(name):
            high[name] = low[name]
        else:
            high[name] = min(high[source] for source in sources)
    return low, high
