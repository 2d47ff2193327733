"""Decisions about an edge, and the streams of the array."""

from dataclasses import dataclass

from spec.errors import InputError
from spec.formats import Fixed
from spec.network import INPUT, Edge
from spec.packets import RESULT_FIELDS, BeatLayout, Fields
from spec.shape import Shape


@dataclass(frozen=True)
class EdgePlan:
    """One edge of the network as two streams: activations forwards, gradients backwards.

    Where producer and consumer differ in lanes, an adapter re-cuts both streams.
    """

    edge: Edge
    shape: Shape
    activation: Fixed
    gradient: Fixed
    stochastic: bool
    """Whether gradients are rounded stochastically on this edge."""
    source_lanes: int
    target_lanes: int
    tokens: int
    packets: int
    """Forward packets that fit before the consumer; 0 where they pass straight through it."""

    def __post_init__(self) -> None:
        for lanes in (self.source_lanes, self.target_lanes):
            if lanes < 1 or self.shape.channels % lanes:
                raise InputError(
                    f"{self.edge}: lanes must divide its {self.shape.channels} channels, "
                    f"not {lanes}"
                )
        if self.tokens < 0 or self.packets < 0:
            raise InputError(
                f"{self.edge}: tokens and packets must be at least 0, "
                f"not {self.tokens} and {self.packets}"
            )

    @property
    def adapted(self) -> bool:
        return self.source_lanes != self.target_lanes

    @property
    def beats(self) -> int:
        """Beats of a packet with data as it leaves the producer (and as gradients reach it)."""
        return self.shape.elements // self.source_lanes

    @property
    def target_beats(self) -> int:
        """Beats of a packet with data as it reaches the consumer."""
        return self.shape.elements // self.target_lanes

    @property
    def forward(self) -> BeatLayout:
        """Activations as they leave the producer."""
        return BeatLayout(self.activation, self.source_lanes, forward=True)

    @property
    def arriving(self) -> BeatLayout:
        """Activations as they reach the consumer."""
        return BeatLayout(self.activation, self.target_lanes, forward=True)

    @property
    def backward(self) -> BeatLayout:
        """Gradients as they leave the consumer; the host gets empty packets, since nobody wants
        the input's gradient."""
        lanes = 0 if self.edge.source == INPUT else self.target_lanes
        return BeatLayout(self.gradient, lanes, forward=False)

    @property
    def returning(self) -> BeatLayout:
        """Gradients as they reach the producer."""
        return BeatLayout(self.gradient, self.source_lanes, forward=False)


@dataclass(frozen=True)
class StreamPlan:
    """One stream of the array: an edge's packets one way, at one of its ends; or the results."""

    name: str
    edge: Edge | None
    forward: bool
    layout: BeatLayout | None
    beats: int
    """Of a packet with data."""

    @property
    def fields(self) -> Fields:
        """Of a beat."""
        return RESULT_FIELDS if self.layout is None else self.layout.fields

    @property
    def width(self) -> int:
        return sum(width for _, width in self.fields)


RESULTS = StreamPlan("results", None, True, None, 1)


def forward_streams(planned: EdgePlan) -> list[StreamPlan]:
    """From the producer to the consumer."""
    name, edge = f"{planned.edge} forward", planned.edge
    streams = [StreamPlan(name, edge, True, planned.forward, planned.beats)]
    if planned.adapted:
        arriving, beats = planned.arriving, planned.target_beats
        streams.append(StreamPlan(f"{name}, adapted", edge, True, arriving, beats))
    return streams


def backward_streams(planned: EdgePlan) -> list[StreamPlan]:
    """From the consumer back to the producer."""
    name, edge = f"{planned.edge} backward", planned.edge
    beats = planned.target_beats if planned.backward.lanes else 1
    streams = [StreamPlan(name, edge, False, planned.backward, beats)]
    if planned.adapted:
        returning, beats = planned.returning, planned.beats
        streams.append(StreamPlan(f"{name}, adapted", edge, False, returning, beats))
    return streams
