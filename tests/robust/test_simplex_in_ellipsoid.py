"""The active-set method for sparse minimisers against the interior-point method."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from benchmarks.perf.operations import count_operations
from botorch_calib.robust import ContextDistribution, MMDBall, simplex_in_ellipsoid
from botorch_calib.robust.simplex_in_ellipsoid import active_set
from botorch_calib.robust.simplex_in_ellipsoid.active_set import solve_sparse
from botorch_calib.robust.simplex_in_ellipsoid.duality_gap import certified_excess
from botorch_calib.robust.simplex_in_ellipsoid.interior_point import _InteriorPoint

# Radius, jitter and the most atoms with mass in the minimisers of the smooth functions below.
CASES = [(0.5, 1e-6, 10), (0.1, 1e-6, 16), (0.1, 1e-3, 20), (0.02, 1e-6, 30)]


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


def interior_point(
    ball: MMDBall, values: Tensor, centre: ContextDistribution, monkeypatch: pytest.MonkeyPatch
) -> Tensor:
    with monkeypatch.context() as patch:
        patch.setattr(simplex_in_ellipsoid, "_NEGATIVE", float("inf"))
        return ball.worst_case(values, centre)


def only_active_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(self: object) -> None:
        raise AssertionError("Rows were left to the interior-point method.")

    monkeypatch.setattr(_InteriorPoint, "solve", solve)


@pytest.mark.parametrize(("radius", "jitter", "most"), CASES)
def test_sparse_minimisers_are_found_without_interior_points(
    radius: float, jitter: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, centre = smooth_functions(40)
    ball = MMDBall(radius, lengthscale=0.5, jitter=jitter)
    wanted = interior_point(ball, values, centre, monkeypatch)
    only_active_set(monkeypatch)
    weights = ball.worst_case_weights(values, centre)
    count = (weights > 1e-12).sum(dim=-1)
    assert count.amax() <= most
    # A minimiser is exact up to rounding once its atoms are found, the other method stops at 1e-7.
    found = (weights * values).sum(dim=-1)
    decrease = centre.expectation(values) - wanted
    assert (found <= wanted + 1e-12).all() and (found >= wanted - 2e-7 * (decrease + 1e-3)).all()
    assert (weights >= 0).all()
    assert_close(weights.sum(dim=-1), torch.ones(40, dtype=torch.double), rtol=0, atol=1e-13)
    root = ball._matrices(centre).root
    assert (((weights - centre.weights) @ root).norm(dim=-1) <= radius * (1 + 1e-9)).all()


def test_many_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of them keep mass, though it takes many steps: interior points take ten times as long."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(400, 2, generator=generator, dtype=torch.double)
    centre = ContextDistribution(points, torch.full((400,), 1 / 400, dtype=torch.double))
    slopes = 2 * torch.randn(4, 5, 2, generator=generator, dtype=torch.double)
    values = torch.cos(slopes @ points.T + 3 * slopes[..., :1]).sum(dim=1)
    only_active_set(monkeypatch)
    for radius, most in ((0.004, 100), (0.01, 60)):
        weights = MMDBall(radius, lengthscale=0.3).worst_case_weights(values, centre)
        assert ((weights > 1e-12).sum(dim=-1) <= most).all()


@pytest.mark.parametrize(("name", "value"), [("_MOST_STEPS", 8), ("_MOST", 8)])
def test_what_it_does_not_solve_is_solved(
    name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, centre = smooth_functions(20)
    ball = MMDBall(0.02, lengthscale=0.5)
    wanted = ball.worst_case(values, centre)
    monkeypatch.setattr(active_set, name, value)
    root = ball._matrices(centre).root / ball.radius
    _, excess = solve_sparse(values, centre.weights, root)
    assert excess.isinf().any() and not excess.isnan().any()
    assert_close(ball.worst_case(values, centre), wanted, rtol=0, atol=2e-7)


def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    values, centre = smooth_functions(30)
    ball = MMDBall(0.05, lengthscale=0.5)
    together = ball.worst_case(values, centre)
    alone = torch.stack([ball.worst_case(row, centre) for row in values])
    assert_close(together, alone, rtol=0, atol=1e-11)
    assert torch.equal(ball.worst_case(values, centre), together)
    with monkeypatch.context() as patch:
        patch.setattr(simplex_in_ellipsoid, "_SPARSE_ROWS", 7)
        assert_close(ball.worst_case(values, centre), together, rtol=0, atol=1e-11)
    # Nor on how often it is looked at which ones have ended: a solved row stays as it is.
    with monkeypatch.context() as patch:
        patch.setattr(active_set, "_STEPS", active_set._DEVICE_STEPS)
        assert_close(ball.worst_case(values, centre), together, rtol=0, atol=1e-11)
    # Nor on what was asked before.
    copy = ContextDistribution(centre.points, centre.weights)
    assert torch.equal(ball.worst_case(values, copy), together)


def test_it_looks_seldom_at_what_is_left() -> None:
    values, centre = smooth_functions(40)
    ball = MMDBall(0.02, lengthscale=0.5)
    root = ball._matrices(centre).root / ball.radius
    reads = count_operations(lambda: solve_sparse(values, centre.weights, root)).own_host_reads
    # Two for every four steps, of which 96 suffice here.
    assert 2 <= reads <= 2 * 96 // 4


def test_ties_and_double_atoms(monkeypatch: pytest.MonkeyPatch) -> None:
    values, centre = smooth_functions(12)
    twice = ContextDistribution(centre.points.repeat(2, 1), centre.weights.repeat(2) / 2)
    for radius in (0.3, 0.05):
        ball = MMDBall(radius, lengthscale=0.5)
        for steps in (1, 2, 5):
            tied = (values * steps).round() / steps
            found = ball.worst_case(tied, centre)
            wanted = interior_point(ball, tied, centre, monkeypatch)
            assert_close(found, wanted, rtol=0, atol=2e-7)
        both = ball.worst_case(values.repeat(1, 2), twice)
        wanted = interior_point(ball, values.repeat(1, 2), twice, monkeypatch)
        assert_close(both, wanted, rtol=0, atol=2e-7)


def test_excess_bounds_the_distance_from_the_optimum() -> None:
    values, centre = smooth_functions(8)
    ball = MMDBall(0.1, lengthscale=0.5)
    root = ball._matrices(centre).root / ball.radius
    best, _ = solve_sparse(values, centre.weights, root)
    generator = torch.Generator().manual_seed(0)
    for size in (0.0, 0.3, 1.0):
        delta = size * (best - centre.weights)
        dual = torch.randn(values.shape, generator=generator, dtype=torch.double)
        excess = certified_excess(values, centre.weights, root, delta, dual)
        decrease = -(values * delta).sum(dim=-1)
        missed = (values * (centre.weights + delta - best)).sum(dim=-1)
        assert (excess * (decrease + 1e-3) >= missed - 1e-9).all()
