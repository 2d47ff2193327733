"""The norm tile: group normalisation, optionally affine, with a fused ReLU (design, section 5).

Over each group of `group` channels, with n = group x pixels, y the inputs and d the gradients that
come back (masked by the ReLU; scaled by gamma when affine):

    mean, square = sum y / n, sum y^2 / n         first forward pass, while the packet is buffered
    rstd = 1 / sqrt(square - mean^2 + epsilon)
    x^ = (y - mean) rstd                          second forward pass
    m1, m2 = sum d / n, sum d x^ / n              first backward pass
    dx = rstd (d - m1 - x^ m2)                    second backward pass

In flight are x^ and one rstd a group (affine with ReLU: one mask bit an output, too). The functions
on Python integers below are the reference for the golden model and for the hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

from spec.errors import InputError
from spec.formats import Fixed, requantize, round_half_up, signed_width
from spec.mac import Loop, Offset, Pass
from spec.reciprocal import Reciprocal
from spec.shape import Shape
from spec.update import ParameterFormats

EPSILON = 1e-5
"""Added to the variance, in real numbers."""
MULTIPLIER_BITS = 18
"""Means, deviations and centred gradients stay within one signed multiplier input."""
RSTD_BITS = 17

MANTISSA_BITS = 16
"""Of the variance, normalised to [1, 4), from which the root is taken."""
INDEX_BITS = 8
ROOT_FRAC = 16
ROOT = tuple(
    round((1 << ROOT_FRAC) / sqrt((index + 0.5) / (1 << INDEX_BITS - 2)))
    for index in range(1 << INDEX_BITS - 2, 1 << INDEX_BITS)
)
"""First guess of 1 / sqrt(m) by the leading INDEX_BITS bits of m in [1, 4)."""


TURN_CYCLES = 1
"""Taking a packet."""
SUMS_LATENCY = 4
"""Cycles from the address of a row's last word to its complete sums."""
STATISTICS_CYCLES = 132
"""Mean and reciprocal deviation of a group from its sums, by six serial products."""
MEANS_CYCLES = 41
"""m1 and m2 of a group, by two serial products."""
NORMALISE_LATENCY = 5
"""Cycles from the address of a word to its output."""
CENTRE_LATENCY = 5
"""Cycles from the address of a word to its gradient."""
GAIN_LATENCY = 2
"""Further cycles in which an affine norm multiplies gradients by its gains."""
BACKWARD_TAIL = 6
"""Cycles after the last word until random states may move on."""
UPDATE_DRAIN = 15
"""Cycles after the last parameters are read until the new ones are written."""


