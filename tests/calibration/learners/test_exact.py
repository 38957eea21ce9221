"""The exact learner against its definition, one point at a time."""

import math
from typing import Any

import pytest
import torch

from botorch_calib.calibration import ExactQuantileLearner
from botorch_calib.calibration.learners.pinball import pinball_minimizer

DOUBLE: dict[str, Any] = {"dtype": torch.double}
LEVELS = torch.tensor([0.1, 0.5, 0.8], **DOUBLE)


def data(num, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 2, generator=generator, **DOUBLE)
    return X, torch.rand(num, generator=generator, **DOUBLE)


@pytest.mark.parametrize("lengthscale", [0.3, math.inf])
@pytest.mark.parametrize("batches", [[90], [1] * 90, [3, 0, 67, 20]], ids=["all", "one", "mixed"])
def test_each_observation_meets_the_minimizer_of_those_before(lengthscale, batches):
    learner = ExactQuantileLearner(LEVELS, 0.1, lengthscale)
    X, u = data(90)
    parts = zip(X.split(batches), u.split(batches), strict=True)
    used = torch.cat([learner.update(*part) for part in parts])
    for t in range(90):
        kernel = torch.exp(-(X[:t] - X[t]).square().sum(-1) / lengthscale**2)
        expected = pinball_minimizer(u[:t], LEVELS, LEVELS, 0.1, kernel)
        torch.testing.assert_close(used[t], expected)
    kernel = torch.exp(-(X - 0.4).square().sum(-1) / lengthscale**2)
    theta = learner.threshold(torch.full((2, 3, 2), 0.4, **DOUBLE))
    assert theta.shape == (2, 3, 3)
    torch.testing.assert_close(theta[1, 2], pinball_minimizer(u, LEVELS, LEVELS, 0.1, kernel))


def test_order_does_not_matter():
    X, u = data(30)
    one, other = (ExactQuantileLearner(LEVELS, 0.1, 0.4) for _ in range(2))
    one.update(X, u)
    other.update(X.flip(0), u.flip(0))
    torch.testing.assert_close(one.threshold(X), other.threshold(X))


def test_starts_at_the_model_and_returns_to_it():
    initial = torch.tensor([0.2, 0.3, 0.9], **DOUBLE)
    learner = ExactQuantileLearner(LEVELS, 0.1, 0.1, initial=initial)
    X, u = data(20)
    assert torch.equal(learner.threshold(X), initial.expand(20, 3))
    learner.update(X, u)
    far = torch.full((1, 2), 9.0, **DOUBLE)
    torch.testing.assert_close(learner.threshold(far), initial.expand(1, 3))
    learner.reset()
    assert learner.num_updates == 0
    assert torch.equal(learner.threshold(X), initial.expand(20, 3))


def test_gradient_reaches_the_inputs():
    learner = ExactQuantileLearner(LEVELS, 0.1, 0.4)
    learner.update(*data(20))
    X = data(3, seed=5)[0].requires_grad_()
    assert torch.autograd.gradcheck(learner.threshold, (X,))
