"""The pinball loss, and its exact minimiser against convex solvers."""

import cvxpy as cp
import pytest
import torch
from scipy.optimize import minimize_scalar

from botorch_calib.calibration.learners.pinball import pinball_loss, pinball_minimizer

torch.manual_seed(0)
LEVELS = torch.tensor([0.05, 0.2, 0.5, 0.9], dtype=torch.double)


def scores(num: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num, dtype=torch.double, generator=generator)


def objective(q, u, level, center, step, weights):
    """The regularised loss, by its definition."""
    above, below = (u - q).clamp(min=0.0), (q - u).clamp(min=0.0)
    return ((q - center) ** 2 / (2 * step) + weights @ (level * above + (1 - level) * below)).item()


def test_loss_is_its_definition():
    u, theta = scores(50), scores(50, seed=1)
    loss = pinball_loss(u.unsqueeze(-1), theta.unsqueeze(-1), LEVELS)
    above, below = (u - theta).clamp(min=0.0), (theta - u).clamp(min=0.0)
    expected = LEVELS * above.unsqueeze(-1) + (1 - LEVELS) * below.unsqueeze(-1)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("num", [1, 2, 7, 60])
@pytest.mark.parametrize("step", [0.01, 0.2, 10.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_minimizer_equals_that_of_a_convex_solver(num, step, weighted):
    u, center = scores(num), LEVELS**2
    weights = 3 * scores(num, seed=2) if weighted else None
    result = pinball_minimizer(u, LEVELS, center, step, weights)
    w = torch.ones_like(u) if weights is None else weights
    for level, c, q in zip(LEVELS.tolist(), center.tolist(), result.tolist(), strict=True):
        variable = cp.Variable()
        loss = level * cp.pos(u.numpy() - variable) + (1 - level) * cp.pos(variable - u.numpy())
        problem = cp.Problem(cp.Minimize(cp.square(variable - c) / (2 * step) + w.numpy() @ loss))
        problem.solve(solver=cp.CLARABEL)
        assert q == pytest.approx(float(variable.value), abs=2e-4)
        # The solver stops near the minimum; ours is at least as good, and locally the best.
        value = objective(q, u, level, c, step, w)
        assert value <= problem.value + 1e-8
        near = minimize_scalar(
            objective, bounds=(q - 0.01, q + 0.01), args=(u, level, c, step, w), method="bounded"
        )
        assert value <= near.fun + 1e-12


def test_ties_and_extreme_scores():
    u = torch.tensor([0.0, 0.5, 0.5, 0.5, 1.0], dtype=torch.double)
    large = pinball_minimizer(u, torch.tensor([0.5], dtype=torch.double), u[:1], 1e6)
    assert large.item() == 0.5
    nothing = pinball_minimizer(u, LEVELS, LEVELS, 0.1, torch.zeros(5, dtype=torch.double))
    assert torch.equal(nothing, LEVELS)
    assert torch.equal(pinball_minimizer(u[:0], LEVELS, LEVELS, 0.1), LEVELS)


def test_quantiles_do_not_cross_and_weights_are_batched():
    u, levels = scores(40), torch.linspace(0.02, 0.98, 49, dtype=torch.double)
    weights = torch.rand(3, 4, 40, dtype=torch.double)
    result = pinball_minimizer(u, levels, levels, 0.3, weights)
    assert result.shape == (3, 4, 49) and (result.diff(dim=-1) >= 0).all()
    single = pinball_minimizer(u, levels, levels, 0.3, weights[1, 2])
    torch.testing.assert_close(result[1, 2], single)


def test_a_large_step_gives_the_empirical_quantile():
    u = scores(101)
    result = pinball_minimizer(u, LEVELS, LEVELS, 1e9)
    expected = torch.quantile(u, LEVELS, interpolation="higher")
    assert (result - expected).abs().max() < 0.03  # within a few order statistics of 101


def test_gradient_by_weights():
    u = scores(8)
    weights = scores(8, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda w: pinball_minimizer(u, LEVELS, LEVELS, 0.2, w), (weights,)
    )
