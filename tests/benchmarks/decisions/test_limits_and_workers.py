"""Several limits and workers: with one of each, the loop is the usual one; decisions stay exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.decisions import limits_and_workers
from benchmarks.decisions import replicate as loop
from benchmarks.decisions.limits_and_workers import METHODS, FurtherReplicate, FurtherTask
from benchmarks.decisions.methods import Budgeted, GaussianQuantile
from benchmarks.decisions.replicate import DecisionMethod
from benchmarks.decisions.tasks import DecisionTask, cube
from botorch_calib import ChanceConstraint
from botorch_calib.decisions.rows import decision_of
from tests.long_grids import mostly_slow

TASKS = {task.name: task for task in limits_and_workers.tasks()}
BY_NAME = {method.name: method for method in METHODS}
LOOPS = [("budget", Budgeted("budget")), ("wide", GaussianQuantile("wide", factor=1.5))]


def short(name: str, num_rounds: int) -> FurtherTask:
    return replace(TASKS[name], num_rounds=num_rounds)


@pytest.mark.parametrize(
    ("method", "single"),
    mostly_slow(LOOPS, LOOPS[:1]),
)
def test_one_limit_and_one_worker_are_the_loop_of_the_other_suites(
    method: str, single: DecisionMethod
) -> None:
    task = short("dixon_price_start_5", num_rounds=8)
    (outcome,) = task.outcome.parts
    fields = {**vars(task), "outcome": outcome}
    del fields["workers"]
    expected = loop.replicate(DecisionTask(**fields), single, seed=3)
    result = limits_and_workers.replicate(task, BY_NAME[method], seed=3)
    assert result.X == expected.X
    assert result.y == expected.y
    for name in ("certified", "violated", "recommended_value", "best_value"):
        assert result.extras[name] == expected.extras[name]
    for name in ("probability", "recommended_probability"):
        assert result.extras[name] == pytest.approx(expected.extras[name], abs=1e-12)
    # Outcomes minus quantiles.
    beyond = np.subtract(*(np.array(expected.extras[k], float) for k in ("outcome", "quantile")))
    assert result.extras["outcome"] == pytest.approx(beyond.tolist(), abs=1e-9)


def test_violations_of_any_limit_by_simulation() -> None:
    outcome = TASKS["levy_both"].outcome
    U = cube(5, 4, seed=1)
    torch.manual_seed(0)
    limits = torch.tensor([part.limit for part in outcome.parts], dtype=torch.double)
    num = 20000
    violated = (outcome.observe(U.repeat(num, 1), 0.0) > limits).any(dim=-1).view(num, 4)
    expected = outcome.violation_probability(U, 0.0).squeeze(-1)
    # Four standard errors, each at most 0.5 / sqrt(20000).
    assert torch.allclose(violated.double().mean(dim=0), expected, atol=4 * 0.5 / num**0.5)
    assert torch.equal(outcome.safe(U, 0.0), expected <= 0.1)


class Watched(FurtherReplicate):
    """Records the number of running evaluations, and the order in which they ended."""

    def __init__(self, task: FurtherTask, seed: int) -> None:
        super().__init__(task, limits_and_workers.JointBudget("budget"), seed)
        self.num_out: list[int] = []
        self.ended: list[int] = []

    def propose(self, model: loop.Round) -> torch.Tensor:
        self.num_out.append(len(self.out))
        return super().propose(model)

    def _arrive(self) -> None:
        self.ended.append(min(self.out).step)
        assert min(self.out).end >= self.now
        super()._arrive()

    def points(self) -> list[list[float]]:
        """Points in the order of their decisions."""
        arrived = self.X[self.problem.num_initial :].tolist()
        return [arrived[self.ended.index(step)] for step in range(len(arrived))]


@pytest.mark.slow
def test_outcomes_come_late_and_the_account_stays_exact() -> None:
    replicate = Watched(short("levy_both", num_rounds=12), seed=5)
    result = replicate.run()
    assert replicate.num_out == [0, 1, 2] + [3] * 9
    assert sorted(replicate.ended) == list(range(12))
    assert replicate.ended != sorted(replicate.ended)  # out of order
    constraint = replicate.constraint
    assert constraint is not None
    # Decisions keep their order, each with its own outcomes.
    rows = constraint.decisions
    flags = [row["certified"] for row in rows]
    assert flags == [bool(flag) for flag in result.extras["certified"]]
    assert [row["point"] for row in rows] == replicate.points()
    assert constraint.num_observed == len(rows)
    violated = np.array(result.extras["violated"], dtype=bool)[flags]
    assert [decision_of(row).violated for row in rows if row["certified"]] == violated.tolist()
    assert violated.sum() <= constraint.violation_bound(sum(flags))
    # A constraint that is restored from rows is the same.
    again = ChanceConstraint(constraint.models, limits=constraint.limits, rows=rows)
    X = cube(5, 30, seed=2).unsqueeze(-2)
    assert torch.equal(constraint.margin(X), again.margin(X))
    assert constraint.budget_left == again.budget_left
