"""The active-set method: sparse and dense minimisers, certified, each row by itself."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from benchmarks.perf.operation_counts import count_operations
from botorch_calib.robust import ContextDistribution, MMDBall, simplex_in_ellipsoid
from botorch_calib.robust.simplex_in_ellipsoid import certified_excess, minimise_linear
from tests.robust import programs

# Radius, lengthscale, jitter and the most atoms with mass in the minimisers of the functions below.
SPARSE = [(0.5, 0.5, 1e-6, 10), (0.1, 0.5, 1e-6, 16), (0.1, 0.5, 1e-3, 20), (0.02, 0.5, 1e-6, 30)]
DENSE = [(0.02, 0.1, 1e-1, 49), (0.1, 0.1, 1e-2, 49), (0.003, 0.3, 1e-6, 49)]


def smooth_functions(rows: int, seed: int = 0) -> tuple[Tensor, ContextDistribution]:
    """Functions from 0 to 1 on a grid of 49 contexts, of which 20 have weight."""
    generator = torch.Generator().manual_seed(seed)
    axis = torch.linspace(0, 1, 7, dtype=torch.double)
    points = torch.cartesian_prod(axis, axis)
    weights = torch.zeros(49, dtype=torch.double)
    weights[torch.randperm(49, generator=generator)[:20]] = 0.05
    slopes = 2 * torch.randn(rows, 9, 2, generator=generator, dtype=torch.double)
    values = torch.cos(slopes @ points.T + 3 * slopes[..., :1]).sum(dim=1)
    low, high = values.aminmax(dim=-1, keepdim=True)
    return (values - low) / (high - low), ContextDistribution(points, weights)


def solved(ball: MMDBall, values: Tensor, centre: ContextDistribution) -> tuple[Tensor, Tensor]:
    """Minimisers of the solver, and their excess."""
    root = ball._matrices(centre).root / ball.radius
    best, dual = minimise_linear(values, centre.weights, root)
    return best, certified_excess(values, centre.weights, root, best - centre.weights, dual)


@pytest.mark.parametrize(("radius", "lengthscale", "jitter", "most"), [*SPARSE, *DENSE])
def test_minimisers_are_exact_up_to_rounding(
    radius: float, lengthscale: float, jitter: float, most: int
) -> None:
    values, centre = smooth_functions(20)
    ball = MMDBall(radius, lengthscale=lengthscale, jitter=jitter)
    weights = ball.worst_case_weights(values, centre)
    assert ((weights > 1e-12).sum(dim=-1) <= most).all() and (weights >= 0).all()
    assert_close(weights.sum(dim=-1), torch.ones(20, dtype=torch.double), rtol=0, atol=1e-13)
    root = ball._matrices(centre).root
    assert (((weights - centre.weights) @ root).norm(dim=-1) <= radius * (1 + 1e-9)).all()
    # A minimiser is exact once its atoms are found: its certificate says so.
    _, excess = solved(ball, values, centre)
    assert (excess <= 1e-7).all()


@pytest.mark.parametrize(("radius", "lengthscale", "jitter", "most"), [SPARSE[3], DENSE[1]])
def test_minimisers_are_those_of_the_convex_program(
    radius: float, lengthscale: float, jitter: float, most: int
) -> None:
    values, centre = smooth_functions(3)
    ball = MMDBall(radius, lengthscale=lengthscale, jitter=jitter)
    wanted = [programs.solve(ball, row, centre) for row in values.numpy()]
    found = ball.worst_case(values, centre).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_many_contexts() -> None:
    """Few of them keep mass, though it takes many steps."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(400, 2, generator=generator, dtype=torch.double)
    centre = ContextDistribution(points, torch.full((400,), 1 / 400, dtype=torch.double))
    slopes = 2 * torch.randn(4, 5, 2, generator=generator, dtype=torch.double)
    values = torch.cos(slopes @ points.T + 3 * slopes[..., :1]).sum(dim=1)
    for radius, most in ((0.004, 100), (0.01, 60)):
        weights = MMDBall(radius, lengthscale=0.3).worst_case_weights(values, centre)
        assert ((weights > 1e-12).sum(dim=-1) <= most).all()


