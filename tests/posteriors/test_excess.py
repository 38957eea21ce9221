"""Whose is the excess? The posterior of the objective with the calibrated gain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from scipy.stats import kstest
from torch import Size, Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from botorch_calib.distributions.form import PiecewiseForm
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.testing import PosteriorContract
from tests import oracles
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

NUM = 20_000


def objective(kind: str, X: Tensor, noise: Tensor | float = NOISE) -> CalibratedPosterior:
    return make(kind, X, noise, excess="objective")


def gains(posterior: CalibratedPosterior, noise: float) -> tuple[Tensor, Tensor]:
    """The process' gain and the calibrated one, from their definitions."""
    variance = posterior.base_posterior.variance
    total = variance + noise
    own = variance / total
    return own, torch.maximum(own, 1 - noise / (posterior.predictive.variance * total))


class ContractOfExcess(PosteriorContract):
    kind = "stretched"

    def make_posterior(self, batch_shape, q, dtype):
        X = make_points(*batch_shape, q=q, dtype=dtype).requires_grad_()
        return objective(self.kind, X)


class TestConformal(ContractOfExcess):
    kind = "conformal"


class TestStretched(ContractOfExcess):
    pass


class TestRecalibrated(ContractOfExcess):
    kind = "recalibrated"


class TestSkewed(ContractOfExcess):
    kind = "skewed"


@pytest.mark.parametrize("kind", CORRECTED)
@pytest.mark.parametrize("noise", [1e-4, 0.3, 50.0])
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_against_quadrature(kind, noise, dtype):
    posterior = objective(kind, make_points(2, q=3, dtype=dtype), noise)
    double = objective(kind, make_points(2, q=3), noise)
    _, gain = gains(double, noise)
    location, deviation = (
        double.base_posterior.mean,
        (double.base_posterior.variance + noise).sqrt(),
    )
    unit, ratio = gain * deviation, (noise / gain).sqrt() / deviation
    value = double.quantile(torch.tensor(0.8, dtype=torch.double)) + 0.2
    x = (value - location) / unit
    rows = zip(
        oracles.unbatched(double.predictive),
        ratio.flatten().tolist(),
        x.flatten().tolist(),
        strict=True,
    )
    exact = [oracles.smoothed(*row) for row in rows]
    tol = 1e-7 if dtype == torch.double else 2e-3

    def check(got: Tensor, name: str, factor: Tensor | float, offset: Tensor | float) -> None:
        assert got.dtype == dtype
        numbers = torch.tensor([getattr(e, name) for e in exact], dtype=torch.double)
        expected = factor * numbers.view(got.shape) + offset
        assert_close(got.double(), expected, rtol=tol, atol=tol)

    check(posterior.log_expected_improvement(value), "log_excess", 1.0, unit.log())
    check(posterior.probability_of_improvement(value).log(), "log_survival", 1.0, 0.0)
    check(posterior.log_probability_between(None, value), "log_cdf", 1.0, 0.0)
    check(posterior.cdf(value).log(), "log_cdf", 1.0, 0.0)
    check(posterior.density(value).log(), "log_prob", 1.0, -unit.log())
    check(posterior.mean, "mean", unit, location)
    check(posterior.variance, "variance", unit.square(), 0.0)
    for level in (0.1, 0.8):
        quantile = posterior.quantile(torch.tensor(level))
        assert_close(posterior.cdf(quantile), torch.full_like(quantile, level), rtol=tol, atol=tol)


@pytest.mark.parametrize("kind", CORRECTED)
def test_noise_as_stated_and_the_rest_the_objectives(kind):
    """Where the gain grows, ``var f = var y - n``; elsewhere it is the process' own."""
    posterior = objective(kind, make_points(200, q=1))
    own, calibrated = gains(posterior, NOISE)
    observed = make(kind, make_points(200, q=1), denoise=False).variance
    grown = calibrated > own
    assert grown.any()
    assert_close(posterior.variance[grown], (observed - NOISE)[grown])
    plain = make(kind, make_points(200, q=1))
    assert_close(posterior.variance[~grown], plain.variance[~grown])
    assert (posterior.variance >= plain.variance * (1 - 1e-12)).all()


def with_scale(scale: float, shape: Size) -> PiecewisePredictive:
    """A normal distribution of standard deviation ``scale``."""
    form = PiecewiseForm((False,), open_low=True, open_high=True)
    knots, scales = torch.empty(*shape, 0).double(), torch.full(shape, scale).double()
    return PiecewisePredictive.from_form(knots, torch.ones(1), form, scale=scales)


