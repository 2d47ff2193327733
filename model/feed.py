"""What the host sends, slot by slot: the one order that golden model and co-simulation share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from model.data import Dataset, Split
from spec.packets import BUBBLE, Header, Kind
from spec.plan import Plan

ORDER_STREAM = 0x0D
"""Keeps the random numbers of the sample order apart from those of the weights."""


class Turn(NamedTuple):
    """One slot's input: side signals, and the sample's row in the phase's split (or None)."""

    header: Header
    sample: int | None


DRAIN = Turn(BUBBLE, None)


@dataclass(frozen=True)
class Phase:
    """A part of a run that reads one split; `turns` can be walked again and again."""

    name: str
    split: Split
    turns: tuple[Turn, ...]


def run_phases(
    plan: Plan, dataset: Dataset, samples: int, tests: int | None = None
) -> tuple[Phase, ...]:
    """A whole run: test, train on `samples` samples, drain, test again.

    Tests take the first `tests` images of the test split, or all of them. The very first packet
    commits the coefficients that the host has written. `samples` beyond an epoch go on with the
    next one, in an order of its own.
    """
    drain = plan.hardware.first_delay
    test = tuple(evaluation(dataset.test.labels[:tests]))
    train = tuple(training(plan, dataset.train.labels, samples))
    before, train = _committing(test, train)
    return (
        Phase("before", dataset.test, before),
        Phase("train", dataset.train, train),
        Phase("drain", dataset.train, (DRAIN,) * drain),
        Phase("after", dataset.test, test),
    )


def _committing(*parts: tuple[Turn, ...]) -> tuple[tuple[Turn, ...], ...]:
    """The same turns, of which the very first commits."""
    found = list(parts)
    place = next(i for i, part in enumerate(found) if part)
    first, *rest = found[place]
    header = Header(first.header.kind, True, first.header.label)
    found[place] = (Turn(header, first.sample), *rest)
    return tuple(found)


def evaluation(labels: Sequence[int]) -> Iterator[Turn]:
    """Every sample once, in order."""
    for sample, label in enumerate(labels):
        yield Turn(Header(Kind.EVAL, label=label), sample)


def training(plan: Plan, labels: Sequence[int], samples: int) -> Iterator[Turn]:
    """`samples` training samples, epoch by epoch; each drained by bubbles when sequential."""
    bubbles = plan.hardware.first_delay if plan.run.sequential else 0
    for sample in islice(sample_order(plan.run.seed, len(labels)), samples):
        yield Turn(Header(Kind.TRAIN, label=labels[sample]), sample)
        for _ in range(bubbles):
            yield DRAIN


def sample_order(seed: int, count: int) -> Iterator[int]:
    """Endless epochs over `count` samples, each shuffled by the seed and its number."""
    epoch = 0
    while True:
        generator = np.random.Generator(np.random.PCG64([seed, ORDER_STREAM, epoch]))
        yield from generator.permutation(count).tolist()
        epoch += 1
