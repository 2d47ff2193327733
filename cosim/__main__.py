"""`python -m cosim`: co-simulate, generate Verilog, measure speed."""

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cosim.bench import measure
from cosim.generate import lint_verilog, write_verilog
from cosim.harness import build
from cosim.plan_table import plan_table
from cosim.report import report_data, report_table, save_report
from cosim.run import Progress, Settings, cosimulate
from cosim.toolchain import Simulator
from model.command import run
from model.options import (
    chosen,
    data_options,
    dataset_of,
    length_options,
    plan_options,
    preset_name,
    test_count,
    training_samples,
    whole_number,
)
from model.progress import percent, progress_bar
from spec.errors import InputError
from spec.files import writable_folder
from spec.plan import Plan
from spec.zoo import ZooEntry

ICARUS_SAMPLES = 20
"""To train on by default, and to test on: Icarus is a hundred times slower."""
LARGEST_STALL = 90
TABLE_WIDTH = 130


@click.group(no_args_is_help=False)
def commands() -> None:
    """The array in simulation, against the golden model."""


@commands.command("sim")
@plan_options
@length_options
@data_options
@click.option("--stall", metavar="0..90", help="Percent of clocks to hold every stream.")
@click.option("--sim", metavar="verilator|icarus", help="Default verilator.")
@click.option("--waves", metavar="0|1", help="Record every signal.")
@click.option("--output", default="build/sim", help="Folder of the reports.")
def sim_command(
    entry: ZooEntry,
    plan: Plan,
    samples: str | None,
    epochs: str | None,
    data: str | None,
    tests: str | None,
    stall: str | None,
    sim: str | None,
    waves: str | None,
    output: str,
) -> int:
    """Train a network in RTL and compare it with the golden model, bit for bit."""
    console = Console()
    simulator = chosen("sim", Simulator, sim or Simulator.VERILATOR.value)
    held = _stall(stall)
    recording = _switch("waves", waves)
    dataset = dataset_of(plan, data)
    if simulator is Simulator.ICARUS:
        samples = samples or (None if epochs else str(ICARUS_SAMPLES))
        tests = tests or str(ICARUS_SAMPLES)
    limit = test_count(tests, len(dataset.test))
    count = training_samples(samples, epochs, entry, len(dataset.train))
    folder = writable_folder(Path(output) / f"{plan.network.name}-{plan.run.method}")
    plan.save(folder / "plan.json")
    with console.status(f"building the simulator of {plan.network.name} ({plan.hardware.hash})"):
        built = build(plan.hardware, simulator, waves=recording)
    settings = Settings(count, folder / "simulator.log", held, tests=limit)
    with progress_bar() as bar:
        task = bar.add_task("before", total=None, note="")

        def show(progress: Progress) -> None:
            note = f"{progress.cycles:,} cycles, accuracy {percent(progress.accuracy)}"
            bar.update(
                task,
                description=progress.phase,
                completed=progress.slots,
                total=progress.total,
                note=note,
            )

        outcome = cosimulate(built, plan, dataset, settings, show)
    extra = {
        "preset": preset_name(plan),
        "stall": held,
        "simulator": simulator.value,
        "data": dataset.name,
        "test_samples": limit,
    }
    found = report_data(plan, outcome, count, extra)
    save_report(found, folder / "report.json")
    console.print(report_table(found))
    console.print(f"report: {folder / 'report.json'}", highlight=False)
    if outcome.wave_file:
        console.print(f"waves: {outcome.wave_file}", highlight=False)
    return _verdict(found)


@commands.command("verilog")
@plan_options
@click.option("--output", default="build/verilog", help="Folder of the Verilog.")
def verilog_command(entry: ZooEntry, plan: Plan, output: str) -> int:
    """Write Verilog, plan.json and interface.json, and lint them."""
    files = write_verilog(plan, writable_folder(Path(output)))
    complaints = lint_verilog(files)
    modules = files.converted.modules
    cores = sum("core_" in module for module in modules)
    tiles = len(plan.network.tiles)
    print(f"{tiles} tiles are {cores} distinct cores; {len(modules)} distinct modules")
    for path in files.all:
        print(path)
    if complaints:
        print(complaints, file=sys.stderr)
        return 1
    return 0


@commands.command("plan")
@plan_options
@click.option("--output", default="build/plan", help="Folder of plan.json.")
def plan_command(entry: ZooEntry, plan: Plan, output: str) -> None:
    """Show tiles, lanes, delays, memories and cycles; writes plan.json."""
    path = writable_folder(Path(output) / plan.network.name) / "plan.json"
    plan.save(path)
    Console(width=TABLE_WIDTH).print(plan_table(plan))
    print(path)


@commands.command("bench")
@plan_options
@click.option("--output", default="build/bench.json", help="File of the results.")
def bench_command(entry: ZooEntry, plan: Plan, output: str) -> None:
    """Measure the speed of simulation and golden model, as ratios of one run."""
    path = Path(output)
    writable_folder(path.parent)
    save_report(measure(entry, plan, Console()), path)
    print(path)


def _verdict(data: dict[str, Any]) -> int:
    if data["mismatch"] is None:
        return 0
    print(f"mismatch: {data['mismatch']['text']}", file=sys.stderr)
    for name, state in data["mismatch"].get("streams", {}).items():
        print(f"  {name}: {state}", file=sys.stderr)
    return 1


def _stall(text: str | None) -> int:
    percent = whole_number("stall", text) if text else 0
    if percent > LARGEST_STALL:
        raise InputError(f"stall must be from 0 to {LARGEST_STALL} percent, not {percent}")
    return percent


def _switch(name: str, text: str | None) -> bool:
    if text not in (None, "", "0", "1"):
        raise InputError(f"{name} must be 0 or 1, not {text!r}")
    return text == "1"


if __name__ == "__main__":
    run(commands)
