"""Registers of a tile with weights: coefficients with their shadows, and random states."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.bus import tile_bus
from hw.delay import delayed
from hw.random_bits import xorshift32
from hw.update import COEFFICIENTS
from spec.bus import COEFFICIENTS as COEFFICIENT_ORDER
from spec.bus import DATA_BITS, STATE_BASE, Region
from spec.random_bits import Tensor

STATES = data.ArrayLayout(32, len(Tensor))


class TileRegisters(wiring.Component):
    """The host writes shadows; `commit` moves them to the active set; `updated` steps all states.

    Latency: an answer comes TILE_READ_LATENCY clocks after the request.
    """

    def __init__(self, offset_bits: int) -> None:
        super().__init__(
            {
                "bus": In(tile_bus(offset_bits)),
                "commit": In(1),
                "updated": In(1),
                "coefficients": Out(COEFFICIENTS),
                "states": Out(STATES),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        shadow = Signal(COEFFICIENTS)
        with m.If(self.updated):
            m.d.sync += [state.eq(xorshift32(state)) for state in self._states()]
        with m.If(self.commit):
            m.d.sync += self.coefficients.eq(shadow)
        registers = [getattr(shadow, name) for name in COEFFICIENT_ORDER]
        assert len(registers) == STATE_BASE
        registers += self._states()
        here, answer = Signal(), Signal(DATA_BITS)
        m.d.comb += here.eq(self.bus.select & (self.bus.region == Region.REGISTERS))
        m.d.sync += answer.eq(0)
        for place, register in enumerate(registers):
            with m.If(here & (self.bus.offset == place)):
                m.d.sync += answer.eq(register)
                with m.If(self.bus.write):
                    m.d.sync += register.eq(self.bus.write_data)
        m.d.comb += self.bus.read_data.eq(delayed(m, answer, 1, name="answer"))
        return m

    def _states(self) -> list[Value]:
        return [self.states[tensor] for tensor in Tensor]


class StateRegister(wiring.Component):
    """The random state of the gradients alone, for tiles without parameters.

    Latency: an answer comes TILE_READ_LATENCY clocks after the request.
    """

    def __init__(self, offset_bits: int) -> None:
        super().__init__(
            {"bus": In(tile_bus(offset_bits)), "updated": In(1), "state": Out(32, init=1)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        with m.If(self.updated):
            m.d.sync += self.state.eq(xorshift32(self.state))
        here, answer = Signal(), Signal(DATA_BITS)
        m.d.comb += here.eq(
            self.bus.select
            & (self.bus.region == Region.REGISTERS)
            & (self.bus.offset == STATE_BASE + Tensor.GRADIENT)
        )
        m.d.sync += answer.eq(Mux(here, self.state, 0))
        with m.If(here & self.bus.write):
            m.d.sync += self.state.eq(self.bus.write_data)
        m.d.comb += self.bus.read_data.eq(delayed(m, answer, 1, name="answer"))
        return m
