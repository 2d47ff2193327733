"""Everything that a simulation of a plan is built from, and its cached build."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cosim import toolchain
from cosim.toolchain import Simulator
from hw.array import TileArray
from hw.emit import to_verilog
from spec.bus import BUS_READ_LATENCY
from spec.files import write_text
from spec.plan import HardwarePlan
from spec.registers import AddressMap

ROOT = Path(__file__).resolve().parent.parent
VERILOG = Path(__file__).parent / "verilog"
VISIBLE = VERILOG / "visible.vlt"
TOP = "tidemill_top"
BENCH = "tidemill_bench"
DEFAULT_BUILDS = ROOT / "build" / "simulator"


@dataclass(frozen=True)
class Build:
    """A simulator built for a plan's hardware."""

    hardware: HardwarePlan
    simulator: Simulator
    directory: Path
    waves: bool
    cached: bool
    """Whether it was there already."""


def bench_verilog(hardware: HardwarePlan) -> str:
    """The bench around the array, with the widths of this plan filled in."""
    entrance = hardware.edges[0]
    layout = entrance.forward
    values = {
        "INPUT_BITS": layout.width,
        "SIDE_BITS": layout.width - layout.lanes * layout.format.width,
        "BEATS": entrance.beats,
        "ADDRESS_BITS": AddressMap(hardware).address_bits,
        "READ_LATENCY": BUS_READ_LATENCY,
        "TILES": len(hardware.convs),
        "OUTPUT_BITS": hardware.streams[-1].width,
    }
    text = (VERILOG / "tidemill_bench.v.in").read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def write_sources(array: TileArray, hardware: HardwarePlan, folder: Path) -> list[Path]:
    """The Verilog of the array, its bench, probe and clock, ready to be compiled."""
    write_text(folder / "tidemill.v", to_verilog(array, "tidemill"))
    write_text(folder / "tidemill_bench.v", bench_verilog(hardware))
    return [
        folder / "tidemill.v",
        folder / "tidemill_bench.v",
        VERILOG / "tidemill_probe.v",
        VERILOG / "tidemill_top.v",
    ]


def build(
    hardware: HardwarePlan,
    simulator: Simulator = Simulator.VERILATOR,
    *,
    waves: bool = False,
    optimisation: str = "-O3",
    folder: Path = DEFAULT_BUILDS,
) -> Build:
    """The simulator for `hardware`, built unless it has been; depends on nothing else.

    The name of its directory covers the hardware hash, the sources of this project that can change
    the Verilog, the simulator and the options.
    """
    options = f"{simulator.value}{'-waves' if waves else ''}{optimisation}"
    name = f"{hardware.network.name}-{hardware.hash}-{_source_hash()}-{options}"
    directory = folder / name
    cached = directory.exists()
    if not cached:
        sources = write_sources(
            TileArray(hardware, probes=True), hardware, folder / "sources" / name
        )
        compile_sources(sources, directory, simulator, waves=waves, optimisation=optimisation)
    return Build(hardware, simulator, directory, waves, cached)


def compile_sources(
    sources: list[Path],
    directory: Path,
    simulator: Simulator = Simulator.VERILATOR,
    *,
    waves: bool = False,
    optimisation: str = "-O3",
) -> None:
    """Compile what `write_sources` wrote."""
    toolchain.build_cocotb(
        simulator,
        sources,
        TOP,
        directory,
        visibility=VISIBLE,
        waves=waves,
        optimisation=optimisation,
    )


def _source_hash() -> str:
    """Of every file that the Verilog or its compilation depends on."""
    digest = hashlib.sha256()
    for pattern in ("spec/**/*.py", "hw/**/*.py", "cosim/verilog/*", "cosim/toolchain.py"):
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
