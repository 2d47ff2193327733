"""Parts of the loss tile: what turns logits into exponentials, a reciprocal and a logarithm."""

from amaranth import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.streams import element
from spec.formats import Fixed
from spec.packets import LABEL_BITS
from spec.tiles.loss import (
    EXPONENTIAL,
    EXPONENTIAL_FRAC,
    LOG_OF_TWO,
    LOGARITHM,
    LOGARITHM_FRAC,
    LOGITS,
    LOSS,
    MANTISSA_BITS,
    RECIPROCAL_BITS,
    RECIPROCAL_FRAC,
)

EXPONENTIAL_BITS = EXPONENTIAL_FRAC + 1
TOTAL_BITS = EXPONENTIAL_BITS + LABEL_BITS
"""Bits of the sum of exponentials."""
DISTANCE_BITS = LOGITS.width + 1


class Maximum(wiring.Component):
    """The largest logit, its class, and the logit of the label; one class a clock.

    `clear` starts anew; logits come with `valid` and their class.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "clear": In(1),
                "valid": In(1),
                "index": In(LABEL_BITS),
                "logit": In(element(LOGITS)),
                "label": In(LABEL_BITS),
                "top": Out(element(LOGITS)),
                "prediction": Out(LABEL_BITS),
                "labelled": Out(element(LOGITS)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        with m.If(self.valid):
            with m.If(self.logit > self.top):
                m.d.sync += [self.top.eq(self.logit), self.prediction.eq(self.index)]
            with m.If(self.index == self.label):
                m.d.sync += self.labelled.eq(self.logit)
        with m.If(self.clear):
            m.d.sync += [self.top.eq(LOGITS.minimum), self.prediction.eq(0)]
        return m


class Exponentials(wiring.Component):
    """exp(logit - top) by table, their sum, and a memory of all of them.

    A logit given with `valid` is in `total` two clocks later. `read_data` holds the exponential of
    class `read_index` one clock later.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        super().__init__(
            {
                "clear": In(1),
                "valid": In(1),
                "index": In(LABEL_BITS),
                "logit": In(element(LOGITS)),
                "top": In(element(LOGITS)),
                "total": Out(TOTAL_BITS),
                "read_index": In(range(self._classes)),
                "read_data": Out(EXPONENTIAL_BITS),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.table = table = Memory(
            shape=EXPONENTIAL_BITS, depth=len(EXPONENTIAL), init=EXPONENTIAL
        )
        m.submodules.kept = kept = Memory(shape=EXPONENTIAL_BITS, depth=self._classes, init=[])
        look_up, writer, reader = table.read_port(), kept.write_port(), kept.read_port()
        distance = Signal(DISTANCE_BITS)
        valid, index = Signal(), Signal(LABEL_BITS)
        far, near = Signal(), Signal(EXPONENTIAL_BITS)
        beyond = distance >= len(EXPONENTIAL)
        m.d.comb += [
            distance.eq(self.top - self.logit),
            look_up.addr.eq(distance),
            look_up.en.eq(1),
            near.eq(Mux(far, 0, look_up.data)),
            writer.addr.eq(index),
            writer.data.eq(near),
            writer.en.eq(valid),
            reader.addr.eq(self.read_index),
            reader.en.eq(1),
            self.read_data.eq(reader.data),
        ]
        m.d.sync += [valid.eq(self.valid), index.eq(self.index), far.eq(beyond)]
        with m.If(valid):
            m.d.sync += self.total.eq(self.total + near)
        with m.If(self.clear):
            m.d.sync += self.total.eq(0)
        return m


class Reciprocal(wiring.Component):
    """floor(2**RECIPROCAL_FRAC / total) by restoring division, one bit a clock.

    `start` for one clock; `done` in the RECIPROCAL_BITS-th clock after it, the quotient stands in
    the clock after that. The total is at least 2**EXPONENTIAL_FRAC.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "start": In(1),
                "total": In(TOTAL_BITS),
                "quotient": Out(RECIPROCAL_BITS),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        remainder, doubled = Signal(TOTAL_BITS), Signal(TOTAL_BITS + 1)
        left = Signal(range(RECIPROCAL_BITS + 1))
        fits = Signal()
        m.d.comb += [
            doubled.eq(remainder.shift_left(1)),
            fits.eq(doubled >= self.total),
            self.done.eq(left == 1),
        ]
        with m.If(left != 0):
            m.d.sync += [
                left.eq(left - 1),
                self.quotient.eq(self.quotient.shift_left(1) | fits),
                remainder.eq(Mux(fits, doubled - self.total, doubled)),
            ]
        with m.If(self.start):
            m.d.sync += [
                left.eq(RECIPROCAL_BITS),
                self.quotient.eq(0),
                remainder.eq(1 << (RECIPROCAL_FRAC - RECIPROCAL_BITS)),
            ]
        return m


class Logarithm(wiring.Component):
    """ln(total / 2**EXPONENTIAL_FRAC) in the format of the loss, rounded half up.

    After `start` the total is shifted up a bit a clock, at most LABEL_BITS of them; the table's
    word and the result follow two clocks later.
    """

    def __init__(self) -> None:
        super().__init__({"start": In(1), "total": In(TOTAL_BITS), "logarithm": Out(LOSS.width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.table = table = Memory(
            shape=LOGARITHM_FRAC, depth=len(LOGARITHM), init=LOGARITHM
        )
        look_up = table.read_port()
        octaves = TOTAL_BITS - EXPONENTIAL_BITS
        normal = Signal(TOTAL_BITS)
        whole = Signal(signed(LOGARITHM_FRAC + LABEL_BITS))
        target = Fixed(LOSS.width, LOSS.frac)
        shift = LOGARITHM_FRAC - target.frac
        m.d.comb += [look_up.addr.eq(normal[-1 - MANTISSA_BITS : -1]), look_up.en.eq(1)]
        with m.If(self.start):
            m.d.sync += [normal.eq(self.total), whole.eq(octaves * LOG_OF_TWO)]
        with m.Elif(~normal[-1]):
            m.d.sync += [normal.eq(normal.shift_left(1)), whole.eq(whole - LOG_OF_TWO)]
        exact = whole + look_up.data
        m.d.sync += self.logarithm.eq((exact + (1 << (shift - 1))).shift_right(shift))
        return m
