"""The calibrated mixture, denoised, against sums over a fine grid of observations."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.interpolate import PchipInterpolator
from scipy.special import log_ndtr, logsumexp, ndtri_exp
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.distributions import PiecewisePredictive
from botorch_calib.distributions._normal_functions import log_h
from botorch_calib.distributions.denoised_mixture import DenoisedMixture
from botorch_calib.distributions.mixture_scores import mixture_quantile
from tests.long_grids import mostly_slow

NUM = 5
LEVELS = torch.linspace(0.1, 0.9, 9, dtype=torch.double)
PREDICTIVES = {
    "conformal": PiecewisePredictive.conformal(0.2, 1.9),
    "narrow": PiecewisePredictive.conformal(0.2, 0.6),
    "stretched": PiecewisePredictive.conformal(0.1, 2.4, tails="stretched"),
    "recalibrated": PiecewisePredictive.recalibrated(
        LEVELS, torch.special.ndtri(LEVELS) * 1.3 + 0.2
    ),
}
NOISES = {"usual": 0.05, "little": 1e-4, "much": 1.0}


def moments(noise: float) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    mean, v, n = torch.randn(3, NUM, generator=generator, dtype=torch.double)
    return 0.5 * mean, 0.5 * (0.4 * v).exp(), noise * (0.4 * n).exp()


class Oracle:
    """``f~`` as a sum over a grid of observations of each member, by the definition."""

    def __init__(self, mean, variance, noise, predictive, denoise):
        mean, variance, noise = (values.unsqueeze(-1) for values in (mean, variance, noise))
        deviation = (variance + noise).sqrt()
        # Without noise it is a comb.
        u = torch.linspace(-40.0, 40.0, 40001 if denoise else 200001, dtype=torch.double)
        self.log_weight = (-0.5 * u.square()).log_softmax(dim=0) - math.log(NUM)
        ends = (mean + 50 * torch.tensor([-1, 1]) * deviation).numpy()
        y = np.linspace(ends.min(), ends.max(), 40001)
        t = ((torch.tensor(y) - mean) / deviation).numpy()
        below, above = (logsumexp(log_ndtr(sign * t), axis=0) - math.log(NUM) for sign in (1, -1))
        z = np.where(below < above, ndtri_exp(below), -ndtri_exp(np.minimum(above, 0.0)))
        rises = np.append(np.diff(z) > 0, True)
        scores = torch.tensor(PchipInterpolator(y, z)(mean + deviation * u))
        moved = torch.tensor(PchipInterpolator(z[rises], y[rises])(predictive.transport(scores)))
        gain = variance / (variance + noise) if denoise else torch.ones_like(variance)
        self.mean, self.weight = mean + gain * (moved - mean), self.log_weight.exp()
        self.rest = (gain * noise).sqrt() if denoise else 1e-6 * deviation

    def sum(self, values: Tensor) -> Tensor:
        return (self.weight * values).sum()

    def log_values(self, x: Tensor) -> Tensor:
        """Logarithms of the mean excess, the probabilities of both tails, and the density."""
        t = (self.mean - x) / self.rest
        tails = torch.special.log_ndtr(t), torch.special.log_ndtr(-t)
        log_density = -0.5 * t.square() - (self.rest * math.sqrt(2 * math.pi)).log()
        each = torch.stack([log_h(t) + self.rest.log(), *tails, log_density])
        return (self.log_weight + each).flatten(1).logsumexp(dim=1)


def log_values(mixture: DenoisedMixture, x: Tensor) -> Tensor:
    tails = mixture.log_survival(x), mixture.mirrored().log_survival(-x)
    return torch.stack([mixture.log_excess(x), *tails, mixture.log_prob(x)])


# Errors of logarithms: of mean excess, both tails and the density
DISTANCES = {k: (3e-4, 2e-3, 2e-3, 5e-3) for k in (-1.5, -0.3, 0.6, 1.8)}
DISTANCES |= {k: 4 * (1e-3,) for k in (-6.0, -3.0, 3.0, 6.0)}
DISTANCES |= {k: 4 * (5e-3,) for k in (-12.0, 12.0)}
DISTANCES |= {k: 4 * (5e-2,) for k in (-20.0, 20.0)} | {k: 4 * (0.1,) for k in (-30.0, 30.0)}
GRID = list(product(PREDICTIVES, NOISES, [True, False]))
BOTH = list(product(PREDICTIVES, [True, False]))


@pytest.mark.parametrize(
    ("name", "noise", "denoise"), mostly_slow(GRID, [GRID[0], GRID[9], GRID[22]])
)
def test_against_a_fine_grid(name, noise, denoise):
    arguments = (*moments(NOISES[noise]), PREDICTIVES[name], denoise)
    mixture, oracle = DenoisedMixture(*arguments), Oracle(*arguments)
    mean, variance = mixture.moments()
    expected = oracle.sum(oracle.mean)
    assert_close(mean, expected, rtol=0, atol=1e-5)
    spread = oracle.sum((oracle.mean - expected).square() + oracle.rest.square())
    assert_close(variance, spread, rtol=1e-4, atol=0)
    of_members = mixture.moments_of_members()[0]
    assert_close(of_members, (oracle.weight * oracle.mean).sum(dim=1) * NUM, rtol=1e-4, atol=1e-5)
    for k, errors in DISTANCES.items() if denoise else [*DISTANCES.items()][:4]:
        x = (expected + k * spread.sqrt()).reshape(())
        exact = oracle.log_values(x)
        known = exact > -400.0
        known[3] &= denoise  # for the grid, an observation is a comb
        error = (log_values(mixture, x) - exact).abs()
        assert (error < torch.tensor(errors, dtype=torch.double))[known].all(), (k, error)


GROUPS = [("conformal", 8.0, 2e-3), ("stretched", 20.0, 5e-3), ("recalibrated", 8.0, 2e-3)]


@pytest.mark.parametrize(("name", "distance", "error"), mostly_slow(GROUPS, GROUPS[:1]))
def test_two_groups_of_members_that_are_far_apart(name, distance, error):
    """Their predictions leave a gap, at which scores leap."""
    mean, variance, noise = moments(0.05)
    mean = 0.2 * mean + distance * torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    arguments = mean, variance, noise, PREDICTIVES[name], True
    mixture, oracle = DenoisedMixture(*arguments), Oracle(*arguments)
    deviation = (variance + noise).sqrt()
    for score in torch.tensor([-0.3, 0.6, 1.3, 2.2, 3.5]).double():
        x = mixture_quantile(score, mean, deviation)
        found, expected = (values[:2] for values in (log_values(mixture, x), oracle.log_values(x)))
        assert_close(found, expected, rtol=0, atol=error)


@pytest.mark.parametrize(("name", "denoise"), mostly_slow(BOTH, BOTH[4::3]))
def test_cdf_at_the_quantile_and_its_slope(name, denoise):
    mixture = DenoisedMixture(*moments(0.05), PREDICTIVES[name], denoise)
    for level in (1e-9, 1e-3, 0.2, 0.5, 0.8, 0.999, 1 - 1e-9):
        q = mixture.quantile(level)
        assert_close(mixture.cdf(q).item(), level, rtol=1e-9, atol=1e-10)
    # The mean below a level is the integral of the quantiles below it.
    nodes, weights = np.polynomial.legendre.leggauss(24)
    mean = sum(w / 2 * mixture.quantile((1 + x) / 10) for x, w in zip(nodes, weights, strict=True))
    assert_close(mixture.mean_below(0.2), mean, rtol=3e-3, atol=0)


def test_nothing_corrected():
    """Without a correction, values equal closed forms for the mixture of normal distributions."""
    mean, variance, noise = moments(0.05)
    normal = PiecewisePredictive.gaussian(dtype=torch.double)
    for denoise, v in ((True, variance), (False, variance + noise)):
        mixture, sd = DenoisedMixture(mean, variance, noise, normal, denoise), v.sqrt()
        for x in torch.tensor([-3.0, 0.0, 0.7, 12.0]).double():
            t = (mean - x) / sd
            survival = torch.special.log_ndtr(t).logsumexp(dim=0) - math.log(NUM)
            assert_close(mixture.log_survival(x), survival, rtol=1e-12, atol=0)
        assert_close(mixture.moments()[0], mean.mean(), rtol=1e-13, atol=0)
        total = v.mean() + mean.var(correction=0)
        assert_close(mixture.moments()[1], total, rtol=1e-13, atol=0)


@pytest.mark.parametrize(("name", "denoise"), mostly_slow(BOTH, BOTH[3::3]))
def test_gradients(name, denoise):
    """Against differences, up to what the rule errs by: it is not differentiated itself."""
    parts = [values[:2].clone().requires_grad_() for values in moments(0.05)]
    x = torch.tensor(8.0 if name == "recalibrated" else 0.8).double().requires_grad_()

    def values(*arguments):
        *members, x = arguments
        mixture = DenoisedMixture(*members, PREDICTIVES[name], denoise)
        outer = mixture.quantile(0.9), mixture.quantile(0.3)
        return torch.stack(
            [mixture.log_excess(x), mixture.log_survival(x), *outer, *mixture.moments()]
        )

    assert torch.autograd.gradcheck(values, (*parts, x), eps=1e-4, atol=2e-3, rtol=5e-3)


def test_extremes_are_finite():
    """Far thresholds, next to no noise and nothing but noise: finite values and gradients."""
    for noise in (1e-12, 0.05, 1e4):
        mean, variance, noises = moments(noise)
        mean.requires_grad_()
        mixture = DenoisedMixture(mean, variance, noises, PREDICTIVES["conformal"], True)
        last = math.inf
        for x in (-1e3, -5.0, 0.0, 5.0, 20.0):
            log_excess = mixture.log_excess(torch.tensor(x).double())
            assert log_excess.item() < last
            last = log_excess.item()
            (gradient,) = torch.autograd.grad(log_excess, mean, retain_graph=True)
            assert gradient.isfinite().all() and gradient.sum() > 0
