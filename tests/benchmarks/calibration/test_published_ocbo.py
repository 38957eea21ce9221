"""OCBO's Algorithm 4 against a literal implementation, and one small run of each method."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.isotonic import IsotonicRegression
from torch import Tensor
from torch.testing import assert_close

from benchmarks.baselines import RecalibratedCdf
from benchmarks.baselines.recalibrated_cdf import gaussian_process
from benchmarks.calibration import synthetic
from benchmarks.calibration.published_ocbo import (
    Algorithm4Strategy,
    ackley_problems,
    compared,
    compared_in_table_4,
)
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.sequential import Problem, replicate
from benchmarks.framework.surrogates import with_data
from benchmarks.suites import SUITES
from tests.long_grids import mostly_slow

TABLE_4 = {problem.name: problem for problem in synthetic.table_4()}
METHODS = {method.name: method for method in compared_in_table_4()}
NUM = 6


def data(problem: Problem) -> tuple[Tensor, Tensor]:
    X = problem.initial_design(NUM, 3)
    return X, problem.build(0).observe(X)


def literal_cdf(
    strategy: Algorithm4Strategy, X: Tensor, Y: Tensor, x: Tensor, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values ``y`` at ``x``, ``at`` standard deviations from the mean, and ``R(F(y))``.

    This follows Algorithms 1 and 4, with a loop over splits and scikit-learn's regression.
    Probabilities are for ``-y``, which the paper minimises.
    """
    whole = strategy.update_gp(X, Y)

    def stated(gp: Any, point: Tensor) -> tuple[float, float]:
        with torch.no_grad():
            posterior = gp.posterior(point, observation_noise=True)
        return posterior.mean.item(), posterior.variance.sqrt().item()

    pits = []
    for i in range(1 if strategy.splits == "prequential" else 0, len(X)):
        train = [j for j in range(len(X)) if (j != i if strategy.splits == "loo" else j < i)]
        if strategy.trained:
            bounds = strategy.problem.bounds_tensor()
            gp = strategy.problem.surrogate(X[train], Y[train], bounds, 0, None)
        else:
            gp = with_data(whole, X[train], Y[train])
        mean, deviation = stated(gp, X[i : i + 1])
        # Farther out, scikit-learn treats probabilities as 0 or 1, where the regression ends.
        z = np.clip((Y[i].item() - mean) / deviation, -7.0, 7.0)
        pits.append(norm.cdf(-z))
    shares = [np.mean(np.array(pits) <= p) for p in pits]
    regression = IsotonicRegression().fit([0.0, *pits, 1.0], [0.0, *shares, 1.0])
    mean, deviation = stated(whole, x)
    y = mean + deviation * at
    return y, 1.0 - regression.predict(norm.cdf(-y, loc=-mean, scale=deviation))


SPLITS = [(splits, trained) for splits in ("loo", "prequential") for trained in (False, True)]


@pytest.mark.parametrize(("splits", "trained"), mostly_slow(SPLITS, SPLITS[:1]))
def test_a_literal_algorithm_4(splits: str, trained: bool) -> None:
    strategy = Algorithm4Strategy(
        TABLE_4["rbf"], 0, calibrator=RecalibratedCdf, splits=splits, trained=trained
    )
    X, Y = data(strategy.problem)
    x = torch.tensor([[0.61]], dtype=torch.double)
    with without_expected_warnings():
        y, expected = literal_cdf(strategy, X, Y, x, np.linspace(-4.0, 4.0, 41))
        strategy.gp = None
        posterior: Any = strategy.fit(X, Y).posterior(x)
    found = torch.cat([posterior.cdf(torch.tensor([[value]]).double()) for value in y.tolist()])
    assert len(np.unique(expected.round(3))) > 10
    # Knots are at least 1e-6 standard deviations apart.
    assert_close(found.detach().flatten().numpy(), expected, rtol=0.0, atol=1e-6)


def test_the_side_of_an_improvement_keeps_its_share() -> None:
    """``1 / N`` of the mass lies above the greatest residual, and none below the least."""
    calibrator, z = RecalibratedCdf(), torch.tensor([0.4, -1.2, 0.4, 20.0], dtype=torch.double)
    stated = calibrator.update(torch.zeros(4, 1, dtype=torch.double), z)
    assert_close(stated.quantile(0.975), torch.full((4, 1), 1.959963984540054).double())
    found = calibrator.predictive(torch.zeros(1, 1, dtype=torch.double))
    shares = [found.cdf(torch.tensor(value).double()).item() for value in (-1.2, 0.4, 7.0)]
    assert shares == pytest.approx([0.0, 0.25, 0.75], abs=1e-6)
    calibrator.reset()
    assert calibrator.num_updates == 0


def test_residuals_that_differ_in_the_last_digits() -> None:
    """scikit-learn's regression joins them, and had no value at the least residual."""
    calibrator = RecalibratedCdf()
    z = torch.tensor([0.4, -0.453, -0.453 + 2e-15, 1.5], dtype=torch.double)
    calibrator.update(torch.zeros(4, 1, dtype=torch.double), z)
    assert (calibrator.masses >= 0.0).all() and calibrator.masses.sum() == pytest.approx(1.0)


