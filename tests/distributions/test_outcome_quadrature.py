"""Expectations by quadrature against closed forms, and against options on log-normal numbers."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from botorch_calib.distributions import PiecewisePredictive, SmoothedPredictive
from botorch_calib.distributions.outcome_quadrature import _LogShare, rule_above
from tests.predictive_examples import random_predictive

EVERYWHERE = torch.tensor(-math.inf, dtype=torch.double)
# Without bounded supports, far beyond which nothing is claimed
KINDS = ["gaussian", "conformal", "stretched", "recalibrated", "calibrated"]
RATIOS = [0.0, 1e-3, 0.3, 6.0]


def number(value: float | list[float]) -> Tensor:
    return torch.tensor(value, dtype=torch.double)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("kind", [*KINDS, "uniform", "mixed", "truncated"])
def test_total_mean_and_variance(kind: str, ratio: float) -> None:
    distribution = SmoothedPredictive(random_predictive(kind, 20), number(ratio))
    points, log_weights = rule_above(distribution, EVERYWHERE, number(0.0))
    weights = log_weights.exp()
    mean, variance = distribution.moments()
    total = weights.sum(dim=0)
    assert_close(total, torch.ones_like(total), rtol=3e-6, atol=0.0)
    found = (weights * points).sum(dim=0)
    assert_close(found, mean.expand_as(found), rtol=1e-5, atol=1e-5)
    spread = (weights * (points - mean).square()).sum(dim=0)
    assert_close(spread, variance.expand_as(spread), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("threshold", [-4.0, 1.7, 35.0])
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_mean_excess(kind: str, ratio: float, threshold: float) -> None:
    """The closed form of `SmoothedPredictive.log_excess`, as far out as ``exp(-600)``."""
    distribution = SmoothedPredictive(random_predictive(kind, 20), number(ratio))
    points, log_weights = rule_above(distribution, number(threshold), number(0.0))
    found = (log_weights + (points - threshold).clamp(min=1e-300).log()).logsumexp(dim=0)
    expected = distribution.log_excess(number(threshold))
    assert_close(found, expected.expand_as(found), rtol=0.0, atol=2e-5)


def test_mean_excess_beyond_a_light_outer_piece() -> None:
    """Noise carries more mass from high pieces far below than the last piece has of its own."""
    levels = torch.tensor([2e-6, 0.25, 0.5, 0.75, 1.0 - 2e-6], dtype=torch.double)
    knots = torch.full((1, 5), -8.0, dtype=torch.double)
    predictive = PiecewisePredictive.recalibrated(levels, knots, tails="gaussian")
    distribution = SmoothedPredictive(predictive, torch.tensor([10.0], dtype=torch.double))
    for threshold in (60.0, 100.0, 120.0):
        points, log_weights = rule_above(distribution, number(threshold), number(0.0))
        found = (log_weights + (points - threshold).clamp(min=1e-300).log()).logsumexp(dim=0)
        assert_close(found, distribution.log_excess(number(threshold)), rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("order", [12, 16])
@pytest.mark.parametrize("ratio", [0.0, 0.3])
@pytest.mark.parametrize(
    "knots", [[20.0], [-9.0], [-10.0, 10.0], [-5.2, 5.2], [2.0, 10.0, 30.0], [-50.0, 0.0, 50.0]]
)
def test_pieces_far_wider_than_their_densities(
    knots: list[float], ratio: float, order: int
) -> None:
    """The normal density of a piece is concentrated at 0, or at the end next to 0."""
    levels = torch.linspace(0.0, 1.0, len(knots) + 2, dtype=torch.double)[1:-1]
    predictive = PiecewisePredictive.recalibrated(levels, knots, max_width=50.0)
    distribution = SmoothedPredictive(predictive, number(ratio))
    points, log_weights = rule_above(distribution, EVERYWHERE, number(0.0), order)
    weights = log_weights.exp()
    assert_close(weights.sum(), number(1.0), rtol=0.0, atol=1e-5)
    assert_close((weights * points).sum(), distribution.moments()[0], rtol=1e-5, atol=1e-5)
    points, log_weights = rule_above(distribution, number(1.5), number(0.0), order)
    found = (log_weights + (points - 1.5).clamp(min=1e-300).log()).logsumexp(dim=0)
    assert_close(found, distribution.log_excess(number(1.5)), rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("order", [12, 16])
@pytest.mark.parametrize("ratio", [0.01, 0.1])
@pytest.mark.parametrize("threshold", [-math.inf, -1.43])
@pytest.mark.parametrize(
    ("ends", "masses"),
    [([-7.44, 4.1], [1.0]), ([-math.inf, -7.44, 4.1, math.inf], [0.05, 0.9, 0.05])],
)
def test_long_pieces_with_noise_at_their_ends(
    ends: list[float], masses: list[float], threshold: float, ratio: float, order: int
) -> None:
    """``E exp(x)``, and ``E(exp(x - c) - 1)+``: the noise at an end needs a panel of its own."""
    predictive = PiecewisePredictive(number(ends), number(masses), [False] * len(masses))
    distribution = SmoothedPredictive(predictive, number(ratio))

    def log_mean(num: int) -> Tensor:
        x, log_weights = rule_above(distribution, number(threshold), number(1.0), num)
        log_u = x if threshold == -math.inf else (x - threshold).clamp(min=1e-300).expm1().log()
        return (log_weights + log_u).logsumexp(dim=0)

    assert_close(log_mean(order), log_mean(60), rtol=0.0, atol=1.5e-5)


@pytest.mark.parametrize(("ratio", "growth"), [(0.0, 3.0), (1.0, 2.5), (3.0, 2.5)])
def test_log_normal_mean_of_large_deviation(ratio: float, growth: float) -> None:
    """``log E exp(growth x)`` of a normal law, far from 0, where its density is concentrated."""
    gaussian = PiecewisePredictive(number([-math.inf, math.inf]), number([1.0]), [False])
    distribution = SmoothedPredictive(gaussian, number(ratio))
    points, log_weights = rule_above(distribution, EVERYWHERE, number(growth), order=12)
    found = (log_weights + growth * points).logsumexp(dim=0)
    assert_close(found, number(0.5 * growth**2 * (1.0 + ratio**2)), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(("threshold", "gap"), [(-4.0, 3.0), (0.2, 1e-3), (12.0, 0.4)])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kink(kind: str, ratio: float, threshold: float, gap: float) -> None:
    """Beyond the kink ``(x - c)+`` is constant: the difference of two mean excesses."""
    distribution = SmoothedPredictive(random_predictive(kind, 20), number(ratio))
    far = number(1e30)
    kinks = torch.stack([number(threshold - 1.0), number(threshold + gap), far])
    points, log_weights = rule_above(distribution, number(threshold), number(0.0), 12, kinks)
    u = (points - threshold).clamp(min=1e-300, max=gap)
    found = (log_weights + u.log()).logsumexp(dim=0)
    above, beyond = (distribution.log_excess(number(x)) for x in (threshold, threshold + gap))
    expected = above + (-(beyond - above).expm1()).log()
    assert_close(found, expected.expand_as(found), rtol=0.0, atol=3e-5)


def test_gradients_of_shares() -> None:
    """By the ends and the unit; among the ends are infinite and far ones."""
    low = torch.tensor([-1e100, -0.4, 3.0, -60.0], dtype=torch.double, requires_grad=True)
    high = torch.tensor([-9.0, 0.1, 1e100, -55.0], dtype=torch.double, requires_grad=True)
    t = torch.tensor([[0.2], [1.5]], dtype=torch.double)
    unit = number(0.9).requires_grad_()
    assert gradcheck(partial(_LogShare.apply, t), (low, high, unit))


@pytest.mark.parametrize("threshold", [-1.0, 0.4, 8.0])
def test_gradients(threshold: float) -> None:
    """Gradients by knots, masses, scale and ratio equal gradients of the closed form."""
    knots = torch.tensor([-1.2, -0.3, 0.4, 1.9], dtype=torch.double, requires_grad=True)
    masses = torch.tensor([0.1, 0.25, 0.3, 0.15, 0.2], dtype=torch.double, requires_grad=True)
    scale, ratio = number(1.3).requires_grad_(), number(0.4).requires_grad_()
    uniform = (False, True, False, True, False)
    predictive = PiecewisePredictive(knots, masses, uniform, scale=scale, validate=False)
    distribution = SmoothedPredictive(predictive, ratio)
    points, log_weights = rule_above(distribution, number(threshold), number(0.0))
    found = (log_weights + (points - threshold).clamp(min=1e-300).log()).logsumexp(dim=0)
    expected = distribution.log_excess(number(threshold))
    leaves = [knots, masses, scale, ratio]
    slopes = (torch.autograd.grad(each, leaves, retain_graph=True) for each in (found, expected))
    for value, right in zip(*slopes, strict=True):
        assert_close(value, right, rtol=1e-4, atol=1e-5)
