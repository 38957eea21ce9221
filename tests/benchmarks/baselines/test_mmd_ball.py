"""The MMD ball compared with convex programs, and the accuracy of its solver."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from benchmarks.baselines import MMDBall
from benchmarks.baselines.simplex_in_ellipsoid import certified_excess, minimise_linear
from botorch_calib.robust import ContextDistribution
from tests.robust.programs import pairwise_distances
from tests.robust.sets.test_ambiguity_sets import instance, spread

Array = NDArray[np.float64]

# Radius, lengthscale and jitter. Minimisers of the first case have few atoms, of the second many.
SPARSE = [(0.5, 0.5, 1e-6), (0.1, 0.5, 1e-3), (0.02, 0.5, 1e-6)]
DENSE = [(0.02, 0.1, 1e-1), (0.1, 0.1, 1e-2), (0.003, 0.3, 1e-6)]


def kernel_matrix(ball: MMDBall, points: Array) -> Array:
    assert ball.lengthscale is not None
    matrix = np.exp(-(pairwise_distances(points) ** 2) / (2 * ball.lengthscale**2))
    return np.asarray(matrix + ball.jitter * np.eye(len(points)))


def solve(ball: MMDBall, values: Array, centre: ContextDistribution) -> float:
    """The smallest expectation of ``M`` values over the ball, by a convex program."""
    points, w = centre.points.numpy(), centre.weights.numpy()
    p, low, size = cp.Variable(len(w), nonneg=True), values.min(), np.ptp(values) or 1.0
    root = np.linalg.cholesky(kernel_matrix(ball, points))
    within = [cp.sum(p) == 1, cp.norm(root.T @ (p - w)) <= ball.radius]
    problem = cp.Problem(cp.Minimize((values - low) / size @ p), within)
    names = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
    problem.solve(solver="CLARABEL", **dict.fromkeys(names, 1e-9))
    return float(low + size * problem.value)


def smooth_functions(rows: int) -> tuple[Tensor, ContextDistribution]:
    """Functions from 0 to 1 on a grid of 49 contexts, 20 of which have weight."""
    generator = torch.Generator().manual_seed(0)
    axis = torch.linspace(0, 1, 7, dtype=torch.double)
    points = torch.cartesian_prod(axis, axis)
    weights = torch.zeros(49, dtype=torch.double)
    weights[torch.randperm(49, generator=generator)[:20]] = 0.05
    slopes = 2 * torch.randn(rows, 9, 2, generator=generator, dtype=torch.double)
    values = torch.cos(slopes @ points.T + 3 * slopes[..., :1]).sum(dim=1)
    low, high = values.aminmax(dim=-1, keepdim=True)
    return (values - low) / (high - low), ContextDistribution(points, weights)


@pytest.mark.parametrize("seed", range(6))
def test_value_solves_the_program_and_weights_attain_it(seed: int) -> None:
    values, centre = instance(seed, rows=2)
    radius = float(10 ** np.random.default_rng(seed).uniform(-2.5, 0.5))
    ball = MMDBall(radius, lengthscale=0.3)
    found, weights = ball.worst_case(values, centre), ball.worst_case_weights(values, centre)
    wanted = torch.tensor([solve(ball, row, centre) for row in values.numpy()], dtype=torch.double)
    # The tolerance of the convex programs is 1e-8 of the range.
    assert ((found - wanted).abs() <= 2e-7 * spread(values)).all()
    assert (weights >= 0).all()
    assert_close(weights.sum(-1), torch.ones(2, dtype=torch.double), rtol=0, atol=1e-13)
    assert_close((weights * values).sum(-1), found)
    move = weights.numpy() - centre.weights.numpy()
    kernel = kernel_matrix(ball, centre.points.numpy())
    assert (np.sqrt(np.einsum("bi,ij,bj->b", move, kernel, move)) <= radius + 1e-12).all()


@pytest.mark.parametrize(("radius", "lengthscale", "jitter"), [*SPARSE, *DENSE])
def test_minimisers_of_smooth_functions(radius: float, lengthscale: float, jitter: float) -> None:
    values, centre = smooth_functions(3)
    ball = MMDBall(radius, lengthscale=lengthscale, jitter=jitter)
    wanted = [solve(ball, row, centre) for row in values.numpy()]
    np.testing.assert_allclose(ball.worst_case(values, centre), wanted, rtol=0, atol=1e-6)
    # A minimiser is exact once its atoms are found, as its certificate shows.
    root = ball._matrices(centre).root / radius
    best, dual = minimise_linear(values, centre.weights, root)
    assert (
        certified_excess(values, centre.weights, root, best - centre.weights, dual) <= 1e-7
    ).all()


def test_bounds_and_their_order() -> None:
    values, centre = instance(0, num=12, zeros=False)
    slack = 1e-7 * spread(values)
    for radius in (1e-4, 1e-2, 0.3, 2.0):
        exact, minimax, tangent = (
            MMDBall(radius, lengthscale=0.3, method=method).worst_case(values, centre)
            for method in ("exact", "minimax", "sensitivity")
        )
        assert (tangent <= exact + slack).all()
        assert (2 * minimax - tangent >= exact - slack).all()  # `minimax` is the mean of two bounds
    assert_close(exact, values.amin(-1))


def test_sensitivity_formula() -> None:
    values, centre = instance(0, num=9, zeros=False)
    ball = MMDBall(1e-4, lengthscale=0.3, method="sensitivity", jitter=1e-3)
    inverse = np.linalg.inv(kernel_matrix(ball, centre.points.numpy()))
    one, u = np.ones(9), values.numpy()
    square = np.einsum("bi,ij,bj->b", u, inverse, u) - (u @ inverse @ one) ** 2 / inverse.sum()
    wanted = centre.expectation(values) - 1e-4 * torch.tensor(np.sqrt(square))
    assert_close(ball.worst_case(values, centre), wanted, rtol=1e-9, atol=0)
