"""`python -m model`: train and calibrate networks on the golden model."""

from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from model.arithmetic import ARITHMETICS, arithmetic_of
from model.calibrate import calibrate
from model.command import run
from model.options import (
    DEFAULT_NET,
    data_options,
    dataset_of,
    length_options,
    plan_options,
    test_count,
    training_samples,
)
from model.progress import percent
from model.train import Trainer, TrainResult, train
from spec.errors import InputError
from spec.files import writable_folder
from spec.plan import Plan
from spec.zoo import ZooEntry, zoo_entry


@click.group(no_args_is_help=False)
def commands() -> None:
    """The golden model: fine-grained pipelined backpropagation in PyTorch."""
    torch.set_num_threads(1)


@commands.command("train")
@plan_options
@length_options
@data_options
@click.option("--arithmetic", default="float32", metavar="|".join(ARITHMETICS))
@click.option("--output", default="build/train", help="Folder of the results.")
@click.option("--resume", metavar="FILE", help="A checkpoint to continue from.")
def train_command(
    entry: ZooEntry,
    plan: Plan,
    samples: str | None,
    epochs: str | None,
    data: str | None,
    tests: str | None,
    arithmetic: str,
    output: str,
    resume: str | None,
) -> None:
    """Train a network; writes result.json and checkpoint.pt."""
    if arithmetic not in ARITHMETICS:
        legal = ", ".join(ARITHMETICS)
        raise InputError(f"arithmetic must be one of {legal}, not {arithmetic!r}")
    dataset = dataset_of(plan, data)
    count = training_samples(samples, epochs, entry, len(dataset.train))
    name = f"{plan.network.name}-{plan.run.method}-{arithmetic}"
    folder = writable_folder(Path(output) / name)
    limit = test_count(tests, len(dataset.test))
    trainer = Trainer(plan, arithmetic_of(arithmetic), dataset, count, folder, limit)
    if resume:
        trainer.resume(Path(resume))
    _show(train(trainer, folder), folder)


@commands.command("calibrate")
@click.option("--net", default=DEFAULT_NET, metavar="NAME")
@click.option("--data", metavar="FOLDER", help="Files of the data set.")
def calibrate_command(net: str, data: str | None) -> None:
    """Measure the ranges of a network's tensors and write them into spec/calibration."""
    entry = zoo_entry(net or DEFAULT_NET)
    print(calibrate(entry, Path(data) if data else None).save(entry.network.name))


def _show(result: TrainResult, folder: Path) -> None:
    table = Table("", "", show_header=False)
    table.add_row("network", f"{result.net}, {result.method}, {result.schedule}")
    table.add_row("arithmetic", f"{result.arithmetic}, {result.preset}")
    table.add_row("samples", f"{result.samples} in {result.seconds:.1f} s")
    table.add_row("test accuracy before", percent(result.accuracy_before))
    table.add_row("test accuracy after", percent(result.accuracy_after))
    table.add_row("result", str(folder / "result.json"))
    Console().print(table)


if __name__ == "__main__":
    run(commands)