@pytest.mark.parametrize("scale", [1.05, 2.0, 30.0])
def test_fixed_point_of_em(scale):
    """Denoising with the posterior's own gain, over and over, ends at the calibrated one."""
    base = make_base(make_points(q=4))
    predictive = with_scale(scale, Size([4, 1]))
    posterior = CalibratedPosterior(base, predictive, NOISE, excess="objective")
    total = scale**2 * (base.variance + NOISE)
    variance = base.variance
    for _ in range(2000):
        gain = variance / (variance + NOISE)
        variance = gain.square() * total + gain * NOISE
    assert_close(posterior.variance, variance, rtol=1e-6, atol=1e-9)
    once = CalibratedPosterior(base, predictive, NOISE).variance
    gain = base.variance / (base.variance + NOISE)
    assert_close(once, gain.square() * total + gain * NOISE)


@pytest.mark.parametrize("owner", ["noise", "objective"])
def test_narrow_distributions_leave_the_gain(owner):
    X = make_points(3, q=2)
    width = torch.full((3, 2, 1), 0.5, dtype=torch.double)
    predictive = PiecewisePredictive.conformal(0.2, width, tails="stretched")
    posteriors = [
        CalibratedPosterior(make_base(X), predictive, NOISE, excess=name)
        for name in ("noise", owner)
    ]
    draws = draws_for(posteriors[0], 9)
    expected, got = (
        [
            p.mean,
            p.variance,
            p.log_expected_improvement(0.4),
            p.quantile(torch.tensor([0.1, 0.9])),
            p.rsample_from_base_samples(Size([9]), draws),
        ]
        for p in posteriors
    )
    assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_no_matter_to_an_observation_or_without_noise(kind, noise):
    X = make_points(3, q=2)
    denoise = noise == 0.0
    plain, other = (make(kind, X, noise, denoise=denoise, excess=e) for e in ("noise", "objective"))
    assert torch.equal(plain.variance, other.variance)
    assert torch.equal(plain.log_expected_improvement(0.3), other.log_expected_improvement(0.3))
    draws = draws_for(plain, 4)
    samples = (p.rsample_from_base_samples(Size([4]), draws) for p in (plain, other))
    assert torch.equal(*samples)


@pytest.mark.parametrize("kind", CORRECTED)
@pytest.mark.parametrize("q", [1, 2, 8])
@pytest.mark.parametrize("noise", [0.3, 20.0])
def test_samples_have_the_closed_form_marginals(kind, q, noise):
    """Kolmogorov-Smirnov at level 1e-6, with independent base samples."""
    posterior = objective(kind, make_points(q=q), noise)
    draws = draws_for(posterior, NUM, seed=q)
    samples = posterior.rsample_from_base_samples(Size([NUM]), draws).squeeze(-1)
    steps = torch.linspace(0, 1, 801, dtype=torch.double).unsqueeze(-1)
    low, high = samples.amin(dim=0), samples.amax(dim=0)
    grid = low + (high - low) * steps
    levels = posterior.cdf(grid.unsqueeze(-1)).squeeze(-1)
    for j in range(q):
        uniforms = np.interp(samples[:, j], grid[:, j], levels[:, j])
        assert kstest(uniforms, "uniform").pvalue > 1e-6


def test_samples_by_hand():
    """Those of a process with more variance, whose observations have the calibrated one."""
    X = make_points(3, q=2)
    posterior, base = objective("skewed", X), make_base(X)
    draws = draws_for(posterior, 7)
    root = torch.linalg.cholesky(base.distribution.covariance_matrix)
    f, other = (root @ draws[..., i : i + 1] for i in (0, 1))
    eps = other / base.variance.sqrt()
    spread = posterior.predictive.variance.clamp(min=1.0)
    total = spread * (base.variance + NOISE)
    f = ((total - NOISE) / base.variance).sqrt() * f
    z = (f + math.sqrt(NOISE) * eps) / total.sqrt()
    tau = spread.sqrt()
    moved = make_predictive("skewed", X).transport(z) / tau
    expected = base.mean + f + (total - NOISE) / total.sqrt() * (moved - z)
    assert_close(posterior.rsample_from_base_samples(Size([7]), draws), expected)


def test_samples_of_wider_normals_are_stretched_paths():
    X = make_points(3, q=4)
    posterior = CalibratedPosterior(
        make_base(X), with_scale(3.0, Size([3, 4, 1])), NOISE, excess="objective"
    )
    draws, base = draws_for(posterior, 6), posterior.base_posterior
    path = base.rsample_from_base_samples(Size([6]), draws[..., 0])
    stretch = (posterior.variance / base.variance).sqrt()
    expected = base.mean + stretch * (path - base.mean)
    assert_close(posterior.rsample_from_base_samples(Size([6]), draws), expected)


def test_what_corrects_nothing_leaves_paths_alone():
    posterior = objective("gaussian", make_points(3, q=4))
    draws = draws_for(posterior, 6)
    expected = posterior.base_posterior.rsample_from_base_samples(Size([6]), draws[..., 0])
    assert torch.equal(posterior.rsample_from_base_samples(Size([6]), draws), expected)
    assert_close(posterior.variance, posterior.base_posterior.variance)


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
def test_equal_rows_have_equal_samples():
    """Up to the root of the process' jitter, which grows with the spread."""
    X = torch.cat([make_points(q=2)] * 2)
    base = make_gp().posterior(X)
    posterior = CalibratedPosterior(
        base, make_predictive("stretched", X), NOISE, excess="objective"
    )
    samples = posterior.rsample_from_base_samples(Size([100]), draws_for(posterior, 100))
    stretch = (posterior.variance / base.variance).sqrt().max().item()
    assert_close(samples[:, :2], samples[:, 2:], rtol=0.0, atol=2e-3 * stretch)


