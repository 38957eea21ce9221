"""Values, distributions, expectations and optima of the contextual problems."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.utils.sampling import manual_seed
from scipy import integrate, optimize, stats
from torch import Tensor

from botorch_calib.test_functions import ContextShift, ContextualProblem, Newsvendor

PROBLEMS: list[Callable[..., ContextualProblem]] = [ContextShift, Newsvendor]


def joint_points(problem: ContextualProblem, *shape: int) -> Tensor:
    lower, upper = problem.bounds.unbind()
    with manual_seed(0):
        return lower + (upper - lower) * torch.rand(*shape, problem.dim).to(lower)


def decisions(problem: ContextualProblem, *shape: int) -> Tensor:
    return joint_points(problem, *shape)[..., : problem.num_decisions]


# ------------------------------------------------------------ distributions, written out with scipy

TRUE_DISTRIBUTIONS = {
    ContextShift: stats.norm(0.6, 0.2),
    Newsvendor: stats.burr12(2.0, 20.0),
}


def value_at(problem: ContextualProblem, x: np.ndarray) -> Callable[..., float]:
    return lambda *c: problem(torch.tensor([*x, *c]), noise=False).item()


def expectation(problem: ContextualProblem, x: np.ndarray) -> float:
    """The slow oracle: adaptive quadrature of the function under scipy's distribution."""
    f = value_at(problem, x)
    distribution = TRUE_DISTRIBUTIONS[type(problem)]
    lower, upper = problem.context_bounds.flatten().tolist()
    kink = x[0] if isinstance(problem, Newsvendor) else 0.5
    inside, _ = integrate.quad(lambda c: f(c) * distribution.pdf(c), lower, upper, points=[kink])
    return float(inside + distribution.cdf(lower) * f(lower) + distribution.sf(upper) * f(upper))


# ------------------------------------------------------------ conventions


@pytest.mark.parametrize("cls", PROBLEMS)
def test_shapes_and_precision(cls) -> None:
    exact, single = cls(), cls(dtype=torch.float32)
    for shape in ((), (2, 3), (0,)):
        X = joint_points(exact, *shape)
        x = X[..., : exact.num_decisions]
        for found, expected in (
            (single(X.float()), exact(X)),
            (single.evaluate_stochastic(x.float()), exact.evaluate_stochastic(x)),
        ):
            assert found.shape == expected.shape == shape
            assert (found.dtype, expected.dtype) == (torch.float32, torch.float64)
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_maximised_by_default_and_signs(cls) -> None:
    problem = cls()
    assert not problem.is_minimization_problem
    assert not problem.negate
    other = cls(negate=not problem.negate)
    assert other.is_minimization_problem
    X = joint_points(problem, 5)
    torch.testing.assert_close(other(X), -problem(X))
    x = X[:, : problem.num_decisions]
    torch.testing.assert_close(other.evaluate_stochastic(x), -problem.evaluate_stochastic(x))
    assert other.stochastic_optimal_value == -problem.stochastic_optimal_value


def test_values_by_hand() -> None:
    X = torch.tensor([[0.5, 0.2], [0.2, 0.5]], dtype=torch.double)
    assert Newsvendor()(X).tolist() == pytest.approx([1.8 - 2.5 + 0.3, 1.8 - 1.0])
    X = torch.tensor([[0.0, 0.5], [-0.2, 0.9], [0.2, 0.1]], dtype=torch.double)
    assert ContextShift()(X).tolist() == pytest.approx([1 - math.sqrt(0.05), -0.5, -0.5])


# ------------------------------------------------------------ distributions


