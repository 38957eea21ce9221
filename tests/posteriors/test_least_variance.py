"""`mean_and_deviation` of posteriors that find both moments together, and of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from torch.testing import assert_close

from botorch_calib import CalibratedModel, OnlineConformal
from botorch_calib.posteriors.least_variance import MIN_VARIANCE, mean_and_deviation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("calibrated", [False, True])
def test_they_are_those_of_the_posterior(calibrated: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(9, 2, generator=generator, dtype=dtype)
    gp = SingleTaskGP(X, X.sum(dim=-1, keepdim=True), torch.full((9, 1), 0.01, dtype=dtype))
    model = CalibratedModel.from_history(gp, OnlineConformal(0.2)) if calibrated else gp
    posterior = model.posterior(X.unsqueeze(-2))
    mean, deviation = mean_and_deviation(posterior)
    assert mean.shape == deviation.shape == (9, 1, 1)
    assert mean.dtype == deviation.dtype == dtype
    assert_close(mean, posterior.mean)
    assert_close(deviation, posterior.variance.sqrt())


def test_without_spread_the_slope_is_finite() -> None:
    variance = torch.zeros(1, dtype=torch.double, requires_grad=True)
    certain: Any = SimpleNamespace(mean=torch.ones_like(variance), variance=variance)
    _, deviation = mean_and_deviation(certain)
    (slope,) = torch.autograd.grad(deviation.sum(), variance)
    assert deviation.item() == pytest.approx(MIN_VARIANCE**0.5)
    assert slope.isfinite().all()
