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
from torch import Tensor

from botorch_calib.decisions import joint_chance_constraints
from botorch_calib.decisions.chance_constrained_search import (
    LeastMargin,
    LeastOptimism,
    Place,
    best_certified,
)
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.integrations._stored_decisions import Books, DecidedTrial, trials_in_table

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


def carried(num_out: int = 0) -> tuple[Any, list[DecidedTrial]]:
    """Constraints that have decided about 20 points, and what a client stores of it."""
    made = joint_chance_constraints(list(models().values()), list(LIMITS.values()), level=0.8)
    X, Y = data(20, 1, spread=0.6)  # more than the models know of
    trials = []
    for i in range(20):
        made[0].commit(X[i : i + 1])
        stored = Books(LIMITS, 0.8).stored(made)
        is_out = i >= 20 - num_out
        came = dict(zip(LIMITS, Y[i].tolist(), strict=True))
        trials.append(
            DecidedTrial(X[i].tolist(), json.loads(json.dumps(stored)), {} if is_out else came)
        )
        if not is_out:
            for constraint, y in zip(made, Y[i], strict=True):
                constraint.observe(X[i : i + 1], y.reshape(1, 1), condition=False)
    return made, trials


@pytest.mark.parametrize("num_out", [0, 4])
def test_the_constraint_is_the_one_that_was_carried(num_out: int) -> None:
    made, trials = carried(num_out)
    books = Books(LIMITS, 0.8, trials=trials)
    again = books.constraints(models())
    for constraint, other in zip(made, again, strict=True):
        assert constraint.decisions == other.decisions
    x = data(5, 2)[0].unsqueeze(-2)
    assert torch.equal(made[0].margin(x), again[0].margin(x))
    assert made[0].budget_left == again[0].budget_left
    assert books.account == made[0]._account()
    T, V, out, *_ = books.account
    assert 0 < V < T and out == sum(t.decision["certified"] for t in trials[20 - num_out :])
    assert f"{T} of 20 decisions were certified: {V} of these violated" in str(books)


def test_decisions_count_whatever_inputs_the_client_has_by_now() -> None:
    _, trials = carried()
    wider = [trial._replace(point=[*trial.point, 0.5]) for trial in trials[:10]]
    books, then = (Books(LIMITS, 0.8, trials=known + trials[10:]) for known in (wider, trials[:10]))
    for now, before in zip(books.constraints(models()), then.constraints(models()), strict=True):
        assert now._account() == before._account() and now.budget_left == before.budget_left
        assert now.decisions[10:] == before.decisions[10:] and now.decisions[0]["point"] == []


def test_an_outcome_is_judged_by_the_limits_of_then() -> None:
    """Wherever limits have moved, what violated them does, and what missed its quantile."""
    _, trials = carried()
    then = Books(LIMITS, 0.8, trials=trials)
    moved = Books({"y": (None, 5.0), "z": (-7.6, -6.5)}, 0.8, trials=trials)
    assert moved.account == then.account and then.account.num_violations > 0
    for record, other in zip(then.records("y"), moved.records("y"), strict=True):
        slack = 5.0 - other["quantiles"][0]
        assert slack == pytest.approx(0.6 - record["quantiles"][0])
    moved.constraints(models())  # its records are those of these limits
    # Limits that are closer together than outcomes were to the farther one.
    narrow = Books({"y": (None, 0.6), "z": (2.0, 2.1)}, 0.8, trials=trials)
    assert narrow.account == then.account
    narrow.constraints(models())


def test_other_statements_are_left_out() -> None:
    _, trials = carried()
    other: Any
    for other, level in (
        (LIMITS, 0.9),
        ({"y": (None, 0.6)}, 0.8),
        ({"y": (0.0, 0.6), "z": (-0.6, 0.6)}, 0.8),
    ):
        with pytest.warns(CalibrationWarning, match="20 of 20 trials"):
            books = Books(other, level, trials=trials)
        assert books.account == (0, 0, 0, 0.0, 0)
    with pytest.warns(CalibrationWarning, match="1 of 21 trials"):
        Books(LIMITS, 0.8, trials=[*trials, DecidedTrial([0.0], {}, {})])


