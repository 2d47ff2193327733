"""How fast everything is: `make bench`. Rates depend on the machine, so ratios are of one run."""

import shutil
import subprocess
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from cosim import toolchain
from cosim.harness import BENCH, ROOT, VERILOG, VISIBLE, build, write_sources
from cosim.run import Settings, measure_speed, run_image
from hw.array import TileArray
from model.arithmetic import arithmetic_of
from model.data import Dataset, load_dataset
from model.engine import Engine
from model.feed import run_phases
from model.initial import initial_parameters
from spec.files import write_text
from spec.plan import Plan
from spec.zoo import ZooEntry

SIMULATED_SAMPLES = 400
GOLDEN_SAMPLES = 400
REPEATS = 3


def measure(entry: ZooEntry, plan: Plan, console: Console) -> dict[str, Any]:
    """Cycles per second under cocotb and in plain C++, and the golden model's samples per second.

    Both simulations run the same Verilog with the same monitors on the same samples, alternately,
    each REPEATS times, without the golden model beside them; medians are reported.
    """
    dataset = load_dataset(entry.dataset)
    folder = ROOT / "build" / "bench"
    with console.status("building both simulators"):
        built = build(plan.hardware)
        executable = _build_plain(plan, folder)
    settings = Settings(SIMULATED_SAMPLES, folder / "simulator.log")
    image = folder / f"{plan.hardware.hash}-{plan.run_hash}.hex"
    write_text(image, run_image(plan, dataset, settings))
    rates: dict[str, list[float]] = {"cocotb": [], "plain": []}
    for repeat in range(REPEATS):
        with console.status(f"simulating, {repeat + 1} of {REPEATS}"):
            rates["plain"].append(_plain_rate(executable, image))
            rates["cocotb"].append(measure_speed(built, plan, dataset, settings))
    cocotb, plain = median(rates["cocotb"]), median(rates["plain"])
    with console.status("timing the golden model"):
        golden = {name: _golden_rate(plan, dataset, name) for name in ("fixed", "float32")}
    return {
        "net": plan.network.name,
        "hardware_hash": plan.hardware.hash,
        "cycles_per_second_cocotb": round(cocotb),
        "cycles_per_second_plain": round(plain),
        "cocotb_to_plain": round(cocotb / plain, 3),
        "golden_fixed_samples_per_second": round(golden["fixed"]),
        "golden_float32_samples_per_second": round(golden["float32"]),
    }


def _build_plain(plan: Plan, folder: Path) -> Path:
    """The bench under a C++ loop; built anew so that it never is of other sources."""
    sources = write_sources(TileArray(plan.hardware, probes=True), plan.hardware, folder)
    directory = folder / "plain"
    if directory.exists():
        shutil.rmtree(directory)
    bench = [path for path in sources if path.name != "tidemill_top.v"]
    main = VERILOG / "plain.cpp"
    return toolchain.build_plain(bench, BENCH, main, directory, visibility=VISIBLE)


def _plain_rate(executable: Path, image: Path) -> float:
    output = subprocess.run([executable, image], capture_output=True, text=True, check=True).stdout
    cycles, seconds = output.split()
    return int(cycles) / float(seconds)


def _golden_rate(plan: Plan, dataset: Dataset, arithmetic_name: str) -> float:
    """Training samples per second of the sequential engine on one thread."""
    torch.set_num_threads(1)
    arithmetic = arithmetic_of(arithmetic_name)
    engine = Engine(plan, arithmetic, initial_parameters(plan, arithmetic))
    phase = run_phases(plan, dataset, GOLDEN_SAMPLES)[1]
    entrance = plan.hardware.edges[0].activation
    images = arithmetic.encode(phase.split.images, entrance)
    begin = perf_counter()
    for header, sample in phase.turns:
        engine.slot(header, None if sample is None else images[sample])
    return GOLDEN_SAMPLES / (perf_counter() - begin)
