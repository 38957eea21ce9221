"""Samples, marginals and shapes of calibrated mixtures of members."""

import math

import pytest
import torch
from botorch.posteriors import GPyTorchPosterior
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.sampling.get_sampler import get_sampler
from gpytorch.distributions import MultivariateNormal
from torch.testing import assert_close

from botorch_calib.distributions import PiecewisePredictive
from botorch_calib.posteriors import CalibratedPosterior

LEVELS = torch.linspace(0.1, 0.9, 9, dtype=torch.double)
PREDICTIVES = {
    "conformal": PiecewisePredictive.conformal(0.2, 2.2),
    "recalibrated": PiecewisePredictive.recalibrated(
        LEVELS, torch.special.ndtri(LEVELS) * 0.6 - 0.3
    ),
}
SHAPE = (2, 4, 3)  # batch, members, points


def base(dtype=torch.double, apart: float = 1.0) -> GaussianMixturePosterior:
    generator = torch.Generator().manual_seed(1)
    mean = apart * torch.randn(SHAPE, generator=generator, dtype=torch.double)
    factor = torch.randn(*SHAPE, 3, generator=generator, dtype=torch.double)
    covariance = 0.3 * factor @ factor.mT + 0.05 * torch.eye(3, dtype=torch.double)
    return GaussianMixturePosterior(MultivariateNormal(mean.to(dtype), covariance.to(dtype)))


def noise(dtype=torch.double) -> torch.Tensor:
    return torch.tensor([0.05, 0.1, 0.2, 0.01], dtype=dtype).view(4, 1, 1)


def mixture_of(members, predictive, noise, denoise=True, excess="noise"):
    covariance = members.distribution.lazy_covariance_matrix
    stated = CalibratedPosterior.of_targets(
        members.mean,
        covariance.diagonal(dim1=-1, dim2=-2).unsqueeze(-1),
        noise,
        members=True,
        objective=denoise,
    )
    stated.covariance, stated.excess = covariance, excess
    return stated.corrected(predictive)


def posterior(name="conformal", dtype=torch.double, apart=1.0, **kwargs):
    return mixture_of(base(dtype, apart), PREDICTIVES[name], noise(dtype), **kwargs)


@pytest.mark.parametrize(("name", "apart"), [("conformal", 1.0), ("recalibrated", 20.0)])
@pytest.mark.parametrize(
    "options", [{}, {"excess": "objective"}, {"denoise": False}], ids=["noise", "objective", "y"]
)
def test_samples_have_the_stated_marginals(options, name, apart):
    """Kolmogorov and Smirnov's test, at each of six points, of 4 x 2500 samples, at 201 levels.

    Critical at 1e-3 / 6: 2.14 / 100. Apart, closed forms and samples err by up to 0.02 and 0.01.
    """
    calibrated = posterior(name, apart=apart, **options)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        samples = calibrated.rsample(torch.Size([2500]))
    pooled = samples.transpose(1, 2).flatten(0, 1).detach()
    levels = torch.linspace(0.0, 1.0, 201, dtype=torch.double)
    grid = pooled.quantile(levels, dim=0).detach()  # its own cdf is known at these
    distance = (calibrated.cdf(grid) - levels.view(-1, 1, 1, 1)).abs().amax(dim=0)
    assert (distance < 0.0214 + (0.03 if apart > 1 else 0.0)).all()
    mean, variance = calibrated.moments()
    error = 4.5 * (variance / 10000).sqrt() + (0.05 * variance.sqrt() if apart > 1 else 0.0)
    assert ((pooled.mean(dim=0) - mean).abs() < error).all()
    if apart == 1:  # a member far from the others may be moved to anywhere between them
        own = samples.mean(dim=0) - calibrated.mean
        assert (own.abs() < 5 * (calibrated.variance / 2500).sqrt()).all()


def test_nothing_corrected():
    """The mixture's own: to the last bit in samples, and to rounding in its marginals."""
    normal = PiecewisePredictive.gaussian(dtype=torch.double)
    calibrated = mixture_of(base(), normal, noise())
    sampler = get_sampler(calibrated, torch.Size([8]), seed=3)
    samples = sampler(calibrated)
    assert samples.shape == (8, *SHAPE, 1)
    own = base().rsample_from_base_samples(
        torch.Size([8]), sampler.base_samples[..., 0].expand(8, *SHAPE)
    )
    assert_close(samples, own, rtol=0, atol=0)
    assert_close(calibrated.mean, base().mean)
    assert_close(calibrated.variance, base().variance)
    assert_close(calibrated.mixture_mean, base().mixture_mean)
    assert_close(calibrated.mixture_variance, base().mixture_variance)
    level = torch.tensor([0.1, 0.77], dtype=torch.double)
    assert_close(calibrated.quantile(level), base().quantile(level), rtol=0, atol=2e-5)
    observed = mixture_of(base(), normal, noise(), denoise=False)
    assert_close(observed.variance, base().variance + noise())


