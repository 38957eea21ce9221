"""Conformal Bayesian optimization: the weighted quantile, density ratios and the next queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.acquisition import PosteriorMean
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from benchmarks.baselines import ClassifierDensityRatio, WeightedConformal, proposal_samples
from tests.contracts import CalibratorContract
from tests.gps import make_gp
from tests.random_numbers import normal, uniform

DOUBLE: dict[str, Any] = {"dtype": torch.double}


def steep(X: Tensor) -> Tensor:
    """A known density ratio: from 0.05 to 20 over the unit square."""
    return (3 * (X.sum(dim=-1) - 1)).exp()


class TestWeightedConformal(CalibratorContract):
    def make_calibrator(self) -> WeightedConformal:
        return WeightedConformal(0.3, steep)


def by_definition(X: Tensor, z: Tensor, x: Tensor, alpha: float) -> tuple[float, float, float]:
    """The weighted quantile, the next larger residual, and the interpolation weight."""
    pairs = sorted(zip(z.abs().tolist(), steep(X).tolist(), strict=True))
    needed = (1 - alpha) * (steep(X).sum() + steep(x)).item()
    below = 0.0
    for i, (size, weight) in enumerate(pairs):
        if below + weight >= needed:
            following = pairs[i + 1][0] if i + 1 < len(pairs) else 50.0
            return size, following, (needed - below) / weight
        below += weight
    return 50.0, 50.0, 0.0


@pytest.mark.parametrize(("num", "alpha"), [(1, 0.7), (4, 0.2), (9, 0.05), (40, 0.2)])
def test_the_weighted_quantile(num: int, alpha: float) -> None:
    generator = torch.Generator().manual_seed(num)
    X, points = (uniform(size, 2, generator=generator) for size in (num, 12))
    z = 2 * normal(num, generator=generator)
    calibrator = WeightedConformal(alpha, steep)
    calibrator.update(X, z)
    widths = calibrator.half_width(points.reshape(2, 6, 2))
    assert widths.shape == (2, 6, 1)
    for x, width in zip(points, widths.flatten(), strict=True):
        low, high, share = by_definition(X, z, x, alpha)
        score = (1 - share) * low / (1 + low) + share * high / (1 + high)
        assert_close(width.item(), score / (1 - score))
        assert width >= low * (1 - 1e-12)


def test_the_ratio_of_gaussian_distributions() -> None:
    """The true log ratio is quadratic, so the only error is sampling error; it has a gradient."""
    past = MultivariateNormal(torch.zeros(2, **DOUBLE), torch.eye(2, **DOUBLE))
    factor = torch.tensor([[0.8, 0.0], [0.3, 0.7]], **DOUBLE)
    proposal = MultivariateNormal(torch.tensor([0.7, -0.4], **DOUBLE), scale_tril=factor)
    torch.manual_seed(2)
    ratio = ClassifierDensityRatio(past.sample((3000,)), proposal.sample((6000,)))
    X = past.sample((200,))
    truth = proposal.log_prob(X) - past.log_prob(X)
    inside = truth.abs() < 4.0  # well inside the clipped range
    error = (ratio(X).log() - truth).abs()[inside]
    # Six coefficients from 3000 points: an error of 0.1 in the middle, and more farther out.
    assert inside.sum() > 150 and error.median() < 0.1 and error.max() < 0.6
    assert torch.autograd.gradcheck(ratio, X[:3].requires_grad_())


def test_next_queries_are_drawn_by_their_weights() -> None:
    acquisition, num = PosteriorMean(make_gp()), 200_000
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)
    drawn = proposal_samples(acquisition, bounds, num, seed=3)
    points = draw_sobol_samples(bounds, n=1024, q=1, seed=3)
    with torch.no_grad():
        values = acquisition(points)
    p = (values / values.std(unbiased=False)).softmax(dim=0)
    # Their mean, within 4.5 standard errors.
    mean = p @ points.squeeze(1)
    error = (p @ (points.squeeze(1) - mean).square() / num).sqrt()
    assert ((drawn.mean(dim=0) - mean).abs() <= 4.5 * error).all()
    assert (drawn[:50, None] == points.squeeze(1)).all(dim=-1).any(dim=-1).all()
