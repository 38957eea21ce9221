"""The exact minimiser compared with convex solvers, and the learner with its definition."""

import math
from typing import Any

import cvxpy as cp
import pytest
import torch
from scipy.optimize import minimize_scalar

from botorch_calib.calibration import ExactQuantileLearner
from botorch_calib.calibration.learners.kernel_quantile_regression import pinball_minimizer

DOUBLE: dict[str, Any] = {"dtype": torch.double}
LEVELS = torch.tensor([0.1, 0.5, 0.8], **DOUBLE)


def data(num, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 2, generator=generator, **DOUBLE)
    return X, torch.rand(num, generator=generator, **DOUBLE)


# ------------------------------------------------------------------ the minimiser

PINBALL_LEVELS = torch.tensor([0.05, 0.2, 0.5, 0.9], **DOUBLE)


def objective(q, u, level, center, step, weights):
    """The regularised loss, by its definition."""
    above, below = (u - q).clamp(min=0.0), (q - u).clamp(min=0.0)
    return ((q - center) ** 2 / (2 * step) + weights @ (level * above + (1 - level) * below)).item()


@pytest.mark.parametrize(
    ("num", "step", "weighted"),
    [(1, 0.2, False), (2, 10.0, True), (7, 0.01, True), (60, 0.01, False), (60, 0.2, True)],
)
def test_minimizer_equals_that_of_a_convex_solver(num, step, weighted):
    u, center = data(num)[1], PINBALL_LEVELS**2
    weights = 3 * data(num, seed=2)[1] if weighted else None
    result = pinball_minimizer(u, PINBALL_LEVELS, center, step, weights)
    w = torch.ones_like(u) if weights is None else weights
    # One problem for all levels: the sum of their objectives
    variable, rows, total = cp.Variable(4), PINBALL_LEVELS.numpy(), 0.0
    losses = cp.sum_squares(variable - center.numpy()) / (2 * step)
    for each, weight in zip(u.tolist(), w.tolist(), strict=True):
        losses += weight * (rows @ cp.pos(each - variable) + (1 - rows) @ cp.pos(variable - each))
    problem = cp.Problem(cp.Minimize(losses))
    problem.solve(solver=cp.CLARABEL)
    assert result.numpy() == pytest.approx(variable.value, abs=2e-4)
    for level, c, q in zip(PINBALL_LEVELS.tolist(), center.tolist(), result.tolist(), strict=True):
        value = objective(q, u, level, c, step, w)
        total += value
        near = minimize_scalar(
            objective, bounds=(q - 0.01, q + 0.01), args=(u, level, c, step, w), method="bounded"
        )
        assert value <= near.fun + 1e-12
    # The solver stops near the minimum; our value is at most 1e-8 larger.
    assert total <= problem.value + 1e-8


def test_ties_and_extreme_scores():
    u = torch.tensor([0.0, 0.5, 0.5, 0.5, 1.0], dtype=torch.double)
    large = pinball_minimizer(u, torch.tensor([0.5], dtype=torch.double), u[:1], 1e6)
    assert large.item() == 0.5
    nothing = pinball_minimizer(
        u, PINBALL_LEVELS, PINBALL_LEVELS, 0.1, torch.zeros(5, dtype=torch.double)
    )
    assert torch.equal(nothing, PINBALL_LEVELS)
    assert torch.equal(
        pinball_minimizer(u[:0], PINBALL_LEVELS, PINBALL_LEVELS, 0.1), PINBALL_LEVELS
    )


def test_quantiles_do_not_cross_and_weights_are_batched():
    u, levels = data(40)[1], torch.linspace(0.02, 0.98, 49, dtype=torch.double)
    weights = data(480, seed=4)[1].view(3, 4, 40)
    result = pinball_minimizer(u, levels, levels, 0.3, weights)
    assert result.shape == (3, 4, 49) and (result.diff(dim=-1) >= 0).all()
    single = pinball_minimizer(u, levels, levels, 0.3, weights[1, 2])
    torch.testing.assert_close(result[1, 2], single)


# ------------------------------------------------------------------ the learner


@pytest.mark.parametrize("lengthscale", [0.3, math.inf])
def test_each_observation_meets_the_minimizer_of_those_before(lengthscale):
    learner = ExactQuantileLearner(LEVELS, 0.1, lengthscale)
    X, u = data(90)
    parts = zip(X.split([67, 0, 1, 22]), u.split([67, 0, 1, 22]), strict=True)
    used = torch.cat([learner.update(*part) for part in parts])
    for t in range(90):
        kernel = torch.exp(-(X[:t] - X[t]).square().sum(-1) / lengthscale**2)
        expected = pinball_minimizer(u[:t], LEVELS, LEVELS, 0.1, kernel)
        torch.testing.assert_close(used[t], expected)
    kernel = torch.exp(-(X - 0.4).square().sum(-1) / lengthscale**2)
    theta = learner.threshold(torch.full((2, 3, 2), 0.4, **DOUBLE))
    assert theta.shape == (2, 3, 3)
    torch.testing.assert_close(theta[1, 2], pinball_minimizer(u, LEVELS, LEVELS, 0.1, kernel))


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
