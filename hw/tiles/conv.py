"""The core of a tile with weights: sequencer, memories, MAC array and update unit."""

from functools import reduce
from operator import or_

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.activity import ACTIVITY
from hw.bus import tile_bus
from hw.delay import delayed
from hw.mac import MacArray, MacParameters, PassKind
from hw.parameter_memory import ParameterMemory
from hw.queue import OutputQueue
from hw.sequencer import EMISSION, Sequencer
from hw.stash import kept_port, stash_reader
from hw.streams import packet_stream
from hw.tile_registers import TileRegisters
from hw.update import UpdateUnit
from spec.bus import Region, offset_bits
from spec.formats import Fixed
from spec.mac import BLOCK_LATENCY, MEMORY_LATENCY, RESULT_LATENCY, UPDATE_TAIL, MacGeometry
from spec.mac_formats import MacFormats
from spec.packets import BeatLayout, Kind
from spec.random_bits import Tensor


def turn_layout(geometry: MacGeometry) -> data.StructLayout:
    """A turn of the update unit: part `turn` of the word of weights or of biases at an address."""
    return data.StructLayout(
        {
            "valid": 1,
            "of_bias": 1,
            "turn": range(geometry.update_turns + 1),
            "weight": range(geometry.weight_words),
            "bias": range(max(1, geometry.bias_words)),
        }
    )


