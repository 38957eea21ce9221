"""Suite `robust_further`: its problems, against another quadrature and GPyTorch's posterior."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from benchmarks.framework.metrics import trace
from benchmarks.robust import portfolio
from benchmarks.robust.portfolio import (
    PORTFOLIO_VARIABLE,
    PortfolioNormal,
    PortfolioUniform,
)
from benchmarks.robust.replicate import replicate
from benchmarks.suites import get_suite
from tests.benchmarks.robust.toys import Scripted

PROBLEMS = [PortfolioNormal, PortfolioUniform]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """60 evaluations that stand in for the published ones, in two files as theirs."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(60, 1, 5, generator=generator)
    Y = -(10.0 + 5.0 * (3.0 * X).sin().sum(dim=-1, keepdim=True))
    for number, rows in enumerate((slice(0, 40), slice(40, 60)), start=1):
        torch.save({"X": X[rows], "Y": Y[rows]}, tmp_path / f"port_n=100_seed={number}")
    monkeypatch.setattr(portfolio, "NUM_FILES", 2)
    monkeypatch.setenv(PORTFOLIO_VARIABLE, str(tmp_path))
    return X.double().squeeze(-2), -Y.double().flatten()


def test_values_are_the_posterior_mean(data: tuple[Tensor, Tensor]) -> None:
    X, y = data
    gp = portfolio.unfitted(X, y)
    gp.covar_module.lengthscale = torch.tensor(portfolio.LENGTHSCALES)
    gp.likelihood.noise = portfolio.NOISE_VARIANCE
    gp.mean_module.constant.data.fill_(portfolio.CONSTANT_MEAN)
    at = torch.rand(3, 4, 5, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = gp.posterior(at).mean.squeeze(-1)
    torch.testing.assert_close(PortfolioNormal()(at), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_expectations_against_simpson(cls, data) -> None:
    """Over both contexts at once, on a grid, with the atoms of clipped contexts."""
    problem = cls()
    grid = np.linspace(0.0, 1.0, 201)
    masses = integrate.simpson(np.eye(201), x=grid, axis=-1)
    if cls is PortfolioNormal:
        normal = stats.norm(0.5, 0.2)
        masses = masses * normal.pdf(grid)
        masses[[0, -1]] += normal.cdf(0.0)
    contexts = torch.cartesian_prod(*[torch.from_numpy(grid)] * 2)
    weights = torch.from_numpy(np.outer(masses, masses).ravel())
    x = torch.tensor([0.3, 0.9, 0.5], dtype=torch.double)
    values = problem(torch.cat([x.expand(len(contexts), -1), contexts], dim=-1))
    found = problem.evaluate_stochastic(x).item()
    assert found == pytest.approx(float(values @ weights), rel=1e-7)


@pytest.mark.parametrize("cls", PROBLEMS)
def test_contexts(cls, data) -> None:
    contexts = cls().sample_contexts(20_000, torch.Generator().manual_seed(0))
    assert ((contexts >= 0) & (contexts <= 1)).all()
    atoms = ((contexts == 0.0) | (contexts == 1.0)).double().mean().item()
    # Two of 0.0062, with four standard errors of a frequency of 40,000.
    expected = 2 * stats.norm.cdf(-2.5) if cls is PortfolioNormal else 0.0
    assert atoms == pytest.approx(expected, abs=4 * (expected / 40_000) ** 0.5)
    deviation = 0.2 if cls is PortfolioNormal else 12**-0.5
    # Clipping takes 1 % off the deviation of the normal ones.
    assert contexts.std().item() == pytest.approx(deviation, rel=0.02)


def test_the_missing_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORTFOLIO_VARIABLE, raising=False)
    with pytest.raises(OSError, match=PORTFOLIO_VARIABLE):
        PortfolioNormal()


def test_a_replicate(data) -> None:
    task = get_suite("robust_further").problems[1]
    assert task.name == "portfolio_uniform"
    short = replace(task, num_rounds=3, num_initial=2)
    result = replicate(short, Scripted(path=(0.2, 0.8)), seed=0)
    assert np.array(result.X).shape == (5, 5)
    regret = trace(result, "regret")
    assert trace(result, "cumulative_regret") == pytest.approx(np.cumsum(regret))


@pytest.mark.skipif(PORTFOLIO_VARIABLE not in os.environ, reason="no published evaluations")
@pytest.mark.parametrize("cls", PROBLEMS)
def test_the_optimum_of_the_published_evaluations(cls) -> None:
    problem = cls()
    X = torch.rand(20_000, 3, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    found = problem.evaluate_stochastic(X).max().item()
    best = problem.evaluate_stochastic(problem.stochastic_optimizer).item()
    assert best == pytest.approx(problem.stochastic_optimal_value, abs=1e-6)
    assert found <= best + 1e-9
