"""Samplers of the calibrated posterior through BoTorch's ``get_sampler``."""

import pytest
import torch
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from gpytorch.distributions import MultivariateNormal
from torch import Size
from torch.quasirandom import SobolEngine
from torch.testing import assert_close

import botorch_calib  # noqa: F401 - registers the sampler
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.posteriors import CalibratedPosterior


def make_posterior(*batch_shape: int, q: int) -> CalibratedPosterior:
    mean = torch.linspace(0, 1, q, dtype=torch.double).expand(*batch_shape, q)
    covariance = torch.eye(q, dtype=torch.double).expand(*batch_shape, q, q)
    base = GPyTorchPosterior(MultivariateNormal(mean, covariance))
    width = torch.full((*batch_shape, q, 1), 2.0, dtype=torch.double)
    return CalibratedPosterior(base, PiecewisePredictive.conformal(0.2, half_width=width), 0.5)


def test_two_base_samples_a_point():
    posterior = make_posterior(4, q=3)
    sampler = get_sampler(posterior, Size([16]), seed=3)
    assert type(sampler) is SobolQMCNormalSampler
    assert sampler(posterior).shape == (16, 4, 3, 1)
    assert sampler.base_samples.shape == (16, 1, 3, 2)
    assert posterior.base_sample_shape == (4, 3, 2)
    assert posterior.batch_range == (0, -2)


def test_seed_and_t_batch():
    """Equal seeds draw equally; a point has the same samples wherever it stands in a batch."""
    posterior, alone = make_posterior(4, q=3), make_posterior(q=3)
    samples = get_sampler(posterior, Size([8]), seed=3)(posterior)
    assert torch.equal(samples, get_sampler(posterior, Size([8]), seed=3)(posterior))
    assert not torch.equal(samples, get_sampler(posterior, Size([8]), seed=4)(posterior))
    assert torch.equal(samples, samples[:, :1].expand_as(samples))
    assert_close(get_sampler(alone, Size([8]), seed=3)(alone), samples[:, 0])


@pytest.mark.parametrize("extra", [0, 1])
def test_independent_samples_beyond_the_sobol_dimensions(extra):
    class Large(CalibratedPosterior):
        """Stands for a posterior of many points without their covariance matrix."""

        base_sample_shape = Size([SobolEngine.MAXDIM // 2 + extra, 2])

    small = make_posterior(q=2)
    posterior = Large(small.path_posterior, small.predictive, 0.5)
    expected = IIDNormalSampler if extra else SobolQMCNormalSampler
    assert type(get_sampler(posterior, Size([2]), seed=0)) is expected