def test_an_ensemble_learns_beside_what_is_pending() -> None:
    """Its members share their inputs, those of pending points included."""
    X, Y = data(6, 0)
    gp = SaasFullyBayesianSingleTaskGP(X, Y[:, :1], torch.full_like(Y[:, :1], 1e-4))
    ones = torch.ones(4, dtype=torch.double)
    samples = {"mean": 0.0 * ones, "outputscale": ones, "lengthscale": 0.05 * ones.view(4, 1, 1)}
    gp.load_mcmc_samples(samples)
    books = Books({"y": (None, -9.0)}, 0.8)
    constraints = books.constraints({"y": gp})
    place = Place(torch.tensor([[0.0], [1.0]], dtype=torch.double), num_restarts=2, raw_samples=32)

    def search(under: Any) -> tuple[Tensor, bool]:
        return best_certified(LeastOptimism(under), LeastMargin(under), place)

    first, certified = books.best(search, constraints, None)
    second, _ = books.best(search, constraints, first)
    assert not certified and (second - first).abs() > 0.01


def test_an_outcome_that_is_no_number_has_not_come() -> None:
    _, trials = carried()
    certified = next(i for i, t in enumerate(trials) if t.decision["certified"])
    trials[certified] = trials[certified]._replace(outcomes={"y": float("nan"), "z": 0.0})
    assert Books(LIMITS, 0.8, trials=trials).account.num_outstanding == 1


def test_an_infinite_outcome_is_one_far_beyond_the_limits() -> None:
    _, trials = carried()
    certified = next(i for i, t in enumerate(trials) if t.decision["certified"])
    for sign in (-1.0, 1.0):
        accounts = []
        for size in (100.0, float("inf")):
            trials[certified] = trials[certified]._replace(outcomes={"y": sign * size, "z": 0.0})
            books = Books(LIMITS, 0.8, trials=trials)
            books.constraints(models())  # which take finite outcomes
            accounts.append(books.account)
        assert accounts[0] == accounts[1]


def test_damaged_decisions_are_left_out() -> None:
    _, trials = carried()
    damages: list[Callable[[Any], Any]] = [
        lambda decision: decision.pop("outcomes"),
        lambda decision: decision.pop("certified"),
        lambda decision: decision.update(level=None),
        lambda decision: decision["outcomes"]["y"].pop("quantiles"),
        lambda decision: decision["outcomes"]["z"]["quantiles"].pop(),
        lambda decision: decision["outcomes"].update(y=[]),
    ]
    for damage in damages:
        damaged = deepcopy(trials)
        damage(damaged[3].decision)
        with pytest.warns(CalibrationWarning, match="1 of 20 trials"):
            books = Books(LIMITS, 0.8, trials=damaged)
        assert len(books.trials) == 19
        books.constraints(models())


class TestTables:
    def decisions(self, points: list[list[float]], after: int = 1) -> list[dict[str, Any]]:
        return [{"point": dict(zip("ab", point, strict=True)), "after": after} for point in points]

    def table(self, rows: list[list[float]]) -> tuple[pd.DataFrame, pd.DataFrame]:
        inputs = pd.DataFrame(rows, columns=["a", "b"])
        return inputs, pd.DataFrame({"y": [float(i) for i in range(len(rows))]})

    def test_rows_belong_to_the_decisions_about_their_inputs(self) -> None:
        """In any order, each row once, and none that was there before."""
        points = [[0.1, 0.2], [0.3, 0.4], [0.1, 0.2], [0.5, 0.6]]
        inputs, outcomes = self.table([[0.1, 0.2], [0.3, 0.4], [0.1, 0.2 + 1e-11], [0.1, 0.2]])
        trials = trials_in_table(self.decisions(points), inputs, outcomes)
        assert [trial.outcomes.get("y") for trial in trials] == [3.0, 1.0, 2.0, None]
        assert [trial.point for trial in trials] == points

    def test_small_units(self) -> None:
        """Charges in coulombs differ by less than files are rounded by."""
        points = [[1e-11, 0.0], [2e-11, 0.0], [3e-11, 0.0]]
        inputs, outcomes = self.table([[0.0, 0.0], *points[::-1]])
        trials = trials_in_table(self.decisions(points), inputs, outcomes)
        assert [trial.outcomes["y"] for trial in trials] == [3.0, 2.0, 1.0]

    def test_inputs_are_known_by_their_names(self) -> None:
        inputs, outcomes = self.table([[0.0, 0.0], [0.1, 0.2]])
        (trial,) = trials_in_table(self.decisions([[0.1, 0.2]]), inputs[["b", "a"]], outcomes)
        assert trial.outcomes == {"y": 1.0} and trial.point == [0.2, 0.1]
        with pytest.raises(InputDataError, match="are of the inputs"):
            trials_in_table(self.decisions([[0.1, 0.2]]), inputs[["b"]], outcomes)
