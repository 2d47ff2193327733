"""The formats of a tile with weights, and the widths of its exact sums (design, section 5)."""

from dataclasses import dataclass
from functools import cached_property

from spec.errors import InputError
from spec.formats import EXACT_FLOAT64_BITS, Fixed, product_limit, signed_width
from spec.update import ParameterFormats


@dataclass(frozen=True)
class MacFormats:
    """Formats at the tile's four streams and of its parameters.

    `source` and `source_gradient` face the previous tile, `target` and `target_gradient` the next.
    """

    source: Fixed
    source_gradient: Fixed
    source_stochastic: bool
    target: Fixed
    target_gradient: Fixed
    parameters: ParameterFormats
    relu: bool

    @cached_property
    def forward_frac(self) -> int:
        """Fractional bits of the forward sums."""
        return self.source.frac + self.parameters.working.frac

    @cached_property
    def data_frac(self) -> int:
        return self.target_gradient.frac + self.parameters.working.frac

    @cached_property
    def weight_frac(self) -> int:
        return self.target_gradient.frac + self.source.frac

    @cached_property
    def bias(self) -> Fixed:
        """The working copy of a bias: the master's format, no finer than the sums it preloads."""
        master = self.parameters.master
        surplus = max(0, master.frac - self.forward_frac)
        return Fixed(master.width - surplus, master.frac - surplus)

    @cached_property
    def bias_shift(self) -> int:
        """Left shift that brings a bias to the forward sums' binary point."""
        return self.forward_frac - self.bias.frac


@dataclass(frozen=True)
class SumWidths:
    """Signed bits of the exact sums of each pass, for the numbers of terms in one sum."""

    forward: int
    backward_data: int
    backward_weight: int
    backward_bias: int

    @classmethod
    def of(
        cls, tile: str, formats: MacFormats, inputs: int, outputs: int, pixels: int
    ) -> "SumWidths":
        """`inputs` and `outputs` count the terms of forward and of backward-data sums.

        Raises InputError when a sum can pass 2**53, where the golden model would stop being exact.
        """
        weights, gradient = formats.parameters.working, formats.target_gradient
        bias = -formats.bias.minimum << formats.bias_shift
        widths = cls(
            forward=signed_width(inputs * product_limit(weights, formats.source) + bias),
            backward_data=signed_width(outputs * product_limit(weights, gradient)),
            backward_weight=signed_width(pixels * product_limit(formats.source, gradient)),
            backward_bias=signed_width(pixels * -gradient.minimum),
        )
        for name in ("forward", "backward_data", "backward_weight", "backward_bias"):
            if getattr(widths, name) - 1 > EXACT_FLOAT64_BITS:
                raise InputError(
                    f"{tile}: {name} sums need {getattr(widths, name) - 1} bits, more than the "
                    f"exact {EXACT_FLOAT64_BITS}: narrow its weights, activations or gradients"
                )
        return widths
