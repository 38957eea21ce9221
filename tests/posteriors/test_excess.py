"""Whose is the excess? The posterior of the objective with the calibrated gain."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Size, Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from botorch_calib.distributions.form import PiecewiseForm
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.posteriors import CalibratedPosterior
from tests.contracts import PosteriorContract
from tests.posteriors.examples import (
    KINDS,
    NOISE,
    draws_for,
    make,
    make_base,
    make_points,
    make_predictive,
)


def objective(kind: str, X: Tensor, noise: Tensor | float = NOISE) -> CalibratedPosterior:
    return make(kind, X, noise, excess="objective")


class TestStretched(PosteriorContract):
    batch_shapes = (Size([2, 3]),)
    kind = "stretched"

    def make_posterior(self, batch_shape, q, dtype):
        X = make_points(*batch_shape, q=q, dtype=dtype).requires_grad_()
        return objective(self.kind, X)


class TestSkewed(TestStretched):
    kind = "skewed"


def with_scale(scale: float, shape: Size) -> PiecewisePredictive:
    """A normal distribution of standard deviation ``scale``."""
    form = PiecewiseForm((False,), open_low=True, open_high=True)
    knots, scales = torch.empty(*shape, 0).double(), torch.full(shape, scale).double()
    return PiecewisePredictive.from_form(knots, torch.ones(1), form, scale=scales)


@pytest.mark.parametrize("scale", [1.05, 30.0])
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


def test_samples_by_hand():
    """A normal draw of ``f`` given ``y`` under the larger gain, moved with ``y``."""
    X = make_points(3, q=2)
    posterior, base = objective("skewed", X), make_base(X)
    draws = draws_for(posterior, 7)
    root = torch.linalg.cholesky(base.distribution.covariance_matrix)
    f, other = (root @ draws[..., i : i + 1] for i in (0, 1))
    y = f + math.sqrt(NOISE) * other / base.variance.sqrt()
    total = base.variance + NOISE
    own, gain = (
        base.variance / total,
        1 - NOISE / (total * posterior.predictive.variance.clamp(1.0)),
    )
    f = gain * y + (gain / own).sqrt() * (f - own * y)
    moved = total.sqrt() * make_predictive("skewed", X).transport(y / total.sqrt())
    expected = base.mean + f + gain * (moved - y)
    assert_close(posterior.rsample_from_base_samples(Size([7]), draws), expected)


@pytest.mark.parametrize("kind", ["stretched", "skewed"])
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


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_what_is_kept_from_a_look_without_gradients_has_them(dtype):
    X = make_points(3, q=2, dtype=dtype).requires_grad_()
    looked, fresh = objective("skewed", X), objective("skewed", X)
    with torch.no_grad():
        assert looked.base_sample_shape == (3, 2, 2)
        looked.variance, looked.score(0.3)
    draws = draws_for(fresh, 3)
    for value in (
        lambda p: p.variance,
        lambda p: p.quantile(0.8),
        lambda p: p.rsample_from_base_samples(Size([3]), draws),
    ):
        slopes = [
            torch.autograd.grad(value(p).sum(), X, retain_graph=True) for p in (looked, fresh)
        ]
        assert_close(*slopes)
