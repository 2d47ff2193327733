"""What travels between the process that compares and the driver inside the simulator."""

from dataclasses import dataclass

SOCKET_VARIABLE = "TIDEMILL_SOCKET"
"""Environment variable that tells the driver where to call."""


@dataclass(frozen=True)
class Setup:
    """Sent first: what must be known before the end of reset."""

    streams: int
    tiles: int
    stall: int
    seed: int
    capture: int


@dataclass(frozen=True)
class Run:
    """Send `packets` (side signals below data) and report until every stream has answered.

    While packets from `window[0]` to `window[1]` are sent, the activity of the tiles is counted.
    """

    packets: list[int]
    window: tuple[int, int]
    slot_cycles: int
    patience: int
    """Cycles without any result after which the array counts as stuck."""


@dataclass(frozen=True)
class Write:
    """Write words to bus addresses."""

    addresses: list[int]
    words: list[int]


@dataclass(frozen=True)
class Read:
    """Read the words at bus addresses; answered by a list."""

    addresses: list[int]


@dataclass(frozen=True)
class Captured:
    """Ask for the beats that the probe of a stream has kept; answered by a list."""

    stream: int
    beats: int


@dataclass(frozen=True)
class Report:
    """What has come out since the last report: per stream the CRCs of its next packets."""

    crcs: list[list[int]]
    results: list[int]
    cycles: int
    seconds: float
    """Time that the simulator and the driver took together, since the start of the run."""


@dataclass(frozen=True)
class TileActivity:
    """Whole slots of one tile in the window, and their cycles."""

    slots: int
    span: int
    busy: int
    waiting: int


@dataclass(frozen=True)
class StreamState:
    """Where a stream stands: packets passed, and who is ready to go on."""

    packets: int
    valid: bool
    ready: bool


@dataclass(frozen=True)
class Finished:
    """The end of a run; `stuck` has the state of every stream when the array stopped answering.

    `cycles` ends with the last result; `simulated` counts those until the driver saw it, too.
    """

    cycles: int
    simulated: int
    seconds: float
    activity: list[TileActivity]
    stuck: list[StreamState] | None = None
