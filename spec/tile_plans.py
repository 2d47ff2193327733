"""Decisions about one tile."""

from dataclasses import dataclass

from spec.errors import InputError
from spec.formats import Fixed
from spec.mac import Folding
from spec.tiles import Add, AveragePool, Conv, Fork, Loss, MaxPool, Norm, Shortcut
from spec.update import ParameterFormats


@dataclass(frozen=True)
class ConvPlan:
    """Of a tile with a MAC array."""

    tile: Conv
    folding: Folding
    parameters: ParameterFormats

    @property
    def lanes_in(self) -> int:
        return self.folding.lanes_in

    @property
    def lanes_out(self) -> int:
        return self.folding.lanes_out


@dataclass(frozen=True)
class NormPlan:
    """Of a norm: formats of x^ and of the reciprocal deviation; parameters when affine."""

    tile: Norm
    lanes: int
    normalised: Fixed
    rstd: Fixed
    parameters: ParameterFormats | None

    def __post_init__(self) -> None:
        if (self.parameters is not None) != self.tile.affine:
            raise InputError(f"{self.tile.name}: an affine norm has parameters, others have none")
        if self.normalised.frac < 0 or not self.normalised.signed or self.rstd.signed:
            raise InputError(
                f"{self.tile.name}: x^ must be signed with fractional bits, and the reciprocal "
                f"deviation unsigned, not {self.normalised} and {self.rstd}"
            )

    @property
    def lanes_in(self) -> int:
        return self.lanes

    @property
    def lanes_out(self) -> int:
        return self.lanes


@dataclass(frozen=True)
class LanePlan:
    """Of a tile without parameters, whose formats follow from its edges."""

    tile: MaxPool | AveragePool | Fork | Add | Shortcut | Loss
    lanes: int

    @property
    def lanes_in(self) -> int:
        return self.lanes

    @property
    def lanes_out(self) -> int:
        return self.lanes


TilePlan = ConvPlan | NormPlan | LanePlan
ParameterPlan = ConvPlan | NormPlan
"""The plans that can have parameters."""
