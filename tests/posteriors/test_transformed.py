"""Posteriors of increasing functions: contract, the identity, log-normal numbers, far out."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Size, Tensor
from torch.testing import assert_close

from botorch_calib.posteriors import CalibratedPosterior, OutcomeMap
from tests import oracles
from tests.contracts import PosteriorContract
from tests.posteriors.examples import KINDS, NOISE, make, make_base, make_points, make_predictive


class Exponential(OutcomeMap):
    def __init__(self, rate: float = 0.7) -> None:
        self.rate = rate

    def outcome(self, latent: Tensor) -> Tensor:
        return (self.rate * latent).exp()

    def latent(self, outcome: Tensor) -> Tensor:
        value = outcome.log() / self.rate
        return torch.where(outcome <= 0.0, -torch.inf, value)


class Sinh(OutcomeMap):
    """Convex above zero and concave below, as ``Bilog``."""

    def outcome(self, latent: Tensor) -> Tensor:
        return 4.0 * (latent / 4.0).sinh()

    def latent(self, outcome: Tensor) -> Tensor:
        return 4.0 * (outcome / 4.0).asinh()


class Line(OutcomeMap):
    def outcome(self, latent: Tensor) -> Tensor:
        return latent

    def latent(self, outcome: Tensor) -> Tensor:
        return outcome


def transformed(kind: str, X: Tensor, outcome_map: OutcomeMap, denoise: bool = True) -> Any:
    base, noise = make_base(X), X.new_tensor(NOISE)
    covariance = base.distribution.lazy_covariance_matrix
    stated = CalibratedPosterior.of_targets(
        base.mean, base.variance, noise, None, outcome_map, objective=denoise
    )
    stated.covariance = covariance
    return stated.corrected(make_predictive(kind, X))


class ContractOfTransformed(PosteriorContract):
    batch_shapes: ClassVar[tuple[Size, ...]] = (Size([2, 3]),)  # others: of one kind
    kind: str
    denoise = True
    # Of a steeper one, what lies beyond the 1 - 1e-9 quantile counts in the mean.
    outcome_map: OutcomeMap = Exponential(0.15)

    def make_posterior(self, batch_shape, q, dtype):
        X = make_points(*batch_shape, q=q, dtype=dtype).requires_grad_()
        return transformed(self.kind, X, self.outcome_map, denoise=self.denoise)


class TestStretchedLogNormal(ContractOfTransformed):
    batch_shapes = PosteriorContract.batch_shapes
    kind = "stretched"


class TestRecalibratedObservation(ContractOfTransformed):
    kind = "recalibrated"
    denoise = False


class TestMirrored(ContractOfTransformed):
    kind = "skewed"
    outcome_map = Sinh().affine(2.0, -1.0)

    def make_posterior(self, batch_shape, q, dtype):
        return super().make_posterior(batch_shape, q, dtype).affine(-0.5, 3.0)


@pytest.mark.parametrize("denoise", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_identity_changes_nothing(kind: str, denoise: bool) -> None:
    """Quadrature against the closed forms, where both state the same."""
    X = make_points(4, q=2)
    plain, mapped = make(kind, X, denoise=denoise), transformed(kind, X, Line(), denoise=denoise)
    assert_close(mapped.mean, plain.mean, rtol=1e-6, atol=1e-6)
    assert_close(mapped.variance, plain.variance, rtol=1e-5, atol=0.0)
    for best in (-3.0, 0.4, 2.0, 20.0):
        value, expected = (each.log_expected_improvement(best) for each in (mapped, plain))
        assert_close(value, expected, rtol=0.0, atol=2e-5)
    mirrored = mapped.affine(-2.0, 0.5), plain.affine(-2.0, 0.5)
    value, expected = (each.expected_improvement(0.1) for each in mirrored)
    assert_close(value, expected, rtol=1e-5, atol=1e-12)
    value, expected = (each.conditional_mean_below(0.3) for each in (mapped, plain))
    assert_close(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", [0.1, 0.25, 0.5])
def test_slopes_of_a_mean_below_a_knot(level: float) -> None:
    """At a level of the recalibration the threshold is a knot, where densities jump."""
    X, step = make_points(400, q=1), 1e-5

    def mean_below(X: Tensor) -> Tensor:
        posterior = transformed("recalibrated", X, Exponential(), denoise=False)
        return posterior.conditional_mean_below(level).squeeze(-1)

    inputs = X.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(mean_below(inputs).sum(), inputs)
    for j, change in enumerate(step * torch.eye(X.shape[-1]).to(X)):
        expected = (mean_below(X + change) - mean_below(X - change)) / (2 * step)
        assert_close(slopes[..., j], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_log_normal_improvement(kind: str) -> None:
    """Options on log-normal numbers; below the least outcome the mean less the incumbent."""
    X, rate = make_points(5, q=1), 0.7
    posterior = transformed(kind, X, Exponential(rate))
    location, variance = posterior.target_mean, posterior.target_variance
    unit = (variance / (variance + NOISE).sqrt()).reshape(-1).tolist()
    ratio = (NOISE / variance).sqrt().reshape(-1).tolist()
    pieces = oracles.unbatched(posterior.predictive)
    for best in (-1.0, 0.0, 0.7, 3.0, 1e4):
        found = posterior.log_expected_improvement(best).reshape(-1).tolist()
        for i, mean in enumerate(location.reshape(-1).tolist()):
            x = (math.log(best) / rate - mean) / unit[i] if best > 0.0 else -math.inf
            value = oracles.exponential_excess(pieces[i], ratio[i], x, rate * unit[i]) + rate * mean
            if best < 0.0:
                value = math.log(math.exp(value) - best)
            assert found[i] == pytest.approx(value, abs=3e-5)


@pytest.mark.parametrize("denoise", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_and_quantiles_are_those_of_the_latent_value(kind, denoise) -> None:
    X = make_points(3, q=2)
    posterior = transformed(kind, X, Exponential(), denoise=denoise)
    inner, best = make(kind, X, denoise=denoise), torch.tensor(0.8, dtype=torch.double)
    latent = best.log() / 0.7
    assert_close(posterior.cdf(best), inner.cdf(latent))
    above = posterior.probability_of_improvement(best)
    assert_close(above, inner.probability_of_improvement(latent))
    between = posterior.log_probability_between(0.5, 0.8)
    ends = math.log(0.5) / 0.7, math.log(0.8) / 0.7
    assert_close(between, inner.log_probability_between(*ends), rtol=1e-9, atol=1e-9)
    upper = posterior.log_probability_between(-1.0, 0.8)  # no outcome is below 0
    assert_close(upper, inner.log_probability_between(None, ends[1]), rtol=1e-9, atol=1e-9)
    median = posterior.quantile(0.5)
    assert_close(median, (0.7 * inner.quantile(0.5)).exp())
    assert_close(posterior.affine(-1.0).quantile(0.5), -median)


def test_what_cannot_be_an_outcome() -> None:
    posterior = transformed("stretched", make_points(3, q=1), Exponential())
    assert (posterior.cdf(-1.0) == 0.0).all() and (posterior.density(-1.0) == 0.0).all()
    assert (posterior.probability_of_improvement(-1.0) == 1.0).all()
    assert_close(posterior.expected_improvement(-1.0), posterior.mean + 1.0, rtol=1e-5, atol=0.0)
    assert (posterior.log_expected_improvement(math.inf) == -math.inf).all()
    assert (posterior.log_expected_improvement(-math.inf) == math.inf).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_improvement(kind: str) -> None:
    """By inputs, against differences; finite where improvement is as small as ``exp(-300)``."""
    X = make_points(3, q=1)
    step = torch.tensor([1e-5, 0.0], dtype=torch.double)
    moved = X.clone().requires_grad_()
    here, ahead, behind = (
        transformed(kind, at, Exponential(1.3)) for at in (moved, X + step, X - step)
    )
    for best in (0.05, 0.9, 4.0, 1e3):
        value = here.log_expected_improvement(best)
        (slope,) = torch.autograd.grad(value.sum(), moved, retain_graph=True)
        rise = ahead.log_expected_improvement(best) - behind.log_expected_improvement(best)
        assert_close(slope[:, 0, 0], rise.reshape(-1) / 2e-5, rtol=1e-3, atol=1e-3)


def test_outcomes_that_overflow() -> None:
    """Where none is finite any more, a moment is large or infinite, and no NaN."""
    posterior = transformed("gaussian", make_points(3, q=1), Exponential(1000.0))
    mean, variance = posterior.moments()
    assert not mean.isnan().any() and not variance.isnan().any() and (mean > 1e200).all()
    assert not posterior.log_expected_improvement(1.0).isnan().any()


def test_errors() -> None:
    posterior = transformed("gaussian", make_points(3, q=1), Exponential())
    with pytest.raises(InputDataError, match="weight"):
        posterior.affine(0.0)
    with pytest.raises(UnsupportedError, match="not multivariate normal"):
        _ = posterior.distribution
