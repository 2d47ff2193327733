"""Delay lines, so that what belongs together arrives together."""

from typing import Any

from amaranth import Module, Signal


def delayed(m: Module, source: Any, cycles: int, *, name: str) -> Any:
    """`source` (a value or a view) as it was `cycles` clocks ago; zero before."""
    for stage in range(cycles):
        register = Signal(source.shape(), name=f"{name}_{stage + 1}")
        m.d.sync += register.eq(source)
        source = register
    return source
