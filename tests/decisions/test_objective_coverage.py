"""`objective_coverage_bound`: attained by the worst noise, and kept by others."""

from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_calib.decisions import objective_coverage_bound


def test_an_outcome_is_beyond_as_often_as_the_lemma_says() -> None:
    """Skewed noise: P(noise >= 0) is 0.2. Where f is above U by any amount, y is as often."""
    torch.manual_seed(0)
    num = 100_000
    noise = torch.where(torch.rand(num) < 0.2, 1.0, -0.25)  # a mean of zero
    f, upper = torch.randn(num), torch.zeros(())
    beyond, seen = (f > upper).double().sum(), (f + noise > upper).double().sum()
    assert beyond <= objective_coverage_bound(float(seen), 0.2)
    # Just above the end, as an adversary would choose it, the lemma is an equality.
    f = torch.full((num,), 0.1)
    seen = (f + noise > upper).double().mean()
    assert objective_coverage_bound(float(seen), 0.2) == pytest.approx(1.0, abs=0.03)  # 5 errors


def test_half_of_the_noise_on_either_side_is_assumed() -> None:
    assert objective_coverage_bound(20.9) == pytest.approx(41.8)
    for misses, share in ((-1.0, 0.5), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(InputDataError):
            objective_coverage_bound(misses, share)
