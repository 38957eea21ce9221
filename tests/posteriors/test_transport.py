"""Joint samples of the calibrated posterior: transported sample paths of the process."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Generator, Size
from torch.testing import assert_close

from botorch_calib.posteriors import CalibratedPosterior
from tests.posteriors.examples import (
    CORRECTED,
    KINDS,
    NOISE,
    make,
    make_base,
    make_points,
    make_predictive,
)
from tests.predictive_examples import from_pits

NUM = 20_000


def draws_for(posterior, num, seed=0):
    """Independent standard normal base samples."""
    shape = (num, *posterior.base_sample_shape)
    return torch.randn(shape, dtype=torch.double, generator=Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", CORRECTED)
@pytest.mark.parametrize("denoise", [True, False])
@pytest.mark.parametrize("q", [1, 5])
def test_marginals_are_the_closed_form_ones(kind, denoise, q):
    """Kolmogorov-Smirnov at level 1e-6, with independent base samples."""
    posterior = make(kind, make_points(q=q), denoise=denoise)
    draws = draws_for(posterior, NUM, seed=q)
    samples = posterior.rsample_from_base_samples(Size([NUM]), draws).squeeze(-1)
    # The closed form on a fine grid: linear interpolation errs by much less than 1 / sqrt(NUM).
    steps = torch.linspace(0, 1, 801, dtype=torch.double).unsqueeze(-1)
    low, high = samples.amin(dim=0), samples.amax(dim=0)
    grid = low + (high - low) * steps
    levels = posterior.cdf(grid.unsqueeze(-1)).squeeze(-1)
    for j in range(q):
        uniforms = np.interp(samples[:, j], grid[:, j], levels[:, j])
        assert kstest(uniforms, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("kind", CORRECTED)
def test_each_point_has_its_own_sample_whatever_the_others(kind):
    """With base samples shared, a point's sample does not depend on later points."""
    joint, single = make(kind, make_points(q=3)), make(kind, make_points(q=1))
    draws = draws_for(joint, 50)
    samples = joint.rsample_from_base_samples(Size([50]), draws)
    alone = single.rsample_from_base_samples(Size([50]), draws[:, :1])
    assert_close(samples[:, :1], alone, rtol=1e-6, atol=1e-6)
    assert torch.equal(samples, joint.rsample_from_base_samples(Size([50]), draws))
    assert_close(joint.mean[:1], single.mean)
    assert_close(joint.variance[:1], single.variance)


@pytest.mark.parametrize("kind", CORRECTED)
def test_samples_increase_with_those_of_the_process(kind):
    posterior = make(kind, make_points(q=2))
    draws = draws_for(posterior, 400)
    low = posterior.rsample_from_base_samples(Size([400]), draws)
    draws[:, 0, 0] += 0.1  # only the objective at the first point
    high = posterior.rsample_from_base_samples(Size([400]), draws)
    assert (high[:, 0] >= low[:, 0] - 1e-9).all()


def test_samples_are_transported_paths():
    """``f + a sigma_y (T(z) - z)`` by hand, with and without denoising."""
    X = make_points(3, q=2)
    predictive, base = make_predictive("skewed", X), make_base(X)
    posterior = make("skewed", X)
    draws = draws_for(posterior, 7)
    f = base.rsample_from_base_samples(Size([7]), draws[..., 0])
    deviation = (base.variance + NOISE).sqrt()
    z = (f + math.sqrt(NOISE) * draws[..., 1:] - base.mean) / deviation
    moved = predictive.quantile(torch.special.ndtr(z))
    expected = f + base.variance / deviation * (moved - z)
    assert_close(posterior.rsample_from_base_samples(Size([7]), draws), expected)
    observed = make("skewed", X, denoise=False)
    expected = base.mean + deviation * moved
    assert_close(observed.rsample_from_base_samples(Size([7]), draws), expected)


def test_a_distribution_that_corrects_nothing_leaves_paths_alone():
    X = make_points(3, q=4)
    posterior = make("gaussian", X)
    draws = draws_for(posterior, 6)
    expected = posterior.base_posterior.rsample_from_base_samples(Size([6]), draws[..., 0])
    assert torch.equal(posterior.rsample_from_base_samples(Size([6]), draws), expected)
    # The same distribution by pieces: equal up to rounding.
    levels = torch.tensor([0.2, 0.5, 0.6], dtype=torch.double)
    predictive = from_pits(levels, levels.expand(3, 4, 1, 3))
    same = CalibratedPosterior(make_base(X), predictive, NOISE)
    assert_close(same.rsample_from_base_samples(Size([6]), draws), expected)
    assert_close(same.variance, posterior.base_posterior.variance)
    for best in (-1.0, 0.5, 4.0):
        value = same.log_expected_improvement(best)
        assert_close(value, posterior.log_expected_improvement(best), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_affine_maps_of_samples(kind):
    posterior = make(kind, make_points(3, q=2))
    draws = draws_for(posterior, 5)
    samples = posterior.rsample_from_base_samples(Size([5]), draws)
    mirrored = posterior.affine(-1.0).rsample_from_base_samples(Size([5]), -draws)
    assert_close(mirrored, -samples)
    scaled = posterior.affine(2.5, offset=1.0).rsample_from_base_samples(Size([5]), draws)
    assert_close(scaled, 2.5 * samples + 1.0)


@pytest.mark.parametrize("kind", CORRECTED)
def test_observations_are_transported_quantiles(kind):
    X = make_points(q=3)
    posterior = make(kind, X, denoise=False)
    mean, variance = posterior.base_posterior.mean, posterior.base_posterior.variance
    for level in (0.01, 0.4, 0.95):
        z = make_predictive(kind, X).quantile(torch.full((3, 1), level, dtype=torch.double))
        expected = mean + (variance + NOISE).sqrt() * z
        got = posterior.quantile(torch.tensor(level, dtype=torch.double))
        assert_close(got, expected)


def test_correlations_are_those_of_the_process():
    posterior = make("stretched", make_points(q=4), noise=1e-3)
    samples = posterior.rsample_from_base_samples(Size([NUM]), draws_for(posterior, NUM)).squeeze(
        -1
    )
    ranks = samples.argsort(dim=0).argsort(dim=0).double()
    rank_correlation = torch.corrcoef(ranks.mT)
    covariance = posterior.base_posterior.distribution.covariance_matrix
    deviation = covariance.diagonal().sqrt()
    correlation = covariance / deviation / deviation.unsqueeze(-1)
    expected = 6 / math.pi * torch.asin(correlation / 2)  # Spearman's, of a normal distribution
    assert_close(rank_correlation, expected, rtol=0.0, atol=0.03)
