"""Outcome transforms: increasing, most likely within their family, as in other libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.utils.sampling import manual_seed
from scipy import stats
from torch import Tensor

from benchmarks.calibration.warping import (
    SHIFT,
    BoxCox,
    Family,
    Logarithm,
    TanhSum,
    fit_warp,
    log_likelihood,
)

FAMILIES: list[Family] = [Logarithm(), BoxCox(), TanhSum()]


def outcomes(n: int = 25) -> Tensor:
    """Outcomes whose costs are skewed."""
    with manual_seed(0):
        return -(3.0 + 2.0 * torch.randn(n, 1, dtype=torch.double).exp())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_transforms_increase(family) -> None:
    Y = outcomes()
    warp = fit_warp(family, Y)
    # Somewhat beyond the data, too: better outcomes are what is looked for.
    grid = torch.linspace(Y.min().item(), Y.max().item() + 0.09 * warp.scale, 500).double()
    assert (warp(grid).diff() > 0).all()
    assert warp(Y).shape == Y.shape
    assert warp(Y).argmax() == Y.argmax()
    # Far better outcomes stay finite, and equal ones do not break the fit.
    better = warp(Y.max() + 100.0)
    assert better.isfinite() and better >= warp(Y).max()
    equal = torch.full((3, 1), 2.0, dtype=torch.double)
    assert fit_warp(family, equal)(equal).isfinite().all()


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.7])
def test_box_cox_agrees_with_scipy(power) -> None:
    z = torch.linspace(0.0, 3.0, 7, dtype=torch.double)
    parameters = torch.tensor([power], dtype=torch.double)
    shifted = z.numpy() + SHIFT
    np.testing.assert_allclose(BoxCox().transform(z, parameters), stats.boxcox(shifted, power))
    likelihood = log_likelihood(BoxCox(), z, parameters).item()
    assert likelihood == pytest.approx(stats.boxcox_llf(power, shifted))


def test_box_cox_finds_the_most_likely_power() -> None:
    Y = outcomes()
    warp = fit_warp(BoxCox(), Y)
    z = (-Y.flatten() - warp.least_cost) / warp.scale
    expected = stats.boxcox_normmax(z.numpy() + SHIFT, brack=(-1.0, 2.0), method="mle")
    assert warp.parameters.item() == pytest.approx(expected, abs=1e-3)


def test_tanh_is_at_least_as_likely_as_no_transform() -> None:
    Y = outcomes()
    warp = fit_warp(TanhSum(), Y)
    z = (-Y.flatten() - warp.least_cost) / warp.scale
    identity = torch.tensor([0.0, 1.0, 1.0], dtype=torch.double)
    best = log_likelihood(TanhSum(), z, warp.parameters)
    assert best > log_likelihood(TanhSum(), z, identity) + 1.0
    for value, (low, high) in zip(warp.parameters.tolist(), TanhSum.limits, strict=True):
        assert low <= value <= high
