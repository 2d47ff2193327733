"""Verilog for synthesis: the array without probes, its plan, and a description of its ports."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cosim.toolchain import lint
from hw.array import TileArray
from hw.emit import Converted, convert
from spec.bus import (
    BUS_READ_LATENCY,
    COEFFICIENTS,
    REGION_BITS,
    STATE_BASE,
    ArrayRegister,
    LossRegister,
    Region,
)
from spec.files import write_text
from spec.packets import RESULT_FIELDS, Fields
from spec.plan import HardwarePlan, Plan
from spec.registers import AddressMap

MODULE = "tidemill"
WAIVER = Path(__file__).parent / "verilog" / "lint.vlt"


@dataclass(frozen=True)
class VerilogFiles:
    """What `make verilog` leaves."""

    verilog: Path
    plan: Path
    interface: Path
    converted: Converted

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.verilog, self.plan, self.interface)


def write_verilog(plan: Plan, folder: Path) -> VerilogFiles:
    """Write tidemill.v (top module `tidemill`), plan.json and interface.json into `folder`."""
    converted = convert(TileArray(plan.hardware), MODULE)
    files = VerilogFiles(
        folder / "tidemill.v",
        folder / "plan.json",
        folder / "interface.json",
        converted,
    )
    write_text(files.verilog, converted.text)
    plan.save(files.plan)
    write_text(files.interface, json.dumps(interface(plan.hardware), indent=1) + "\n")
    return files


def lint_verilog(files: VerilogFiles) -> str:
    """What Verilator has to say: of each distinct module in full, once, and of the array that
    instances them as far as elaboration. Flattening hundreds of tiles would tell no more of them
    and take minutes and gigabytes.
    """
    with TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        shared = Path(folder) / files.verilog.name
        shared.write_text(files.converted.shared)
        modules = pool.submit(lint, shared, None, WAIVER)
        array = pool.submit(lint, files.verilog, MODULE, WAIVER, elaborate_only=True)
        return "\n".join(filter(None, [modules.result(), array.result()]))


def interface(hardware: HardwarePlan) -> dict[str, Any]:
    """Ports, fields and addresses of an array, for whoever connects it."""
    addresses = AddressMap(hardware)
    entrance = hardware.edges[0]
    names = [tile.name for tile in hardware.network.tiles]
    return {
        "module": MODULE,
        "hardware_hash": hardware.hash,
        "clock": "clk",
        "reset": "rst",
        "input_stream": {
            "prefix": "i__",
            "beats": entrance.beats,
            "fields": list(_fields(entrance.forward.fields)),
        },
        "output_stream": {"prefix": "o__", "fields": list(_fields(RESULT_FIELDS))},
        "bus": {
            "prefix": "bus__",
            "address_bits": addresses.address_bits,
            "read_latency": BUS_READ_LATENCY,
            "offset_bits": addresses.offset_bits,
            "region_bits": REGION_BITS,
            "array_registers": {r.name.lower(): addresses.array(r) for r in ArrayRegister},
            "regions": {region.name.lower(): int(region) for region in Region},
            "tiles": {name: addresses.tile(name) for name in names},
            "coefficients": list(COEFFICIENTS),
            "first_random_state": STATE_BASE,
            "loss_registers": {r.name.lower(): addresses.loss(r) for r in LossRegister},
        },
    }


def _fields(fields: Fields) -> Iterator[dict[str, Any]]:
    """Position of each field in the payload."""
    low = 0
    for name, width in fields:
        yield {"name": name, "low": low, "width": width}
        low += width
