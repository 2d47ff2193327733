"""The arithmetic that a norm does once a group; serial, so that no path is long."""

from amaranth import Array, Const, Module, Mux, Signal, Value, signed
from amaranth.hdl import ValueLike
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.rounding import requantize, round_half_up
from hw.streams import element
from spec.reciprocal import RECIPROCAL_BITS, Reciprocal
from spec.tiles.norm import (
    INDEX_BITS,
    MANTISSA_BITS,
    ROOT,
    ROOT_FRAC,
    NormFormats,
    NormWidths,
    normalising_shifts,
)

FACTOR_BITS = RECIPROCAL_BITS
"""Of the unsigned factor of a serial product, and steps of one."""


class SerialMultiplier(wiring.Component):
    """product = a b, one bit of b a clock.

    `start` for one clock; `done` FACTOR_BITS + 1 clocks after it, for one clock, with the product.
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                "start": In(1),
                "a": In(signed(width)),
                "b": In(FACTOR_BITS),
                "product": Out(signed(width + FACTOR_BITS)),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a, b = Signal.like(self.a), Signal(FACTOR_BITS)
        left, running = Signal(range(FACTOR_BITS + 1)), Signal()
        m.d.comb += self.done.eq(running & (left == 0))
        m.d.sync += running.eq(self.start | (left != 0))
        with m.If(left != 0):
            m.d.sync += [
                left.eq(left - 1),
                b.eq(b.shift_left(1)),
                self.product.eq(self.product.shift_left(1) + Mux(b[-1], a, 0)),
            ]
        with m.If(self.start):
            m.d.sync += [a.eq(self.a), b.eq(self.b), left.eq(FACTOR_BITS), self.product.eq(0)]
        return m


class StatisticsUnit(wiring.Component):
    """Mean and reciprocal deviation of a group from its sums: `finish_statistics`.

    `start` for one clock with the sums held until `done`, which comes STATISTICS_CYCLES later for
    one clock with both results.

    Members
    -------
    total, squares: exact sums of y and of y^2 over the n elements of a group.
    """

    def __init__(self, formats: NormFormats, widths: NormWidths) -> None:
        self._formats, self._widths = formats, widths
        super().__init__(
            {
                "start": In(1),
                "total": In(signed(widths.total)),
                "squares": In(widths.squares),
                "mean": Out(element(formats.mean)),
                "rstd": Out(element(formats.rstd)),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        formats, reciprocal = self._formats, Reciprocal.of(self._widths.elements)
        width = 2 + max(self._widths.total, self._widths.squares, self._widths.variance)
        m.submodules.multiplier = multiplier = SerialMultiplier(width)
        product = multiplier.product
        variance = Signal(self._widths.variance)
        mantissa = Signal(MANTISSA_BITS)
        guess, square, rest = (
            Signal(ROOT_FRAC + 1),
            Signal(ROOT_FRAC + 1),
            Signal(FACTOR_BITS),
        )
        m.submodules.table = table = Memory(shape=ROOT_FRAC + 1, depth=len(ROOT), init=ROOT)
        look_up = table.read_port()
        place = mantissa[MANTISSA_BITS - INDEX_BITS :]
        m.d.comb += [look_up.addr.eq(place - len(ROOT) // 3), look_up.en.eq(1)]
        magnitude = Mux(self.mean < 0, -self.mean, self.mean)
        mean_square = Signal(self._widths.variance)
        operands = (
            (self.total, reciprocal.mantissa),
            (self.squares, reciprocal.mantissa),
            (magnitude, magnitude),
            (guess, guess),
            (mantissa, square),
            (guess, rest),
        )
        step, octave = Signal(range(len(operands) + 1)), Signal(range(self._widths.octaves))
        shift = reciprocal.shift - 2 * formats.guard
        root = Signal(ROOT_FRAC + 2)
        m.d.comb += [
            multiplier.a.eq(Array(_operand(a, width) for a, _ in operands)[step]),
            multiplier.b.eq(Array(_operand(b, FACTOR_BITS) for _, b in operands)[step]),
        ]
        with m.FSM(name="statistics"):
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += step.eq(0)
                m.next = "START"
            with m.State("START"):
                m.d.comb += multiplier.start.eq(1)
                m.next = "WAIT"
            with m.State("WAIT"), m.If(multiplier.done):
                m.d.sync += step.eq(step + 1)
                m.next = "START"
                with m.Switch(step):
                    with m.Case(0):
                        frac = formats.source.frac + reciprocal.shift
                        m.d.sync += self.mean.eq(requantize(product, frac, formats.mean))
                    with m.Case(1):
                        m.d.sync += mean_square.eq(round_half_up(product, shift))
                    with m.Case(2):
                        above = Mux(mean_square > product, mean_square - product, 0)
                        m.d.sync += variance.eq(above + formats.epsilon)
                        m.next = "NORMALISE"
                    with m.Case(3):
                        m.d.sync += square.eq(product.shift_right(ROOT_FRAC))
                    with m.Case(4):
                        scaled = product.shift_right(MANTISSA_BITS - 2)
                        m.d.sync += rest.eq((3 << ROOT_FRAC) - scaled)
                    with m.Case(5):
                        m.d.sync += root.eq(product.shift_right(ROOT_FRAC))
                        m.next = "ROUND"
            self._normalise(m, variance, mantissa, octave)
            with m.State("LOOK_UP"):
                m.next = "GUESS"
            with m.State("GUESS"):
                m.d.sync += guess.eq(look_up.data)
                m.next = "START"
            with m.State("ROUND"):
                m.d.sync += self.rstd.eq(
                    Array(
                        requantize(root, ROOT_FRAC + 1 + o - formats.mean.frac, formats.rstd)
                        for o in range(self._widths.octaves)
                    )[octave]
                )
                m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.done.eq(1)
                m.next = "IDLE"
        return m

    def _normalise(self, m: Module, variance: Signal, mantissa: Signal, octave: Signal) -> None:
        """Shift the variance up to its leading pair of bits: by 32, 16, ..., 2 over zeros."""
        normal = Signal(self._widths.normal)
        shifts = normalising_shifts(self._widths.normal)
        with m.State("NORMALISE"):
            m.d.sync += [normal.eq(variance), octave.eq(self._widths.normal // 2 - 1)]
            m.next = f"SHIFT_{shifts[0]}"
        for amount, following in zip(shifts, [*shifts[1:], None], strict=True):
            with m.State(f"SHIFT_{amount}"):
                with m.If(normal[-amount:] == 0):
                    m.d.sync += [
                        normal.eq(normal.shift_left(amount)),
                        octave.eq(octave - amount // 2),
                    ]
                m.next = f"SHIFT_{following}" if following else "CUT"
        with m.State("CUT"):
            m.d.sync += mantissa.eq(normal[-MANTISSA_BITS:])
            m.next = "LOOK_UP"


class MeansUnit(wiring.Component):
    """m1 and m2 of a group from its sums: `gradient_means`.

    `start` for one clock with the sums held until `done`, which comes 2 (FACTOR_BITS + 2) clocks
    later for one clock with both results.

    Members
    -------
    total, weighted: exact sums of d and of d x^ over a group.
    """

    def __init__(self, formats: NormFormats, widths: NormWidths) -> None:
        self._formats, self._widths = formats, widths
        mean = element(formats.gradient_mean)
        super().__init__(
            {
                "start": In(1),
                "total": In(signed(widths.gradients)),
                "weighted": In(signed(widths.weighted)),
                "plain_mean": Out(mean),
                "weighted_mean": Out(mean),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        formats, reciprocal = self._formats, Reciprocal.of(self._widths.elements)
        multiplier = SerialMultiplier(max(self._widths.gradients, self._widths.weighted))
        m.submodules.multiplier = multiplier
        second = Signal()
        frac = formats.gradient.frac + reciprocal.shift
        m.d.comb += [
            multiplier.a.eq(Mux(second, self.weighted, self.total)),
            multiplier.b.eq(reciprocal.mantissa),
        ]
        with m.FSM(name="means"):
            with m.State("IDLE"), m.If(self.start):
                m.d.comb += multiplier.start.eq(1)
                m.next = "WAIT"
            with m.State("START"):
                m.d.comb += multiplier.start.eq(1)
                m.next = "WAIT"
            with m.State("WAIT"), m.If(multiplier.done):
                m.d.sync += second.eq(~second)
                target = formats.gradient_mean
                with m.If(second):
                    weighted_frac = frac + formats.normalised.frac
                    m.d.sync += self.weighted_mean.eq(
                        requantize(multiplier.product, weighted_frac, target)
                    )
                    m.next = "DONE"
                with m.Else():
                    m.d.sync += self.plain_mean.eq(requantize(multiplier.product, frac, target))
                    m.next = "START"
            with m.State("DONE"):
                m.d.comb += self.done.eq(1)
                m.next = "IDLE"
        return m


def _operand(value: ValueLike, width: int) -> Value:
    """A choice of an operand."""
    return Const(value, width) if isinstance(value, int) else Value.cast(value)
