"""Verilog of an array, each distinct component converted once."""

from dataclasses import dataclass

from amaranth._toolchain.yosys import find_yosys
from amaranth.back import rtlil
from amaranth.lib import wiring

from hw.shared import ModuleLibrary

YOSYS_SCRIPT = """read_rtlil <<rtlil
{rtlil}
rtlil
proc -nomux -norom
memory_collect
write_verilog -norename
"""
"""What amaranth.back.verilog runs, here once for all modules: starting Yosys takes a second."""


def to_verilog(top: wiring.Component, name: str) -> str:
    """The Verilog of `top` as module `name`, and of every shared module that it needs."""
    return convert(top, name).text


@dataclass(frozen=True)
class Converted:
    """Verilog, and the names of the distinct shared modules in it."""

    text: str
    modules: tuple[str, ...]


def convert(top: wiring.Component, name: str) -> Converted:
    """The Verilog of `top` as module `name`, and of every shared module that it needs."""
    library = ModuleLibrary()
    converted = distinct_modules(top, name, library)
    parts = [_verilog("\n".join(converted.values())), *library.sources.values()]
    return Converted("\n".join(parts), tuple(sorted(library.modules)))


def distinct_modules(top: wiring.Component, name: str, library: ModuleLibrary) -> dict[str, str]:
    """The RTLIL of `top` and of every shared module, by name, each with its own submodules."""
    texts = {name: _convert(top, name, library)}
    while waiting := library.modules.keys() - texts.keys():
        for module in sorted(waiting):
            texts[module] = _convert(library.modules[module], module, library)
    return texts


def _convert(component: wiring.Component, name: str, library: ModuleLibrary) -> str:
    text: str = rtlil.convert(component, platform=library, name=name, emit_src=False)
    return text


def _verilog(text: str) -> str:
    yosys = find_yosys(lambda version: version >= (0, 40))
    script = YOSYS_SCRIPT.format(rtlil=text)
    return str(yosys.run(["-q", "-"], script, ignore_warnings=True))