@dataclass(frozen=True)
class NormWalks:
    """The order in which a norm reads its words.

    A row is as many channels as one group, or, where a word holds several groups, as one word.
    `sums` goes through the rows, and in each through all pixels; `raster` through the packet.
    `bias` counts rows, `weight` the words of a pixel.
    """

    words: int
    """Words of a pixel."""
    rows: int
    words_per_group: int
    groups_per_word: int
    sums: Pass
    raster: Pass

    @classmethod
    def of(cls, source: Shape, group: int, lanes: int) -> "NormWalks":
        words, inner, pixels = source.channels // lanes, max(1, group // lanes), source.pixels
        rows = words // inner
        word = Loop(inner, Offset(stash=1, index=lanes, weight=1))
        row = Offset(stash=inner, bias=1, weight=inner, index=inner * lanes)
        return cls(
            words=words,
            rows=rows,
            words_per_group=inner,
            groups_per_word=max(1, lanes // group),
            sums=Pass((Loop(rows, row), Loop(pixels, Offset(stash=words)), word), reduction=2),
            raster=Pass(
                (Loop(pixels, Offset(stash=words, index=source.channels)), Loop(rows, row), word),
                reduction=0,
            ),
        )


@dataclass(frozen=True)
class Norm:
    """Groups of `group` neighbouring channels; `affine` trains a gain and an offset a channel."""

    name: str
    group: int = 4
    affine: bool = False
    relu: bool = True

    def __post_init__(self) -> None:
        if self.group < 1:
            raise InputError(f"{self.name}: group must be at least 1, not {self.group}")

    def output_shape(self, source: Shape) -> Shape:
        if source.channels % self.group:
            raise InputError(
                f"{self.name}: groups of {self.group} must divide {source.channels} channels"
            )
        return source

    def parameter_counts(self, source: Shape) -> tuple[int, int]:
        """Gains and offsets."""
        return (source.channels, source.channels) if self.affine else (0, 0)

    def elements(self, source: Shape) -> int:
        """Elements of one group."""
        return self.group * source.pixels

    def forward_cycles(self, source: Shape, lanes: int) -> int:
        """From one training packet to the next when nothing makes it wait: the sums of each row of
        groups, its statistics, and the normalised packet."""
        walks = NormWalks.of(source, self.group, lanes)
        row = SUMS_LATENCY + walks.groups_per_word * STATISTICS_CYCLES
        return TURN_CYCLES + walks.sums.cycles + walks.rows * row + walks.raster.cycles

    def backward_cycles(self, source: Shape, lanes: int) -> int:
        """The same for gradients; an affine norm also updates its parameters."""
        walks = NormWalks.of(source, self.group, lanes)
        row = SUMS_LATENCY + self.affine * (GAIN_LATENCY + walks.words_per_group)
        row += walks.groups_per_word * MEANS_CYCLES
        tail = BACKWARD_TAIL + self.affine * (GAIN_LATENCY + 2 * walks.words + UPDATE_DRAIN)
        return TURN_CYCLES + walks.sums.cycles + walks.rows * row + walks.raster.cycles + tail

    def check_lanes(self, source: Shape, lanes: int) -> None:
        """Raises InputError unless a word holds whole groups, or a group whole words."""
        fits = lanes > 0 and (lanes % self.group == 0 or self.group % lanes == 0)
        if not fits or source.channels % lanes:
            raise InputError(
                f"{self.name}: lanes must divide {source.channels} channels and divide, or be a "
                f"multiple of, groups of {self.group}, not {lanes}"
            )


@dataclass(frozen=True)
class NormFormats:
    """Formats at the tile's four streams, of what it keeps in flight, and of its parameters.

    Sums are exact. `parameters` is None unless the tile is affine.
    """

    source: Fixed
    source_gradient: Fixed
    source_stochastic: bool
    target: Fixed
    target_gradient: Fixed
    normalised: Fixed
    rstd: Fixed
    relu: bool
    parameters: ParameterFormats | None = None

    @cached_property
    def _source_bits(self) -> int:
        return self.source.width + (not self.source.signed)

    @cached_property
    def guard(self) -> int:
        """Further fractional bits of the mean and of deviations from it."""
        return max(0, MULTIPLIER_BITS - 1 - self._source_bits)

    @cached_property
    def mean(self) -> Fixed:
        return Fixed(self._source_bits + self.guard, self.source.frac + self.guard)

    @cached_property
    def epsilon(self) -> int:
        """EPSILON in the variance's unit; at least one."""
        return max(1, round(EPSILON * 2.0 ** (2 * self.mean.frac)))

    @cached_property
    def gradient(self) -> Fixed:
        """Of d: after the gain it has three more fractional bits and one more integer bit."""
        if self.parameters is None:
            return self.target_gradient
        return Fixed(self.target_gradient.width + 4, self.target_gradient.frac + 3)

    @cached_property
    def gradient_guard(self) -> int:
        """Further fractional bits of m1 and m2."""
        return max(0, MULTIPLIER_BITS - 3 - self.gradient.width)

    @cached_property
    def gradient_mean(self) -> Fixed:
        return Fixed(
            self.gradient.width + self.gradient_guard, self.gradient.frac + self.gradient_guard
        )

    @cached_property
    def centred(self) -> Fixed:
        """Of d - m1 - x^ m2."""
        return Fixed(self.gradient_mean.width + 3, self.gradient_mean.frac)

    @cached_property
    def affine_frac(self) -> int:
        """Fractional bits of gain x^ + offset."""
        assert self.parameters is not None
        return self.normalised.frac + self.parameters.working.frac

    @cached_property
    def offset(self) -> Fixed:
        """The working copy of an offset: the master's format, no finer than what it is added to."""
        assert self.parameters is not None
        surplus = max(0, self.parameters.master.frac - self.affine_frac)
        return Fixed(self.parameters.master.width - surplus, self.parameters.master.frac - surplus)

    @cached_property
    def gain_gradient_frac(self) -> int:
        """Fractional bits of the sum of d x^; that of d alone has the target gradient's."""
        return self.target_gradient.frac + self.normalised.frac


@dataclass(frozen=True)
class Statistics:
    """Of one group: `mean` in NormFormats.mean, `rstd` in NormFormats.rstd."""

    mean: int
    rstd: int


def statistics(values: Sequence[int], formats: NormFormats) -> Statistics:
    """The first forward pass over one group's inputs."""
    total, squares = sum(values), sum(value * value for value in values)
    return finish_statistics(total, squares, len(values), formats)


def finish_statistics(total: int, squares: int, n: int, formats: NormFormats) -> Statistics:
    """From the exact sums of y and of y^2."""
    reciprocal = Reciprocal.of(n)
    mean = reciprocal.mean(total, formats.source.frac, formats.mean)
    shift = reciprocal.shift - 2 * formats.guard
    square = round_half_up(squares * reciprocal.mantissa, shift)
    variance = max(0, square - mean * mean) + formats.epsilon
    return Statistics(mean, inverse_root(variance, formats))


def inverse_root(variance: int, formats: NormFormats) -> int:
    """1 / sqrt(variance) in the format of rstd: a table and one Newton step.

    variance = m 4**e with m in [1, 4), cut to MANTISSA_BITS; r' = r (3 - m r^2) / 2.
    """
    octave = (variance.bit_length() - 1) // 2
    place = MANTISSA_BITS - 2 - 2 * octave
    mantissa = variance << place if place >= 0 else variance >> -place
    guess = ROOT[(mantissa >> MANTISSA_BITS - INDEX_BITS) - len(ROOT) // 3]
    square = guess * guess >> ROOT_FRAC
    product = mantissa * square >> MANTISSA_BITS - 2
    root = guess * ((3 << ROOT_FRAC) - product) >> ROOT_FRAC
    return requantize(root, ROOT_FRAC + 1 + octave - formats.mean.frac, formats.rstd)


def normalise(value: int, group: Statistics, formats: NormFormats) -> int:
    """x^ of one input."""
    deviation = (value << formats.guard) - group.mean
    return requantize(
        deviation * group.rstd, formats.mean.frac + formats.rstd.frac, formats.normalised
    )


def activation(normalised: int, formats: NormFormats, gain: int = 0, offset: int = 0) -> int:
    """The output for x^; `gain` and `offset` are working copies, ignored unless affine."""
    if formats.parameters is None:
        result = requantize(normalised, formats.normalised.frac, formats.target)
    else:
        aligned = offset << formats.affine_frac - formats.offset.frac
        result = requantize(gain * normalised + aligned, formats.affine_frac, formats.target)
    return max(0, result) if formats.relu else result


def passes(normalised: int, output: int, formats: NormFormats) -> bool:
    """Whether the ReLU lets a gradient through: by x^, or by the output when affine."""
    if not formats.relu:
        return True
    return (normalised if formats.parameters is None else output) > 0


def scaled_gradient(gradient: int, formats: NormFormats, gain: int = 0) -> int:
    """d of one (masked) gradient; `gain` is the rounded master, ignored unless affine."""
    if formats.parameters is None:
        return gradient
    frac = formats.target_gradient.frac + formats.parameters.working.frac
    return requantize(gain * gradient, frac, formats.gradient)


@dataclass(frozen=True)
class GradientMeans:
    """m1 and m2 of one group, in NormFormats.gradient_mean."""

    plain: int
    weighted: int


def gradient_means(total: int, weighted: int, n: int, formats: NormFormats) -> GradientMeans:
    """From the exact sums of d and of d x^ over a group of n elements."""
    mean, target = Reciprocal.of(n).mean, formats.gradient_mean
    frac = formats.gradient.frac
    return GradientMeans(
        mean(total, frac, target), mean(weighted, frac + formats.normalised.frac, target)
    )


def source_gradient(
    gradient: int,
    normalised: int,
    means: GradientMeans,
    rstd: int,
    formats: NormFormats,
    random: int | None = None,
) -> int:
    """dx of one element; rounded stochastically when given a random word."""
    frac = formats.normalised.frac
    exact = (
        (gradient << formats.gradient_guard + frac)
        - (means.plain << frac)
        - normalised * means.weighted
    )
    centred = formats.centred.clamp(round_half_up(exact, frac))
    return requantize(
        centred * rstd, formats.centred.frac + formats.rstd.frac, formats.source_gradient, random
    )


@dataclass(frozen=True)
class NormWidths:
    """Bits of a group's exact sums, for the hardware."""

    elements: int
    """Of a group."""
    total: int
    squares: int
    variance: int
    gradients: int
    weighted: int

    @classmethod
    def of(cls, elements: int, formats: NormFormats) -> "NormWidths":
        y = max(-formats.source.minimum, formats.source.maximum)
        d, x = -formats.gradient.minimum, -formats.normalised.minimum
        return cls(
            elements=elements,
            total=signed_width(elements * y),
            squares=(elements * y * y).bit_length(),
            variance=2 * formats.mean.width + 1,
            gradients=signed_width(elements * d),
            weighted=signed_width(elements * d * x),
        )

    @property
    def normal(self) -> int:
        """Of the variance while it is brought to its leading pair of bits: an even number."""
        return max(MANTISSA_BITS, self.variance + self.variance % 2)

    @property
    def octaves(self) -> int:
        return self.normal // 2


def normalising_shifts(width: int) -> list[int]:
    """Even shifts, each half of the one before, that bring any number to the top of `width`."""
    largest = 1 << (width - 1).bit_length() - 1
    return [largest >> i for i in range(largest.bit_length() - 1)]
