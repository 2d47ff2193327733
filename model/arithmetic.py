"""The two number systems of the golden model behind one interface.

`IntegerArithmetic` repeats the integers of `spec` on int64 tensors, bit for bit: a number n with
`frac` fractional bits stands for n 2**-frac. `FloatArithmetic` computes what the paper writes and
ignores every format.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from model.normalisation import (
    float_norm_gradient,
    float_normalise,
    integer_norm_gradient,
    integer_normalise,
)
from model.update import (
    Coefficients,
    Moments,
    Updated,
    float_update,
    integer_update,
    predicted,
    rounded,
)
from spec.errors import InputError
from spec.formats import Fixed
from spec.hyperparameters import FloatCoefficients
from spec.plan import Plan
from spec.reciprocal import Reciprocal
from spec.tile_plans import ParameterPlan
from spec.tiles.loss import (
    EXPONENTIAL,
    LOSS,
    PROBABILITY_SHIFT,
    RECIPROCAL_FRAC,
    logarithm,
)
from spec.tiles.norm import EPSILON, NormFormats
from spec.update import ParameterFormats, UpdateCoefficients


class CrossEntropy(NamedTuple):
    """Of one sample; `loss` has LOSS.frac fractional bits in integers."""

    prediction: int
    loss: float
    probabilities: torch.Tensor


class Arithmetic(ABC):
    """What a tile needs to know of numbers.

    Vectors and matrices have `dtype`; `frac` counts the fractional bits of integers.
    """

    name: str
    dtype: torch.dtype
    stochastic: bool
    """Whether formats that ask for random words get them."""
    loss_scale: float
    """What a loss is multiplied with to be in nats."""

    @abstractmethod
    def encode(self, values: NDArray[np.float64], target: Fixed) -> torch.Tensor:
        """Real numbers in this number system, in `target` where it has formats."""

    @abstractmethod
    def one(self, frac: int) -> int:
        """The number 1 with `frac` fractional bits."""

    @abstractmethod
    def product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """[m, n] times [n, k]; exact in integers (the plan's widths prove it)."""

    @abstractmethod
    def preload(self, sums: torch.Tensor, biases: torch.Tensor, shift: int) -> torch.Tensor:
        """sums + biases 2**shift."""

    @abstractmethod
    def requantize(
        self, sums: torch.Tensor, frac: int, target: Fixed, words: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One rounding and one saturation; stochastic where there are random words.

        Floats stay as they are.
        """

    @abstractmethod
    def mean(
        self,
        total: torch.Tensor,
        count: int,
        frac: int,
        target: Fixed,
        words: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """total / count in `target`: spec.reciprocal."""

    @abstractmethod
    def standardise(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights of zero mean and unit variance a filter, and the deviations they were divided by
        (Qiao et al., arXiv 1903.10520)."""

    @abstractmethod
    def normalise(
        self, source: torch.Tensor, group: int, formats: NormFormats
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x^ of [rows, columns, channels], and rstd [groups]: spec/tiles/norm.py."""

    @abstractmethod
    def affine(
        self,
        normalised: torch.Tensor,
        gains: torch.Tensor | None,
        offsets: torch.Tensor | None,
        formats: NormFormats,
    ) -> torch.Tensor:
        """The output of a norm before its ReLU; gains and offsets [channels] when affine."""

    @abstractmethod
    def scale_gradient(
        self, gradient: torch.Tensor, gains: torch.Tensor, formats: NormFormats
    ) -> torch.Tensor:
        """d of an affine norm."""

    @abstractmethod
    def norm_gradient(
        self,
        gradient: torch.Tensor,
        normalised: torch.Tensor,
        rstd: torch.Tensor,
        group: int,
        formats: NormFormats,
        words: torch.Tensor | None,
    ) -> torch.Tensor:
        """dx = rstd (d - m1 - x^ m2), group by group."""

    @abstractmethod
    def update(
        self,
        moments: Moments,
        gradient: torch.Tensor,
        formats: ParameterFormats,
        coefficients: Coefficients,
        words: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> Updated:
        """The new moments, and the weights predicted for the next forward pass.

        All vectors are flat. `words` has those of the velocities and of the weights.
        """

    @abstractmethod
    def backward_master(self, moments: Moments, coefficients: Coefficients) -> torch.Tensor:
        """The flat parameters that backward passes read: predicted ones where a method says so."""

    @abstractmethod
    def coefficients(self, plan: Plan, planned: ParameterPlan) -> Coefficients:
        """A tile's coefficients as this number system reads them."""

    @abstractmethod
    def coefficients_from(self, members: dict[str, Any]) -> Coefficients:
        """The inverse of `dataclasses.asdict` on coefficients, for checkpoints."""

    @abstractmethod
    def cross_entropy(self, logits: torch.Tensor, label: int) -> CrossEntropy:
        """Softmax cross-entropy of one sample's logits [classes]."""


class IntegerArithmetic(Arithmetic):
    """The hardware's integers in int64; matrix products in float64, which is exact below 2**53."""

    name = "fixed"
    dtype = torch.int64
    stochastic = True
    loss_scale = 2.0**-LOSS.frac

    def __init__(self) -> None:
        self._exponential = torch.tensor((*EXPONENTIAL, 0))

    def encode(self, values: NDArray[np.float64], target: Fixed) -> torch.Tensor:
        scaled = np.floor(np.ldexp(np.asarray(values, np.float64), target.frac) + 0.5)
        clamped = np.clip(scaled, target.minimum, target.maximum)
        return torch.from_numpy(clamped.astype(np.int64))

    def one(self, frac: int) -> int:
        return 1 << frac

    def product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.mm(left.double(), right.double()).long()

    def preload(self, sums: torch.Tensor, biases: torch.Tensor, shift: int) -> torch.Tensor:
        return torch.add(sums, biases, alpha=1 << shift)

    def requantize(
        self, sums: torch.Tensor, frac: int, target: Fixed, words: torch.Tensor | None = None
    ) -> torch.Tensor:
        return rounded(sums, frac - target.frac, words).clamp(target.minimum, target.maximum)

    def mean(
        self,
        total: torch.Tensor,
        count: int,
        frac: int,
        target: Fixed,
        words: torch.Tensor | None = None,
    ) -> torch.Tensor:
        reciprocal = Reciprocal.of(count)
        scaled = total * reciprocal.mantissa
        return self.requantize(scaled, frac + reciprocal.shift, target, words)

    def standardise(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise InputError("weight standardisation has no integers: give ARITHMETIC=float32")

    def normalise(
        self, source: torch.Tensor, group: int, formats: NormFormats
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return integer_normalise(source, group, formats)

    def affine(
        self,
        normalised: torch.Tensor,
        gains: torch.Tensor | None,
        offsets: torch.Tensor | None,
        formats: NormFormats,
    ) -> torch.Tensor:
        if gains is None or offsets is None:
            return self.requantize(normalised, formats.normalised.frac, formats.target)
        aligned = offsets << formats.affine_frac - formats.offset.frac
        return self.requantize(gains * normalised + aligned, formats.affine_frac, formats.target)

    def scale_gradient(
        self, gradient: torch.Tensor, gains: torch.Tensor, formats: NormFormats
    ) -> torch.Tensor:
        assert formats.parameters is not None
        frac = formats.target_gradient.frac + formats.parameters.working.frac
        return self.requantize(gains * gradient, frac, formats.gradient)

    def norm_gradient(
        self,
        gradient: torch.Tensor,
        normalised: torch.Tensor,
        rstd: torch.Tensor,
        group: int,
        formats: NormFormats,
        words: torch.Tensor | None,
    ) -> torch.Tensor:
        return integer_norm_gradient(gradient, normalised, rstd, group, formats, words)

    def update(
        self,
        moments: Moments,
        gradient: torch.Tensor,
        formats: ParameterFormats,
        coefficients: Coefficients,
        words: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> Updated:
        if not isinstance(coefficients, UpdateCoefficients):
            raise TypeError(f"coefficients must be UpdateCoefficients, not {coefficients!r}")
        return integer_update(moments, gradient, formats, coefficients, words)

    def backward_master(self, moments: Moments, coefficients: Coefficients) -> torch.Tensor:
        return moments.master

    def coefficients(self, plan: Plan, planned: ParameterPlan) -> UpdateCoefficients:
        return plan.coefficients(planned).integers

    def coefficients_from(self, members: dict[str, Any]) -> UpdateCoefficients:
        return UpdateCoefficients(**members)

    def cross_entropy(self, logits: torch.Tensor, label: int) -> CrossEntropy:
        prediction = int(logits.argmax())
        distances = logits[prediction] - logits
        exponentials = self._exponential[distances.clamp(max=len(EXPONENTIAL))]
        total = int(exponentials.sum())
        scaled = exponentials * ((1 << RECIPROCAL_FRAC) // total)
        return CrossEntropy(
            prediction=prediction,
            loss=LOSS.clamp(int(distances[label]) + logarithm(total)),
            probabilities=rounded(scaled, PROBABILITY_SHIFT),
        )


class FloatArithmetic(Arithmetic):
    """The paper's real numbers in `dtype`, float32 or float64."""

    stochastic = False
    loss_scale = 1.0

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype must be torch.float32 or torch.float64, not {dtype!r}")
        self.dtype = dtype
        self.name = str(dtype).removeprefix("torch.")

    def encode(self, values: NDArray[np.float64], target: Fixed) -> torch.Tensor:
        return torch.as_tensor(values, dtype=self.dtype)

    def one(self, frac: int) -> int:
        return 1

    def product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.mm(left, right)

    def preload(self, sums: torch.Tensor, biases: torch.Tensor, shift: int) -> torch.Tensor:
        return sums + biases

    def requantize(
        self, sums: torch.Tensor, frac: int, target: Fixed, words: torch.Tensor | None = None
    ) -> torch.Tensor:
        return sums

    def mean(
        self,
        total: torch.Tensor,
        count: int,
        frac: int,
        target: Fixed,
        words: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return total / count

    def standardise(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = weights.flatten(1)
        variance, mean = torch.var_mean(rows, dim=1, correction=0, keepdim=True)
        sigma = torch.sqrt(variance + EPSILON)
        return ((rows - mean) / sigma).view(weights.shape), sigma

    def normalise(
        self, source: torch.Tensor, group: int, formats: NormFormats
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return float_normalise(source, group)

    def affine(
        self,
        normalised: torch.Tensor,
        gains: torch.Tensor | None,
        offsets: torch.Tensor | None,
        formats: NormFormats,
    ) -> torch.Tensor:
        if gains is None or offsets is None:
            return normalised
        return gains * normalised + offsets

    def scale_gradient(
        self, gradient: torch.Tensor, gains: torch.Tensor, formats: NormFormats
    ) -> torch.Tensor:
        return gains * gradient

    def norm_gradient(
        self,
        gradient: torch.Tensor,
        normalised: torch.Tensor,
        rstd: torch.Tensor,
        group: int,
        formats: NormFormats,
        words: torch.Tensor | None,
    ) -> torch.Tensor:
        return float_norm_gradient(gradient, normalised, rstd, group)

    def update(
        self,
        moments: Moments,
        gradient: torch.Tensor,
        formats: ParameterFormats,
        coefficients: Coefficients,
        words: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> Updated:
        if not isinstance(coefficients, FloatCoefficients):
            raise TypeError(f"coefficients must be FloatCoefficients, not {coefficients!r}")
        return float_update(moments, gradient, coefficients)

    def backward_master(self, moments: Moments, coefficients: Coefficients) -> torch.Tensor:
        if not isinstance(coefficients, FloatCoefficients):
            raise TypeError(f"coefficients must be FloatCoefficients, not {coefficients!r}")
        return predicted(moments, coefficients, coefficients.backward_horizon)

    def coefficients(self, plan: Plan, planned: ParameterPlan) -> FloatCoefficients:
        return plan.float_coefficients(planned)

    def coefficients_from(self, members: dict[str, Any]) -> FloatCoefficients:
        return FloatCoefficients(**members)

    def cross_entropy(self, logits: torch.Tensor, label: int) -> CrossEntropy:
        logarithms = torch.log_softmax(logits, dim=0)
        return CrossEntropy(int(logits.argmax()), -float(logarithms[label]), torch.exp(logarithms))


ARITHMETICS = ("float32", "float64", "fixed")


def arithmetic_of(name: str) -> Arithmetic:
    """The number system called `name`, one of ARITHMETICS."""
    if name == "fixed":
        return IntegerArithmetic()
    return FloatArithmetic({"float32": torch.float32, "float64": torch.float64}[name])
