"""Equal components become one Verilog module.

Amaranth writes a module for every instance. When Verilog is generated, `shared` puts in its place
an `Instance` of a module that is converted once; elsewhere (Amaranth's own simulator, which does
not run instances) the component itself.
"""

import hashlib
from typing import Any

from amaranth import ClockSignal, Instance, ResetSignal
from amaranth.hdl import Elaboratable, Value
from amaranth.lib import wiring


class ModuleLibrary:
    """The platform under which Verilog is generated: remembers which modules are wanted."""

    def __init__(self) -> None:
        self.modules: dict[str, wiring.Component] = {}
        self.sources: dict[str, str] = {}
        """Modules that come as Verilog, by name."""

    def instance(self, component: wiring.Component, key: object) -> Instance:
        kind = type(component).__name__
        name = f"{kind.lower()}_{hashlib.sha256(repr((kind, key)).encode()).hexdigest()[:8]}"
        self.modules.setdefault(name, component)
        component._MustUse__used = True  # its module is
        ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for path, member, value in component.signature.flatten(component):
            direction = "i" if member.flow is wiring.In else "o"
            port = Value.cast(value)
            if len(port):
                ports[f"{direction}_{'__'.join(map(str, path))}"] = port
        return Instance(name, **ports)


def shared(component: wiring.Component, key: object, platform: object) -> Elaboratable:
    """What to add to the parent's submodules; components of one class and `key` are equal."""
    if isinstance(platform, ModuleLibrary):
        return platform.instance(component, key)
    return component
