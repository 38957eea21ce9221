"""Values, noise, optima and conventions of the heteroscedastic problems."""

from __future__ import annotations

import math

import pytest
import torch
from botorch.test_functions.synthetic import Ackley
from botorch.utils.sampling import manual_seed

from botorch_calib.test_functions import (
    HeteroscedasticAckley,
    HeteroscedasticNoise,
    IntervalStudy1d,
)

PROBLEMS = [HeteroscedasticAckley, IntervalStudy1d]


def _points(problem: HeteroscedasticNoise, *shape: int) -> torch.Tensor:
    lower, upper = problem.bounds
    with manual_seed(0):
        return lower + (upper - lower) * torch.rand(*shape, problem.dim, dtype=torch.double)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_shapes_and_dtypes(cls) -> None:
    problem = cls(dtype=torch.float32)
    for shape in ((), (2, 3)):
        X = _points(problem, *shape).float()
        for value in (problem(X), problem(X, noise=False), problem.noise_variance(X)):
            assert value.shape == shape
            assert value.dtype == torch.float32


@pytest.mark.parametrize("cls", PROBLEMS)
@pytest.mark.parametrize("negate", [False, True])
def test_optimum_is_attained_and_not_beaten(cls, negate) -> None:
    problem = cls(negate=negate)
    at_optimum = problem(problem.optimizers, noise=False)
    expected = torch.full_like(at_optimum, problem.optimal_value)
    torch.testing.assert_close(at_optimum, expected, atol=1e-12, rtol=1e-12)
    X = _points(problem, 20_000)
    elsewhere = problem(X, noise=False)
    torch.testing.assert_close(elsewhere, (-1.0 if negate else 1.0) * problem.evaluate_true(X))
    best = elsewhere.min() if problem.is_minimization_problem else elsewhere.max()
    gain = best - problem.optimal_value
    assert (-gain if problem.is_minimization_problem else gain) <= 1e-12
    assert not cls().is_minimization_problem


def test_ackley_is_minus_botorch_ackley() -> None:
    problem = HeteroscedasticAckley()
    X = _points(problem, 50)
    torch.testing.assert_close(problem(X, noise=False), -Ackley(dim=2).evaluate_true(X))
    assert problem.bounds.tolist() == [[-10.0, -10.0], [10.0, 10.0]]
    assert problem.optimal_value == 0.0


def test_noise_variances_by_hand() -> None:
    X = torch.tensor([[0.0, 0.0], [3.0, -4.0]], dtype=torch.double)
    assert HeteroscedasticAckley().noise_variance(X).tolist() == [0.5, 0.75]
    x = torch.tensor([[0.0], [-3.0]], dtype=torch.double)
    assert IntervalStudy1d().noise_variance(x).tolist() == pytest.approx([0.1, 0.4])


def test_interval_study_by_hand() -> None:
    x = torch.tensor([[0.0], [math.pi / 4], [-2.0]], dtype=torch.double)
    expected = [1.0, math.pi / 4 + math.cos(math.pi**2 / 4), 2.0 * math.sin(4.0) + 1.0]
    assert IntervalStudy1d().evaluate_true(x).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_noise_has_the_stated_distribution(cls) -> None:
    problem = cls()
    X = _points(problem, 3)
    num_draws = 20_000
    with manual_seed(1):
        residual = problem(X.expand(num_draws, *X.shape)) - problem(X, noise=False)
    variance = problem.noise_variance(X)
    # Within five standard errors of a Gaussian sample's mean and variance.
    assert (residual.mean(0).abs() < 5 * (variance / num_draws).sqrt()).all()
    error = (residual.var(0) - variance).abs()
    assert (error < 5 * variance * math.sqrt(2 / num_draws)).all()


def test_points_outside_the_box_raise() -> None:
    with pytest.raises(ValueError, match="within the bounds"):
        HeteroscedasticAckley()(torch.full((1, 2), 11.0, dtype=torch.double))
