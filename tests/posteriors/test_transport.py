"""Joint samples of the calibrated posterior: transported sample paths of the process."""

import math

import numpy as np
import pytest
import torch
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling.get_sampler import get_sampler
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import RootLinearOperator
from scipy.stats import kstest
from torch import Generator, Size, Tensor
from torch.testing import assert_close

from botorch_calib.posteriors import CalibratedPosterior
from tests.gps import make_gp
from tests.posteriors.examples import (
    CORRECTED,
    KINDS,
    NOISE,
    draws_for,
    make,
    make_base,
    make_points,
    make_predictive,
)
from tests.predictive_examples import from_pits

NUM = 20_000


@pytest.mark.parametrize("kind", CORRECTED)
@pytest.mark.parametrize(
    ("options", "noise"),
    [({}, 0.3), ({"denoise": False}, 0.3), ({"excess": "objective"}, 20.0)],
    ids=["noise", "observation", "objective"],
)
def test_marginals_are_the_closed_form_ones(kind, options, noise):
    """Kolmogorov-Smirnov at level 1e-6, with independent base samples."""
    q = 3
    posterior = make(kind, make_points(q=q), noise, **options)
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


def test_samples_are_transported_paths():
    """Samples equal ``f + a sigma_y (T(z) - z)``, with and without denoising.

    The noise is a second path of the process, standardised.
    """
    X = make_points(3, q=2)
    predictive, base = make_predictive("skewed", X), make_base(X)
    posterior = make("skewed", X)
    draws = draws_for(posterior, 7)
    root = torch.linalg.cholesky(base.distribution.covariance_matrix)
    f, other = (base.mean + root @ draws[..., i : i + 1] for i in (0, 1))
    eps = (other - base.mean) / base.variance.sqrt()
    deviation = (base.variance + NOISE).sqrt()
    z = (f + math.sqrt(NOISE) * eps - base.mean) / deviation
    moved = predictive.quantile(torch.special.ndtr(z))
    expected = f + base.variance / deviation * (moved - z)
    assert_close(posterior.rsample_from_base_samples(Size([7]), draws), expected)
    observed = make("skewed", X, denoise=False)
    z = (f + math.sqrt(NOISE) * draws[..., 1:] - base.mean) / deviation
    expected = base.mean + deviation * predictive.quantile(torch.special.ndtr(z))
    assert_close(observed.rsample_from_base_samples(Size([7]), draws), expected)


def test_a_distribution_that_corrects_nothing_leaves_paths_alone():
    X = make_points(3, q=4)
    posterior = make("gaussian", X)
    draws = draws_for(posterior, 6)
    expected = make_base(X).rsample_from_base_samples(Size([6]), draws[..., 0])
    assert torch.equal(posterior.rsample_from_base_samples(Size([6]), draws), expected)
    # The same distribution by pieces: equal up to rounding.
    levels = torch.tensor([0.2, 0.5, 0.6], dtype=torch.double)
    predictive = from_pits(levels, levels.expand(3, 4, 1, 3))
    same = CalibratedPosterior(make_base(X), predictive, NOISE)
    assert_close(same.rsample_from_base_samples(Size([6]), draws), expected)
    assert_close(same.variance, posterior.target_variance)
    for best in (-1.0, 0.5, 4.0):
        value = same.log_expected_improvement(best)
        assert_close(value, posterior.log_expected_improvement(best), rtol=1e-8, atol=1e-8)


def repeated(*batch_shape: int, dtype: torch.dtype = torch.double) -> Tensor:
    """Two points of the unit square, each twice: ``batch_shape x 4 x 2``."""
    X = make_points(*batch_shape, q=2, dtype=dtype)
    return torch.cat([X, X], dim=-2)


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_equal_rows_have_equal_samples(kind, dtype):
    """Up to what the process' own paths differ there, times the bound of the docstring."""
    X = repeated(2, dtype=dtype)
    base = make_gp(dtype=dtype).posterior(X)
    posterior = CalibratedPosterior(base, make_predictive(kind, X), NOISE)
    draws = draws_for(posterior, 200).to(dtype)
    samples, path, other = (
        (values[..., :2, :] - values[..., 2:, :]).double().abs()
        for values in (
            posterior.rsample_from_base_samples(Size([200]), draws),
            posterior.path_posterior.rsample_from_base_samples(Size([200]), draws[..., 0].double()),
            posterior.path_posterior.rsample_from_base_samples(Size([200]), draws[..., 1].double()),
        )
    )
    # Paths at equal rows agree up to the root of the jitter, 1e-8 or 1e-6, or of rounding.
    assert max(path.max(), other.max()) < 10 * (1e-4 if dtype == torch.double else 1e-3)
    steps = torch.linspace(-6, 6, 20001, dtype=torch.double).view(-1, *[1] * X.dim())
    slopes = posterior.predictive.to(torch.double).transport(steps).diff(dim=0) / 6e-4
    rate = max(1.0, 1.01 * slopes.max().item())
    rounding = 100 * torch.finfo(dtype).eps * (1 + posterior.variance.max().sqrt().item())
    assert (samples <= rate * (path + 0.5 * other + rounding)).all()


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
def test_observations_of_one_point_differ():
    """The noise is independent from row to row, as in the Gaussian process."""
    X, n, size = make_points(q=1).repeat(2, 1), 0.5, Size([NUM])
    base = make_gp().posterior(X)
    posterior = CalibratedPosterior(base, make_predictive("gaussian", X), n, denoise=False)
    draws = draws_for(posterior, NUM)
    samples = posterior.rsample_from_base_samples(size, draws)
    expected = base.rsample_from_base_samples(size, draws[..., 0]) + n**0.5 * draws[..., 1:]
    assert_close(samples, expected)
    covariance = torch.cov(samples.squeeze(-1).mT)
    stated = base.distribution.covariance_matrix + n * torch.eye(2)
    assert_close(covariance, stated, rtol=0.0, atol=0.03)


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_paths_of_low_rank():
    """A process given by a root of few columns takes as many base samples, for either path."""
    root = torch.randn(6, 2, dtype=torch.double, generator=Generator().manual_seed(3))
    normal = MultivariateNormal(torch.zeros(6).double(), RootLinearOperator(root))
    X = torch.cat([make_points(q=3), make_points(q=3)])
    posterior = CalibratedPosterior(
        GPyTorchPosterior(normal),
        make_predictive("skewed", X),
        NOISE,
    )
    assert posterior.base_sample_shape == (2, 2)
    samples = get_sampler(posterior, Size([2**14]), seed=0)(posterior)
    assert samples.shape == (2**14, 6, 1)
    assert_close(samples.mean(dim=0), posterior.mean, rtol=0.01, atol=0.01)
    assert_close(samples.var(dim=0), posterior.variance, rtol=0.02, atol=0.01)
