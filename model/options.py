"""The options that every command shares: which network, how it is trained, on what lanes."""

import re
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from model.data import Dataset, load_dataset, noise
from spec.errors import InputError
from spec.mac import Folding
from spec.method import PAPER_METHODS, Method
from spec.plan import Plan
from spec.planner import Wishes, make_plan
from spec.presets import Preset
from spec.ranges import is_calibrated
from spec.schedule import Schedule
from spec.zoo import ZOO, ZooEntry, zoo_entry

DEFAULT_NET = "digits_mlp"
DEFAULT_TESTS = 1000
"""Test images that a run takes of a larger test split."""
NOISE = "noise"
_LANES = re.compile(r"(\d+)x(\d+)(?:/(\d+))?", re.ASCII)

Choice = TypeVar("Choice", bound=Enum)


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options to `command` and call it with `entry` and `plan` in their place.

    An option that is empty counts as not given. `--plan` stands alone: its file decides all that
    the others would, and its network need not be in the zoo.
    """

    @wraps(command)
    def planned(plan_file: str | None, **values: Any) -> Any:
        wishes = {name: values.pop(name) or None for name in _WISHES}
        entry, plan = _from_file(plan_file, wishes) if plan_file else _from_wishes(wishes)
        return command(entry=entry, plan=plan, **values)

    for option in reversed(_OPTIONS):
        planned = option(planned)
    return planned


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--data` and `--tests`, for `dataset_of`."""
    data = click.option("--data", metavar="FOLDER|noise", help="Files of the data set, or noise.")
    tests = click.option("--tests", metavar="N", help=f"Test images; default {DEFAULT_TESTS}.")
    return data(tests(command))


def dataset_of(plan: Plan, data: str | None) -> Dataset:
    """The data set of a plan: from a folder, from where it is by default, or noise."""
    network = plan.network
    if NOISE in (data, plan.run.dataset):
        return noise(network.input_shape, network.classes)
    dataset = load_dataset(plan.run.dataset, Path(data) if data else None)
    features, wanted = dataset.train.images.shape[1], network.input_shape.elements
    if features != wanted:
        raise InputError(f"{network.name} takes {wanted} numbers, {dataset.name} has {features}")
    return dataset


def test_count(tests: str | None, available: int) -> int:
    """How many test images a run takes."""
    return min(available, whole_number("tests", tests) if tests else DEFAULT_TESTS)


def length_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--samples` and `--epochs`, at most one of which may be given."""
    samples = click.option("--samples", help="Training samples, in place of --epochs.")
    epochs = click.option("--epochs", help="Passes over the training split.")
    return samples(epochs(command))


def training_samples(
    samples: str | None, epochs: str | None, entry: ZooEntry, split_size: int
) -> int:
    """How many samples the options ask for; the network's own epochs when they are silent."""
    if samples and epochs:
        raise InputError("give either samples or epochs, not both")
    if samples:
        return whole_number("samples", samples, minimum=1)
    return split_size * (whole_number("epochs", epochs, minimum=1) if epochs else entry.epochs)


def whole_number(name: str, text: str, minimum: int = 0) -> int:
    """Raises InputError unless the text is a whole number of at least `minimum`."""
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise InputError(f"{name} must be a whole number of at least {minimum}, not {text!r}")
    return number


def chosen(name: str, choices: type[Choice], text: str) -> Choice:
    """Raises InputError that lists the values of the enum when `text` is none of them."""
    try:
        return choices(text)
    except ValueError:
        legal = ", ".join(str(choice.value) for choice in choices)
        raise InputError(f"{name} must be one of {legal}, not {text!r}") from None


def parse_lanes(text: str) -> tuple[Folding, ...]:
    """`4x4,4x2/2` is lanes_in x lanes_out of each tile with weights, / update lanes.

    By default a tile updates as many weights a cycle as it has multipliers.
    """
    return tuple(_folding(part.strip()) for part in text.split(","))


def preset_name(plan: Plan) -> str:
    """The preset that a plan's formats come from; `custom` when they are of none."""
    parameters, edge = plan.hardware.convs[0].parameters, plan.hardware.edges[-1]
    for preset in Preset:
        widths = preset.widths
        if (parameters.master.width, parameters.working.width, edge.gradient.width) == (
            widths.master,
            widths.working,
            widths.gradient,
        ):
            return preset.value
    return "custom"


def _folding(text: str) -> Folding:
    match = _LANES.fullmatch(text)
    if not match:
        raise InputError(f"lanes must look like 4x4,4x2 or 4x4/16,4x2/8, not {text!r}")
    lanes_in, lanes_out = int(match[1]), int(match[2])
    return Folding(lanes_in, lanes_out, int(match[3]) if match[3] else lanes_in * lanes_out)


def _from_wishes(given: dict[str, str | None]) -> tuple[ZooEntry, Plan]:
    entry = zoo_entry(given["net"] or DEFAULT_NET)
    wishes: dict[str, Any] = {
        name: read(text) for name, read in _WISH_READERS.items() if (text := given[name])
    }
    if not is_calibrated(entry.network):
        note = f"{entry.network.name} has not been calibrated: its binary points are nominal"
        print(note, file=sys.stderr)
    return entry, make_plan(entry, Wishes(**wishes))


def _from_file(path: str, given: dict[str, str | None]) -> tuple[ZooEntry, Plan]:
    for name, text in given.items():
        if text:
            raise InputError(f"a plan file decides {name} itself: give one of them, not both")
    plan = Plan.load(Path(path))
    network, run = plan.network, plan.run
    epochs = zoo_entry(network.name).epochs if network.name in ZOO else 1
    foldings = tuple(planned.folding for planned in plan.hardware.convs)
    return ZooEntry(network, run.dataset, run.hyperparameters, foldings, epochs), plan


def _learning_rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"learning rate must be a number, not {text!r}") from None


_WISH_READERS: dict[str, Callable[[str], Any]] = {
    "method": Method.parse,
    "schedule": lambda text: chosen("schedule", Schedule, text),
    "preset": lambda text: chosen("preset", Preset, text),
    "seed": lambda text: whole_number("seed", text),
    "eta": _learning_rate,
    "foldings": parse_lanes,
    "stash_bits": lambda text: whole_number("stash bits", text),
}
_WISHES = ("net", *_WISH_READERS)


def _values(choices: type[Enum]) -> str:
    return "|".join(str(choice.value) for choice in choices)


_OPTIONS: Sequence[Callable[[Callable[..., Any]], Callable[..., Any]]] = (
    click.option("--net", metavar="NAME", help=f"Network of the zoo; default {DEFAULT_NET}."),
    click.option(
        "--method",
        metavar="|".join(map(str, PAPER_METHODS)) + "|...",
        help="Terms joined by +; default lwp+sc.",
    ),
    click.option("--schedule", metavar=_values(Schedule), help="Default paper."),
    click.option("--preset", metavar=_values(Preset), help="Number formats; default compact."),
    click.option("--seed", metavar="N", help="Default 0."),
    click.option("--lr", "eta", metavar="ETA", help="lr / (1 - m); default the network's own."),
    click.option("--lanes", "foldings", metavar="INxOUT[/UPDATE],...", help="Per tile."),
    click.option("--stash-bits", metavar="BITS", help="Memory allowed to one tile's stash."),
    click.option("--plan", "plan_file", metavar="FILE", help="A plan.json in place of all these."),
)
