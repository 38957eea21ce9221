"""Decisions stored with trials make the constraint that has taken them."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP
from botorch.models.transforms.outcome import Bilog
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, ChanceConstraint
from botorch_calib.calibration import NoCalibration
from botorch_calib.decisions.chance_constrained_search import (
    LeastMargin,
    Place,
    best_certified,
)
from botorch_calib.decisions.rows import DecisionAccount
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.integrations import _stored as stored_decisions
from botorch_calib.integrations._stored import best, constraint_of, trials_in_table
from botorch_calib.models.outcome_transforms import train_data

pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
LIMITS = {"y": (None, 0.6), "z": (-0.6, 0.6)}


def data(num: int, seed: int, spread: float = 0.2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 1, generator=generator, dtype=torch.double)
    noise = spread * torch.randn(num, 2, generator=generator, dtype=torch.double)
    return X, torch.cat([X - 0.5, 0.5 - X], dim=-1) + noise


def models() -> dict[str, Any]:
    X, Y = data(10, 0)
    noise = torch.full_like(Y[:, :1], 0.04)
    return {
        name: SingleTaskGP(X, y, noise, outcome_transform=None).eval()
        for name, y in zip(LIMITS, Y.split(1, dim=-1), strict=True)
    }


Stored = list[tuple[Any, dict[str, float]]]
NUM_OUT = 4


def carried() -> tuple[ChanceConstraint, Stored]:
    """A constraint after 20 decisions, and the rows that a client stores."""
    constraint = ChanceConstraint(models(), limits=LIMITS, level=0.8)
    X, Y = data(20, 1, spread=0.6)  # more than the models know of
    trials: Stored = []
    for x, y in zip(X.split(1), Y.split(1), strict=True):
        (row,) = constraint.decide(x)
        came = {}
        if len(trials) < 20 - NUM_OUT:
            constraint.observe(x, y, condition=False)
            came = dict(zip(LIMITS, y[0].tolist(), strict=True))
        trials.append((json.loads(json.dumps(row)), came))
    return constraint, trials


def account_of(trials: Stored) -> DecisionAccount:
    return stored_decisions.account_of(LIMITS, 0.8, 10.0, trials)


def test_the_constraint_is_the_one_that_was_carried() -> None:
    made, trials = carried()
    account = account_of(trials)
    again = constraint_of(account, models())
    assert made.decisions == again.decisions == account.decisions
    x = data(5, 2)[0].unsqueeze(-2)
    assert torch.equal(made.margin(x), again.margin(x))
    assert made.budget_left == again.budget_left == account.budget_left
    T, V, out, *_ = account.account
    assert 0 < V < T and out == sum(row["certified"] for row, _ in trials[20 - NUM_OUT :])
    assert f"{T} of 20 decisions were certified: {V} of these violated" in account.summary()


def test_decisions_count_whatever_inputs_the_client_has_by_now() -> None:
    _, trials = carried()
    wider = [({**row, "point": [*row["point"], 0.5]}, came) for row, came in trials[:10]]
    each = (account_of([*first, *trials[10:]]) for first in (wider, trials[:10]))
    now, before = (constraint_of(account, models()) for account in each)
    assert now.account == before.account and now.budget_left == before.budget_left
    assert now.decisions[10:] == before.decisions[10:] and now.decisions[0]["point"] == []


def test_an_ensemble_learns_beside_what_is_pending() -> None:
    """The members share all inputs, including pending points."""
    X, Y = data(6, 0)
    gp = SaasFullyBayesianSingleTaskGP(X, Y[:, :1], torch.full_like(Y[:, :1], 1e-4))
    ones = torch.ones(4, dtype=torch.double)
    samples = {"mean": 0.0 * ones, "outputscale": ones, "lengthscale": 0.05 * ones.view(4, 1, 1)}
    gp.load_mcmc_samples(samples)
    constraint = ChanceConstraint(gp, upper=-9.0)
    place = Place(torch.tensor([[0.0], [1.0]], dtype=torch.double), num_restarts=2, raw_samples=32)

    def search(under: ChanceConstraint) -> tuple[Tensor, bool]:
        margin = LeastMargin(under)
        return best_certified(margin.promise, margin, place)

    first, certified = best(search, constraint, None)
    second, _ = best(search, constraint, first)
    assert not certified and (second - first).abs() > 0.01


def test_a_search_beside_pending_points_under_a_nonlinear_outcome_transform() -> None:
    X, Y = data(6, 0)
    gp = SingleTaskGP(X, Y[:, :1], outcome_transform=Bilog())
    found: list[Any] = []

    def search(under: ChanceConstraint) -> tuple[Tensor, bool]:
        found.append(*under.models.values())
        return X[:1], False

    best(search, ChanceConstraint(gp, upper=-9.0), X[1:3])
    expected = CalibratedModel(gp, NoCalibration()).posterior(X[1:3]).mean
    assert_close(train_data(found[1])[1][-2:], expected.detach())


def test_outcomes_that_are_no_numbers_or_infinite() -> None:
    """NaN is a pending outcome; an infinite one is far beyond the limits."""
    _, trials = carried()
    certified = next(i for i, (row, _) in enumerate(trials) if row["certified"])
    accounts = []
    for y in (float("nan"), 100.0, float("inf"), -100.0, -float("inf")):
        trials[certified] = trials[certified][0], {"y": y, "z": 0.0}
        accounts.append(constraint_of(account_of(trials), models()).account)
    assert accounts[0].num_outstanding == accounts[1].num_outstanding + 1
    assert accounts[1] == accounts[2] != accounts[3] == accounts[4]


def test_damaged_decisions_are_left_out() -> None:
    """So are decisions that were never stored."""
    _, trials = carried()
    damages: list[Callable[[Any], Any]] = [
        lambda row: row.clear(),
        lambda row: row.pop("limits"),
        lambda row: row.pop("certified"),
        lambda row: row.update(level=None),
        lambda row: row.update(quantiles=[]),
        lambda row: row["quantiles"].pop("y"),
        lambda row: row["quantiles"]["z"].pop(),
        lambda row: row["limits"].update(y=[]),
    ]
    for damage in damages:
        damaged = deepcopy(trials)
        damage(damaged[3][0])
        with pytest.warns(CalibrationWarning, match="1 of 20 decisions"):
            account = account_of(damaged)
        assert constraint_of(account, models()).num_decisions == 19


class TestTables:
    def decisions(self, points: list[list[float]]) -> list[dict[str, Any]]:
        """Decisions taken when the table had a line at (0.1, 0.2)."""
        inputs = [dict(zip("ab", point, strict=True)) for point in points]
        return [{"inputs": each, "earlier": int(each["a"] == 0.1)} for each in inputs]

    def table(self, rows: list[list[float]]) -> tuple[pd.DataFrame, pd.DataFrame]:
        inputs = pd.DataFrame(rows, columns=["a", "b"])
        return inputs, pd.DataFrame({"y": [float(i) for i in range(len(rows))]})

    def test_rows_belong_to_the_decisions_about_their_inputs(self) -> None:
        """In any order; a line counts once, and not if it is older than the decision."""
        points = [[0.1, 0.2], [0.3, 0.4], [0.1, 0.2], [0.5, 0.6]]
        inputs, outcomes = self.table([[0.1, 0.2], [0.3, 0.4], [0.1, 0.2 + 1e-11], [0.1, 0.2]])
        trials = trials_in_table(self.decisions(points), inputs, outcomes)
        assert [came.get("y") for _, came in trials] == [3.0, 1.0, 2.0, None]
        assert [row["point"] for row, _ in trials] == points
        assert not any(row["beyond"] for row, _ in trials)
        outcomes["y_beyond"] = [1.0, float("nan"), -1.0, 0.0]
        trials = trials_in_table(self.decisions(points), inputs, outcomes)
        assert [row["beyond"] for row, _ in trials] == [{}, {}, {"y": -1.0}, {}]
        outcomes["y_beyond"] = [1.0, None, 24.0, 0.0]
        with pytest.raises(InputDataError, match="Column `y_beyond` must hold 1, -1, 0"):
            trials_in_table(self.decisions(points), inputs, outcomes)

    def test_small_units(self) -> None:
        """Charges in coulombs differ by less than the rounding in files."""
        points = [[1e-11, 0.0], [2e-11, 0.0], [3e-11, 0.0]]
        inputs, outcomes = self.table([[0.0, 0.0], *points[::-1]])
        trials = trials_in_table(self.decisions(points), inputs, outcomes)
        assert [came["y"] for _, came in trials] == [3.0, 2.0, 1.0]

    def test_inputs_are_known_by_their_names(self) -> None:
        inputs, outcomes = self.table([[0.0, 0.0], [0.3, 0.2]])
        decisions = self.decisions([[0.3, 0.2]])
        ((row, came),) = trials_in_table(decisions, inputs[["b", "a"]], outcomes)
        assert came == {"y": 1.0} and row["point"] == [0.2, 0.3]
        with pytest.raises(InputDataError, match="are about the inputs.* other `books`"):
            trials_in_table(decisions, inputs[["b"]], outcomes)

    def test_what_was_withdrawn_and_run_all_the_same(self) -> None:
        """It counts even without an id. Other decisions are matched first."""
        first, second = self.decisions([[0.3, 0.4], [0.3, 0.4]])
        trials = [{**first, "withdrawn": True}, second]
        for num in range(3):
            inputs, outcomes = self.table(num * [[0.3, 0.4]])
            found = [came.get("y") for _, came in trials_in_table(trials, inputs, outcomes)]
            assert found == [[None], [0.0], [1.0, 0.0]][num]
