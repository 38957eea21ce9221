"""Comparisons of noisy acquisition functions run, on the stated sizes, and roots are cached."""

from __future__ import annotations

import pytest
import torch

from benchmarks.perf import noisy as noisy
from benchmarks.perf.measure import COMPARISONS, Workload

NAMES = [name for name in COMPARISONS if "roots cached" in name]


@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str) -> None:
    measured, reference = COMPARISONS[name].build(Workload(torch.device("cpu")))
    q = 4 if "q = 4" in name else 1
    for gradient in (measured(0), reference(0)):
        assert isinstance(gradient, torch.Tensor) and gradient.shape == (20, q, 2)
        assert gradient.isfinite().all()


def test_all_are_registered() -> None:
    assert len(NAMES) == 5
