"""The calibrated mixture, denoised, against sums over a fine grid of scores of all members."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.distributions import PiecewisePredictive
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
    """``f~`` as a sum over 200001 scores, for each member, by the definition."""

    def __init__(self, mean, variance, noise, predictive, denoise):
        z = torch.linspace(-8.5, 8.5, 200001, dtype=torch.double)
        mean, variance, noise = (values.unsqueeze(-1) for values in (mean, variance, noise))
        deviation = (variance + noise).sqrt()
        y, moved = (mixture_quantile(x, mean, deviation) for x in (z, predictive.transport(z)))
        density = (-0.5 * ((y - mean) / deviation).square()).exp() / deviation
        step = (z[1] - z[0]) / math.sqrt(2 * math.pi)
        self.weight = step * (-0.5 * z.square()).exp() * density / density.sum(dim=0)
        gain = variance / (variance + noise) if denoise else torch.ones_like(variance)
        self.mean = mean + gain * (moved - mean)
        self.rest = (gain * noise).sqrt() if denoise else 1e-6 * deviation

    def sum(self, values: Tensor) -> Tensor:
        return (self.weight * values).sum()

    def survival(self, x: Tensor) -> Tensor:
        return self.sum(torch.special.ndtr((self.mean - x) / self.rest))

    def excess(self, x: Tensor) -> Tensor:
        t = (self.mean - x) / self.rest
        phi = (-0.5 * t.square()).exp() / math.sqrt(2 * math.pi)
        return self.sum(self.rest * (phi + t * torch.special.ndtr(t)))

    def density(self, x: Tensor) -> Tensor:
        t = (self.mean - x) / self.rest
        return self.sum((-0.5 * t.square()).exp() / self.rest) / math.sqrt(2 * math.pi)


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
    for k in (-1.5, -0.3, 0.6, 1.8):
        x = (expected + k * spread.sqrt()).reshape(())
        assert_close(mixture.log_excess(x).exp(), oracle.excess(x), rtol=3e-4, atol=0)
        assert_close(mixture.log_survival(x).exp(), oracle.survival(x), rtol=2e-3, atol=0)
        assert_close(mixture.cdf(x), 1 - oracle.survival(x), rtol=2e-3, atol=0)
        if denoise:  # for the grid, that of an observation is a comb
            assert_close(mixture.log_prob(x).exp(), oracle.density(x), rtol=5e-3, atol=0)


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
        assert_close(mixture.log_excess(x), oracle.excess(x).log(), rtol=0, atol=error)
        assert_close(mixture.log_survival(x), oracle.survival(x).log(), rtol=0, atol=error)


@pytest.mark.parametrize(("name", "denoise"), mostly_slow(BOTH, BOTH[4::3]))
def test_cdf_at_the_quantile_and_its_slope(name, denoise):
    mixture = DenoisedMixture(*moments(0.05), PREDICTIVES[name], denoise)
    for level in (1e-9, 1e-3, 0.2, 0.5, 0.8, 0.999, 1 - 1e-9):
        q = mixture.quantile(level)
        assert_close(mixture.cdf(q).item(), level, rtol=1e-9, atol=1e-10)
    # By integration the mean below a level is that of the quantiles there.
    nodes, weights = np.polynomial.legendre.leggauss(24)
    mean = sum(w / 2 * mixture.quantile((1 + x) / 10) for x, w in zip(nodes, weights, strict=True))
    assert_close(mixture.mean_below(0.2), mean, rtol=3e-3, atol=0)


def test_nothing_corrected():
    """Closed forms: those of the mixture of normal distributions."""
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
    x = torch.tensor(0.8, dtype=torch.double, requires_grad=True)

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
