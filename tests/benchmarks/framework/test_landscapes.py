"""Warps, spreads and noise, against quantiles and slopes computed by hand."""

from __future__ import annotations

import pytest
import torch
from botorch.utils.sampling import manual_seed

from benchmarks.calibration.misspecified import FUNCTIONS, misspecified
from benchmarks.framework.landscapes import GaussianNoise, Noise, OutlierNoise, StudentNoise, Warp

NUM = 20_000


def test_warp_is_a_bijection_of_the_unit_interval() -> None:
    warp, U = Warp(), torch.linspace(0, 1, 1001, dtype=torch.double)
    V = warp(U)
    assert (V[0].item(), V[-1].item()) == (0.0, 1.0)
    assert (V.diff() > 0).all()
    assert warp(torch.tensor(0.25).double()).item() == pytest.approx(1.0 - 0.5**1.5)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_spread_is_that_of_the_function(function) -> None:
    problem = misspecified(function, "lengthscale")
    landscape = problem.build.landscape  # type: ignore[attr-defined]
    with manual_seed(3):
        lower, upper = problem.bounds_tensor()
        X = lower + (upper - lower) * torch.rand(NUM, len(lower), dtype=torch.double)
    # Four standard errors of a standard deviation. For the heaviest tail (the camel, kurtosis 10)
    # its relative standard error is sqrt((10 - 1) / (4 NUM)) = 0.011.
    assert landscape(X).std().item() == pytest.approx(landscape.spread(), rel=0.045)


NOISES = (GaussianNoise(0.1, 0.5), StudentNoise(2.5, 0.3), OutlierNoise(0.3, 2.0, 0.05))


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: type(noise).__name__)
@pytest.mark.parametrize("level", [0.02, 0.9])
def test_quantiles_of_noise_by_counting(noise: Noise, level: float) -> None:
    num = 400_000
    U = torch.full((num, 2), 0.25, dtype=torch.double)
    with manual_seed(1):
        values = noise(U)
    quantile = noise.quantile(U[:1], level)
    # Four standard errors of a share.
    tolerance = 4 * (level * (1 - level) / num) ** 0.5
    assert (values <= quantile).double().mean().item() == pytest.approx(level, abs=tolerance)
    room = quantile.expand(1, 1)
    assert noise.exceedance(U[:1], room).item() == pytest.approx(1.0 - level, abs=1e-12)
