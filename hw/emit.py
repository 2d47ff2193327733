"""Verilog of an array, each distinct component converted once."""

from amaranth.back import verilog
from amaranth.lib import wiring

from hw.shared import ModuleLibrary


def to_verilog(top: wiring.Component, name: str) -> str:
    """The Verilog of `top` as module `name`, and of every shared module that it needs."""
    library = ModuleLibrary()
    texts = [_convert(top, name, library)]
    done: set[str] = set()
    while waiting := library.modules.keys() - done:
        for module in sorted(waiting):
            texts.append(_convert(library.modules[module], module, library))
            done.add(module)
    return "\n".join(texts)


def _convert(component: wiring.Component, name: str, library: ModuleLibrary) -> str:
    return verilog.convert(component, platform=library, name=name, emit_src=False)
