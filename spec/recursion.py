"""Max-plus recursions: events that wait for each other from slot to slot (design, section 3).

An arc (source, target, cycles, lag) says that event `target` of slot k comes at least `cycles`
after event `source` of slot k - lag. The array then settles to the slot period of its slowest cycle
of arcs: the largest ratio of cycles to lag. A cycle without lag would wait for itself: a deadlock.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

ROUNDS_BETWEEN_LOOKS = 16


@dataclass(frozen=True)
class Arc:
    """`target` of slot k is at least `cycles` after `source` of slot k - `lag`."""

    source: Hashable
    target: Hashable
    cycles: Fraction
    lag: int

    def __post_init__(self) -> None:
        if self.lag < 0:
            raise ValueError(f"lag must be at least 0, not {self.lag}")


@dataclass(frozen=True)
class Cycle:
    """Events that wait for each other in a ring, and their cycles a slot."""

    events: tuple[Hashable, ...]
    period: Fraction


def deadlock(arcs: Sequence[Arc]) -> tuple[Hashable, ...]:
    """Events that wait for each other within one slot; none when there is no such ring."""
    waiting: dict[Hashable, int] = {}
    followers: dict[Hashable, list[Hashable]] = {}
    for arc in arcs:
        for event in (arc.source, arc.target):
            waiting.setdefault(event, 0)
            followers.setdefault(event, [])
        if not arc.lag:
            waiting[arc.target] += 1
            followers[arc.source].append(arc.target)
    ready = deque(event for event, count in waiting.items() if not count)
    while ready:
        for follower in followers[ready.popleft()]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    return _ring(arcs, {event for event, count in waiting.items() if count})


def slowest_cycle(arcs: Sequence[Arc]) -> Cycle:
    """The ring with the largest period, exact. Raises ValueError when there is none, or a deadlock.

    From a period on, each ring that is slower gives the next, larger one, until none is slower.
    """
    if deadlock(arcs):
        raise ValueError(f"{deadlock(arcs)} wait for each other within a slot")
    best: Cycle | None = None
    period = Fraction(-1)
    events = list(dict.fromkeys(e for arc in arcs for e in (arc.source, arc.target)))
    graph = _Graph(events, arcs)
    while (ring := graph.slower_ring(period)) is not None:
        total = sum((arcs[place].cycles for place in ring), Fraction(0))
        period = total / sum(arcs[place].lag for place in ring)
        best = Cycle(tuple(arcs[place].source for place in ring), period)
    if best is None:
        raise ValueError("no event waits for itself")
    return best


class _Graph:
    """Arcs as arrays, sorted by target, for longest paths by relaxation."""

    def __init__(self, events: Sequence[Hashable], arcs: Sequence[Arc]) -> None:
        number = {event: place for place, event in enumerate(events)}
        targets = np.array([number[arc.target] for arc in arcs])
        self._order = np.argsort(targets, kind="stable")
        self._sources = np.array([number[arc.source] for arc in arcs])[self._order]
        self._targets = targets[self._order]
        self._starts = np.flatnonzero(np.diff(self._targets, prepend=-1))
        self._reached = self._targets[self._starts]
        self._segment = np.cumsum(np.diff(self._targets, prepend=self._targets[0]) != 0)
        self._scale = int(np.lcm.reduce([arc.cycles.denominator for arc in arcs]))
        cycles = [int(arc.cycles * self._scale) for arc in arcs]
        self._cycles = np.array(cycles, np.int64)[self._order]
        self._lags = np.array([arc.lag for arc in arcs], np.int64)[self._order]
        self._count = len(events)

    def slower_ring(self, period: Fraction) -> list[int] | None:
        """Arcs of a ring slower than `period`: one that gains by cycles - period lag."""
        scaled = period * self._scale
        gains = self._cycles * scaled.denominator - self._lags * scaled.numerator
        distance = np.zeros(self._count, np.int64)
        parent = np.full(self._count, -1)
        for round_ in range(self._count + 1):
            offers = distance[self._sources] + gains
            best = np.maximum.reduceat(offers, self._starts)
            better = best > distance[self._reached]
            if not better.any():
                return None
            distance[self._reached[better]] = best[better]
            chosen = np.flatnonzero((offers == best[self._segment]) & better[self._segment])
            parent[self._targets[chosen]] = chosen
            if round_ % ROUNDS_BETWEEN_LOOKS == 0 and (ring := self._parents(parent)):
                return ring
        return self._parents(parent)

    def _parents(self, parent: NDArray[np.int64]) -> list[int] | None:
        """A ring among the arcs by which events were reached last."""
        seen = np.zeros(self._count, np.int64)
        for start in range(self._count):
            event, path = start, []
            while seen[event] == 0 and parent[event] >= 0:
                seen[event] = start + 1
                path.append(int(parent[event]))
                event = int(self._sources[parent[event]])
            if seen[event] == start + 1 and path:
                begin = next(i for i, arc in enumerate(path) if self._targets[arc] == event)
                return [int(self._order[arc]) for arc in reversed(path[begin:])]
            seen[event] = seen[event] or start + 1
        return None


def _ring(arcs: Sequence[Arc], blocked: set[Hashable]) -> tuple[Hashable, ...]:
    """A ring among events that all wait for another one of them."""
    if not blocked:
        return ()
    before = {a.target: a.source for a in arcs if not a.lag and {a.source, a.target} <= blocked}
    event, path = next(iter(before)), []
    while event not in path:
        path.append(event)
        event = before[event]
    return tuple(reversed(path[path.index(event) :]))
