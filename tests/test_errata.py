"""Errors in printed formulas of the papers, each compared with the package's computation.

Two errors are tested elsewhere: learned quantiles may cross (OCBO, Lemma 4) in
`tests.calibration.test_recalibration`, and the start of the sum in eq. 2 on delays in
`tests.acquisition.test_delayed`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from scipy.integrate import quad
from scipy.special import erf
from scipy.stats import norm
from torch import Generator
from torch.testing import assert_close

from botorch_calib import (
    CalibratedPosterior,
    GaussianScore,
    OnlineQuantileTracker,
    PiecewisePredictive,
    WassersteinUpperConfidenceBound,
)
from tests.gps import make_gp
from tests.random_numbers import uniform

ALPHA, THRESHOLD, EARLIER = 0.2, 0.07, 0.11  # lambda_{t+1}(x) and lambda_t(x)
MEAN, VARIANCE, NOISE = 0.7, 0.9, 0.4
AT = np.array([-1.5, 0.2, 1.1, 3.0])


def locbo_density(f: np.ndarray, slip: str | None = None) -> np.ndarray:
    """LOCBO eq. 46 at ``f``, with one printed error and all others corrected."""
    a = VARIANCE / (VARIANCE + NOISE)
    total, given_y = VARIANCE + NOISE, a * NOISE  # variances of y, and of f given y
    half_width = -norm.ppf(THRESHOLD / 2) * math.sqrt(total)
    lower, upper = MEAN - half_width, MEAN + half_width
    s = math.sqrt(given_y + (NOISE if slip == "noise in the variance given y" else 0.0))
    A, B = a**2 / (2 * s**2), (f - (1 - a) * MEAN) / a
    C, D = 1 / (2 * total), MEAN
    exponent = A * C / (A + C) * (B - D) ** 2
    if slip == "exponent":
        exponent = A**2 * C**2 / ((A**2 + C**2) * (B - D) ** 2)
    lower_sign = -1.0 if slip == "sign of the lower erf" else 1.0
    threshold = EARLIER if slip == "threshold of the round before" else THRESHOLD

    def tail(y: float) -> np.ndarray:
        return erf((-A * B - C * D + (A + C) * y) / math.sqrt(A + C))

    def center(y: float) -> np.ndarray:
        return erf((a * y + (1 - a) * MEAN - f) / (math.sqrt(2) * s))

    uniform_part = (1 - ALPHA) / (2 * a * (upper - lower)) * (center(upper) - center(lower))
    factor = ALPHA / (4 * math.pi * threshold * s * math.sqrt(total)) * math.sqrt(math.pi / (A + C))
    tails = factor * np.exp(-exponent) * (2 - tail(upper) + lower_sign * tail(lower))
    return uniform_part + tails


def calibrated_density() -> np.ndarray:
    half_width = GaussianScore().half_width(torch.tensor([[THRESHOLD]], dtype=torch.double))
    normal = MultivariateNormal(
        torch.tensor([MEAN], dtype=torch.double), torch.tensor([[VARIANCE]], dtype=torch.double)
    )
    posterior = CalibratedPosterior(
        GPyTorchPosterior(normal), PiecewisePredictive.conformal(ALPHA, half_width), NOISE
    )
    return posterior.density(torch.from_numpy(AT)).flatten().numpy()


def test_density_of_the_objective_is_eq_46_corrected():
    """LOCBO eq. 46 without its errors is the integral of eq. 30 over eq. 29."""
    assert locbo_density(AT) == pytest.approx(calibrated_density(), rel=1e-11)
    a, total = VARIANCE / (VARIANCE + NOISE), VARIANCE + NOISE
    half_width = -norm.ppf(THRESHOLD / 2) * math.sqrt(total)

    def integrand(y: float, f: float) -> float:
        if abs(y - MEAN) <= half_width:
            density = (1 - ALPHA) / (2 * half_width)
        else:
            density = ALPHA / THRESHOLD * norm.pdf(y, MEAN, math.sqrt(total))
        return density * norm.pdf(f, MEAN + a * (y - MEAN), math.sqrt(a * NOISE))

    for f, value in zip(AT, locbo_density(AT), strict=True):
        ends = [MEAN - 12, MEAN - half_width, MEAN + half_width, MEAN + 12]
        parts = [quad(integrand, *pair, args=(f,))[0] for pair in zip(ends, ends[1:], strict=False)]
        assert value == pytest.approx(sum(parts), rel=1e-7)


@pytest.mark.parametrize(
    "slip",
    [
        "exponent",
        "sign of the lower erf",
        "threshold of the round before",
        "noise in the variance given y",
    ],
)
def test_each_slip_of_eq_46_matters(slip: str):
    off = np.abs(locbo_density(AT, slip) / calibrated_density() - 1.0)
    assert off.max() > 0.02


def test_score_of_eq_26_is_one_of_conformity():
    """LOCBO eq. 25 keeps conforming values, ``s >= lambda``; scores are in [0, 1], not [0, 2]."""
    score, z = GaussianScore(), torch.linspace(-3.0, 3.0, 601, dtype=torch.double)
    scores = score.two_sided(z)
    assert scores.max() == 1.0 and scores.argmax() == 300  # at no residual at all
    half_width = score.half_width(torch.tensor(THRESHOLD, dtype=torch.double))
    assert torch.equal(scores >= THRESHOLD, z.abs() <= half_width)


def scores_of(num: int) -> torch.Tensor:
    return uniform(num, generator=Generator().manual_seed(0))


def play(level: float, move, num: int = 4000) -> float:
    """The share of uniform scores at or below a threshold that an update rule moves."""
    theta, hits = 0.5, 0.0
    for u in scores_of(num).tolist():
        hit = float(u <= theta)
        hits += hit
        theta += 0.05 * move(level, hit)
    return hits / num


def test_update_of_eq_21_has_another_level():
    """LOCBO eq. 21, ``R - eta (p - 1{miss})``, has the coverage ``1 - p``, unlike its eq. 22."""
    assert play(0.2, lambda p, hit: -(p - (1.0 - hit))) == pytest.approx(0.8, abs=0.02)
    assert play(0.2, lambda p, hit: p - hit) == pytest.approx(0.2, abs=0.02)
    tracker = OnlineQuantileTracker([0.2], step_size=0.05, initial=[0.5])
    u = scores_of(4000)
    share = (u.unsqueeze(-1) <= tracker.update(torch.zeros(4000, 1), u)).double().mean()
    assert share.item() == play(0.2, lambda p, hit: p - hit)


def test_running_sum_of_ocbo_has_the_wrong_sign():
    """The printed ``q_t = sum_s eta (o_s - p)`` diverges: all outcomes are hits, or none."""
    share = play(0.2, lambda p, hit: hit - p)
    assert min(share, 1.0 - share) < 0.02


def test_regulariser_of_ocbo_is_centred_at_the_level():
    """The minimum of ``q^2 / (2 eta)`` is at 0, where every quantile would start."""
    levels = [0.05, 0.5, 0.9]
    tracker = OnlineQuantileTracker(levels, step_size=0.1)
    start = tracker.threshold(torch.zeros(1, 1, dtype=torch.double))[0]
    assert start.tolist() == levels
    grid, first = torch.linspace(-0.5, 1.5, 20001, dtype=torch.double), 0.3
    tracker.update(torch.zeros(1, 1, dtype=torch.double), torch.tensor([first]).double())
    for level, threshold in zip(levels, tracker.constants.tolist(), strict=True):
        slope = float(first <= level) - level  # the pinball loss, linearised at the start
        objective = (grid - level).square() / (2 * 0.1) + slope * grid
        assert threshold == pytest.approx(grid[objective.argmin()].item(), abs=1e-4)


def test_beta_of_the_robust_bound_is_squared():
    """The paper multiplies sigma by 1.5; as in BoTorch, this is ``beta=2.25``."""
    gp = make_gp()
    numbers = scores_of(7)
    contexts, x = numbers[:4].view(4, 1), numbers[4:].view(3, 1, 1)
    X = torch.cat([x.expand(3, 4, 1), contexts.expand(3, 4, 1)], dim=-1)
    posterior = gp.posterior(X.unsqueeze(-2))
    bound = (posterior.mean + 1.5 * posterior.variance.sqrt()).flatten(1).mean(dim=-1)
    robust = WassersteinUpperConfidenceBound(gp, beta=2.25, radius=0.0, contexts=contexts)
    assert_close(robust(x), bound)
    plain = UpperConfidenceBound(gp, beta=2.25)(X.reshape(-1, 1, 2)).reshape(3, 4).mean(dim=-1)
    assert_close(plain, bound)
