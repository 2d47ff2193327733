"""The MAC array: one grid of multipliers for the three products of a slot (design, section 6)."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from operator import add

from amaranth import Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.delay import delayed
from hw.random_bits import RANDOM_LATENCY, RandomWord, index_product
from hw.rounding import requantize
from hw.shared import shared
from hw.streams import element, word
from spec import mac
from spec.formats import Fixed
from spec.mac import MacGeometry
from spec.mac_formats import MacFormats, SumWidths

TO_OPERANDS = mac.MEMORY_LATENCY
TO_PRODUCTS = TO_OPERANDS + mac.OPERAND_LATENCY
TO_SUMS = TO_PRODUCTS + mac.PRODUCT_LATENCY
TO_TOTALS = TO_SUMS + mac.SUM_LATENCY
TO_ROUNDING = TO_TOTALS + mac.ACCUMULATE_LATENCY


class PassKind(IntEnum):
    """Which product a step is part of."""

    FORWARD = 0
    BACKWARD_DATA = 1
    BACKWARD_WEIGHT = 2
    BACKWARD_BIAS = 3


STEP = data.StructLayout(
    {
        "valid": 1,
        "kind": 2,
        "first": 1,
        "last": 1,
        "evaluate": 1,
        "padded": 1,
        "index": 32,
    }
)
"""One step as it enters the array: of a padded one all products are zero; `index` is the index
product of its result's first element."""


@dataclass(frozen=True)
class MacParameters:
    """What a MAC array is built for; equal parameters give the same module."""

    geometry: MacGeometry
    formats: MacFormats
    widths: SumWidths

    @property
    def weight_word(self) -> data.ArrayLayout:
        return word(self.formats.parameters.working, self.geometry.folding.multipliers)

    @property
    def master_word(self) -> data.ArrayLayout:
        return word(self.formats.parameters.master, self.geometry.folding.multipliers)

    @property
    def gradient_word(self) -> data.ArrayLayout:
        """A block of rounded weight gradients (or, in its first lanes, of bias gradients)."""
        return word(self.formats.parameters.gradient, self.geometry.folding.multipliers)


