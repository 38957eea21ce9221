"""Random functions: their covariance by counting, and a task for each seed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import MaternKernel
from torch import Tensor

from benchmarks.decisions import random_functions
from benchmarks.decisions.random_functions import LENGTHSCALE, PriorDraw, tasks
from benchmarks.decisions.suites import RANDOM
from benchmarks.decisions.tasks import DecisionTask, Search
from benchmarks.framework.replicate_result import replicate_config
from benchmarks.framework.runner import without_expected_warnings

TASKS = {task.name: task for task in tasks()}


def values(dim: int, X: Tensor, num: int, *others: int) -> Tensor:
    """Values of ``num`` draws, ``num x n``."""
    return torch.stack([PriorDraw(dim, (seed, *others))(X) for seed in range(num)])


@pytest.mark.parametrize("dim", [2, 5])
def test_draws_have_the_covariance_of_their_kernel(dim: int) -> None:
    X = torch.rand(6, dim, dtype=torch.double, generator=torch.Generator().manual_seed(dim))
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = LENGTHSCALE * dim**0.5
    num = 800
    drawn = values(dim, X, num)
    # Five standard errors. Products of two values have a variance of at most 3.
    assert torch.allclose(
        drawn.mT @ drawn / num, kernel(X).to_dense(), rtol=0, atol=5 * (3 / num) ** 0.5
    )
    assert drawn.mean(dim=0).abs().max() < 5 / num**0.5
    torch.testing.assert_close(
        PriorDraw(dim, (7, 8))(X), PriorDraw(dim, (7,))(X) + PriorDraw(dim, (8,))(X)
    )


def test_a_replicate_is_that_of_its_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random_functions.RandomTask.drawn

    def short(task: random_functions.RandomTask, seed: int) -> DecisionTask:
        return replace(drawn(task, seed), num_rounds=3, search=Search(64, 32))

    monkeypatch.setattr(random_functions.RandomTask, "drawn", short)
    monkeypatch.setattr(random_functions, "NUM_FEATURES", 64)
    monkeypatch.setattr(random_functions, "prior_draw", PriorDraw)  # without a cache
    task, method = TASKS["d2_opposed"], RANDOM.methods[0]
    with without_expected_warnings():
        result = random_functions.replicate(task, method, seed=1)
    assert len(result.f) == 8 + 3
    assert result.config == replicate_config(task, method)
    assert result.problem == task.name
