"""True probabilities and quantiles of limited outcomes, by counting, and the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.decisions.faults_and_small_sets import FAULTS, SMALL_SETS, tasks
from benchmarks.decisions.oracle import Oracle
from benchmarks.decisions.replicate import replicate
from benchmarks.decisions.tasks import CASES as DECISION_CASES
from benchmarks.decisions.tasks import DecisionTask, Search
from benchmarks.framework.runner import without_expected_warnings
from tests.long_grids import mostly_slow

HETEROSCEDASTIC = {"heteroscedastic": DECISION_CASES["heteroscedastic"]}
CASES = FAULTS | SMALL_SETS | HETEROSCEDASTIC
TASKS = {task.name: task for task in tasks(CASES)}
ORACLE = Oracle("oracle")


def short(name: str, num_rounds: int) -> DecisionTask:
    return replace(TASKS[name], num_rounds=num_rounds, search=Search(num_global=64, num_local=32))


def uniform(num: int, dim: int, seed: int = 0) -> Tensor:
    with manual_seed(seed):
        return torch.rand(num, dim, dtype=torch.double)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("time", [0.2, 1.0])
def test_truth_by_counting(case: str, time: float) -> None:
    outcome, num = TASKS[f"levy_{case}"].outcome, 40000
    # Random points, and the points closest to the border.
    many = uniform(2000, outcome.surface.dim, seed=3)
    border = outcome.room(many, time).abs().squeeze(-1).topk(2, largest=False).indices
    for u in torch.cat([many[:2], many[border]]):
        U = u.expand(num, -1)
        with manual_seed(4):
            observed = outcome.observe(U, time)
        probability = outcome.violation_probability(U[:1], time).item()
        # Four standard errors.
        tolerance = 4 * (0.25 / num) ** 0.5
        counted = float((observed > outcome.limit).double().mean())
        assert counted == pytest.approx(probability, abs=tolerance)
        quantile = outcome.quantile(U[:1], time)
        # On a grid, many outcomes are equal to the quantile.
        tolerance = 4 * (0.09 / num) ** 0.5
        assert float((observed > quantile).double().mean()) <= 0.1 + tolerance
        assert float((observed >= quantile).double().mean()) >= 0.1 - tolerance
        safe = probability <= 0.1
        assert outcome.safe(U[:1], time).item() == safe
        assert (outcome.room(U[:1], time).item() >= 0.0) == safe


@pytest.mark.parametrize(
    "case",
    mostly_slow(["student_t", "jump", "outliers", "trend", "grid", "tenth"], ["student_t", "jump"]),
)
def test_the_oracle_certifies_what_is_truly_safe_at_the_time(case: str) -> None:
    task = short(f"levy_{case}", num_rounds=4)
    with without_expected_warnings():
        result = replicate(task, ORACLE, 1)
    assert result.extras["certified"] == [1.0] * 4
    probabilities = [p for p in result.extras["probability"] if p is not None]
    assert max(probabilities) <= 0.1
    # The recorded quantile is for the time of the round.
    for i, x in enumerate(torch.tensor(result.X[-4:], dtype=torch.double)):
        room = task.outcome.room(x.unsqueeze(0), (i + 1) / 4).item()
        assert result.extras["quantile"][i] == pytest.approx(task.outcome.limit - room)
    (recommended,) = result.extras["recommended_probability"]
    assert recommended is not None and recommended <= 0.1
