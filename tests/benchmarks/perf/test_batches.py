"""Comparisons of batch acquisition functions run, on the stated sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.perf import batches
from benchmarks.perf.measure import COMPARISONS, Workload

NAMES = [name for name in COMPARISONS if "/ plain batch" in name]


@pytest.fixture(scope="module")
def work() -> Workload:
    return Workload(torch.device("cpu"))


@pytest.mark.parametrize("name", [name for name in NAMES if "choice" not in name])
def test_runs(work: Workload, name: str) -> None:
    assert len(NAMES) == 10
    size = (5, 9, 2) if "knowledge" in name else (10, 8, 2)
    for call in COMPARISONS[name].build(work):
        gradient = call(0)
        assert isinstance(gradient, torch.Tensor) and gradient.shape == size
        assert gradient.isfinite().all() and gradient.any()


@pytest.mark.parametrize("sequential", [True, False])
def test_choices(work: Workload, sequential: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many points as stated, in the box, which depend on the repetition alone."""
    search: Any = batches.optimize_acqf
    asked: list[bool] = []

    def short(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["sequential"])
        return search(*args, **{**kwargs, "options": {"maxiter": 1}})

    monkeypatch.setattr(batches, "optimize_acqf", short)
    template = batches.TEMPLATES["calibrated"]
    for call in batches.choice_pair(template, sequential, work):
        points = call(0)
        assert isinstance(points, torch.Tensor) and points.shape == (batches.Q, 2)
        assert ((points >= work.bounds[0]) & (points <= work.bounds[1])).all()
    assert asked == [sequential] * 2
