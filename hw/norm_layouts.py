"""What a norm is built for, and the layouts and widths that follow."""

from dataclasses import dataclass
from functools import cached_property

from amaranth.lib import data

from hw.streams import element, word
from spec.formats import product_limit, signed_width
from spec.shape import Shape
from spec.tiles.norm import NormFormats, NormWalks, NormWidths
from spec.update import ParameterFormats


@dataclass(frozen=True)
class NormParameters:
    """What a norm is built for; equal parameters give the same module."""

    source: Shape
    group: int
    lanes: int
    formats: NormFormats

    @property
    def affine(self) -> bool:
        return self.formats.parameters is not None

    @property
    def parameters(self) -> ParameterFormats:
        assert self.formats.parameters is not None
        return self.formats.parameters

    @property
    def affine_bits(self) -> int:
        """Of gain x^ + offset."""
        formats = self.formats
        offset = -formats.offset.minimum << formats.affine_frac - formats.offset.frac
        return signed_width(product_limit(self.parameters.working, formats.normalised) + offset)

    @property
    def gain_bits(self) -> int:
        """Of the sum of d x^ over all pixels of a channel."""
        limit = product_limit(self.formats.target_gradient, self.formats.normalised)
        return signed_width(self.source.pixels * limit)

    @property
    def offset_bits(self) -> int:
        """Of the sum of d."""
        return signed_width(self.source.pixels * -self.formats.target_gradient.minimum)

    @property
    def masked(self) -> bool:
        """Whether a mask bit is kept: elsewhere x^ itself says what a ReLU lets through."""
        return self.affine and self.formats.relu

    @cached_property
    def walks(self) -> NormWalks:
        return NormWalks.of(self.source, self.group, self.lanes)

    @cached_property
    def widths(self) -> NormWidths:
        return NormWidths.of(self.group * self.source.pixels, self.formats)

    @property
    def beats(self) -> int:
        return self.source.elements // self.lanes

    @property
    def groups(self) -> int:
        return self.source.channels // self.group

    @property
    def statistics(self) -> data.ArrayLayout:
        """Of the groups of a row, for the forward pass."""
        each = {"mean": element(self.formats.mean), "rstd": element(self.formats.rstd)}
        return data.ArrayLayout(data.StructLayout(each), self.walks.groups_per_word)

    @property
    def means(self) -> data.ArrayLayout:
        """Of the groups of a row, for the backward pass."""
        mean = element(self.formats.gradient_mean)
        each = {"plain": mean, "weighted": mean, "rstd": element(self.formats.rstd)}
        return data.ArrayLayout(data.StructLayout(each), self.walks.groups_per_word)

    @property
    def kept(self) -> data.StructLayout:
        """A word of x^, with the mask where one is needed."""
        mask = {"mask": self.lanes} if self.masked else {}
        return data.StructLayout({"normalised": word(self.formats.normalised, self.lanes), **mask})

    def group_of(self, lane: int) -> int:
        """Place of a lane's group within its word."""
        return lane * self.walks.groups_per_word // self.lanes
