"""Hyperparameters and the coefficients of the update in float (design, section 4)."""

from dataclasses import dataclass

from spec.errors import InputError
from spec.method import Method, Prediction, Spike


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
    """Coefficients of one tile's update in float, with g the late gradient:

    v' = m v + g,  w' = w - lr (a v' + b g),  g shrunk and with decay lambda w added;
    w^(T) = w' - lr T v', or w' + T (w' - w) in the weight form.

    The next forward pass of training reads w^(horizon), the backward passes w^(backward_horizon),
    which has no weight form (Kosson et al., sections 3.1 and 3.2).
    """

    learning_rate: float
    momentum: float
    a: float
    b: float
    horizon: float
    weight_decay: float
    backward_horizon: float = 0.0
    weight_form: bool = False
    shrink: float = 1.0


def float_coefficients(
    hyperparameters: Hyperparameters, method: Method, delay: int, first_delay: int | None = None
) -> FloatCoefficients:
    """Of a tile with that delay, where the first tile has `first_delay` (its own unless given).

    The equations stand with the terms in `spec.method`.
    """
    m = hyperparameters.momentum
    a, b = _spike(method, m, delay)
    horizon = method.horizon * delay if method.predicts_weights else 0.0
    backward_horizon = 0
    if method.prediction is Prediction.BOTH_PASSES:
        backward_horizon = ((delay if first_delay is None else first_delay) - delay) // 2
    return FloatCoefficients(
        learning_rate=hyperparameters.learning_rate,
        momentum=m,
        a=a,
        b=b,
        horizon=horizon + backward_horizon,
        weight_decay=hyperparameters.weight_decay,
        backward_horizon=backward_horizon,
        weight_form=method.prediction is Prediction.STEP,
        shrink=method.shrink**delay,
    )


def _spike(method: Method, m: float, delay: int) -> tuple[float, float]:
    """a and b of the update."""
    if isinstance(method.spike, tuple):
        return method.spike
    if method.spike is Spike.NONE:
        return 1.0, 0.0
    made_up = delay if method.spike is Spike.DELAY else 1
    return m**made_up, (1 - m**made_up) / (1 - m)
