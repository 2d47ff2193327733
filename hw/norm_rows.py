"""What both engines of a norm do: go through rows for sums, then have a serial unit finish each."""

from typing import Any, Protocol

from amaranth import Array, Module, Signal, Value

from hw.address import AddressGenerator


class SerialUnit(Protocol):
    """Works on the sums of one group after `start`, and is `done` some clocks later."""

    start: Signal
    done: Signal


def add_row_states(
    m: Module,
    sums: AddressGenerator,
    unit: SerialUnit,
    group: Signal,
    groups: int,
    latency: int,
    then: str,
) -> Signal:
    """States SUMS to FINISH of the FSM around: sums of a row, `latency` clocks until they are
    there, `unit` once for each of its groups, the next row; after the last, state `then`.

    Returns whether the row is the last of the packet.
    """
    wait, final = Signal(range(latency + 1)), Signal()
    with m.State("SUMS"):
        m.d.comb += [sums.run.eq(1), sums.advance.eq(1)]
        with m.If(sums.last):
            m.d.sync += [wait.eq(latency), final.eq(sums.final)]
            m.next = "DRAIN"
    with m.State("DRAIN"):
        m.d.sync += wait.eq(wait - 1)
        with m.If(wait == 1):
            m.next = "START"
    with m.State("START"):
        m.d.comb += unit.start.eq(1)
        m.next = "FINISH"
    with m.State("FINISH"), m.If(unit.done):
        m.d.sync += group.eq(group + 1)
        m.next = "START"
        with m.If(group == groups - 1):
            m.d.sync += group.eq(0)
            m.next = "SUMS"
            with m.If(final):
                m.next = then
    return final


def chosen(values: list[Any], place: Signal) -> Value:
    """The value at a place that is only known at run time."""
    return values[0] if len(values) == 1 else Array(values)[place]