class ConvCore(wiring.Component):
    """A tile with weights; its stashes, delay, seeds and coefficients come from outside.

    Golden counterpart: model/tiles/conv.py. Tiles with equal parameters are the same module.
    Latency and throughput: MacGeometry.slot_cycles clocks a training sample.

    Parameters
    ----------
    parameters: geometry, formats and widths of sums.
    words_in, words_out: beats of a packet with data at its input and output.

    Members
    -------
    stash, gradient, mask: memories of inputs, of gradients, and (after a ReLU) of masks, one bit an
        output: it was not zero.
    o, o_gradient: results forwards and backwards.
    bus: coefficients, random states and memories for the host.
    activity: see ACTIVITY.
    key: what makes two cores equal.
    """

    def __init__(self, parameters: MacParameters, words_in: int, words_out: int) -> None:
        self._p = parameters
        self.key = (parameters, words_in, words_out)
        geometry, formats = parameters.geometry, parameters.formats
        lanes_in, lanes_out = geometry.folding.lanes_in, geometry.folding.lanes_out
        first = geometry.backward_data is None
        source = BeatLayout(formats.source, lanes_in, forward=True)
        target = BeatLayout(formats.target, lanes_out, forward=True)
        gradient = BeatLayout(formats.target_gradient, lanes_out, forward=False)
        source_gradient = BeatLayout(formats.source_gradient, 0 if first else lanes_in, False)
        members = {
            "stash": Out(stash_reader(source, words_in)),
            "gradient": Out(stash_reader(gradient, words_out)),
            "o": Out(packet_stream(target)),
            "o_gradient": Out(packet_stream(source_gradient)),
            "bus": In(tile_bus(offset_bits(geometry))),
            "activity": Out(ACTIVITY),
        }
        if formats.relu:
            members["mask"] = Out(kept_port(lanes_out, words_out))
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.sequencer = sequencer = Sequencer(self._p.geometry)
        m.submodules.mac = mac = MacArray(self._p)
        m.submodules.unit = unit = UpdateUnit(self._p.geometry, self._p.formats)
        m.submodules.registers = registers = TileRegisters(offset_bits(self._p.geometry))
        memories = self._memories(m)
        self._answer(m, registers, memories)
        self._read_operands(m, sequencer, mac, memories)
        self._send(m, sequencer, mac)
        turn = self._turns(m, sequencer)
        self._read_parameters(m, sequencer, memories, turn)
        self._gather(m, sequencer, mac, unit, memories, turn)
        self._choose_states(m, unit, registers.states)
        self._write_back(m, unit, memories, turn)
        m.d.comb += [
            mac.step.eq(sequencer.step),
            mac.state.eq(registers.states[Tensor.GRADIENT]),
            unit.coefficients.eq(registers.coefficients),
            registers.commit.eq(sequencer.commit),
            registers.updated.eq(sequencer.updated),
            self.activity.started.eq(sequencer.started),
            self.activity.waiting.eq(sequencer.waiting),
            self.activity.busy.eq(
                sequencer.step.valid & (sequencer.step.kind != PassKind.BACKWARD_BIAS)
            ),
        ]
        return m

    @property
    def _geometry(self) -> MacGeometry:
        return self._p.geometry

    @property
    def _formats(self) -> MacFormats:
        return self._p.formats

    def _memories(self, m: Module) -> dict[Region, ParameterMemory]:
        """One memory for each region that the host sees, wired to the bus."""
        geometry, parameters = self._geometry, self._formats.parameters
        folding = geometry.folding
        weights: dict[Region, Fixed] = {
            Region.MASTER: parameters.master,
            Region.VELOCITY: parameters.velocity,
            Region.WORKING: parameters.working,
        }
        biases: dict[Region, Fixed] = {
            Region.BIAS_MASTER: parameters.master,
            Region.BIAS_VELOCITY: parameters.velocity,
            Region.BIAS_WORKING: self._formats.bias,
        }
        memories = {
            region: ParameterMemory(format, folding.multipliers, geometry.weight_words)
            for region, format in weights.items()
        }
        if geometry.bias_words:
            memories |= {
                region: ParameterMemory(format, folding.lanes_out, geometry.bias_words)
                for region, format in biases.items()
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

    def _answer(
        self, m: Module, registers: TileRegisters, memories: dict[Region, ParameterMemory]
    ) -> None:
        """Whoever was not selected answers with zeros."""
        bus = self.bus
        m.d.comb += [
            registers.bus.select.eq(bus.select),
            registers.bus.write.eq(bus.write),
            registers.bus.region.eq(bus.region),
            registers.bus.offset.eq(bus.offset),
            registers.bus.write_data.eq(bus.write_data),
            bus.read_data.eq(
                reduce(or_, (memory.host_data for memory in memories.values()))
                | registers.bus.read_data
            ),
        ]

    def _read_operands(
        self,
        m: Module,
        sequencer: Sequencer,
        mac: MacArray,
        memories: dict[Region, ParameterMemory],
    ) -> None:
        m.d.comb += [
            sequencer.pending.eq(self.stash.pending),
            sequencer.header.eq(self.stash.header),
            sequencer.gradient_pending.eq(self.gradient.pending),
            sequencer.gradient_kind.eq(self.gradient.header.kind),
            self.stash.beat.eq(sequencer.stash),
            self.stash.late.eq(sequencer.late),
            self.stash.take.eq(sequencer.take),
            self.stash.release.eq(sequencer.release),
            self.gradient.beat.eq(sequencer.gradient),
            self.gradient.take.eq(sequencer.take_gradient),
            self.gradient.release.eq(sequencer.release),
            mac.x.eq(self.stash.data),
            mac.working.eq(memories[Region.WORKING].data),
            mac.master.eq(memories[Region.MASTER].data),
        ]
        for lane in range(self._geometry.folding.lanes_out):
            gradient = self.gradient.data[lane]
            masked = Mux(self.mask.data[lane], gradient, 0) if self._formats.relu else gradient
            m.d.comb += mac.dy[lane].eq(masked)
        if self._geometry.bias_words:
            m.d.comb += [
                mac.bias.eq(memories[Region.BIAS_WORKING].data),
                mac.bias_master.eq(memories[Region.BIAS_MASTER].data),
            ]

    def _send(self, m: Module, sequencer: Sequencer, mac: MacArray) -> None:
        """Queue the results RESULT_LATENCY clocks after their last step; keep ReLU masks."""
        emission = Signal(EMISSION)
        m.d.comb += emission.eq(
            delayed(m, sequencer.emission, RESULT_LATENCY, name="emission").as_value()
        )
        for name, stream, results, begun, done, room in (
            (
                "target_queue", self.o, mac.target,
                sequencer.emission.forward, emission.forward, sequencer.target_room,
            ),
            (
                "source_queue", self.o_gradient, mac.source,
                sequencer.emission.backward, emission.backward, sequencer.source_room,
            ),
        ):  # fmt: skip
            m.submodules[name] = queue = OutputQueue(stream.payload.shape())
            header, carried = emission.header, stream.payload.shape().members
            m.d.comb += [
                room.eq(queue.room),
                queue.reserve.eq(begun),
                queue.push.eq(done),
                queue.beat.last.eq(emission.last),
                *(
                    getattr(queue.beat, side).eq(getattr(header, side))
                    for side in header.shape().members
                    if side in carried
                ),
            ]
            if "data" in carried:
                with m.If(header.kind != Kind.BUBBLE):
                    m.d.comb += queue.beat.data.eq(results)
            wiring.connect(m, queue.o, wiring.flipped(stream))
        if self._formats.relu:
            m.d.comb += [
                self.mask.begin.eq(sequencer.started),
                self.mask.valid.eq(emission.forward),
                self.mask.last.eq(emission.last),
                self.mask.beat.eq(sequencer.gradient),
                self.mask.release.eq(sequencer.release),
                *(
                    self.mask.word[lane].eq(mac.target[lane] != 0)
                    for lane in range(self._geometry.folding.lanes_out)
                ),
            ]

    def _turns(self, m: Module, sequencer: Sequencer) -> data.View:
        """From each complete block, the turns in which the update unit reads its operands."""
        step = delayed(m, sequencer.step, BLOCK_LATENCY, name="turn_step")
        weight = delayed(m, sequencer.weight, BLOCK_LATENCY, name="turn_weight")
        bias = delayed(m, sequencer.bias, BLOCK_LATENCY, name="turn_bias")
        of_bias = step.kind == PassKind.BACKWARD_BIAS
        turns = self._geometry.update_turns
        bias_turns = self._geometry.bias_turns
        layout = turn_layout(self._geometry)
        turn, held = Signal(layout), Signal(layout)
        with m.If(step.valid & step.last & (of_bias | (step.kind == PassKind.BACKWARD_WEIGHT))):
            m.d.comb += [
                turn.valid.eq(1),
                turn.of_bias.eq(of_bias),
                turn.weight.eq(weight),
                turn.bias.eq(bias),
            ]
        with m.Else():
            m.d.comb += turn.eq(held)
        last = Mux(turn.of_bias, bias_turns - 1, turns - 1)
        m.d.sync += [
            held.eq(turn),
            held.turn.eq(turn.turn + 1),
            held.valid.eq(turn.valid & (turn.turn != last)),
        ]
        return turn

    def _read_parameters(
        self,
        m: Module,
        sequencer: Sequencer,
        memories: dict[Region, ParameterMemory],
        turn: data.View,
    ) -> None:
        """Steps read the weights until the update takes the memories over."""
        m.d.comb += [
            memories[Region.WORKING].address.eq(sequencer.weight),
            memories[Region.MASTER].address.eq(Mux(turn.valid, turn.weight, sequencer.weight)),
            memories[Region.VELOCITY].address.eq(turn.weight),
        ]
        if self._geometry.bias_words:
            m.d.comb += [
                memories[Region.BIAS_WORKING].address.eq(sequencer.bias),
                memories[Region.BIAS_MASTER].address.eq(Mux(turn.valid, turn.bias, sequencer.bias)),
                memories[Region.BIAS_VELOCITY].address.eq(turn.bias),
            ]

    def _gather(
        self,
        m: Module,
        sequencer: Sequencer,
        mac: MacArray,
        unit: UpdateUnit,
        memories: dict[Region, ParameterMemory],
        turn: data.View,
    ) -> None:
        """Register the operands of a turn, MEMORY_LATENCY clocks after its addresses."""
        lanes = self._geometry.folding.update_lanes
        now = delayed(m, turn, MEMORY_LATENCY, name="gather_turn")
        index = delayed(m, sequencer.step.index, BLOCK_LATENCY, name="gather_index")
        held = Signal(32, name="gather_index_held")
        with m.If(turn.valid & (turn.turn == 0)):
            m.d.sync += held.eq(index)
        m.d.sync += [unit.index.eq(held), unit.turn.eq(now.turn), unit.of_bias.eq(now.of_bias)]
        velocity, master = memories[Region.VELOCITY].data, memories[Region.MASTER].data
        if self._geometry.bias_words:
            bias_velocity = memories[Region.BIAS_VELOCITY].data
            bias_master = memories[Region.BIAS_MASTER].data
        else:
            bias_velocity, bias_master = velocity, master
        for lane in range(lanes):
            place = (now.turn, lane, lanes)
            m.d.sync += [
                unit.gradient[lane].eq(_part(mac.block, *place)),
                unit.velocity[lane].eq(
                    Mux(now.of_bias, _part(bias_velocity, *place), _part(velocity, *place))
                ),
                unit.master[lane].eq(
                    Mux(now.of_bias, _part(bias_master, *place), _part(master, *place))
                ),
            ]

    def _choose_states(self, m: Module, unit: UpdateUnit, states: data.View) -> None:
        m.d.comb += [
            unit.velocity_state.eq(
                Mux(unit.of_bias, states[Tensor.BIAS_VELOCITY], states[Tensor.WEIGHT_VELOCITY])
            ),
            unit.master_state.eq(Mux(unit.of_bias, states[Tensor.BIAS], states[Tensor.WEIGHT])),
        ]

    def _write_back(
        self,
        m: Module,
        unit: UpdateUnit,
        memories: dict[Region, ParameterMemory],
        turn: data.View,
    ) -> None:
        lanes = self._geometry.folding.update_lanes
        done = delayed(m, turn, UPDATE_TAIL - BLOCK_LATENCY, name="written_turn")
        results = {
            Region.MASTER: unit.new_master,
            Region.VELOCITY: unit.new_velocity,
            Region.WORKING: unit.new_working,
            Region.BIAS_MASTER: unit.new_master,
            Region.BIAS_VELOCITY: unit.new_velocity,
            Region.BIAS_WORKING: unit.new_bias,
        }
        for region, memory in memories.items():
            bias = region >= Region.BIAS_MASTER
            m.d.comb += memory.write_address.eq(done.bias if bias else done.weight)
            for place in range(len(memory.write_mask)):
                mine = done.valid & (done.of_bias == bias) & (done.turn == place // lanes)
                m.d.comb += [
                    memory.write_data[place].eq(results[region][place % lanes]),
                    memory.write_mask[place].eq(mine),
                ]


def _part(word: data.View, turn: Value, lane: int, lanes: int) -> Value:
    """Element `lane` of the part `turn` of a word; words shorter than that repeat their last."""
    count = word.shape().length
    parts = [word[min(place, count - 1)] for place in range(lane, max(count, lane + 1), lanes)]
    return parts[0] if len(parts) == 1 else Array(parts)[turn]