class MacArray(wiring.Component):
    """lanes_in x lanes_out multipliers, adder trees both ways, and block-stationary sums.

        forward           y[o] = bias[o] + sum of w[o, j] x[j]      (then ReLU, if any)
        backward data     dx[j] = sum of w[o, j] dy[o]
        backward weight   G[o, j] = sum of dy[o] x[j]
        backward bias     G[o] = sum of dy[o]            (multipliers rest)

    A step is given with the addresses of its words; the words follow MEMORY_LATENCY clocks later.
    Forward steps read the working copy, or the rounded master when evaluating; backward data reads
    the rounded master. Sums are exact; results are rounded once and saturated.

    Latency: RESULT_LATENCY clocks from the last step of a sum to `target` or `source`,
    BLOCK_LATENCY + GRADIENT_ROUND_LATENCY to `block`. Throughput: one step a clock.

    Members
    -------
    step: the step issued in this clock (see STEP).
    x, dy: stash word and masked gradient word of the step issued MEMORY_LATENCY clocks ago.
    working, master, bias, bias_master: its weights and biases, output lane major.
    state: random state for gradients rounded stochastically.
    target, source: rounded results of forward and of backward data.
    block: rounded gradients of the last complete block.
    """

    def __init__(self, parameters: MacParameters) -> None:
        self._p = parameters
        folding, formats = parameters.geometry.folding, parameters.formats
        super().__init__(
            {
                "step": In(STEP),
                "x": In(word(formats.source, folding.lanes_in)),
                "dy": In(word(formats.target_gradient, folding.lanes_out)),
                "working": In(parameters.weight_word),
                "master": In(parameters.master_word),
                "bias": In(word(formats.bias, folding.lanes_out)),
                "bias_master": In(word(formats.parameters.master, folding.lanes_out)),
                "state": In(32),
                "target": Out(word(formats.target, folding.lanes_out)),
                "source": Out(word(formats.source_gradient, folding.lanes_in)),
                "block": Out(parameters.gradient_word),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        steps = [self.step]
        for stage in range(1, TO_ROUNDING + 1):
            steps.append(delayed(m, steps[-1], 1, name=f"step{stage}"))
        products = self._multiply(m, steps[TO_OPERANDS])
        bias = self._bias_word(m, steps[TO_OPERANDS])
        self._forward(m, steps, products, bias)
        if self._p.geometry.backward_data is not None:
            self._backward_data(m, platform, steps, products)
        self._backward_weight(m, steps, products)
        return m

    def _pairs(self) -> Iterable[tuple[int, int, int]]:
        """(lane of the word, output lane, input lane) of every multiplier."""
        folding = self._p.geometry.folding
        for lane in range(folding.multipliers):
            yield lane, lane // folding.lanes_in, lane % folding.lanes_in

    def _multiply(self, m: Module, step: data.View) -> list[Signal]:
        """Choose operands, register them, multiply, register the products."""
        formats = self._p.formats
        weight_shape = element(formats.parameters.working)
        x_shape, dy_shape = element(formats.source), element(formats.target_gradient)
        first_shape, second_shape = _both(weight_shape, x_shape), _both(x_shape, dy_shape)
        forward = step.kind == PassKind.FORWARD
        backward_weight = step.kind == PassKind.BACKWARD_WEIGHT
        stale = forward & ~step.evaluate
        products = []
        for lane, output, source in self._pairs():
            rounded = Signal(weight_shape, name=f"rounded_{lane}")
            weight = Signal(weight_shape, name=f"weight_{lane}")
            first = Signal(first_shape, name=f"first_{lane}")
            second = Signal(second_shape, name=f"second_{lane}")
            product = Signal(_product(first_shape, second_shape), name=f"product_{lane}")
            master_frac = formats.parameters.master.frac
            m.d.comb += [
                rounded.eq(requantize(self.master[lane], master_frac, formats.parameters.working)),
                weight.eq(Mux(stale, self.working[lane], rounded)),
            ]
            m.d.sync += [
                first.eq(Mux(backward_weight, self.x[source], weight)),
                second.eq(Mux(step.padded, 0, Mux(forward, self.x[source], self.dy[output]))),
                product.eq(first * second),
            ]
            products.append(product)
        return products

    def _bias_word(self, m: Module, step: data.View) -> list[Value]:
        """Biases, aligned to the forward sums and to the stage that preloads them."""
        formats = self._p.formats
        if self._p.geometry.backward_bias is None:
            return [Value.cast(0)] * self._p.geometry.folding.lanes_out
        biases = []
        for lane in range(self._p.geometry.folding.lanes_out):
            chosen = Signal(element(formats.bias), name=f"bias_{lane}")
            master = requantize(
                self.bias_master[lane], formats.parameters.master.frac, formats.bias
            )
            m.d.comb += chosen.eq(Mux(step.evaluate, master, self.bias[lane]))
            late = delayed(m, chosen, TO_TOTALS - TO_OPERANDS, name=f"bias_{lane}")
            biases.append(late.shift_left(formats.bias_shift))
        return biases

    def _forward(
        self, m: Module, steps: list[data.View], products: list[Signal], bias: list[Value]
    ) -> None:
        """A ReLU is saturation at zero: that of the target's upper half where the target is
        signed."""
        formats, frac = self._p.formats, self._p.formats.forward_frac
        rectified = formats.target
        if formats.relu and rectified.signed:
            rectified = Fixed(rectified.width - 1, rectified.frac, signed=False)
        for lane in range(self._p.geometry.folding.lanes_out):
            terms = [products[i] for i, output, _ in self._pairs() if output == lane]
            total = self._total(
                m, steps, PassKind.FORWARD, terms, self._p.widths.forward, bias[lane], f"y{lane}"
            )
            m.d.sync += self.target[lane].eq(requantize(total, frac, rectified))

    def _backward_data(
        self, m: Module, platform: object, steps: list[data.View], products: list[Signal]
    ) -> None:
        formats, frac = self._p.formats, self._p.formats.data_frac
        early = steps[TO_ROUNDING - RANDOM_LATENCY]
        for lane in range(self._p.geometry.folding.lanes_in):
            terms = [products[i] for i, _, source in self._pairs() if source == lane]
            width = self._p.widths.backward_data
            total = self._total(
                m, steps, PassKind.BACKWARD_DATA, terms, width, Value.cast(0), f"dx{lane}"
            )
            random = None
            if formats.source_stochastic:
                generator = RandomWord()
                m.submodules[f"random_{lane}"] = shared(generator, None, platform)
                m.d.comb += [
                    generator.state.eq(self.state),
                    generator.late_state.eq(self.state),
                    generator.base.eq(early.index),
                    generator.offset.eq(index_product(lane + 1)),
                ]
                random = generator.word
            m.d.sync += self.source[lane].eq(
                requantize(total, frac, formats.source_gradient, random)
            )

    def _total(
        self,
        m: Module,
        steps: list[data.View],
        kind: PassKind,
        terms: list[Signal],
        width: int,
        preload: Value,
        name: str,
    ) -> Signal:
        """Add the products of a step, then the steps of a sum."""
        partial = Signal(signed(width), name=f"{name}_partial")
        total = Signal(signed(width), name=f"{name}_total")
        step = steps[TO_TOTALS]
        m.d.sync += partial.eq(reduce(add, terms))
        with m.If(step.valid & (step.kind == kind)):
            m.d.sync += total.eq(Mux(step.first, preload, total) + partial)
        return total

    def _backward_weight(self, m: Module, steps: list[data.View], products: list[Signal]) -> None:
        """Block-stationary sums of every multiplier, and those of the bias beside them."""
        formats = self._p.formats
        step, rounding = steps[TO_SUMS], steps[TO_SUMS + 1]
        gradient, has_bias = formats.parameters.gradient, self._p.geometry.backward_bias is not None
        of_bias = rounding.kind == PassKind.BACKWARD_BIAS
        for lane, _, _ in self._pairs():
            total = self._block_sum(
                m, step, PassKind.BACKWARD_WEIGHT, products[lane],
                self._p.widths.backward_weight, f"block_{lane}",
            )  # fmt: skip
            rounded = requantize(total, formats.weight_frac, gradient)
            if has_bias and lane < self._p.geometry.folding.lanes_out:
                late = delayed(m, self.dy[lane], TO_SUMS - TO_OPERANDS, name=f"dy_{lane}")
                bias = self._block_sum(
                    m, step, PassKind.BACKWARD_BIAS, late, self._p.widths.backward_bias,
                    f"bias_block_{lane}",
                )  # fmt: skip
                bias_rounded = requantize(bias, formats.target_gradient.frac, gradient)
                rounded = Mux(of_bias, bias_rounded, rounded)
            with m.If(rounding.valid & rounding.last):
                m.d.sync += self.block[lane].eq(rounded)

    def _block_sum(
        self, m: Module, step: data.View, kind: PassKind, term: Value, width: int, name: str
    ) -> Signal:
        total = Signal(signed(width), name=name)
        with m.If(step.valid & (step.kind == kind)):
            m.d.sync += total.eq(Mux(step.first, 0, total) + term)
        return total


def _both(a: Shape, b: Shape) -> Shape:
    """The signed shape that holds the values of both."""
    return signed(max(shape.width + (not shape.signed) for shape in (a, b)))


def _product(a: Shape, b: Shape) -> Shape:
    return signed(a.width + b.width)
