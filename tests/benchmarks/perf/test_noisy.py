"""Comparisons of noisy acquisition functions run, on the stated sizes, and roots are cached."""

from __future__ import annotations

import pytest
import torch

from benchmarks.perf import noisy as noisy
from benchmarks.perf.measure import COMPARISONS, Workload


def test_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy, "NUM_SAMPLES", 4)
    names = [name for name in COMPARISONS if "roots cached" in name]
    assert len(names) == 5
    for name in names:
        q = 4 if "q = 4" in name else 1
        for call in COMPARISONS[name].build(Workload(torch.device("cpu"))):
            gradient = call(0)
            assert isinstance(gradient, torch.Tensor) and gradient.shape == (20, q, 2)
            assert gradient.isfinite().all()
