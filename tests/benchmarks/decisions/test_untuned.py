"""The tasks on which nothing was tuned: what is true of them by counting, and the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.decisions.oracle import Oracle, RightProcess
from benchmarks.decisions.replicate import replicate
from benchmarks.decisions.tasks import DecisionTask, Search
from benchmarks.decisions.untuned import FAULTS, SMALL_SETS, tasks
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.surrogates import Fixed
from tests.benchmarks.decisions.test_replicate import without_times

CASES = FAULTS | SMALL_SETS
TASKS = {task.name: task for task in tasks(CASES)}
SHARES = {"quarter": 0.25, "tenth": 0.1}
ORACLE = Oracle("oracle")


def short(name: str, num_rounds: int) -> DecisionTask:
    return replace(TASKS[name], num_rounds=num_rounds, search=Search(num_global=64, num_local=32))


def uniform(num: int, dim: int, seed: int = 0) -> Tensor:
    with manual_seed(seed):
        return torch.rand(num, dim, dtype=torch.double)


@pytest.mark.parametrize("name", TASKS)
def test_the_stated_share_of_the_box_is_safe_and_the_limit_binds(name: str) -> None:
    task = TASKS[name]
    U = uniform(20000, task.dim, seed=1)
    expected = SHARES.get(name.rsplit("_", 1)[1], 0.5)
    share = float(task.outcome.safe(U, time=0.5).double().mean())
    assert share == pytest.approx(expected, abs=0.02)
    later = float(task.outcome.safe(U, time=1.0).double().mean())
    assert (later < share - 0.02) if name.endswith(("jump", "trend")) else later == share
    # The optimum is lost to the limit, and the best safe point lies on the border.
    point = task.best_safe_point()
    assert task.objective(point).item() < float(task.objective(U).max()) - 0.2
    assert 0.0 <= task.outcome.room(point, time=1.0).item() < 0.02


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("time", [0.2, 1.0])
def test_truth_by_counting(case: str, time: float) -> None:
    outcome, num = TASKS[f"levy_{case}"].outcome, 40000
    # Points of all kinds, and those closest to the border.
    many = uniform(2000, 3, seed=3)
    border = outcome.room(many, time).abs().squeeze(-1).topk(2, largest=False).indices
    for u in torch.cat([many[:2], many[border]]):
        U = u.expand(num, 3)
        with manual_seed(4):
            observed = outcome.observe(U, time)
        probability = outcome.violation_probability(U[:1], time).item()
        # Four standard errors.
        tolerance = 4 * (0.25 / num) ** 0.5
        counted = float((observed > outcome.limit).double().mean())
        assert counted == pytest.approx(probability, abs=tolerance)
        quantile = outcome.quantile(U[:1], time)
        # Of outcomes on a grid many are equal to the quantile.
        tolerance = 4 * (0.09 / num) ** 0.5
        assert float((observed > quantile).double().mean()) <= 0.1 + tolerance
        assert float((observed >= quantile).double().mean()) >= 0.1 - tolerance
        safe = probability <= 0.1
        assert outcome.safe(U[:1], time).item() == safe
        assert (outcome.room(U[:1], time).item() >= 0.0) == safe


def test_outcomes_on_a_grid_may_reach_the_limit() -> None:
    outcome = TASKS["levy_grid"].outcome
    assert outcome.grid == 0.5
    with manual_seed(0):
        observed = outcome.observe(uniform(1000, 3), time=0.5)
    steps = (observed - outcome.limit) / 0.5
    assert torch.allclose(steps, steps.round(), atol=1e-12)
    # Rounded to the nearest value; the limit itself is one of them, to the last bit.
    smooth = replace(outcome, grid=None)
    with manual_seed(0):
        assert (observed - smooth.observe(uniform(1000, 3), time=0.5)).abs().max() <= 0.25 + 1e-12
    assert (observed == outcome.limit).double().mean() > 0.05


def test_the_jump_comes_after_half_time() -> None:
    outcome, U = TASKS["levy_jump"].outcome, uniform(5, 3)
    means = [outcome.quantile(U, time) for time in (0.0, 0.5, 0.51, 1.0)]
    assert torch.equal(means[0], means[1])
    assert torch.equal(means[2], means[3])
    assert torch.allclose(means[2] - means[1], torch.full_like(means[0], 0.6))


@pytest.mark.parametrize("case", ["student_t", "jump", "outliers", "trend", "grid", "tenth"])
def test_the_oracle_certifies_what_is_truly_safe_at_the_time(case: str) -> None:
    task = short(f"levy_{case}", num_rounds=4)
    with without_expected_warnings():
        result = replicate(task, ORACLE, 1)
    assert result.extras["certified"] == [1.0] * 4
    probabilities = [p for p in result.extras["probability"] if p is not None]
    assert max(probabilities) <= 0.1
    # The quantile that is recorded is that of the round's own time.
    for i, x in enumerate(torch.tensor(result.X[-4:], dtype=torch.double)):
        room = task.outcome.room(x.unsqueeze(0), (i + 1) / 4).item()
        assert result.extras["quantile"][i] == pytest.approx(task.outcome.limit - room)
    (recommended,) = result.extras["recommended_probability"]
    assert recommended is not None and recommended <= 0.1


def test_the_oracle_certifies_all_that_is_safe() -> None:
    task = TASKS["dixon_price_trend"]
    X = uniform(60, task.dim, seed=5)
    with manual_seed(6):
        Y = task.outcome.observe(X, time=0.0)
    bounds = torch.tensor([[0.0] * task.dim, [1.0] * task.dim], dtype=torch.double)
    gp = ORACLE.surrogate(task.surrogate)(X, Y, bounds, 0, None)
    certifier = ORACLE.start(task.outcome)
    U = uniform(500, task.dim, seed=7)
    for time in (0.0, 0.7):
        certified = certifier.constraint(gp, time).certified(U.unsqueeze(-2))
        assert torch.equal(certified, task.outcome.safe(U, time))
        assert 0.2 < certified.double().mean() < 0.8


def test_the_right_process_has_the_hyperparameters_before_the_fault() -> None:
    task = TASKS["levy_quarter"]
    X, bounds = uniform(20, task.dim, seed=5), torch.tensor([[0.0] * 3, [1.0] * 3]).double()
    Y = task.outcome.observe(X, time=0.0)
    given = task.surrogate
    assert isinstance(given, Fixed)
    wrong, right = (
        surrogate(X, Y, bounds, 0, None)
        for surrogate in (given, RightProcess("right").surrogate(given))
    )
    assert wrong.likelihood.noise.item() == pytest.approx(0.1 * right.likelihood.noise.item())
    assert torch.equal(right.likelihood.noise, given.template().likelihood.noise)


@pytest.mark.parametrize("name", ["dixon_price_grid", "levy_quarter"])
def test_what_knows_the_truth_runs_and_is_reproducible(name: str) -> None:
    for method in (ORACLE, RightProcess("right")):
        with without_expected_warnings():
            first, again = (replicate(short(name, 2), method, 3) for _ in range(2))
        assert without_times(first) == without_times(again)
        assert len(first.extras["certified"]) == 2