@pytest.mark.parametrize("name", PREDICTIVES)
def test_a_single_member_is_a_calibrated_posterior(name):
    member = MultivariateNormal(
        base().mean[:, 0, :, 0], base().distribution.covariance_matrix[:, 0]
    )
    single = CalibratedPosterior(GPyTorchPosterior(member), PREDICTIVES[name], 0.05)
    members = MultivariateNormal(member.mean[:, None], member.covariance_matrix[:, None])
    mixture = mixture_of(
        GaussianMixturePosterior(members), PREDICTIVES[name], torch.tensor(0.05).double()
    )
    draws = torch.randn(50, 2, 3, 2, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    assert_close(
        mixture.rsample_from_base_samples(torch.Size([50]), draws.unsqueeze(2)).squeeze(2),
        single.rsample_from_base_samples(torch.Size([50]), draws),
        rtol=0,
        atol=1e-4,
    )
    for value, expected in (
        (mixture.log_expected_improvement(0.5), single.log_expected_improvement(0.5)),
        (mixture.probability_of_improvement(0.5), single.probability_of_improvement(0.5)),
        (mixture.quantile(0.2), single.quantile(0.2)),
        (mixture.conditional_mean_below(0.2), single.conditional_mean_below(0.2)),
        (mixture.log_probability_between(-0.5, 0.5), single.log_probability_between(-0.5, 0.5)),
        (mixture.moments()[1], single.moments()[1]),
    ):
        assert_close(value, expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("denoise", [True, False])
def test_affine(denoise):
    calibrated = posterior("recalibrated", denoise=denoise)
    turned = calibrated.affine(-2.0, 1.0)
    mean, variance = calibrated.moments()
    assert_close(turned.moments()[0], 1.0 - 2.0 * mean, rtol=1e-5, atol=1e-5)
    assert_close(turned.moments()[1], 4.0 * variance, rtol=1e-4, atol=0)
    assert_close(turned.quantile(0.3), 1.0 - 2.0 * calibrated.quantile(0.7), rtol=1e-4, atol=1e-4)
    below = calibrated.cdf(0.25)
    assert_close(turned.probability_of_improvement(0.5), below, rtol=1e-3, atol=1e-4)


def test_single_precision_shapes_and_gradients():
    for dtype in (torch.float32, torch.double):
        calibrated = posterior(dtype=dtype)
        assert calibrated.batch_shape == (2,)
        assert calibrated.mean.shape == calibrated.variance.shape == (*SHAPE, 1)
        value = torch.linspace(-1, 1, 5)
        for result in (
            calibrated.mixture_mean,
            calibrated.cdf(0.2),
            calibrated.quantile(0.9),
            calibrated.log_expected_improvement(torch.zeros(2, 1, 1)),
            calibrated.log_probability_between(None, 0.3),
        ):
            assert result.shape == (2, 3, 1) and result.dtype == dtype
        assert calibrated.density(value).shape == (5, 2, 3, 1)
        assert calibrated.quantile(torch.tensor([0.1, 0.9])).shape == (2, 2, 3, 1)
        assert calibrated.rsample(torch.Size([3])).dtype == dtype
    assert_close(
        posterior(dtype=torch.float32).cdf(0.2).double(), posterior().cdf(0.2), rtol=0, atol=1e-4
    )
    mean = base().distribution.mean.requires_grad_()
    normal = MultivariateNormal(mean, base().distribution.covariance_matrix)
    calibrated = mixture_of(GaussianMixturePosterior(normal), PREDICTIVES["conformal"], noise())
    draws = torch.randn(64, *SHAPE, 2, dtype=torch.double)
    samples = calibrated.rsample_from_base_samples(torch.Size([64]), draws)
    (gradient,) = torch.autograd.grad(samples.sum() / 64, mean)
    assert gradient.isfinite().all() and (gradient.sum() - math.prod(SHAPE)).abs() < 1.0
