"""Shapes of the tensors that travel as packets."""

from dataclasses import dataclass

from spec.errors import InputError


@dataclass(frozen=True)
class Shape:
    """Rows, columns and channels of one sample's tensor; vectors are one pixel."""

    rows: int
    columns: int
    channels: int

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.channels) < 1:
            raise InputError(f"every side of a shape must be at least 1, not {self}")

    @property
    def pixels(self) -> int:
        return self.rows * self.columns

    @property
    def elements(self) -> int:
        return self.pixels * self.channels

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.channels}"


def divisors(number: int) -> list[int]:
    """All divisors, ascending: the legal lanes of `number` channels."""
    return [d for d in range(1, number + 1) if number % d == 0]
