"""The update unit: EMA momentum, Spike Compensation, weight prediction (design, section 5)."""

from amaranth import Array, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.delay import delayed
from hw.random_bits import RANDOM_LATENCY, RandomWord, index_product
from hw.rounding import clamp, requantize
from hw.shared import shared
from hw.streams import element, word
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
        velocity_words = self._random_words(
            m, platform, self.velocity_state, SCALED - 1, "velocity"
        )
        master_words = self._random_words(
            m, platform, self.master_state, STEP_PRODUCT - 1, "master"
        )
        for place in range(self._geometry.folding.update_lanes):
            lane = UpdateLane(self._formats.parameters, self._formats.bias)
            m.submodules[f"lane_{place}"] = shared(lane, lane.key, platform)
            m.d.comb += [
                lane.coefficients.eq(self.coefficients),
                lane.gradient.eq(self.gradient[place]),
                lane.velocity.eq(self.velocity[place]),
                lane.master.eq(self.master[place]),
                lane.velocity_random.eq(velocity_words[place]),
                lane.master_random.eq(master_words[place]),
                self.new_velocity[place].eq(lane.new_velocity),
                self.new_master[place].eq(lane.new_master),
                self.new_working[place].eq(lane.new_working),
                self.new_bias[place].eq(lane.new_bias),
            ]
        return m

    def _random_words(
        self, m: Module, platform: object, state: Signal, clock: int, name: str
    ) -> list[Value]:
        """A random word for every lane in the given clock; nearest rounding wants a half."""
        if not self._formats.parameters.stochastic:
            return [Const(1 << 31, 32)] * self._geometry.folding.update_lanes
        wait = clock - RANDOM_LATENCY
        state = delayed(m, state, wait, name=f"{name}_state")
        late_state = delayed(m, state, 1, name=f"{name}_late_state")
        index = delayed(m, self.index, wait, name=f"{name}_index")
        turn = delayed(m, self.turn, wait, name=f"{name}_turn")
        of_bias = delayed(m, self.of_bias, wait, name=f"{name}_of_bias")
        words = []
        for lane in range(self._geometry.folding.update_lanes):
            random = RandomWord()
            m.submodules[f"{name}_random_{lane}"] = shared(random, None, platform)
            m.d.comb += [
                random.state.eq(state),
                random.late_state.eq(late_state),
                random.base.eq(index),
                random.offset.eq(
                    Mux(of_bias, self._bias_offset(lane, turn), self._offset(lane, turn))
                ),
            ]
            words.append(random.word)
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


