"""Verilog of an array, each distinct component converted once."""

import gc
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

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
    """Verilog of a component and of the distinct shared modules in it."""

    top: str
    shared: str
    modules: tuple[str, ...]
    """Names of the shared modules, without their own submodules."""

    @property
    def text(self) -> str:
        return f"{self.top}\n{self.shared}"


def convert(top: wiring.Component, name: str) -> Converted:
    """The Verilog of `top` as module `name`, and of every shared module that it needs.

    The modules that `top` instances are converted side by side, one process for each core of the
    machine, unless this process runs threads.
    """
    library = ModuleLibrary()
    own = _rtlil(top, name, library)
    texts: dict[str, str] = {}
    for found, sources in _in_processes(library.modules):
        texts |= found
        library.sources |= sources
    shared = [_verilog("\n".join(text for _, text in sorted(texts.items())))] if texts else []
    shared += library.sources.values()
    return Converted(_verilog(own), "\n".join(shared), tuple(sorted(texts)))


_Modules = tuple[dict[str, str], dict[str, str]]
"""RTLIL of modules, and Verilog of those that come as such, by name."""

_forked: dict[str, wiring.Component] = {}
"""What the processes below convert: they inherit it, since a component cannot be sent to one."""


def _in_processes(components: Mapping[str, wiring.Component]) -> list[_Modules]:
    _forked.clear()
    _forked.update(components)
    # The longest first, so that no process is left alone with one at the end.
    names = sorted(components, key=lambda name: ("conv" not in name, "norm" not in name, name))
    if len(names) < 2 or threading.active_count() > 1:  # a fork takes no other threads with it
        return [_with_submodules(name) for name in names]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        return list(pool.map(_with_submodules, names))


def _with_submodules(name: str) -> _Modules:
    """One module and the shared modules below it."""
    library = ModuleLibrary()
    texts = {name: _rtlil(_forked[name], name, library)}
    while waiting := library.modules.keys() - texts.keys():
        for module in sorted(waiting):
            texts[module] = _rtlil(library.modules[module], module, library)
    return texts, library.sources


def _rtlil(component: wiring.Component, name: str, library: ModuleLibrary) -> str:
    with _no_collection():
        text: str = rtlil.convert(component, platform=library, name=name, emit_src=False)
    return text


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from searching the millions of live nets of one conversion again
    and again, which doubles its time; search once at the end.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            gc.collect()


def _verilog(text: str) -> str:
    yosys = find_yosys(lambda version: version >= (0, 40))
    script = YOSYS_SCRIPT.format(rtlil=text)
    return str(yosys.run(["-q", "-"], script, ignore_warnings=True))
