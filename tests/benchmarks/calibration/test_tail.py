"""Calibration of the tail: by quadrature, by brute force, and in tiny searches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.utils.sampling import manual_seed
from scipy import optimize, stats
from torch import Tensor

from benchmarks.calibration import noise_free
from benchmarks.calibration.tail import (
    PRIOR_DEVIATION,
    SCALES,
    SHAPES,
    GeneralizedNormal,
    LogTailExpectedImprovement,
    fitted_tail,
)
from benchmarks.calibration.tail_report import FLOOR, TailReport, along, mean_log_regrets
from benchmarks.suites import get_suite
from tests.benchmarks.calibration.runs import run


@pytest.mark.parametrize("shape", [0.5, 1.7, 8.0])
@pytest.mark.parametrize("u", [-0.3, 0.9, 2.5, 40.0])
def test_the_improvement_by_quadrature(shape: float, u: float) -> None:
    scale = 1.3
    if (abs(u) / scale) ** shape > 1e4:
        u = scale * 1e4 ** (1 / shape)
    with mpmath.workdps(25):
        constant = shape / (2 * scale * mpmath.gamma(1 / mpmath.mpf(shape)))
        # The density at the lower end is factored out, since the tolerance of `quad` is absolute.
        least = mpmath.mpf(max(u, 0) / scale) ** shape
        ends = [scale * (least + k) ** (1 / shape) for k in (0.5, 1, 2, 4, 8, 16, 32, 64)]
        points = sorted({u, 0, *ends} if u < 0 else {u, *ends})

        def beyond(power: int) -> Any:
            """The integral of ``(r - u)^power`` times the density beyond ``u``."""
            return mpmath.quad(
                lambda r: (r - u) ** power * mpmath.exp(least - (abs(r) / scale) ** shape), points
            )

        value = mpmath.log(constant * beyond(1)) - least
        slope = -beyond(0) / beyond(1)
    tail = GeneralizedNormal(shape, scale)
    found, derivative = tail.log_improvement(np.array([u]))
    assert found[0] == pytest.approx(float(value), rel=1e-13, abs=1e-13)
    assert derivative[0] == pytest.approx(float(slope), rel=1e-12)
    expected = stats.gennorm(shape, scale=scale).sf(u)
    assert tail.survival(np.array([u]))[0] == pytest.approx(expected, rel=1e-12)


def process(n: int = 30, factor: float = 1.0) -> Any:
    """A process without noise, whose outcomes above its mean are moved away by ``factor``."""
    with manual_seed(3):
        X = torch.rand(n, 2, dtype=torch.double)
        nugget = torch.full((n, 1), 1e-6, dtype=torch.double)
        any_outcomes = torch.linspace(-1.0, 1.0, n, dtype=torch.double).unsqueeze(-1)
        scaled = any_outcomes / any_outcomes.std()
        gp: Any = SingleTaskGP(X, scaled, nugget, outcome_transform=None)
        gp.covar_module.lengthscale = 0.3
        f = gp.forward(X).rsample().detach()
    gp.set_train_data(targets=torch.where(f > 0.0, factor * f, f), strict=False)
    return gp.eval()


def points(n: int) -> Tensor:
    with manual_seed(5):
        return torch.rand(n, 1, 2, dtype=torch.double).requires_grad_()


def test_a_normal_tail_is_expected_improvement() -> None:
    gp = process()
    best = gp.train_targets.max()
    X = points(40)
    own = LogTailExpectedImprovement(gp, GeneralizedNormal(), best)
    values, expected = own(X), LogExpectedImprovement(gp, best)(X)
    assert expected.min() < -30.0  # far in the tail
    torch.testing.assert_close(values, expected)
    gradients = [torch.autograd.grad(v.sum(), X)[0] for v in (values, expected)]
    torch.testing.assert_close(*gradients)


def test_gradients_of_another_tail() -> None:
    gp = process()
    acqf = LogTailExpectedImprovement(gp, GeneralizedNormal(1.3, 0.8), gp.train_targets.max())
    X = points(6)
    assert torch.autograd.gradcheck(acqf, X)


def left_out(gp: SingleTaskGP) -> tuple[np.ndarray, np.ndarray]:
    """Leave-one-out means and standard deviations of outcomes, by a loop."""
    X: Tensor = gp.train_inputs[0]
    y = gp.train_targets
    with torch.no_grad():
        K = gp.covar_module(X).to_dense() + 1e-6 * torch.eye(len(X), dtype=X.dtype)
        constant, found = gp.mean_module.constant, []
        for i in range(len(X)):
            rest = [j for j in range(len(X)) if j != i]
            weights = torch.linalg.solve(K[rest][:, rest], K[rest, i])
            mean = constant + weights @ (y[rest] - constant)
            found.append([mean.item(), (K[i, i] - weights @ K[rest, i]).sqrt().item()])
    mean, deviation = np.array(found).T
    return mean, deviation


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_the_tail_by_brute_force(share: float, factor: float) -> None:
    gp = process(factor=factor)
    y = gp.train_targets.numpy()
    mean, deviation = left_out(gp)
    threshold = np.quantile(y, 1 - share)

    def negative(at: np.ndarray) -> float:
        law = stats.gennorm(2 * np.exp(at[0]), scale=np.sqrt(2) * np.exp(at[1]))
        inside = law.logpdf((y - mean) / deviation)
        outside = law.logcdf((threshold - mean) / deviation)
        prior = stats.norm(scale=PRIOR_DEVIATION).logpdf(at).sum()
        return -(np.where(y >= threshold, inside, outside).sum() + prior)

    best = optimize.minimize(negative, [0.0, 0.0], method="Nelder-Mead").x
    found = fitted_tail(gp, share)
    steps = np.log([SHAPES[1] / SHAPES[0], SCALES[1] / SCALES[0]])
    at = np.log([found.shape / 2, found.scale / np.sqrt(2)])
    # The best point of the grid is near the optimum, and its density nearly as large.
    assert (np.abs(at - best) <= 2 * steps).all()
    assert negative(at) <= negative(best) + 0.5
    if factor == 1.0:
        assert found.scale == pytest.approx(np.sqrt(2), rel=0.5)


def test_only_the_tail_counts() -> None:
    """A change of values far below the threshold does not matter."""
    gp = process(60)
    y = gp.train_targets
    before = fitted_tail(gp, 0.25)
    wide = process(60, factor=4.0)
    assert fitted_tail(wide, 0.25).scale > 1.5 * before.scale
    below = y.clone()
    low = y < torch.quantile(y, 0.1)
    # Leave-one-out predictions depend on all values, but hardly on these.
    below[low] -= 1e-3
    gp.set_train_data(targets=below, strict=False)
    after = fitted_tail(gp, 0.25)
    assert after.scale == pytest.approx(before.scale, rel=0.2)


METHODS = {method.name: method for method in noise_free.methods()}


@pytest.mark.parametrize("name", METHODS)
def test_a_search_by_each_method(name: str) -> None:
    problem = replace(noise_free.published("branin"), num_evaluations=2)
    result = noise_free.replicate(problem, METHODS[name], 1)
    assert len(result.y) == 12
    assert {"stated", "improved", "box_stated", "box_found", "box_brier", "spread"} <= set(
        result.extras
    )
    for probability in (*result.extras["stated"], *result.extras["box_stated"]):
        assert probability is not None
        assert 0.0 <= probability <= 1.0
    found = [float(result.y[i] > max(result.y[:i])) for i in (10, 11)]
    assert result.extras["improved"] == found


@pytest.mark.parametrize("name", noise_free.FUNCTIONS)
def test_optima(name: str) -> None:
    problem = noise_free.published(name)
    truth, bounds = problem.build(0).truth, problem.bounds_tensor()
    made: Any = noise_free.FUNCTIONS[name]()
    starts = made.optimizers.double() if name != "hartmann4" else points(40).detach().view(20, 4)
    best = max(
        -optimize.minimize(
            lambda x: -truth(torch.from_numpy(x)[None]).item(),
            start.numpy(),
            method="L-BFGS-B",
            bounds=bounds.T.tolist(),
            tol=1e-12,
        ).fun
        for start in starts
    )
    assert best == pytest.approx(problem.optimal_value, rel=2e-5, abs=1e-4)


def test_functions_of_coco() -> None:
    pytest.importorskip("cocoex")
    problem = noise_free.bbob(7, 3)
    oracle, other = problem.build(10000), problem.build(10001)
    X = problem.initial_design(64, 0)
    assert oracle.optimal_value is not None
    assert (oracle.truth(X) <= oracle.optimal_value).all()
    assert not torch.equal(oracle.truth(X), other.truth(X))


def test_the_report_compares_what_is_declared() -> None:
    regrets = {"tail_only": 0.1, "plain": 1.0, "whole": 1e-9}
    collected = {
        "branin": {
            method: [
                run(
                    problem="branin",
                    method=method,
                    seed=seed,
                    regret_by_outcome=[9.0, value * (1 + seed), value * (1 + seed)],
                    extras={
                        "spread": [1.0],
                        "stated": [0.5, 0.25],
                        "improved": [1.0, 0.0],
                        "box_stated": [0.25],
                        "box_found": [0.5],
                        "box_brier": [0.125],
                    },
                )
                for seed in range(3)
            ]
            for method, value in regrets.items()
        }
    }
    assert along(collected["branin"]["whole"][0]) == np.log10(FLOOR)
    suite = get_suite("tail_only")
    assert isinstance(suite.report, TailReport)
    text = "\n".join(suite.report.lines(suite, collected))
    assert "| primary | published | plain | 3 | -1.000 | -1.000 to -1.000 |" in text
    assert "| published | tail_only |" in text


def test_the_figure_averages_over_the_problems_of_a_group() -> None:
    regrets = {"branin": (1.0, 0.1), "shekel10": (1.0, 0.001)}
    collected = {
        problem: {
            "plain": [
                run(
                    problem=problem,
                    method="plain",
                    seed=seed,
                    regret_by_outcome=[*regret],
                    extras={"spread": [1.0]},
                )
                for seed in seeds
            ]
        }
        for (problem, regret), seeds in zip(regrets.items(), [(0, 1, 2), (0, 1)], strict=True)
    }
    case = [*collected.values()]
    np.testing.assert_allclose(mean_log_regrets(case, "plain"), [[0.0, -2.0], [0.0, -2.0]])
    suite = get_suite("tail_only")
    assert isinstance(suite.report, TailReport)
    (panel,) = suite.report.figure(collected).axes
    assert panel.get_title() == "published"
    np.testing.assert_allclose(np.asarray(panel.lines[0].get_ydata()), [0.0, -2.0])
