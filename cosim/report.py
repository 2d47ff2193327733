"""What a co-simulation tells its user: report.json and a short table."""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from cosim.run import Outcome
from model.progress import percent
from spec.files import write_text
from spec.plan import Plan
from spec.throughput import slot_period

TOO_SHORT = "not measured: the run was too short"


def report_data(
    plan: Plan, outcome: Outcome, samples: int, extra: dict[str, Any]
) -> dict[str, Any]:
    """The content of report.json; accuracies and utilisations are shares from 0 to 1, None where
    nothing was measured."""
    tiles = _tiles(plan, outcome)
    bottleneck = max(tiles.values(), key=lambda tile: tile["slot_cycles_formula"])
    shapes = plan.network.output_shapes
    inner = [tile["mac_utilisation"] for name, tile in tiles.items() if shapes[name].pixels > 1][1:]
    return {
        "net": plan.network.name,
        "method": str(plan.run.method),
        "schedule": plan.run.schedule.value,
        "seed": plan.run.seed,
        "bit_exact": outcome.bit_exact,
        "mismatch": _mismatch(plan, outcome),
        "tensors_compared": outcome.tensors_compared,
        "words_compared": outcome.words_compared,
        "samples": samples,
        "slots": outcome.slots,
        "cycles": outcome.cycles,
        "seconds": round(outcome.seconds, 3),
        "cycles_per_second": round(outcome.cycles_per_second),
        "slot_period_formula": round(slot_period(plan.hardware), 3),
        "slot_period": bottleneck["slot_cycles_with_waiting"],
        "mac_utilisation": bottleneck["mac_utilisation"],
        "mac_utilisation_of_convolutions": None if None in inner or not inner else fmean(inner),
        "accuracy_before": outcome.accuracies["before"],
        "accuracy_after": outcome.accuracies["after"],
        "tiles": tiles,
        "hardware_hash": plan.hardware.hash,
        "run_hash": plan.run_hash,
        **extra,
    }


def save_report(data: dict[str, Any], path: Path) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def report_table(data: dict[str, Any]) -> Table:
    """For the terminal."""
    table = Table(show_header=False, title=f"{data['net']}, {data['method']}")
    equal = "yes, every bit" if data["bit_exact"] else "NO"
    table.add_row("array equals golden model", equal)
    table.add_row(
        "packets and words compared", f"{data['tensors_compared']:,} and {data['words_compared']:,}"
    )
    table.add_row("training samples, slots", f"{data['samples']:,}, {data['slots']:,}")
    table.add_row("cycles", f"{data['cycles']:,} ({data['cycles_per_second']:,} a second)")
    table.add_row("cycles a slot: measured, recursion", _periods(data))
    table.add_row("MAC utilisation of the bottleneck", percent(data["mac_utilisation"], TOO_SHORT))
    if data["mac_utilisation_of_convolutions"] is not None:
        convolutions = percent(data["mac_utilisation_of_convolutions"])
        table.add_row("the same, convolutions but the first", convolutions)
    table.add_row("test accuracy before, after", _accuracies(data))
    return table


def _accuracies(data: dict[str, Any]) -> str:
    return f"{percent(data['accuracy_before'])}, {percent(data['accuracy_after'])}"


def _periods(data: dict[str, Any]) -> str:
    measured = data["slot_period"]
    shown = "not measured" if measured is None else f"{measured:,.1f}"
    return f"{shown}, {data['slot_period_formula']:,.1f}"


def _tiles(plan: Plan, outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Per tile with a MAC array: the formulas beside what was measured in steady state."""
    tiles = {}
    for planned, activity in zip(plan.hardware.convs, outcome.activity, strict=True):
        geometry = plan.hardware.geometry(planned)
        slots, span = activity.slots, activity.span
        tiles[planned.tile.name] = {
            "delay": plan.hardware.delay(planned.tile.name),
            "slot_cycles_formula": geometry.slot_cycles,
            "slot_cycles_working": (span - activity.waiting) / slots if slots else None,
            "slot_cycles_with_waiting": span / slots if slots else None,
            "utilisation_formula": geometry.utilisation,
            "mac_utilisation": activity.busy / span if span else None,
            "slots_measured": slots,
        }
    return tiles


def _mismatch(plan: Plan, outcome: Outcome) -> dict[str, Any] | None:
    """The first difference, or the state of every stream of an array that has stopped."""
    if outcome.difference is not None:
        return {"text": str(outcome.difference), **asdict(outcome.difference)}
    if outcome.stuck is None:
        return None
    states = zip(plan.hardware.streams, outcome.stuck, strict=True)
    return {
        "text": "the array stopped: no packet moved on any stream",
        "streams": {stream.name: asdict(state) for stream, state in states},
    }