def test_draws_are_those_of_the_generator_and_the_dtype() -> None:
    draws = [
        Newsvendor(dtype=dtype).sample_contexts(5, torch.Generator().manual_seed(seed))
        for dtype, seed in ((torch.double, 0), (torch.double, 0), (torch.float32, 0))
    ]
    assert torch.equal(draws[0], draws[1]) and draws[0].shape == (5, 1)
    assert torch.equal(draws[0].float(), draws[2])
    other = Newsvendor().sample_contexts(5, torch.Generator().manual_seed(1))
    assert not torch.equal(other, draws[0])
    with pytest.raises(InputDataError, match="`n`"):
        Newsvendor().sample_contexts(-1)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_quantiles_are_those_of_scipy(cls) -> None:
    problem = cls()
    levels = torch.linspace(0.01, 0.99, 21, dtype=torch.double)
    found = problem.context_icdf(levels.unsqueeze(-1).expand(-1, problem.num_contexts))
    expected = TRUE_DISTRIBUTIONS[cls].ppf(levels.numpy())
    for column in found.T.numpy():
        np.testing.assert_allclose(column, expected, atol=1e-12)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_points_of_the_distribution_give_the_expectation(cls) -> None:
    problem = cls()
    distribution = problem.context_distribution(1024)
    assert distribution.points.shape[-1] == problem.num_contexts
    x = decisions(problem, 4)
    joint = torch.cat(
        [
            x.unsqueeze(1).expand(-1, len(distribution.points), -1),
            distribution.points.unsqueeze(0).expand(4, -1, -1),
        ],
        dim=-1,
    )
    found = problem(joint) @ distribution.weights
    values = problem(joint)
    spread = (values.amax(dim=-1) - values.amin(dim=-1)).max().item()
    # 1024 Sobol points in two dimensions at most: far closer than Monte Carlo's 1 / sqrt(1024).
    expected = problem.evaluate_stochastic(x)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=5e-3 * spread)


# ------------------------------------------------------------ expectations and optima


@pytest.mark.parametrize("cls", PROBLEMS)
def test_expectation_against_adaptive_quadrature(cls) -> None:
    problem = cls()
    X = torch.cat([decisions(problem, 1), problem.stochastic_optimizer.unsqueeze(0)])
    found = problem.evaluate_stochastic(X)
    expected = [expectation(problem, x) for x in X.numpy()]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_gradient_of_the_expectation(cls) -> None:
    problem = cls()
    X = decisions(problem, 3).requires_grad_()
    assert torch.autograd.gradcheck(problem.evaluate_stochastic, X, atol=1e-4)


def search(problem: ContextualProblem, starts: int, num: int = 2000) -> float:
    """The largest expectation found from the best of many random decisions."""
    X = decisions(problem, num)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(x).requires_grad_()
        value = -problem.evaluate_stochastic(at)
        (gradient,) = torch.autograd.grad(value, at)
        return value.item(), gradient.numpy()

    best = X[problem.evaluate_stochastic(X).topk(starts).indices]
    box = list(zip(*problem.decision_bounds.tolist(), strict=True))
    options = {"ftol": 1e-15, "gtol": 1e-10}
    found = [
        optimize.minimize(loss, x, jac=True, method="L-BFGS-B", bounds=box, options=options)
        for x in best.numpy()
    ]
    return -min(float(result.fun) for result in found)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_the_optimal_value_is_attained_and_found_by_a_search(cls) -> None:
    problem = cls()
    stored = problem.stochastic_optimal_value
    at_optimizer = problem.evaluate_stochastic(problem.stochastic_optimizer).item()
    assert at_optimizer == pytest.approx(stored, abs=1e-9)
    found = search(problem, starts=5)
    assert found <= stored + 1e-9
    assert found == pytest.approx(stored, abs=1e-8)


def test_the_shift_moves_the_optimum() -> None:
    """Under the reference distribution the best decision is 0, where the true regret is 0.17."""
    problem = ContextShift()
    distribution = problem.reference_distribution(512)
    x = torch.linspace(-1.0, 1.0, 2001, dtype=torch.double)
    joint = torch.stack(torch.meshgrid(x, distribution.points[:, 0], indexing="ij"), dim=-1)
    assert x[(problem(joint) @ distribution.weights).argmax()].item() == pytest.approx(
        0.0, abs=1e-9
    )
    at_zero = problem.evaluate_stochastic(torch.zeros(1, dtype=torch.double)).item()
    assert problem.stochastic_optimal_value - at_zero == pytest.approx(0.174, abs=1e-3)


# ------------------------------------------------------------ errors


@pytest.mark.parametrize("cls", PROBLEMS)
def test_bad_decisions_are_refused(cls) -> None:
    problem = cls()
    with pytest.raises(BotorchTensorDimensionError, match="`X`"):
        problem.evaluate_stochastic(joint_points(problem, 3))
    with pytest.raises(BotorchTensorDimensionError):
        problem.context_icdf(torch.rand(3, problem.num_contexts + 1))
    for bad in (1.5, math.nan):
        with pytest.raises(InputDataError, match="bounds"):
            problem.evaluate_stochastic(torch.full((2, problem.num_decisions), bad).double())