def test_a_gaussian_process_as_recalibrator_increases() -> None:
    calibrator = RecalibratedCdf(gaussian_process)
    z = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    calibrator.update(torch.zeros(40, 1, dtype=torch.double), 2.0 * z)
    found = calibrator.predictive(torch.zeros(1, 1, dtype=torch.double))
    grid = torch.linspace(-3.0, 3.0, 25, dtype=torch.double)
    values = torch.cat([found.cdf(value) for value in grid]).flatten()
    assert (values.diff() >= 0.0).all()
    # Residuals are twice as wide as stated: 0.5 and 0.69 of them lie below 0 and 1.
    assert_close(found.cdf(torch.tensor(0.0).double()).item(), 0.5, rtol=0.0, atol=0.1)
    assert_close(found.cdf(torch.tensor(1.0).double()).item(), 0.69, rtol=0.0, atol=0.1)


RUNS = [("matern", name) for name in METHODS]
RUNS += [(row, "ocbo_loo") for row in ("linear", "linear_pi", "linear_ucb", "periodic")]


@pytest.mark.parametrize(("row", "name"), mostly_slow(RUNS, [("linear_pi", "ocbo_loo")]))
def test_runs_of_table_4(row: str, name: str) -> None:
    problem = replace(TABLE_4[row], num_evaluations=1)
    with without_expected_warnings():
        result = replicate(problem, METHODS[name], 2000)
    assert result.X[:3] == problem.initial_design(3, 2000).tolist()
    assert len(result.X) == 4 and 0.0 <= result.X[-1][0] <= 1.0
    assert result.f == result.y and len(result.extras["pit"]) == 1


def test_the_search_of_gpyopt() -> None:
    """The plain process predicts the observation, and improves slightly on its best mean."""
    strategy: Any = METHODS["bo"].build(TABLE_4["linear"], 0)
    X, Y = data(strategy.problem)
    found: list[Any] = []
    strategy.maximise = found.append
    with without_expected_warnings():
        model: Any = strategy.fit(X, Y)
    for strategy.acquisition in ("ei", "ucb"):
        strategy.propose(model, X, Y)
    x = torch.tensor([[0.61]], dtype=torch.double)
    with torch.no_grad():
        posterior = strategy.gp.posterior(x, observation_noise=True)
        best = strategy.gp.posterior(X).mean.max() + 0.01 * Y.std()
        values = [acquisition(x) for acquisition in found]
    deviation = posterior.variance.sqrt()
    u = ((posterior.mean - best) / deviation).item()
    expected = (deviation * (u * norm.cdf(u) + norm.pdf(u))).log()
    assert_close(values[0], expected[0], rtol=1e-6, atol=0.0)
    assert_close(values[1], (posterior.mean + 2.0 * deviation)[0], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(
    "name", mostly_slow(["heteroscedastic_raw", "noise_free_default"], ["noise_free_default"])
)
def test_the_example_of_locbo(name: str) -> None:
    (problem,) = (problem for problem in ackley_problems() if problem.name == name)
    problem = replace(problem, num_evaluations=1)
    method = {method.name: method for method in compared()}["ocbo_loo"]
    with without_expected_warnings():
        result = replicate(problem, method, 2000)
    assert len(result.X) == 6
    assert (result.f == result.y) == name.startswith("noise_free")
    strategy = method.build(problem, 0)
    X = problem.initial_design(5, 0)
    with without_expected_warnings():
        model: Any = strategy.fit(X, problem.build(0).observe(X))
    raw = name.endswith("raw")
    assert_close(model.model.transform_inputs(X), X if raw else (X + 10.0) / 20.0)


OTHERS = [
    ("ocbo_loo_misspecified", "branin_student_t"),
    ("ocbo_loo_synthetic", "six_hump_camel_pi"),
    ("ocbo_loo_synthetic", "forrester"),
]


@pytest.mark.parametrize(("name", "problem"), mostly_slow(OTHERS, OTHERS[:1]))
def test_other_suites(name: str, problem: str) -> None:
    suite = SUITES[name]
    (shortened,) = (replace(p, num_evaluations=1) for p in suite.problems if p.name == problem)
    (method,) = (method for method in suite.methods if method.name == "ocbo_loo")
    with without_expected_warnings():
        result = suite.replicate(shortened, method, 2000)
    assert len(result.y) == shortened.num_initial + 1 and len(result.extras["covered"]) == 1
    strategy: Any = method.build(shortened, 2000)
    assert strategy.acquisition == getattr(shortened, "acquisition", "ei")
    assert strategy.incumbent == ("mean" if name == "ocbo_loo_misspecified" else "outcome")


def test_the_design_of_table_4() -> None:
    bounds = ((-1.0, 3.0), (10.0, 11.0))
    lower, upper = torch.tensor(bounds, dtype=torch.double).T
    for design in (synthetic.latin_design, synthetic.random_design):
        made = partial(design, 7, bounds=bounds)
        X = (made(3) - lower) / (upper - lower)
        assert ((X >= 0.0) & (X <= 1.0)).all() and not torch.equal(made(3), made(4))
    parts = (7 * (synthetic.latin_design(7, 3, bounds=bounds) - lower) / (upper - lower)).floor()
    assert torch.equal(parts.long().sort(dim=0).values, torch.arange(7)[:, None].expand(7, 2))