def test_what_it_has_no_time_for_is_feasible_and_known(monkeypatch: pytest.MonkeyPatch) -> None:
    values, centre = smooth_functions(20)
    ball = MMDBall(0.02, lengthscale=0.5)
    wanted = ball.worst_case(values, centre)
    monkeypatch.setattr(simplex_in_ellipsoid, "_STEPS_PER_ATOM", 0)
    best, excess = solved(ball, values, centre)
    assert_close(best, centre.weights.expand_as(best))
    assert (excess * 1e-3 >= centre.expectation(values) - wanted).all() and excess.isfinite().all()


def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    values, centre = smooth_functions(30)
    ball = MMDBall(0.05, lengthscale=0.5)
    together = ball.worst_case(values, centre)
    alone = torch.stack([ball.worst_case(row, centre) for row in values])
    assert_close(together, alone, rtol=0, atol=1e-11)
    assert torch.equal(ball.worst_case(values, centre), together)
    # Nor on how many are solved together, or how often it is looked at which ones have ended: a
    # solved row stays as it is.
    for name, value in (("_MOST_ROWS", 7), ("_STEPS", 16)):
        with monkeypatch.context() as patch:
            patch.setattr(simplex_in_ellipsoid, name, value)
            assert_close(ball.worst_case(values, centre), together, rtol=0, atol=1e-11)
    # Nor on what was asked before.
    copy = ContextDistribution(centre.points, centre.weights)
    assert torch.equal(ball.worst_case(values, copy), together)


def test_it_looks_seldom_at_what_is_left() -> None:
    values, centre = smooth_functions(40)
    ball = MMDBall(0.02, lengthscale=0.5)
    root = ball._matrices(centre).root / ball.radius
    reads = count_operations(lambda: minimise_linear(values, centre.weights, root)).own_host_reads
    # Three for every four steps, of which 96 suffice here.
    assert 2 <= reads <= 3 * 96 // 4


def test_ties_and_double_atoms() -> None:
    values, centre = smooth_functions(12)
    twice = ContextDistribution(centre.points.repeat(2, 1), centre.weights.repeat(2) / 2)
    for radius in (0.3, 0.05):
        ball = MMDBall(radius, lengthscale=0.5)  # a warning would be an error
        for steps in (1, 2, 5):
            ball.worst_case((values * steps).round() / steps, centre)
        both = ball.worst_case(values.repeat(1, 2), twice)
        # The jitter makes two of one atom a little farther from the centre than one.
        assert_close(both, ball.worst_case(values, centre), rtol=0, atol=1e-4)


@pytest.mark.parametrize("radius", [3e-6, 2e-5, 1e-4])
def test_small_radii_by_which_weights_vanish(radius: float) -> None:
    generator = torch.Generator().manual_seed(0)
    points, weights = (torch.rand(40, n, generator=generator, dtype=torch.double) for n in (2, 1))
    weights = weights.squeeze(-1) ** 6
    weights[::3] = 0.0
    centre = ContextDistribution(points, weights / weights.sum())
    values = torch.randn(6, 40, generator=generator, dtype=torch.double)
    ball = MMDBall(radius, lengthscale=0.3)
    found = ball.worst_case_weights(values, centre)  # a warning would be an error
    assert (found[:, centre.weights > 0] == 0).any() and (found >= 0).all()
    root = ball._matrices(centre).root
    assert (((found - centre.weights) @ root).norm(dim=-1) <= radius * (1 + 1e-9)).all()


def test_excess_bounds_the_distance_from_the_optimum() -> None:
    values, centre = smooth_functions(8)
    ball = MMDBall(0.1, lengthscale=0.5)
    root = ball._matrices(centre).root / ball.radius
    best, _ = minimise_linear(values, centre.weights, root)
    generator = torch.Generator().manual_seed(0)
    for size in (0.0, 0.3, 1.0):
        delta = size * (best - centre.weights)
        dual = torch.randn(values.shape, generator=generator, dtype=torch.double)
        excess = certified_excess(values, centre.weights, root, delta, dual)
        decrease = -(values * delta).sum(dim=-1)
        missed = (values * (centre.weights + delta - best)).sum(dim=-1)
        assert (excess * (decrease + 1e-3) >= missed - 1e-9).all()
