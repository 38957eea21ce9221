"""The tasks: true quantities by another computation, and their models."""

from __future__ import annotations

import pytest
import torch
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.decisions.tasks import FUNCTIONS, Standardized, tasks

TASKS = {task.name: task for task in tasks()}
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


@pytest.mark.parametrize("name", TASKS)
def test_half_of_the_box_is_safe_at_half_time(name: str) -> None:
    outcome = TASKS[name].outcome
    U = uniform(20000, TASKS[name].dim, seed=1)
    share = float(outcome.safe(U, time=0.5).double().mean())
    assert share == pytest.approx(0.5, abs=0.02)
    # Drift makes the safe set smaller.
    later = float(outcome.safe(U, time=1.0).double().mean())
    assert (later < share - 0.02) if outcome.drift else later == share
    assert later > 0.2
