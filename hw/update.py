"""The update unit: EMA momentum, Spike Compensation, weight prediction (design, section 5)."""

from amaranth import Array, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.delay import delayed
from hw.random_bits import RANDOM_LATENCY, index_product, random_word
from hw.rounding import clamp, requantize
from hw.streams import word
from spec.formats import Fixed
from spec.mac import UPDATE_LATENCY, MacGeometry
from spec.mac_formats import MacFormats
from spec.update import (
    COEFFICIENT_BITS,
    HORIZON_BITS,
    MANTISSA_BITS,
    MOMENTUM_SHIFT_LIMIT,
    SHIFT_LIMIT,
    SPIKE_FRAC,
    ParameterFormats,
)

COEFFICIENTS = data.StructLayout(COEFFICIENT_BITS)

# The clock in which each value of the pipeline is valid; operands come in clock 0.
DECAYED, ERROR, SCALED, VELOCITY, LATE_ERROR, SPIKE_PRODUCT, SPIKED = 1, 2, 3, 4, 5, 6, 7
STEP_PRODUCT, STEP_SUM, STEP, MASTER, WORKING = 8, 9, 10, 11, 12
assert WORKING == UPDATE_LATENCY


class UpdateUnit(wiring.Component):
    """Updates `update_lanes` weights (or biases) a clock; equal to spec.update.update in each.

    Latency: UPDATE_LATENCY clocks from the operands to all three results. Throughput: one turn a
    clock. Coefficients must not change while an update is under way.

    Parameters
    ----------
    geometry: fixes lanes, and the element index of each lane in each turn.
    formats: of the tile's parameters.

    Members
    -------
    gradient, velocity, master: operands of this turn.
    index: index product of the first element of the block (hw/random_bits).
    turn: which part of the block this is.
    of_bias: the operands are biases.
    velocity_state, master_state: random states of the tensors that the operands belong to.
    new_velocity, new_master, new_working, new_bias: successors; the last is the working copy in
        the format of a bias.
    """

    def __init__(self, geometry: MacGeometry, formats: MacFormats) -> None:
        self._geometry, self._formats = geometry, formats
        lanes, parameters = geometry.folding.update_lanes, formats.parameters
        super().__init__(
            {
                "coefficients": In(COEFFICIENTS),
                "gradient": In(word(parameters.gradient, lanes)),
                "velocity": In(word(parameters.velocity, lanes)),
                "master": In(word(parameters.master, lanes)),
                "index": In(32),
                "turn": In(range(geometry.update_turns)),
                "of_bias": In(1),
                "velocity_state": In(32),
                "master_state": In(32),
                "new_velocity": Out(word(parameters.velocity, lanes)),
                "new_master": Out(word(parameters.master, lanes)),
                "new_working": Out(word(parameters.working, lanes)),
                "new_bias": Out(word(formats.bias, lanes)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        at_velocity = self._random_words(m, self.velocity_state, SCALED - 1, "velocity")
        at_master = self._random_words(m, self.master_state, STEP_PRODUCT - 1, "master")
        for lane in range(self._geometry.folding.update_lanes):
            _Lane(self, m, lane, at_velocity[lane], at_master[lane]).build()
        return m

    def _random_words(self, m: Module, state: Signal, clock: int, name: str) -> list[Value]:
        """A random word for every lane in the given clock; nearest rounding wants a half."""
        if not self._formats.parameters.stochastic:
            return [Const(1 << 31, 32)] * self._geometry.folding.update_lanes
        wait = clock - RANDOM_LATENCY
        state = delayed(m, state, wait, name=f"{name}_state")
        states = (state, delayed(m, state, 1, name=f"{name}_late_state"))
        index = delayed(m, self.index, wait, name=f"{name}_index")
        turn = delayed(m, self.turn, wait, name=f"{name}_turn")
        of_bias = delayed(m, self.of_bias, wait, name=f"{name}_of_bias")
        words = []
        for lane in range(self._geometry.folding.update_lanes):
            offset = Mux(of_bias, self._bias_offset(lane, turn), self._offset(lane, turn))
            product = Signal(32, name=f"{name}_product_{lane}")
            m.d.comb += product.eq(index + offset)
            words.append(random_word(m, states, product, f"{name}_random_{lane}"))
        return words

    def _offset(self, lane: int, turn: Signal) -> Value:
        """Index product of (offset of a lane from the block's first weight) + 1."""
        folding = self._geometry.folding
        offsets = []
        for part in range(self._geometry.update_turns):
            place = part * folding.update_lanes + lane
            output, source = divmod(place, folding.lanes_in)
            offsets.append(output * self._geometry.lane_stride + source)
        return _choose([index_product(offset + 1) for offset in offsets], turn)

    def _bias_offset(self, lane: int, turn: Signal) -> Value:
        lanes = self._geometry.folding.update_lanes
        turns = range(self._geometry.update_turns)
        return _choose([index_product(part * lanes + lane + 1) for part in turns], turn)


def _choose(constants: list[int], index: Signal) -> Value:
    """constants[index] as a 32-bit value."""
    values = [Const(constant, 32) for constant in constants]
    return values[0] if len(values) == 1 else Array(values)[index]


class _Lane:
    """The pipeline of one lane; each method is one or two of its clocks."""

    def __init__(
        self, unit: UpdateUnit, m: Module, lane: int, random_velocity: Value, random_master: Value
    ) -> None:
        self._m, self._unit, self._lane = m, unit, lane
        self._random_velocity, self._random_master = random_velocity, random_master
        self._coefficients = unit.coefficients
        self._mac: MacFormats = unit._formats
        self._formats: ParameterFormats = unit._formats.parameters

    def build(self) -> None:
        unit, lane = self._unit, self._lane
        decayed = self._decay()
        velocity = self._new_velocity(decayed)
        spiked = self._spike(delayed_to(self, decayed, DECAYED, VELOCITY, "decayed"), velocity)
        step = self._step(spiked)
        master = self._new_master(step)
        ahead = self._ahead(velocity)
        self._outputs(master, ahead)
        late = delayed_to(self, velocity, VELOCITY, WORKING, "new_velocity")
        late_master = delayed_to(self, master, MASTER, WORKING, "new_master")
        self._m.d.comb += [
            unit.new_velocity[lane].eq(late),
            unit.new_master[lane].eq(late_master),
        ]

    def register(self, name: str, width: int) -> Signal:
        return Signal(signed(width), name=f"{name}_{self._lane}")

    def _decay(self) -> Signal:
        """g' = g + w 2**-d in the velocity's fractional bits."""
        formats, c = self._formats, self._coefficients
        decayed = self.register("decayed", formats.decayed_bits)
        decay = self.register("decay", formats.decayed_bits)
        master = self._unit.master[self._lane].shift_left(formats.decay_headroom)
        half = (Const(1) << c.decay_shift) >> 1
        with self._m.If(c.decay):
            self._m.d.comb += decay.eq((master + half) >> c.decay_shift)
        gradient = self._unit.gradient[self._lane]
        aligned = gradient.shift_left(formats.velocity.frac - formats.gradient.frac)
        self._m.d.sync += decayed.eq(aligned + decay)
        return decayed

    def _new_velocity(self, decayed: Signal) -> Signal:
        """u' = clamp(u + SR((g' - u) 2**-k)); a left shift and a fixed right one serve for all k.

        Adding the top bits of the random word above a wider fraction gives the same floor.
        """
        formats, limit = self._formats, MOMENTUM_SHIFT_LIMIT
        error = self.register("error", formats.error_bits)
        scaled = self.register("scaled", formats.error_bits + limit)
        random = Signal(limit, name=f"velocity_random_bits_{self._lane}")
        velocity = self.register("velocity", formats.velocity.width)
        old = self._unit.velocity[self._lane]
        late = delayed_to(self, old, 0, DECAYED, "old_velocity")
        later = delayed_to(self, late, DECAYED, SCALED, "older_velocity")
        left = Signal(range(limit + 1), name=f"left_{self._lane}")
        self._m.d.comb += left.eq(limit - self._coefficients.momentum_shift)
        self._m.d.sync += [
            error.eq(decayed - late),
            scaled.eq(error << left),
            random.eq(self._random_velocity[32 - limit :]),
            velocity.eq(clamp(later + (scaled + random).shift_right(limit), formats.velocity)),
        ]
        return velocity

    def _spike(self, decayed: Signal, velocity: Signal) -> Signal:
        """u' + c (g' - u') with SPIKE_FRAC more fractional bits."""
        formats = self._formats
        error = self.register("late_error", formats.error_bits)
        product = self.register("spike_product", formats.error_bits + SPIKE_FRAC)
        spiked = self.register("spiked", formats.spike_bits)
        late = delayed_to(self, velocity, VELOCITY, SPIKE_PRODUCT, "spike_velocity")
        self._m.d.sync += [
            error.eq(decayed - velocity),
            product.eq(error * self._coefficients.spike),
            spiked.eq(late.shift_left(SPIKE_FRAC) + product),
        ]
        return spiked

    def _step(self, spiked: Signal) -> Signal:
        """SR(eta (u' + c (g' - u'))) in the master's fractional bits."""
        formats, shift = self._formats, self._coefficients.step_shift
        product = self.register("step_product", formats.step_bits)
        total = self.register("step_sum", formats.step_bits)
        step = self.register("step", formats.step_bits)
        random = Signal(SHIFT_LIMIT, name=f"master_random_bits_{self._lane}")
        right = Signal(range(SHIFT_LIMIT + 1), name=f"right_{self._lane}")
        self._m.d.comb += right.eq(SHIFT_LIMIT - shift)
        self._m.d.sync += [
            product.eq(spiked * self._coefficients.step_mantissa),
            random.eq(self._random_master >> right),
            total.eq(product + random),
            step.eq(total >> shift),
        ]
        return step

    def _new_master(self, step: Signal) -> Signal:
        master = self.register("master", self._formats.master.width)
        old = delayed_to(self, self._unit.master[self._lane], 0, STEP, "old_master")
        self._m.d.sync += master.eq(clamp(old - step, self._formats.master))
        return master

    def _ahead(self, velocity: Signal) -> Signal:
        """-eta T u' in the master's fractional bits, rounded down: exact once w' is rounded."""
        width = self._formats.velocity.width + MANTISSA_BITS + HORIZON_BITS + 1
        product, ahead = self.register("ahead_product", width), self.register("ahead", width)
        self._m.d.sync += [
            product.eq(-(velocity * self._coefficients.prediction_mantissa)),
            ahead.eq(product >> self._coefficients.prediction_shift),
        ]
        return delayed_to(self, ahead, SPIKE_PRODUCT, MASTER, "late_ahead")

    def _outputs(self, master: Signal, ahead: Value) -> None:
        """Both working copies; the tile takes the one that the operands need."""
        unit, lane = self._unit, self._lane

        def copy(target: Fixed) -> Value:
            return requantize(master + ahead, self._formats.master.frac, target)

        self._m.d.sync += [
            unit.new_working[lane].eq(copy(self._formats.working)),
            unit.new_bias[lane].eq(copy(self._mac.bias)),
        ]


def delayed_to(lane: _Lane, source: Value, now: int, then: int, name: str) -> Value:
    """A value of clock `now` as it is wanted in clock `then`."""
    register = Signal(source.shape(), name=f"{name}_{lane._lane}_0")
    lane._m.d.comb += register.eq(source)
    return delayed(lane._m, register, then - now, name=f"{name}_{lane._lane}")
