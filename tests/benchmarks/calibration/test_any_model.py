"""The models of suite `any_model`, their forecasts, and the report."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.calibration import any_model, misspecified
from benchmarks.calibration.any_model import FORECASTERS, STATEMENTS
from benchmarks.calibration.any_model_report import LEVELS, CentralError, Coverage, error_of_chance
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.sequential import Problem
from tests.benchmarks.made_up_results import result_with

PROBLEM = misspecified.misspecified("six_hump_camel", "heteroscedastic")


def data(n: int = 12) -> tuple[Tensor, Tensor]:
    """Points of the problem's box, and values of a smooth function."""
    bounds = PROBLEM.bounds_tensor()
    generator = torch.Generator().manual_seed(0)
    U = torch.rand(n, 2, generator=generator, dtype=torch.double)
    X = bounds[0] + (bounds[1] - bounds[0]) * U
    return X, 10.0 + 3.0 * (3.0 * U[:, :1]).sin() + U[:, 1:]


def short(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """A run of seven evaluations, the last two of which are scored."""
    monkeypatch.setattr(any_model, "NUM_JUDGED", 2)
    return replace(problem, num_evaluations=7)


# ------------------------------------------------------------ runs


def test_a_plain_statement_is_the_prediction_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prediction is computed by hand from logarithms."""
    problem = short(PROBLEM, monkeypatch)
    strategy = any_model.ForecastStrategy(problem, 0, FORECASTERS["log"])
    X, Y = data(12)
    Y = Y - Y.max() + problem.optimal_value
    with without_expected_warnings():
        strategy.fit(X[:10], Y[:10])
        gp: Any = strategy.stated["plain"].model
        found = strategy.extras(None, X[10:11], Y[10:11])
    objective: Any = problem.build
    loss = problem.optimal_value + objective.landscape.spread() - Y
    with torch.no_grad():
        logs = gp.outcome_transform["standardize"](loss[10:11].log())[0]
        inner = gp.likelihood(gp(gp.transform_inputs(X[10:11])))
        z = (logs.squeeze() - inner.mean.squeeze()) / inner.variance.squeeze().sqrt()
    assert found["pit_plain"] == pytest.approx(float(torch.special.ndtr(z)), rel=1e-9)


# ------------------------------------------------------------ report


def with_pits(pits: list[float]) -> Result:
    """A run in which all forecasts have these PITs."""
    extras: dict[str, Any] = {f"pit_{name}": pits for name in STATEMENTS}
    extras |= {
        f"{size}_{name}": [2.0] * len(pits) for size in ("width", "loss") for name in STATEMENTS
    }
    times = {"fit_seconds": [1.0], "acquisition_seconds": [0.5]}
    return result_with("problem", "default", 0, extras=extras, versions={"python": "3"}, **times)


def test_coverage_and_error_by_hand() -> None:
    pits = [0.06, 0.21, 0.5, 0.97]
    result = with_pits(pits)
    assert Coverage("plain")(result) == 0.5
    assert Coverage("plain", 0.95)(result) == 1.0
    shares = [sum(abs(pit - 0.5) <= level / 2 for pit in pits) / 4 for level in LEVELS]
    expected = np.mean(np.abs(np.subtract(shares, LEVELS)))
    assert CentralError("plain")(result) == pytest.approx(expected)


def test_error_of_chance_is_that_of_uniform_pits() -> None:
    rng = np.random.default_rng(0)
    errors = [CentralError("plain")(with_pits(rng.random(20).tolist())) for _ in range(500)]
    # Four standard errors of the mean.
    tolerance = float(4 * np.std(errors) / math.sqrt(len(errors)))
    assert np.mean(errors) == pytest.approx(error_of_chance(20), abs=tolerance)
