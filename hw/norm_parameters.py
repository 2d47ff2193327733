"""Gains and offsets of an affine norm: memories, registers and their update."""

from functools import reduce
from operator import or_

from amaranth import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.bus import tile_bus
from hw.delay import delayed
from hw.parameter_memory import ParameterMemory
from hw.ram import Ram
from hw.random_bits import index_product
from hw.rounding import requantize
from hw.streams import word
from hw.tile_registers import STATES, TileRegisters
from hw.update import UpdateUnit
from spec.bus import TILE_REGISTER_BITS, Region, lane_bits
from spec.mac import UPDATE_LATENCY, Folding
from spec.mac_formats import MacFormats
from spec.random_bits import Tensor
from spec.shape import Shape
from spec.tiles.conv import Conv
from spec.tiles.norm import UPDATE_DRAIN, NormFormats

GATHERED = 2
"""Clocks from the address of parameters to the operands of their update."""
WRITTEN = GATHERED + UPDATE_LATENCY
assert UPDATE_DRAIN == WRITTEN + 1


class NormParameterStore(wiring.Component):
    """What a tile with parameters has, for one gain and one offset a channel.

    Throughput: one word read a clock; one word of gains or offsets updated a clock.

    Parameters
    ----------
    words, lanes: channels are words of lanes.
    formats: of the norm, which is affine.

    Members
    -------
    bus: coefficients, random states and memories.
    commit, updated, states: see hw/tile_registers.
    word, evaluate: word to read, and one clock later whether rounded masters are wanted in place
        of working copies; `gain` and `offset` follow two clocks after `word`.
    gradient_valid, gradient_word, gain_gradient, offset_gradient: rounded gradients of a word.
    update, done: fold the gradients in; done comes 2 words + UPDATE_DRAIN clocks later.
    """

    def __init__(self, words: int, lanes: int, formats: NormFormats) -> None:
        assert formats.parameters is not None
        self._words, self._lanes, self._formats = words, lanes, formats
        self._parameters = parameters = formats.parameters
        super().__init__(
            {
                "bus": In(tile_bus(store_bits(words, lanes))),
                "commit": In(1),
                "updated": In(1),
                "states": Out(STATES),
                "word": In(range(words)),
                "evaluate": In(1),
                "gain": Out(word(parameters.working, lanes)),
                "offset": Out(word(formats.offset, lanes)),
                "gradient_valid": In(1),
                "gradient_word": In(range(words)),
                "gain_gradient": In(word(parameters.gradient, lanes)),
                "offset_gradient": In(word(parameters.gradient, lanes)),
                "update": In(1),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.registers = registers = TileRegisters(len(self.bus.offset))
        memories = self._memories(m)
        bus = self.bus
        m.d.comb += [
            registers.bus.select.eq(bus.select),
            registers.bus.write.eq(bus.write),
            registers.bus.region.eq(bus.region),
            registers.bus.offset.eq(bus.offset),
            registers.bus.write_data.eq(bus.write_data),
            registers.commit.eq(self.commit),
            registers.updated.eq(self.updated),
            self.states.eq(registers.states),
            bus.read_data.eq(
                reduce(or_, (memory.host_data for memory in memories.values()))
                | registers.bus.read_data
            ),
        ]
        self._choose(m, memories)
        self._update(m, registers, memories)
        return m

    def _memories(self, m: Module) -> dict[Region, ParameterMemory]:
        parameters = self._parameters
        formats = {
            Region.MASTER: parameters.master,
            Region.VELOCITY: parameters.velocity,
            Region.WORKING: parameters.working,
            Region.BIAS_MASTER: parameters.master,
            Region.BIAS_VELOCITY: parameters.velocity,
            Region.BIAS_WORKING: self._formats.offset,
        }
        memories = {
            region: ParameterMemory(format, self._lanes, self._words)
            for region, format in formats.items()
        }
        for region, memory in memories.items():
            m.submodules[region.name.lower()] = memory
            m.d.comb += [
                memory.host_select.eq(self.bus.select & (self.bus.region == region)),
                memory.host_write.eq(self.bus.write),
                memory.host_offset.eq(self.bus.offset),
                memory.host_write_data.eq(self.bus.write_data),
            ]
        return memories

    def _choose(self, m: Module, memories: dict[Region, ParameterMemory]) -> None:
        """Working copies, or masters rounded to their formats."""
        frac = self._parameters.master.frac
        for result, format, working, master in (
            (self.gain, self._parameters.working, Region.WORKING, Region.MASTER),
            (self.offset, self._formats.offset, Region.BIAS_WORKING, Region.BIAS_MASTER),
        ):
            for lane in range(self._lanes):
                rounded = requantize(memories[master].data[lane], frac, format)
                m.d.sync += result[lane].eq(
                    Mux(self.evaluate, rounded, memories[working].data[lane])
                )

    def _update(
        self, m: Module, registers: TileRegisters, memories: dict[Region, ParameterMemory]
    ) -> None:
        """Word after word: its gains, then its offsets."""
        m.submodules.unit = unit = UpdateUnit(
            Conv("", self._lanes * self._words, 1, 1, 0, bias=True).geometry(
                Shape(1, 1, 1), Folding(1, self._lanes, self._lanes), first=True
            ),
            self._mac_formats,
        )
        turn = Signal(data.StructLayout({"valid": 1, "of_bias": 1, "word": range(self._words)}))
        index = Signal(32)
        last = turn.of_bias & (turn.word == self._words - 1)
        with m.If(self.update):
            m.d.sync += [turn.valid.eq(1), turn.of_bias.eq(0), turn.word.eq(0), index.eq(0)]
        with m.Elif(turn.valid):
            m.d.sync += [turn.of_bias.eq(~turn.of_bias), turn.valid.eq(~last)]
            with m.If(turn.of_bias):
                m.d.sync += [
                    turn.word.eq(turn.word + 1),
                    index.eq(index + index_product(self._lanes)),
                ]
        read = delayed(m, turn, 1, name="read_turn")
        gathered = delayed(m, read, 1, name="gathered_turn")
        written = delayed(m, gathered, UPDATE_LATENCY, name="written_turn")
        gains, offsets = self._gradients(m, turn.word)
        states = registers.states
        for lane in range(self._lanes):
            m.d.sync += [
                unit.gradient[lane].eq(Mux(read.of_bias, offsets[lane], gains[lane])),
                unit.velocity[lane].eq(
                    Mux(
                        read.of_bias,
                        memories[Region.BIAS_VELOCITY].data[lane],
                        memories[Region.VELOCITY].data[lane],
                    )
                ),
                unit.master[lane].eq(
                    Mux(
                        read.of_bias,
                        memories[Region.BIAS_MASTER].data[lane],
                        memories[Region.MASTER].data[lane],
                    )
                ),
            ]
        m.d.comb += [
            unit.coefficients.eq(registers.coefficients),
            unit.of_bias.eq(gathered.of_bias),
            unit.index.eq(delayed(m, index, GATHERED, name="gathered_index")),
            unit.velocity_state.eq(
                Mux(gathered.of_bias, states[Tensor.BIAS_VELOCITY], states[Tensor.WEIGHT_VELOCITY])
            ),
            unit.master_state.eq(Mux(gathered.of_bias, states[Tensor.BIAS], states[Tensor.WEIGHT])),
            self.done.eq(delayed(m, turn.valid & last, WRITTEN + 1, name="done")),
        ]
        results = {
            Region.MASTER: unit.new_master,
            Region.VELOCITY: unit.new_velocity,
            Region.WORKING: unit.new_working,
            Region.BIAS_MASTER: unit.new_master,
            Region.BIAS_VELOCITY: unit.new_velocity,
            Region.BIAS_WORKING: unit.new_bias,
        }
        for region, memory in memories.items():
            mine = written.valid & (written.of_bias == (region >= Region.BIAS_MASTER))
            m.d.comb += [
                memory.address.eq(Mux(turn.valid, turn.word, self.word)),
                memory.write_address.eq(written.word),
                memory.write_data.eq(results[region]),
                memory.write_mask.eq(mine.replicate(self._lanes)),
            ]

    def _gradients(self, m: Module, address: Signal) -> tuple[data.View, data.View]:
        """The rounded gradients of a word, one clock after its address."""
        found = []
        for name, gradient in (("gains", self.gain_gradient), ("offsets", self.offset_gradient)):
            m.submodules[f"{name}_gradient"] = memory = Ram(gradient.shape(), self._words)
            m.d.comb += [
                memory.write_address.eq(self.gradient_word),
                memory.write_data.eq(gradient),
                memory.write.eq(self.gradient_valid),
                memory.address.eq(address),
                memory.read.eq(1),
            ]
            found.append(memory.data)
        return found[0], found[1]

    @property
    def _mac_formats(self) -> MacFormats:
        """The update unit's view: an offset is rounded like the bias of a 1x1 convolution of x^."""
        formats = self._formats
        result = MacFormats(
            source=formats.normalised,
            source_gradient=formats.source_gradient,
            source_stochastic=formats.source_stochastic,
            target=formats.target,
            target_gradient=formats.target_gradient,
            parameters=self._parameters,
            relu=formats.relu,
        )
        assert result.bias == formats.offset
        return result


def store_bits(words: int, lanes: int) -> int:
    """Bits of an offset on the bus."""
    return max(TILE_REGISTER_BITS, (words - 1).bit_length() + lane_bits(lanes))
