"""Hyperparameters, methods and the coefficients of the update in float (design, section 4)."""

from dataclasses import dataclass
from enum import Enum

from spec.errors import InputError


class Method(Enum):
    """How a late gradient is corrected; one name in RTL and golden model."""

    PB = "pb"
    SC = "sc"
    LWP = "lwp"
    LWP_SC = "lwp+sc"

    @property
    def compensates_spike(self) -> bool:
        return self in (Method.SC, Method.LWP_SC)

    @property
    def predicts_weights(self) -> bool:
        return self in (Method.LWP, Method.LWP_SC)


@dataclass(frozen=True)
class Hyperparameters:
    """SGD with momentum at update size one, in the EMA form that the hardware uses.

    `eta` = lr / (1 - m) is the step on the averaged gradient u = (1 - m) v.
    """

    eta: float
    momentum: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not self.eta > 0 or self.eta == float("inf"):
            raise InputError(f"learning rate must be a positive number, not {self.eta}")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be at least 0 and below 1, not {self.momentum}")
        if not 0 <= self.weight_decay < 1:
            raise InputError(
                f"weight decay must be at least 0 and below 1, not {self.weight_decay}"
            )

    @property
    def learning_rate(self) -> float:
        """lr of the form w' = w - lr v'."""
        return self.eta * (1 - self.momentum)

    @classmethod
    def scaled(
        cls,
        learning_rate: float,
        momentum: float,
        batch: int,
        update_size: int = 1,
        weight_decay: float = 0.0,
    ) -> "Hyperparameters":
        """Scale the values of a reference batch to `update_size` (Kosson et al., section 3).

        m = m_r^(N/N_r), lr = lr_r (1-m) N / ((1-m_r) N_r): the same decay of momentum a sample and
        the same total step.
        """
        scaled = momentum ** (update_size / batch)
        eta = learning_rate * update_size / ((1 - momentum) * batch)
        return cls(eta=eta, momentum=scaled, weight_decay=weight_decay)


@dataclass(frozen=True)
class FloatCoefficients:
    """Coefficients of one tile's update in float:

    v' = m v + g,  w' = w - lr (a v' + b g),  w^ = w' - lr T v', g with decay lambda w added
    (Kosson et al., sections 3.1 and 3.2).
    """

    learning_rate: float
    momentum: float
    a: float
    b: float
    horizon: int
    weight_decay: float


def float_coefficients(
    hyperparameters: Hyperparameters, method: Method, delay: int
) -> FloatCoefficients:
    """Spike Compensation a = m^D, b = (1-m^D)/(1-m); Linear Weight Prediction T = D."""
    m = hyperparameters.momentum
    a, b = 1.0, 0.0
    if method.compensates_spike:
        a, b = m**delay, (1 - m**delay) / (1 - m)
    return FloatCoefficients(
        learning_rate=hyperparameters.learning_rate,
        momentum=m,
        a=a,
        b=b,
        horizon=delay if method.predicts_weights else 0,
        weight_decay=hyperparameters.weight_decay,
    )
