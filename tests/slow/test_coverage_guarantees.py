"""The tracker's coverage guarantees, on adversarial and on other sequences."""

import math
from dataclasses import replace

import pytest
import torch

from botorch_calib.calibration import GaussianScore, OnlineQuantileTracker, RationalScore
from tests.calibration.sequences import STRATEGIES, play

pytestmark = pytest.mark.slow

HORIZONS = (1, 10, 100, 500, 2000)
STEPS = {"constant": (0.05, 0.0), "large": (1.5, 0.0), "slow": (0.2, 0.3), "root": (0.5, 0.5)}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("step_size", "step_decay"), STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("target", [0, 1, 2])
def test_global_bound(strategy, step_size, step_decay, target):
    """Scale 0: ``|mean(o) - p| <= (1 + 2 eta_1) / (T eta_T)`` at every level, for every T."""
    tracker = OnlineQuantileTracker([0.05, 0.4, 0.8], step_size, step_decay)
    outcomes = play(tracker, strategy, HORIZONS[-1], target).double()
    for T in HORIZONS:
        error = (outcomes[:T].mean(dim=0) - tracker.levels).abs()
        assert (error <= tracker.coverage_bound(T) + 1e-12).all()
        last_step = step_size * T**-step_decay
        assert (tracker.coverage_bound(T) <= (1 + 2 * step_size) / (T * last_step)).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("scale", "lengthscale"), [(0.3, 0.5), (2.0, 0.1)])
@pytest.mark.parametrize("regularization", [0.0, 0.05, 1.0])
def test_localized_bounds(strategy, scale, lengthscale, regularization):
    """LOCBO's Lemma 1, and the tracker's own bound, which tends to 0 for any scale."""
    alpha, eta = 0.2, 0.5
    tracker = OnlineQuantileTracker([alpha], eta, 0.5, scale, lengthscale, regularization)
    misses = play(tracker, strategy, 1000).double().squeeze(-1)
    # Largest slope of `scale exp(-r^2 / l^2)` in r; inputs lie in the unit square.
    rho, diameter = scale * math.sqrt(2 / math.e) / lengthscale, math.sqrt(2)
    for T in (1, 10, 100, 1000):
        rate = misses[:T].mean()
        assert (rate - alpha).abs() <= tracker.coverage_bound(T) + 1e-12
        if regularization > 0:
            beta = 2 / eta + 2 * (2 * scale + 1)
            beta += 4 * math.sqrt(rho * scale) * diameter / (eta * regularization)
            assert rate <= alpha + beta / math.sqrt(T) + scale


@pytest.mark.parametrize("strategy", ["above", "waves", "iid"])
def test_kernel_weighted_error(strategy):
    """Without decay and regularization, coverage holds locally around any point."""
    p, eta, scale, T = 0.3, 0.1, 1.0, 2000
    tracker = OnlineQuantileTracker([p], eta, scale=scale, lengthscale=0.3)
    errors = p - play(tracker, strategy, T).double()
    points = torch.rand(50, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    kernel = scale * (-torch.cdist(points, tracker.centers).square() / 0.3**2).exp()
    weighted = (kernel @ errors).squeeze(-1) / T
    local = (tracker.threshold(points) - tracker.constants).squeeze(-1)
    torch.testing.assert_close(weighted, local / (eta * T), atol=1e-10, rtol=0)
    # |g(x)| <= sqrt(scale) |g|, and half the interval of `coverage_bound` contains |g|.
    norm = 0.5 * tracker.coverage_bound(T) * T * eta
    assert (weighted.abs() <= math.sqrt(scale) * norm / (eta * T)).all()


def miscoverage_by_quarter(tracker: OnlineQuantileTracker, score, num: int, burn_in: int):
    """Miss rates by quarter of [0, 1]; the model's spread is wrong by a factor for each quarter."""
    generator = torch.Generator().manual_seed(7)
    X = torch.rand(num, 1, dtype=torch.double, generator=generator)
    noise = torch.randn(num, dtype=torch.double, generator=generator)
    z = noise * (0.5 + 2.5 * X.squeeze(-1))
    u = score.two_sided(z)
    parts = zip(X.split(500), u.split(500), strict=True)
    thresholds = torch.cat([tracker.update(X_part, u_part) for X_part, u_part in parts])
    # At a positive threshold the score determines whether the interval misses.
    hits = u.unsqueeze(-1) <= thresholds
    misses = (hits if score.two_sided_level(0.2) < 0.5 else ~hits).double().squeeze(-1)
    quarters = (4 * X.squeeze(-1)).long()
    return [misses[burn_in:][quarters[burn_in:] == k].mean().item() for k in range(4)]


@pytest.mark.parametrize("score", [GaussianScore(), RationalScore()])
def test_local_coverage_on_heteroscedastic_data(score):
    alpha, num, burn_in = 0.2, 6000, 2000
    start = {"levels": [score.two_sided_level(alpha)], "initial": [score.initial_two_sided(alpha)]}
    tolerance = 4 * math.sqrt(alpha * (1 - alpha) / ((num - burn_in) / 4))
    local = OnlineQuantileTracker(**start, step_size=0.02, scale=0.5, lengthscale=0.2)
    rates = miscoverage_by_quarter(local, score, num, burn_in)
    assert rates == pytest.approx([alpha] * 4, abs=tolerance)
    # Without localization only the average is right, which shows that the test has power.
    rates = miscoverage_by_quarter(
        OnlineQuantileTracker(**start, step_size=0.02), score, num, burn_in
    )
    assert sum(rates) / 4 == pytest.approx(alpha, abs=tolerance)
    assert rates[0] < alpha - 2 * tolerance and rates[3] > alpha + 2 * tolerance


@pytest.mark.parametrize("score", [GaussianScore(), RationalScore()])
def test_quantile_levels_on_iid_data(score):
    """Many levels, signed scores: the quantiles converge to the residuals' quantiles."""
    levels = torch.arange(0.1, 0.95, 0.1, dtype=torch.double)
    mean, scale, num, step, decay = 1.0, 2.0, 20000, 0.3, 0.6
    generator = torch.Generator().manual_seed(2)
    z = mean + scale * torch.randn(num, dtype=torch.double, generator=generator)
    tracker = OnlineQuantileTracker(levels, step, decay, initial=score.initial_signed(levels))
    tracker.update(torch.zeros(num, 1, dtype=torch.double), score.signed(z))
    quantiles = replace(score, max_width=20.0).knots(tracker.constants)
    coverage = torch.special.ndtr((quantiles - mean) / scale)

    # Near the solution, coverage varies like an autoregression with variance
    # eta h p (1 - p) / 2, where h is the density of the score at its p-quantile. The PIT
    # is 30 times denser than the rational score at the highest level: it resolves less.
    exact = (mean + scale * torch.special.ndtri(levels)).requires_grad_()
    (slope,) = torch.autograd.grad(score.signed(exact).sum(), exact)
    density = (-0.5 * ((exact - mean) / scale) ** 2).exp() / (scale * math.sqrt(2 * math.pi))
    h = (density / slope).detach()
    deviation = (step * num**-decay * h * levels * (1 - levels) / 2).sqrt()
    assert ((coverage - levels).abs() <= 4 * deviation).all()
