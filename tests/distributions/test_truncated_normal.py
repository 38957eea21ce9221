"""Moments of many normal pieces compared with quadrature, with derivatives."""

from __future__ import annotations

import mpmath
import pytest
import torch
from numpy.polynomial.legendre import leggauss
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


SLOPES = {"rtol": 1e-7, "atol": 1e-8}


def slopes_of_oracle(knots: list[float]) -> list[list[float]]:
    """By each knot, of both moments."""
    with mpmath.workdps(60):
        step = mpmath.mpf(10) ** -20
        slopes = []
        for i in range(len(knots)):
            up, down = ([*map(mpmath.mpf, knots)] for _ in range(2))
            up[i], down[i] = up[i] + step, down[i] - step
            pairs = zip(_moments(up), _moments(down), strict=True)
            slopes.append([float((a - b) / (2 * step)) for a, b in pairs])
        return slopes


def by_quadrature(knots: list[float]) -> tuple[float, float]:
    with mpmath.workdps(40):
        mean, variance = _moments([*map(mpmath.mpf, knots)])
        return float(mean), float(variance)


def _moments(knots: list[mpmath.mpf]) -> tuple[mpmath.mpf, mpmath.mpf]:
    ends = [-mpmath.inf, *knots, mpmath.inf]
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
    return total, square - total**2


@pytest.mark.parametrize("name", KNOTS)
def test_values(name):
    knots = torch.tensor(KNOTS[name], dtype=torch.double)
    expected = by_quadrature(KNOTS[name])
    for got, wanted in zip(normal_moments(knots, MASSES), expected, strict=True):
        assert float(got) == pytest.approx(wanted, rel=1e-10, abs=1e-11)


@pytest.mark.parametrize("name", KNOTS)
def test_derivatives(name):
    """By differences of the oracle in 40 digits, where they are exact."""
    knots = torch.tensor(KNOTS[name], dtype=torch.double).requires_grad_()
    expected = knots.new_tensor(slopes_of_oracle(KNOTS[name])).mT
    for moment, wanted in zip(normal_moments(knots, MASSES), expected, strict=True):
        (got,) = torch.autograd.grad(moment, knots, retain_graph=True)
        assert_close(got, wanted, **SLOPES)


@pytest.mark.parametrize("name", [name for name in KNOTS if name != "narrow"])
def test_second_derivatives(name):
    """At the distances of the knots at which differences in double precision are exact enough."""
    knots = torch.tensor(KNOTS[name], dtype=torch.double).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda k: normal_moments(k, MASSES), (knots,), atol=1e-4)


@pytest.mark.parametrize("shape", [(6000,), (40, 150, 1), (1, 6000)])
def test_many_pieces(shape):
    """Those that pass through the cache in parts are as they are by themselves."""
    generator = torch.Generator().manual_seed(0)
    knots = torch.randn(*shape, 5, generator=generator, dtype=torch.double).sort(dim=-1).values
    weights = torch.randn(2, *shape, generator=generator, dtype=torch.double)

    def found(part: slice) -> tuple[Tensor, Tensor]:
        own = knots.view(-1, 5)[part].clone().requires_grad_()
        all_of_it = part == slice(None)
        moments = torch.stack(normal_moments(own.view(knots.shape) if all_of_it else own, MASSES))
        total = (weights.view(2, -1)[:, part] * moments.view(2, -1)).sum()
        return moments.view(2, -1), torch.autograd.grad(total, own)[0]

    halves = zip(found(slice(0, 3000)), found(slice(3000, 6000)), strict=True)
    for got, parts, dim in zip(found(slice(None)), halves, (1, 0), strict=True):
        assert_close(got, torch.cat(parts, dim=dim), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tails", ["gaussian", "stretched"])
def test_of_recalibrated_distributions(tails, dtype):
    """Against the density, integrated from knot to knot."""
    levels = torch.linspace(0.1, 0.9, 9, dtype=torch.double)
    generator = torch.Generator().manual_seed(0)
    knots = torch.randn(3, 4, 1, 9, generator=generator).to(dtype)
    found = PiecewisePredictive.recalibrated(levels, 3 * knots, tails=tails).moments()
    exact = PiecewisePredictive.recalibrated(levels, 3 * knots.double(), tails=tails)
    inner = exact.finite_knots
    ends = torch.cat([inner[..., :1] - 40.0, inner, inner[..., -1:] + 40.0], dim=-1)
    nodes, weights = (torch.as_tensor(v) for v in leggauss(200))
    half = ends.diff(dim=-1).unsqueeze(-1) / 2
    z = (ends[..., :-1, None] + half * (nodes + 1)).flatten(-2).movedim(-1, 0)
    mass = (half * weights).flatten(-2).movedim(-1, 0) * exact.log_prob(z).exp()
    mean = (mass * z).sum(dim=0)
    wanted = mean, (mass * (z - mean).square()).sum(dim=0)
    tolerance = 1e-9 if dtype == torch.double else 1e-4
    for got, expected in zip(found, wanted, strict=True):
        assert got.shape == (3, 4, 1) and got.dtype == dtype
        assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
