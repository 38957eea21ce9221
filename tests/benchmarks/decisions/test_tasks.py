"""The tasks: what is true of them by another computation, and the models that they give."""

from __future__ import annotations

import pytest
import torch
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.decisions.tasks import (
    CASES,
    FUNCTIONS,
    LimitedOutcome,
    Standardized,
    task,
    tasks,
)
from benchmarks.framework.landscapes import GaussianNoise

TASKS = {task.name: task for task in tasks()}
CENTRE = torch.full((1, 3), 0.5, dtype=torch.double)
SURFACES = [surface for pair in FUNCTIONS.values() for surface in pair]


def uniform(num: int, dim: int, seed: int = 0) -> Tensor:
    with manual_seed(seed):
        return torch.rand(num, dim, dtype=torch.double)


@pytest.mark.parametrize("surface", SURFACES, ids=range(len(SURFACES)))
def test_functions_have_mean_0_and_deviation_1(surface: Standardized) -> None:
    values = surface(uniform(20000, surface.dim))
    # Four standard errors, the second for a kurtosis of up to 20.
    assert abs(float(values.mean())) < 4 / 20000**0.5 + 0.01
    assert float(values.std()) == pytest.approx(1.0, abs=0.07)


def test_functions_are_evaluated_in_their_own_box() -> None:
    _, branin = FUNCTIONS["ackley"]
    corners = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    expected = branin.function().evaluate_true(
        torch.tensor([[-5.0, 0.0], [10.0, 15.0]], dtype=torch.double)
    )
    assert torch.allclose(branin.raw(corners).squeeze(-1), expected)


@pytest.mark.parametrize("name", TASKS)
def test_half_of_the_box_is_safe_at_half_time(name: str) -> None:
    outcome = TASKS[name].outcome
    U = uniform(20000, TASKS[name].dim, seed=1)
    share = float(outcome.safe(U, time=0.5).double().mean())
    assert share == pytest.approx(0.5, abs=0.02)
    # Drift makes less of it safe.
    later = float(outcome.safe(U, time=1.0).double().mean())
    assert (later < share - 0.02) if outcome.drift else later == share
    assert later > 0.2


@pytest.mark.parametrize(
    "name",
    [f"{function}_{case}" for function in FUNCTIONS for case in ("heteroscedastic", "drift")],
)
def test_the_limit_binds(name: str) -> None:
    """The optimum is lost to the limit, and the best safe point lies on the border."""
    t = TASKS[name]
    U = uniform(2**16, t.dim, seed=2)
    values, safe = t.objective(U).squeeze(-1), t.outcome.safe(U, time=1.0)
    point = t.best_safe_point()
    best = t.objective(point).item()
    assert best < float(values.max()) - 0.5
    # Random search does not beat it by more than nothing, and comes near.
    found = float(values[safe].max())
    assert best - 0.6 < found <= best + 1e-3
    room = t.outcome.limit - t.outcome.quantile(point, time=1.0).item()
    assert 0.0 <= room < 0.02


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("time", [0.0, 1.0])
def test_probabilities_by_counting(case: str, time: float) -> None:
    outcome = task("hartmann3", case).outcome
    for u in uniform(3, 3, seed=3):
        U = u.expand(40000, 3)
        with manual_seed(4):
            observed = outcome.observe(U, time)
        expected = outcome.violation_probability(U[:1], time).item()
        # Four standard errors.
        tolerance = 4 * (0.25 / 40000) ** 0.5
        counted = float((observed > outcome.limit).double().mean())
        assert counted == pytest.approx(expected, abs=tolerance)
        quantile = outcome.quantile(U[:1], time)
        above = float((observed > quantile).double().mean())
        assert above == pytest.approx(0.1, abs=tolerance)
        # Safe is where the limit is exceeded with a probability of 10 % at most.
        assert outcome.safe(U[:1], time).item() == (expected <= 0.1)


def test_drift_raises_the_outcome() -> None:
    still = LimitedOutcome(SURFACES[0], GaussianNoise(0.3, 0.3))
    moving = LimitedOutcome(SURFACES[0], GaussianNoise(0.3, 0.3), drift=0.5)
    U = uniform(5, 2)
    with manual_seed(0):
        before = still.observe(U, 0.4)
    with manual_seed(0):
        after = moving.observe(U, 0.4)
    assert torch.allclose(after - before, torch.full_like(before, 0.2))
