"""Suite `real_limits`: what is true of its tables by counting, and what its rules state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from botorch.utils.sampling import manual_seed

from benchmarks.decisions.oracle import Oracle
from benchmarks.decisions.real_limits import MOST_WEIGHT, TASKS, RealReplicate, replicate, table
from benchmarks.decisions.real_tables import FILE
from benchmarks.decisions.suites import REAL
from benchmarks.decisions.usual_rules import MeanLimit, NoiseFreeBound
from benchmarks.framework.runner import without_expected_warnings
from tests.benchmarks.decisions.test_replicate import without_times

PORTFOLIO = next(task for task in TASKS if task.in_order)
METHODS = {method.name: method for method in REAL.methods}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: str(task.name))
def test_limits_split_the_settings_and_bind(task) -> None:
    U, outcomes, objectives = table(task.outcome.name)
    assert outcomes.shape == objectives.shape
    assert len(U) == len(outcomes) == 128
    probability = (outcomes > task.outcome.limit).double().mean(dim=-1)
    torch.testing.assert_close(task.outcome.violation_probability(U, 1.0).squeeze(-1), probability)
    safe = probability <= 0.1 + 1e-12
    assert torch.equal(task.outcome.room(U, 1.0).squeeze(-1) >= 0.0, safe)
    assert 0.1 <= safe.double().mean() <= 0.9
    values = task.objective(U).squeeze(-1)
    torch.testing.assert_close(values.mean(), values.new_zeros(()), atol=1e-9, rtol=0.0)
    torch.testing.assert_close(values.std(), values.new_ones(()))
    best = task.best_safe_point()
    torch.testing.assert_close(task.objective(best).item(), values[safe].max().item())
    assert values[~safe].max() > values[safe].max()


def test_months_follow_each_other() -> None:
    run = RealReplicate(PORTFOLIO, METHODS["plain"], seed=3)
    x = run.X[:1]
    with np.load(FILE) as file:
        months = torch.as_tensor(file["portfolio"]).double()
    gains = [-(MOST_WEIGHT * x @ months[run.first + 15 + t]).item() for t in range(4)]
    seen = [run._observe(x, step=t + 1, time=0.0)[1].item() for t in range(4)]
    np.testing.assert_allclose(seen, gains, rtol=1e-6)
    # The first ones come before them, one at each of the first settings.
    first = -(MOST_WEIGHT * run.X * months[run.first : run.first + 15]).sum(dim=-1)
    torch.testing.assert_close(run.outcomes.squeeze(-1), first, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["budget", "mean_limit", "safe_ucb"])
def test_replicates_are_deterministic_and_stay_in_the_table(name: str) -> None:
    task = replace(TASKS[0], num_rounds=3)
    with without_expected_warnings():
        runs = [replicate(task, METHODS[name], seed=2) for _ in range(2)]
    assert without_times(runs[0]) == without_times(runs[1])
    chosen = [tuple(x) for x in runs[0].X]
    assert set(chosen) <= {tuple(x) for x in table(task.outcome.name).settings.tolist()}
    assert len(set(chosen[:15])) == 15


def test_all_methods_meet_the_same_noise() -> None:
    task = replace(TASKS[0], num_rounds=2)
    first, second = (RealReplicate(task, METHODS[m], seed=5) for m in ("plain", "safe_ucb"))
    torch.testing.assert_close(first.X, second.X)
    torch.testing.assert_close(first.outcomes, second.outcomes)
    x = first.X[:1]
    torch.testing.assert_close(first._observe(x, 1, 0.5), second._observe(x, 1, 0.5))


def test_the_usual_rules_state_bounds_on_the_noise_free_outcome() -> None:
    task = TASKS[0]
    run = RealReplicate(task, METHODS["plain"], seed=2)
    with without_expected_warnings(), manual_seed(0):
        gp = task.surrogate(run.X, run.outcomes, run.bounds, 0, None)
    settings = table(task.outcome.name).settings.unsqueeze(-2)
    posterior = gp.posterior(settings)
    for method in (MeanLimit("mean"), NoiseFreeBound("bound", deviations=2.0)):
        margin = method.start(task.outcome).constraint(gp).margin(settings)
        expected = posterior.mean + method.deviations * posterior.variance.sqrt()
        torch.testing.assert_close(margin, task.outcome.limit - expected[..., 0, 0])


def test_a_rule_that_certifies_nothing_relies_on_every_round() -> None:
    task = replace(TASKS[0], num_rounds=3)
    with without_expected_warnings():
        run = replicate(task, METHODS["mean_limit"], seed=2)
        knowing = replicate(task, Oracle("oracle"), seed=2)
    assert run.extras["certified"] == [1.0] * 3
    chosen = torch.tensor(knowing.X[15:], dtype=torch.double)
    certified = torch.tensor(knowing.extras["certified"]) > 0.5
    probability = task.outcome.violation_probability(chosen, 1.0).squeeze(-1)
    assert torch.equal(certified, probability <= 0.1)