class UpdateLane(wiring.Component):
    """One lane of the update unit. Random words come in the clocks in which they are used.

    Parameters
    ----------
    formats: of the parameters.
    bias: format of a bias's working copy.
    """

    def __init__(self, formats: ParameterFormats, bias: Fixed) -> None:
        self._formats, self._bias = formats, bias
        super().__init__(
            {
                "coefficients": In(COEFFICIENTS),
                "gradient": In(element(formats.gradient)),
                "velocity": In(element(formats.velocity)),
                "master": In(element(formats.master)),
                "velocity_random": In(32),
                "master_random": In(32),
                "new_velocity": Out(element(formats.velocity)),
                "new_master": Out(element(formats.master)),
                "new_working": Out(element(formats.working)),
                "new_bias": Out(element(bias)),
            }
        )

    @property
    def key(self) -> object:
        return self._formats, self._bias

    def elaborate(self, platform: object) -> Module:
        m = Module()
        decayed = self._decay(m)
        velocity = self._update_velocity(m, decayed)
        late = delayed(m, decayed, VELOCITY - DECAYED, name="late_decayed")
        spiked = self._spike(m, late, velocity)
        master = self._update_master(m, self._step(m, spiked))
        self._predict(m, master, velocity)
        m.d.comb += [
            self.new_velocity.eq(delayed(m, velocity, WORKING - VELOCITY, name="new_velocity")),
            self.new_master.eq(delayed(m, master, WORKING - MASTER, name="new_master")),
        ]
        return m

    def _decay(self, m: Module) -> Signal:
        """g' = g + w 2**-d in the velocity's fractional bits."""
        formats, c = self._formats, self.coefficients
        decayed = Signal(signed(formats.decayed_bits))
        decay = Signal(signed(formats.decayed_bits))
        master = self.master.shift_left(formats.decay_headroom)
        half = (Const(1) << c.decay_shift) >> 1
        with m.If(c.decay):
            m.d.comb += decay.eq((master + half) >> c.decay_shift)
        aligned = self.gradient.shift_left(formats.velocity.frac - formats.gradient.frac)
        m.d.sync += decayed.eq(aligned + decay)
        return decayed

    def _update_velocity(self, m: Module, decayed: Signal) -> Signal:
        """u' = clamp(u + SR((g' - u) 2**-k)); a left shift and a fixed right one serve for all k.

        Adding the top bits of the random word above a wider fraction gives the same floor.
        """
        formats, limit = self._formats, MOMENTUM_SHIFT_LIMIT
        error = Signal(signed(formats.error_bits))
        scaled = Signal(signed(formats.error_bits + limit))
        random = Signal(limit, name="velocity_random_bits")
        velocity = Signal(signed(formats.velocity.width), name="updated_velocity")
        left = Signal(range(limit + 1))
        late = delayed(m, self.velocity, DECAYED, name="velocity")
        later = delayed(m, late, SCALED - DECAYED, name="late_velocity")
        m.d.comb += left.eq(limit - self.coefficients.momentum_shift)
        m.d.sync += [
            error.eq(decayed - late),
            scaled.eq(error << left),
            random.eq(self.velocity_random[32 - limit :]),
            velocity.eq(clamp(later + (scaled + random).shift_right(limit), formats.velocity)),
        ]
        return velocity

    def _spike(self, m: Module, decayed: Signal, velocity: Signal) -> Signal:
        """u' + c (g' - u') with SPIKE_FRAC more fractional bits."""
        formats = self._formats
        error = Signal(signed(formats.error_bits), name="spike_error")
        product = Signal(signed(formats.error_bits + SPIKE_FRAC), name="spike_product")
        spiked = Signal(signed(formats.spike_bits))
        late = delayed(m, velocity, SPIKE_PRODUCT - VELOCITY, name="spike_velocity")
        m.d.sync += [
            error.eq(decayed - velocity),
            product.eq(error * self.coefficients.spike),
            spiked.eq(late.shift_left(SPIKE_FRAC) + product),
        ]
        return spiked

    def _step(self, m: Module, spiked: Signal) -> Signal:
        """SR(eta (u' + c (g' - u'))) in the master's fractional bits."""
        width, shift = self._formats.step_bits, self.coefficients.step_shift
        product = Signal(signed(width), name="step_product")
        total, step = Signal(signed(width), name="step_sum"), Signal(signed(width))
        random = Signal(SHIFT_LIMIT, name="master_random_bits")
        right = Signal(range(SHIFT_LIMIT + 1))
        m.d.comb += right.eq(SHIFT_LIMIT - shift)
        m.d.sync += [
            product.eq(spiked * self.coefficients.step_mantissa),
            random.eq(self.master_random >> right),
            total.eq(product + random),
            step.eq(total >> shift),
        ]
        return step

    def _update_master(self, m: Module, step: Signal) -> Signal:
        master = Signal(signed(self._formats.master.width), name="updated_master")
        old = delayed(m, self.master, STEP, name="old_master")
        m.d.sync += master.eq(clamp(old - step, self._formats.master))
        return master

    def _predict(self, m: Module, master: Signal, velocity: Signal) -> None:
        """w^ = w' - eta T u', rounded once: flooring the product first changes no result."""
        width = self._formats.velocity.width + MANTISSA_BITS + HORIZON_BITS + 1
        product = Signal(signed(width), name="ahead_product")
        ahead = Signal(signed(width))
        m.d.sync += [
            product.eq(-(velocity * self.coefficients.prediction_mantissa)),
            ahead.eq(product >> self.coefficients.prediction_shift),
        ]
        predicted = master + delayed(m, ahead, MASTER - SPIKE_PRODUCT, name="late_ahead")
        frac = self._formats.master.frac
        m.d.sync += [
            self.new_working.eq(requantize(predicted, frac, self._formats.working)),
            self.new_bias.eq(requantize(predicted, frac, self._bias)),
        ]
