"""Packets of the golden model, and their beats as they appear on a stream of the hardware."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spec.packets import BUBBLE, BeatLayout, Header, Kind


@dataclass(frozen=True)
class Packet:
    """One sample's tensor with its side signals.

    `data` is None in a bubble and in the empty packets that the first tile sends to the host.
    """

    header: Header
    data: torch.Tensor | None = None

    @property
    def tensor(self) -> torch.Tensor:
        """The data of a packet that must have some."""
        if self.data is None:
            raise ValueError(f"packet must carry data, not {self.header!r} alone")
        return self.data


EMPTY = Packet(BUBBLE)
TRAIN_BACK = Header(Kind.TRAIN)
"""Side signals of a gradient: `commit` and the label only travel forwards."""


def packet_beats(layout: BeatLayout, header: Header, tensor: torch.Tensor | None) -> list[int]:
    """All beats of a packet with integer elements; equal to `BeatLayout.beats`, but vectorised."""
    base, last, shifts = _frame(layout, header)
    if tensor is None or not layout.lanes:
        return [base | last]
    numbers = tensor.numpy().reshape(-1, layout.lanes) & ((1 << layout.format.width) - 1)
    beats: list[int] = ((numbers << shifts).sum(axis=1) | base).tolist()
    beats[-1] |= last
    return beats


@lru_cache(maxsize=4096)
def _frame(layout: BeatLayout, header: Header) -> tuple[int, int, NDArray[Any]]:
    """A beat without data, its `last` bit, and the position of every lane.

    Positions are Python integers where a beat does not fit an int64.
    """
    zeros = [0] * layout.lanes
    base = layout.pack(header, zeros, last=False)
    last = layout.pack(header, zeros, last=True) ^ base
    start = layout.width - layout.lanes * layout.format.width
    positions = [start + lane * layout.format.width for lane in range(layout.lanes)]
    return base, last, np.array(positions, dtype=np.int64 if layout.width < 64 else object)
