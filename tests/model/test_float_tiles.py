"""The float tiles against autograd, and the float update against the paper's equations."""

import numpy as np
import pytest
import torch

from model.arithmetic import FloatArithmetic
from model.packets import Packet
from model.tiles.loss import LossTile
from model.update import Moments, float_update
from spec.hyperparameters import FloatCoefficients, Hyperparameters, float_coefficients
from spec.method import PAPER_METHODS, Method, Spike
from spec.packets import Header, Kind
from tests.model.small import small_plan

FLOAT64 = FloatArithmetic(torch.float64)
DELAY = 5
STEPS = 60


def test_loss_tile_equals_autograd() -> None:
    tile = LossTile(small_plan(), FLOAT64)
    logits = torch.tensor([0.3, -2.0, 1.7], dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(1))
    loss.backward()  # type: ignore[no-untyped-call]
    result, back = tile.turn(Packet(Header(Kind.TRAIN, label=1), logits.detach().view(1, 1, -1)))
    assert result.prediction == 2
    assert result.loss == pytest.approx(loss.item())
    torch.testing.assert_close(back.tensor.flatten(), logits.grad)


@pytest.mark.parametrize("method", PAPER_METHODS, ids=str)
def test_the_update_is_the_papers(method: Method) -> None:
    m, eta, delay = 0.75, 0.5, 3
    lr = eta * (1 - m)
    c = float_coefficients(Hyperparameters(eta, m), method, delay)
    w, v, g = (torch.tensor([x], dtype=torch.float64) for x in (2.0, -1.0, 0.5))
    moments, predicted = float_update(Moments(w, v), g, c)
    new_v = m * -1.0 + 0.5
    if method in (Method.SC, Method.LWP_SC):
        new_w = 2.0 - lr * (m**delay * new_v + (1 + m + m * m) * 0.5)
    else:
        new_w = 2.0 - lr * new_v
    horizon = delay if method in (Method.LWP, Method.LWP_SC) else 0
    assert float(moments.velocity) == pytest.approx(new_v)
    assert float(moments.master) == pytest.approx(new_w)
    assert float(predicted) == pytest.approx(new_w - lr * horizon * new_v)


def trajectory(c: FloatCoefficients, gradients: list[float]) -> list[float]:
    """The weight after each step, from zero."""
    moments = Moments(torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    weights = []
    for gradient in gradients:
        moments, _ = float_update(moments, torch.tensor([gradient], dtype=torch.float64), c)
        weights.append(float(moments.master))
    return weights


def test_spike_compensation_catches_up_with_undelayed_momentum() -> None:
    hyperparameters = Hyperparameters(0.5, 0.9)
    undelayed = trajectory(float_coefficients(hyperparameters, Method.PB, 0), [1.0] + [0.0] * STEPS)
    late = [0.0] * DELAY + [1.0] + [0.0] * (STEPS - DELAY)
    compensated = trajectory(float_coefficients(hyperparameters, Method.SC, DELAY), late)
    delayed = trajectory(float_coefficients(hyperparameters, Method.PB, DELAY), late)
    np.testing.assert_allclose(compensated[DELAY:], undelayed[DELAY:], rtol=1e-12)
    assert abs(delayed[DELAY] - undelayed[DELAY]) > 0.1


@pytest.mark.parametrize("method", PAPER_METHODS, ids=str)
def test_the_hardwares_averaged_form_equals_the_papers(method: Method) -> None:
    """u = (1-m) v, eta = lr/(1-m), c = 1 - m^D (design, section 5)."""
    m, eta = 0.9, 0.25
    coefficients = float_coefficients(Hyperparameters(eta, m), method, DELAY)
    spike = 1 - m**DELAY if method.spike is Spike.DELAY else 0.0
    horizon = DELAY if method.predicts_weights else 0
    generator = np.random.default_rng(4)
    w, u = 0.0, 0.0
    moments = Moments(torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    for gradient in generator.normal(size=STEPS):
        moments, predicted = float_update(
            moments, torch.tensor([gradient], dtype=torch.float64), coefficients
        )
        u += (1 - m) * (gradient - u)
        w -= eta * (u + spike * (gradient - u))
        assert float(moments.velocity) * (1 - m) == pytest.approx(u, rel=1e-9)
        assert float(moments.master) == pytest.approx(w, rel=1e-9)
        assert float(predicted) == pytest.approx(w - eta * horizon * u, rel=1e-9)
