"""Suite `rivals`: its tabulated tasks, the clients at work, and the report."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.calibration import rivals, tuning_tables
from benchmarks.calibration.tuning_tables import SupportVectorTask, interpolated
from benchmarks.delay import value_tables
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.sequential import Problem, replicate, sobol_design

SMALL = partial(SupportVectorTask, log_c=(0.0, 1.0, 2.0), log_gamma=(-4.0, -2.0), num_images=60)


@pytest.fixture(autouse=True)
def tables_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the tables of the benchmarks themselves."""
    monkeypatch.setattr(value_tables, "TABLES_FOLDER", tmp_path / "tables")


def small_problem() -> Problem:
    """Four evaluations after five."""
    bounds = ((0.0, 2.0), (-4.0, -2.0))
    return Problem(
        name="small",
        build=partial(tuning_tables.tuning_oracle, task=SMALL),
        bounds=bounds,
        optimal_value=math.nan,
        initial_design=partial(sobol_design, bounds=bounds),
        num_initial=10,
        num_evaluations=2,
    )


# ------------------------------------------------------------ tasks


def test_interpolation_meets_the_grid_and_is_linear_between() -> None:
    table = interpolated(SMALL)
    choices = SMALL().choices()
    values = torch.stack([SMALL(seed=seed).compute() for seed in range(4)], dim=-1)
    means = values.mean(dim=-1)
    expected = (values - means.mean()) / means.std()
    torch.testing.assert_close(table.repetitions(choices), expected)
    torch.testing.assert_close(table.truth(choices).squeeze(-1), expected.mean(dim=-1))
    middle = table.repetitions(choices[:2].mean(dim=0, keepdim=True))
    torch.testing.assert_close(middle[0], expected[:2].mean(dim=0))


# ------------------------------------------------------------ clients


@pytest.mark.parametrize("method", rivals.methods(), ids=lambda method: method.name)
def test_clients_go_on_from_the_same_trials(method: Any) -> None:
    if "optuna" in method.name:
        pytest.importorskip("optuna_integration")
    if method.name.startswith("ax"):
        pytest.importorskip("ax")
    if "cqr" in method.name and rivals.INTERPRETER not in os.environ:
        pytest.skip(f"{rivals.INTERPRETER} names no interpreter.")
    problem = small_problem()
    with without_expected_warnings():
        result = replicate(problem, method, 1000)
    initial = problem.initial_design(10, 1000).tolist()
    assert result.X[:10] == initial
    lower, upper = problem.bounds_tensor()
    found = torch.tensor(result.X[10:], dtype=torch.double)
    assert ((lower <= found) & (found <= upper)).all() and len(found) == 2
    if method.name.startswith("ax"):
        # Ax's first trial is the centre of the box, without a model.
        assert result.extras["pit"][0] is None and result.extras["covered"][0] is None
        pit = result.extras["pit"][1]
        assert pit is not None and result.extras["covered"][1] == float(0.1 <= pit <= 0.9)


# ------------------------------------------------------------ the report
