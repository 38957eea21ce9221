"""Values, expectations and optima of the suite's contextual problems."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from benchmarks.problems import (
    ContextualAckley,
    ContextualHartmann6,
    ModifiedBranin,
    ThreeHumpCamel,
)
from botorch_calib.test_functions import ContextualProblem
from tests.test_functions.test_contextual import decisions, joint_points, search, value_at

PROBLEMS: list[Callable[..., ContextualProblem]] = [
    ContextualAckley,
    ContextualHartmann6,
    ModifiedBranin,
    ThreeHumpCamel,
]


# ------------------------------------------------------------ distributions, written out with scipy

NORMAL = stats.norm(0.5, 0.2)


def clipped_mean(values: Callable[[float], float], breaks: list[float] | None = None) -> float:
    """The mean over N(0.5, 0.2^2) clipped to [0, 1], by adaptive quadrature and two atoms."""
    inside, _ = integrate.quad(
        lambda c: values(c) * NORMAL.pdf(c), 0.0, 1.0, points=breaks, limit=2000, epsabs=1e-11
    )
    return float(inside + NORMAL.cdf(0.0) * values(0.0) + NORMAL.sf(1.0) * values(1.0))


def expectation(problem: ContextualProblem, x: np.ndarray) -> float:
    """A slow oracle: adaptive quadrature of the function under scipy's distribution."""
    f = value_at(problem, x)
    if isinstance(problem, ModifiedBranin):
        return clipped_mean(lambda first: clipped_mean(lambda second: f(first, second)))
    if isinstance(problem, (ContextualAckley, ContextualHartmann6)):
        fine = isinstance(problem, ContextualAckley)
        return clipped_mean(f, [k / 65.536 + 0.5 for k in range(-32, 33)] if fine else None)
    return float(integrate.quad(f, -1.0, 1.0)[0] / 2.0)


# ------------------------------------------------------------ conventions


@pytest.mark.parametrize("cls", PROBLEMS)
def test_maximised_by_default_and_signs(cls) -> None:
    problem = cls()
    assert not problem.is_minimization_problem
    assert problem.negate
    other = cls(negate=not problem.negate)
    assert other.is_minimization_problem
    X = joint_points(problem, 5)
    torch.testing.assert_close(other(X), -problem(X))
    x = X[:, : problem.num_decisions]
    torch.testing.assert_close(other.evaluate_stochastic(x), -problem.evaluate_stochastic(x))
    assert other.stochastic_optimal_value == -problem.stochastic_optimal_value


# ------------------------------------------------------------ values by hand


def test_ackley_by_hand() -> None:
    problem = ContextualAckley()
    # One raw unit from the centre all cosines are 1 again.
    step = 0.5 + 1.0 / 65.536
    X = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.5, step], [step, 0.5, 0.5]], dtype=torch.double)
    away = -20.0 * (1.0 - math.exp(-0.2 / math.sqrt(3.0)))
    assert problem(X).tolist() == pytest.approx([0.0, away, away], abs=1e-12)


def test_hartmann_has_its_known_maximum() -> None:
    x = torch.tensor([0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]).double()
    assert ContextualHartmann6()(x).item() == pytest.approx(3.32237, abs=1e-5)


def test_branin_columns_and_minimum() -> None:
    # Branin's minima are 0.397887 at (-pi, 12.275), (pi, 2.275) and (9.42478, 2.475).
    u, v = [(z + 5.0) / 15.0 for z in (-math.pi, math.pi)], [z / 15.0 for z in (12.275, 2.275)]
    at = torch.tensor([u[0], v[1], v[0], u[1]], dtype=torch.double)
    assert ModifiedBranin()(at).item() == pytest.approx(-0.397887, abs=1e-6)
    swapped = torch.tensor([u[0], v[0], v[1], u[1]], dtype=torch.double)
    assert ModifiedBranin()(swapped).item() < -10.0


def test_camel_by_hand() -> None:
    X = torch.tensor([[1.0, -0.5]], dtype=torch.double)
    assert ThreeHumpCamel()(X).item() == pytest.approx(-(2.0 - 1.05 + 1 / 6 - 0.5 + 0.25))


# ------------------------------------------------------------ expectations and optima


@pytest.mark.parametrize("cls", [c for c in PROBLEMS if c is not ModifiedBranin])
def test_expectation_against_adaptive_quadrature(cls) -> None:
    problem = cls()
    X = torch.cat([decisions(problem, 1), problem.stochastic_optimizer.unsqueeze(0)])
    found = problem.evaluate_stochastic(X)
    expected = [expectation(problem, x) for x in X.numpy()]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("distance", [1e-6, 1e-2])
def test_ackley_near_its_cone(distance) -> None:
    problem = ContextualAckley()
    x = torch.tensor([0.5 + distance, 0.5], dtype=torch.double)
    expected = expectation(problem, x.numpy())
    assert problem.evaluate_stochastic(x).item() == pytest.approx(expected, abs=1e-8)


def test_branin_expectation_against_a_fine_grid_in_both_contexts() -> None:
    """The joint expectation, not factorised: Gauss-Legendre in each context, and atoms."""
    problem = ModifiedBranin()
    reference, weight = np.polynomial.legendre.leggauss(400)
    nodes = np.concatenate([(reference + 1.0) / 2.0, [0.0, 1.0]])
    masses = np.concatenate([weight / 2.0 * NORMAL.pdf(nodes[:400]), [NORMAL.cdf(0.0)] * 2])
    grid = torch.cartesian_prod(*[torch.from_numpy(nodes)] * 2)
    for x in decisions(problem, 3):
        joint = torch.cat([x.expand(len(grid), -1), grid], dim=-1)
        expected = problem(joint).numpy() @ np.outer(masses, masses).ravel()
        assert problem.evaluate_stochastic(x).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_the_optimal_value_is_attained_and_found_by_a_search(cls) -> None:
    problem = cls()
    stored = problem.stochastic_optimal_value
    at_optimizer = problem.evaluate_stochastic(problem.stochastic_optimizer).item()
    assert at_optimizer == pytest.approx(stored, abs=1e-9)
    found = search(problem, starts=5, num=300 if cls is ContextualAckley else 2000)
    assert found <= stored + 1e-9
    # Ackley has thousands of local optima; another test checks that its centre is best.
    if cls is not ContextualAckley:
        assert found == pytest.approx(stored, abs=1e-8)


def test_ackley_is_best_at_the_centre_in_every_context() -> None:
    problem = ContextualAckley()
    contexts = torch.linspace(0.0, 1.0, 101, dtype=torch.double).unsqueeze(-1)
    middle = problem.stochastic_optimizer.expand(101, -1)
    assert (middle == 0.5).all()
    centre = problem(torch.cat([middle, contexts], dim=-1))
    for x in decisions(problem, 200):
        assert (problem(torch.cat([x.expand(101, -1), contexts], dim=-1)) <= centre).all()
