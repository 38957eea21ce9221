"""Scores as monotone maps: accuracy in the tails, round trips, bounds and gradients."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from mpmath import erfc, mp, mpf
from scipy.stats import norm

from botorch_calib import GaussianScore
from botorch_calib.calibration import RationalScore, pit, two_sided_p_value

DOUBLE: dict[str, Any] = {"dtype": torch.double}
SCORES = [GaussianScore(), RationalScore()]


@pytest.mark.parametrize("z", [0.0, 0.3, -1.2, 5.0, -8.0, 30.0, -35.0])
def test_gaussian_scores_are_accurate_in_the_tails(z: float):
    mp.dps = 40
    exact_pit = erfc(-mpf(z) / mp.sqrt(2)) / 2
    exact_p = erfc(abs(mpf(z)) / mp.sqrt(2))
    assert pit(torch.tensor(z, **DOUBLE)).item() == pytest.approx(float(exact_pit), rel=1e-12)
    p_value = two_sided_p_value(torch.tensor(z, **DOUBLE)).item()
    assert p_value == pytest.approx(float(exact_p), rel=1e-12)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_round_trips(score, dtype: torch.dtype):
    z = torch.linspace(-3, 3, 61, dtype=dtype)
    tolerance = 1e-4 if dtype == torch.float else 1e-12
    widths = score.half_width(score.two_sided(z))
    torch.testing.assert_close(widths, z.abs().clamp(1e-3), atol=tolerance, rtol=tolerance)
    knots = score.knots(score.signed(z))
    torch.testing.assert_close(knots, z, atol=tolerance, rtol=tolerance)
    assert widths.dtype == knots.dtype == dtype


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("max_width", [None, 0.5, 60.0, 1e20])
def test_bounds_and_monotonicity(score, dtype: torch.dtype, max_width: float | None):
    if max_width is not None:
        score = replace(score, max_width=max_width)
    tails = 10.0 ** torch.linspace(-40, -2, 300, dtype=torch.double)
    theta = torch.cat(
        [
            torch.tensor([-math.inf, -1e30, -1.0, 0.0, 1.0, 2.0, 1e30, math.inf]),
            torch.linspace(-0.5, 1.5, 500),
            tails,
            1 - tails,
        ]
    )
    theta = theta.sort().values.to(dtype).requires_grad_()
    sign = 1.0 if score.two_sided_level(0.1) > 0.5 else -1.0
    width, knots = score.half_width(theta), score.knots(theta)
    assert (sign * width.diff() >= 0).all() and (knots.diff() >= 0).all()
    low, high = torch.tensor([1e-3, score.max_width], dtype=dtype)
    assert width.min() == low and width.max() == high
    assert knots.min() == -high and knots.max() == high
    for value in (width, knots):
        (gradient,) = torch.autograd.grad(value.sum(), theta)
        assert torch.isfinite(gradient).all()
        assert (gradient[(theta <= 0) | (theta >= 1)] == 0).all()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_scores_of_extreme_residuals(score, dtype: torch.dtype):
    big = torch.finfo(dtype).max
    z = torch.tensor([-math.inf, -big, -40, -1e-30, 0, 1e-30, 40, big, math.inf], dtype=dtype)
    z.requires_grad_()
    for value in (score.two_sided(z), score.signed(z)):
        assert ((value >= 0) & (value <= 1)).all()
        (gradient,) = torch.autograd.grad(value.sum(), z)
        assert torch.isfinite(gradient).all()
    assert (score.signed(z).diff() >= 0).all()
    assert score.signed(z)[0] == 0 and score.signed(z)[-1] == 1


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_initial_thresholds_are_those_of_the_gaussian_model(score, alpha: float):
    theta = torch.tensor(score.initial_two_sided(alpha), **DOUBLE)
    width = replace(score, max_width=10.0).half_width(theta).item()
    assert width == pytest.approx(norm.isf(alpha / 2), rel=1e-12)
    # The level is the probability of a score at or below the threshold.
    z = torch.special.ndtri(torch.linspace(0.0005, 0.9995, 1000, **DOUBLE))
    frequency = (score.two_sided(z) <= theta).double().mean().item()
    assert frequency == pytest.approx(score.two_sided_level(alpha), abs=2e-3)
    levels = torch.tensor([alpha, 1 - alpha / 2], **DOUBLE)
    expected = torch.special.ndtri(levels)
    torch.testing.assert_close(score.knots(score.initial_signed(levels)), expected)


@pytest.mark.parametrize("score", SCORES)
def test_score_arguments(score):
    for call, name in (
        (lambda: score.two_sided_level(0.0), "alpha"),
        (lambda: score.initial_two_sided(1.0), "alpha"),
        (lambda: replace(score, max_width=-1.0), "max_width"),
        (lambda: replace(score, max_width=1e-3), "max_width"),  # no wider than the least width
        (lambda: replace(score, max_width=math.inf), "max_width"),
    ):
        with pytest.raises(InputDataError, match=name):
            call()
