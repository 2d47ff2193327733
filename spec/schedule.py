"""Schedules: how many tokens lie on each backward edge, and the delays that follow.

A stage's delay D is the sum of the tokens on the way from the loss back to it (design, section 3).
"""

from enum import Enum

from spec.network import Edge, Network


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


def edge_tokens(network: Network, schedule: Schedule) -> dict[Edge, int]:
    """Bubbles that each edge's backward channel holds at reset.

    The edge from the host has none: the first tile's backward packets leave the array.
    """
    return {
        edge: schedule.tokens_between_stages
        if not _within_stage(network, edge) and edge.source != "input"
        else 0
        for edge in network.edges
    }


def delays(network: Network, tokens: dict[Edge, int]) -> dict[str, int]:
    """Delay D of every tile, in samples."""
    result: dict[str, int] = {}
    for tile in reversed(network.tiles):
        edge = network.output_edge(tile)
        result[tile.name] = 0 if edge is None else result[edge.target] + tokens[edge]
    return result


def stash_depth(delay: int) -> int:
    """Packets that a tile's stash holds: those in flight, one in work, one arriving."""
    return delay + 2


def channel_depth(tokens: int) -> int:
    """Packets that a backward channel holds."""
    return max(2, tokens)


def _within_stage(network: Network, edge: Edge) -> bool:
    return any(edge.source in stage and edge.target in stage for stage in network.stages)
