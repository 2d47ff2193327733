"""The progress bar of every long command, and shares as percentages."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def progress_bar() -> Progress:
    """A bar on stderr; give each task a `note`, which is shown at its end."""
    return Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )


def percent(share: float | None, absent: str = "not measured") -> str:
    """With one decimal; `absent` for None."""
    return absent if share is None else f"{100 * share:.1f} %"
