"""Moments of many normal pieces against quadrature and the general formula."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.distributions import PiecewisePredictive, _normal_moments
from botorch_calib.distributions._normal_moments import normal_moments

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


def predictive(knots: Tensor) -> PiecewisePredictive:
    return PiecewisePredictive(knots, MASSES, [False] * 6, validate=False)


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
    mean, variance = normal_moments(knots, MASSES)
    general = predictive(knots)._moments_by_pieces()
    expected = by_quadrature(KNOTS[name])
    for got, other, wanted in zip((mean, variance), general, expected, strict=True):
        assert float(got) == pytest.approx(wanted, rel=1e-10, abs=1e-11)
        assert_close(got, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", KNOTS)
def test_derivatives(name):
    knots = torch.tensor(KNOTS[name], dtype=torch.double).requires_grad_()
    for part in (0, 1):
        (got,) = torch.autograd.grad(normal_moments(knots, MASSES)[part], knots)
        (wanted,) = torch.autograd.grad(predictive(knots)._moments_by_pieces()[part], knots)
        assert got.isfinite().all()
        assert_close(got, wanted, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", KNOTS)
def test_second_derivatives(name):
    """By the same formula; the general one loses more digits to cancellation in narrow pieces."""
    knots = torch.tensor(KNOTS[name], dtype=torch.double).requires_grad_()
    direction = torch.tensor([1.0, -0.3, 0.5, 0.8, -1.2], dtype=torch.double)
    found = []
    for both in (normal_moments(knots, MASSES), predictive(knots)._moments_by_pieces()):
        (first,) = torch.autograd.grad(0.7 * both[0] + both[1], knots, create_graph=True)
        found.append(torch.autograd.grad(first @ direction, knots)[0])
    assert found[0].isfinite().all()
    tolerance = 1e-3 if name == "narrow" else 1e-7
    assert_close(*found, rtol=tolerance, atol=tolerance)


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


def test_parts(monkeypatch):
    """However many distributions are taken at a time, and in whatever shape."""
    generator = torch.Generator().manual_seed(0)
    knots = torch.rand(3, 4, 2, 5, generator=generator, dtype=torch.double).cumsum(dim=-1)
    knots.requires_grad_()
    expected = normal_moments(knots, MASSES)
    slopes = torch.autograd.grad(expected[1].sum(), knots)
    assert normal_moments(knots[0, 0, 0], MASSES)[0].shape == ()
    for chunk in (1, 35):
        monkeypatch.setattr(_normal_moments, "_CHUNK", chunk)
        found = normal_moments(knots, MASSES)
        assert_close(found, expected, rtol=1e-13, atol=1e-13)
        assert_close(torch.autograd.grad(found[1].sum(), knots), slopes, rtol=1e-12, atol=1e-12)


def test_differences():
    knots = torch.tensor([KNOTS[name] for name in ("normal", "above zero")], dtype=torch.double)
    knots.requires_grad_()
    assert torch.autograd.gradcheck(normal_moments, (knots, MASSES))
    assert torch.autograd.gradgradcheck(normal_moments, (knots, MASSES))


def test_scale(monkeypatch):
    """Knots over the scale, and moments in its units; derivatives of every order by both."""
    generator = torch.Generator().manual_seed(0)
    knots = torch.randn(2, 3, 5, generator=generator, dtype=torch.double).sort(dim=-1).values
    scale = 0.5 + torch.rand(3, generator=generator, dtype=torch.double)
    knots.requires_grad_(), scale.requires_grad_()
    mean, variance = normal_moments(knots / scale.unsqueeze(-1), MASSES)
    expected = mean * scale, variance * scale.square()
    wanted = torch.autograd.grad(expected[0].sum() + 0.3 * expected[1].sum(), (knots, scale))
    for chunk in (2**15, 10):
        monkeypatch.setattr(_normal_moments, "_CHUNK", chunk)
        found = normal_moments(knots, MASSES, scale)
        assert_close(found, expected, rtol=1e-12, atol=1e-12)
        slopes = torch.autograd.grad(found[0].sum() + 0.3 * found[1].sum(), (knots, scale))
        assert_close(slopes, wanted, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradcheck(normal_moments, (knots, MASSES, scale))
    assert torch.autograd.gradgradcheck(normal_moments, (knots, MASSES, scale))
    one, several = normal_moments(knots[0, 0], MASSES, scale)
    assert one.shape == several.shape == (3,)


def test_narrowest():
    """At the least gap the derivatives are inaccurate, and finite."""
    knots = (0.3 + 1e-6 * torch.arange(5, dtype=torch.double)).requires_grad_()
    mean, variance = normal_moments(knots, MASSES)
    (slope,) = torch.autograd.grad(mean + variance, knots)
    assert mean.isfinite() and variance > 0 and slope.isfinite().all()
    assert_close(variance, predictive(knots)._moments_by_pieces()[1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tails", ["gaussian", "stretched"])
def test_of_recalibrated_distributions(tails, dtype, monkeypatch):
    levels = torch.linspace(0.1, 0.9, 9, dtype=torch.double)
    generator = torch.Generator().manual_seed(0)
    knots = torch.randn(3, 4, 1, 9, generator=generator).to(dtype).requires_grad_()
    found = PiecewisePredictive.recalibrated(levels, 3 * knots, tails=tails).moments()
    monkeypatch.setattr(PiecewisePredictive, "_is_recalibrated", False)
    expected = PiecewisePredictive.recalibrated(levels, 3 * knots, tails=tails).moments()
    tolerance = 1e-9 if dtype == torch.double else 1e-4
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == (3, 4, 1) and got.dtype == dtype
        assert_close(got, wanted, rtol=tolerance, atol=tolerance)
        slopes = [torch.autograd.grad(x.sum(), knots, retain_graph=True)[0] for x in (got, wanted)]
        assert_close(*slopes, rtol=10 * tolerance, atol=10 * tolerance)
