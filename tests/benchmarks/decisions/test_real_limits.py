"""Suite `real_limits`: true probabilities in its tables by counting, and its rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.utils.sampling import manual_seed

from benchmarks.decisions.real_limits import FILE, MOST_WEIGHT, TASKS, RealReplicate, table
from benchmarks.decisions.suites import REAL
from benchmarks.decisions.usual_rules import MeanLimit, NoiseFreeBound
from benchmarks.framework.runner import without_expected_warnings

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
    # The initial settings use the repetitions before these, one at each setting.
    first = -(MOST_WEIGHT * run.X * months[run.first : run.first + 15]).sum(dim=-1)
    torch.testing.assert_close(run.outcomes.squeeze(-1), first, rtol=1e-6, atol=1e-6)


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
