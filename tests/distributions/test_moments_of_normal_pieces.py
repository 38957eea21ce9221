"""Moments of many normal pieces against quadrature, and their derivatives."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.distributions import PiecewisePredictive

MASSES = torch.tensor([0.05, 0.15, 0.3, 0.3, 0.15, 0.05], dtype=torch.double)
KNOTS = {
    "normal": [-1.6, -0.8, 0.1, 0.7, 1.7],
    "a knot at zero": [-1.0, -0.2, 0.0, 0.5, 2.0],
    "above zero": [0.4, 0.9, 1.7, 2.2, 4.0],
    "below zero": [-9.0, -7.0, -6.5, -6.0, -0.2],
    "far out": [-50.0, -45.0, -44.0, 44.0, 50.0],
    "on one side, far out": [40.0, 41.0, 43.0, 44.0, 50.0],
    "narrow": [-0.5, -0.4999, 1.0, 1.0001, 1.0002],
    "wide": [-30.0, -1e-3, 1e-3, 8.0, 30.0],
}


def normal_moments(knots: Tensor, masses: Tensor, scale: Tensor | None = None):
    flags = [False] * len(masses)
    return PiecewisePredictive(knots, masses, flags, scale=scale, validate=False).moments()


def by_quadrature(knots: list[float]) -> tuple[float, float]:
    with mpmath.workdps(40):
        ends = [-mpmath.inf, *map(mpmath.mpf, knots), mpmath.inf]
        total, square = mpmath.mpf(0), mpmath.mpf(0)
        for low, high, mass in zip(ends[:-1], ends[1:], MASSES.tolist(), strict=True):
            # In the lower tail, where differences of probabilities keep their digits
            sign = -1 if low + high > 0 else 1
            a, b = sorted((sign * low, sign * high))
            N = mpmath.ncdf(b) - mpmath.ncdf(a)
            pa, pb = mpmath.npdf(a), mpmath.npdf(b)
            mean = sign * (pa - pb) / N
            edges = (a * pa if mpmath.isfinite(a) else 0) - (b * pb if mpmath.isfinite(b) else 0)
            total += mass * mean
            square += mass * (1 + edges / N)
        return float(total), float(square - total**2)


@pytest.mark.parametrize("name", KNOTS)
def test_values(name):
    knots = torch.tensor(KNOTS[name], dtype=torch.double)
    expected = by_quadrature(KNOTS[name])
    for got, wanted in zip(normal_moments(knots, MASSES), expected, strict=True):
        assert float(got) == pytest.approx(wanted, rel=1e-10, abs=1e-11)


@pytest.mark.parametrize("name", [name for name in KNOTS if name != "narrow"])
def test_derivatives(name):
    """Both orders, at the distances of the knots at which differences are exact enough."""
    knots = torch.tensor(KNOTS[name], dtype=torch.double).requires_grad_()
    assert torch.autograd.gradcheck(lambda k: normal_moments(k, MASSES), (knots,), atol=1e-5)
    assert torch.autograd.gradgradcheck(lambda k: normal_moments(k, MASSES), (knots,), atol=1e-4)


def test_random_distributions():
    """Pieces from narrow to wide, anywhere: to the digits that their width leaves."""
    generator = torch.Generator().manual_seed(0)
    widths = 10 ** (4 * torch.rand(40, 5, generator=generator, dtype=torch.double) - 3)
    start = 20 * torch.rand(40, 1, generator=generator, dtype=torch.double) - 15
    knots = start + widths.cumsum(dim=-1)
    expected = knots.new_tensor([by_quadrature(row) for row in knots.tolist()])
    assert_close(
        torch.stack(normal_moments(knots, MASSES), dim=-1), expected, rtol=1e-10, atol=1e-10
    )


def test_differences():
    knots = torch.tensor([KNOTS[name] for name in ("normal", "above zero")], dtype=torch.double)
    knots.requires_grad_()
    assert torch.autograd.gradcheck(normal_moments, (knots, MASSES))
    assert torch.autograd.gradgradcheck(normal_moments, (knots, MASSES))


def test_scale():
    """Knots over the scale, and moments in its units; derivatives of every order by both."""
    generator = torch.Generator().manual_seed(0)
    knots = torch.randn(2, 3, 5, generator=generator, dtype=torch.double).sort(dim=-1).values
    scale = 0.5 + torch.rand(3, generator=generator, dtype=torch.double)
    knots.requires_grad_(), scale.requires_grad_()
    mean, variance = normal_moments(knots / scale.unsqueeze(-1), MASSES)
    expected = mean * scale, variance * scale.square()
    assert_close(normal_moments(knots, MASSES, scale), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(normal_moments, (knots, MASSES, scale))
    assert torch.autograd.gradgradcheck(normal_moments, (knots, MASSES, scale))


def test_narrowest():
    """At the least gap the derivatives are inaccurate, and finite."""
    knots = (0.3 + 1e-6 * torch.arange(5, dtype=torch.double)).requires_grad_()
    mean, variance = normal_moments(knots, MASSES)
    (slope,) = torch.autograd.grad(mean + variance, knots)
    assert mean.isfinite() and variance > 0 and slope.isfinite().all()