@pytest.mark.parametrize("kind", ["stretched", "skewed"])
def test_correlations_are_those_of_the_process(kind):
    posterior = objective(kind, make_points(q=4), 10.0)
    samples = posterior.rsample_from_base_samples(Size([NUM]), draws_for(posterior, NUM)).squeeze(
        -1
    )
    ranks = samples.argsort(dim=0).argsort(dim=0).double()
    covariance = posterior.base_posterior.distribution.covariance_matrix
    deviation = covariance.diagonal().sqrt()
    correlation = covariance / deviation / deviation.unsqueeze(-1)
    expected = 6 / math.pi * torch.asin(correlation / 2)
    assert_close(torch.corrcoef(ranks.mT), expected, rtol=0.0, atol=0.03)


@pytest.mark.parametrize("kind", CORRECTED)
def test_gradients(kind):
    X = make_points(2, q=2).requires_grad_()
    draws, level = draws_for(objective(kind, X), 3), torch.tensor(0.9, dtype=torch.double)

    def values(X: Tensor) -> Tensor:
        posterior = objective(kind, X)
        parts = [
            posterior.mean,
            posterior.variance,
            posterior.quantile(level),
            posterior.log_expected_improvement(0.4),
            posterior.rsample_from_base_samples(Size([3]), draws).sum(dim=0),
        ]
        return torch.stack(parts)

    assert gradcheck(values, X)


@pytest.mark.filterwarnings("ignore:Negative variance values detected")
@pytest.mark.parametrize("kind", CORRECTED)
@pytest.mark.parametrize("noise", [1e-12, 1e-4, 1e6])
@pytest.mark.parametrize("factor", [1e-12, 1.0, 1e6])
@pytest.mark.parametrize("tensor", [False, True])
def test_extremes_are_finite(kind, noise, factor, tensor):
    X = make_points(3, q=1).requires_grad_()
    given = torch.full((3, 1, 1), noise).double() if tensor else noise
    predictive = make_predictive(kind, X)
    posterior = CalibratedPosterior(make_base(X, factor), predictive, given, excess="objective")
    values = [
        posterior.mean,
        posterior.variance,
        posterior.quantile(torch.tensor(0.9)),
        posterior.log_expected_improvement(0.4),
        posterior.rsample_from_base_samples(Size([20]), draws_for(posterior, 20)),
    ]
    for value in values:
        (grad,) = torch.autograd.grad(value.sum(), X, retain_graph=True)
        assert value.isfinite().all() and grad.isfinite().all()


def test_huge_spread_is_the_objectives():
    """With intervals fifty times too narrow, nearly all of it; and a known objective is not."""
    width = torch.full((1, 1), 50.0, dtype=torch.double)
    predictive = PiecewisePredictive.conformal(0.2, width, max_width=50.0, tails="stretched")
    tiny = MultivariateNormal(torch.zeros(1).double(), 1e-8 * torch.eye(1).double())
    base = GPyTorchPosterior(tiny)
    noise_owns, objective_owns = (
        CalibratedPosterior(base, predictive, 1.0, excess=e) for e in ("noise", "objective")
    )
    total = predictive.variance * (1.0 + 1e-8)
    assert_close(objective_owns.variance, total - 1.0)
    assert noise_owns.variance < 1e-7


@pytest.mark.parametrize("kind", KINDS)
def test_affine(kind):
    posterior, levels = objective(kind, make_points(3, q=2)), torch.tensor([0.1, 0.6]).double()
    mirror, scaled = posterior.affine(-1.0), posterior.affine(2.5, offset=-1.0)
    assert mirror.excess == scaled.excess == "objective"
    assert_close(mirror.quantile(levels), -posterior.quantile(1 - levels))
    assert_close(mirror.variance, posterior.variance)
    assert_close(scaled.quantile(levels), 2.5 * posterior.quantile(levels) - 1.0)
    draws = draws_for(posterior, 5)
    samples = posterior.rsample_from_base_samples(Size([5]), draws)
    assert_close(mirror.rsample_from_base_samples(Size([5]), -draws), -samples)
    assert_close(scaled.rsample_from_base_samples(Size([5]), draws), 2.5 * samples - 1.0)


def test_unknown_owner():
    arguments: Any = (make_base(make_points(q=1)), make_predictive("conformal", make_points(q=1)))
    with pytest.raises(InputDataError, match="`excess` must be one of 'noise', 'objective'"):
        CalibratedPosterior(*arguments, NOISE, excess="objectives")
