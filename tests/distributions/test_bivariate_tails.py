"""Integrals over the tails of a normal piece: against mpmath and against quadrature.

Their derivatives are those of `tests.distributions.test_smoothed_integrals`.
"""

import math

import mpmath as mp
import pytest
import torch
from botorch.utils.probability.utils import log_phi
from scipy.special import log_ndtr
from torch.testing import assert_close

from botorch_calib.distributions._bivariate_tails import (
    bivariate_tails,
    off_zero,
    scale_beyond,
)
from botorch_calib.distributions._normal_functions import first_tails, mills_ratio
from tests.oracles import Pieces, log_h, smoothed

# c, k, r, side; values from 0.4 down to exp(-700).
TAILS = [
    (-1.5, 0.2, 0.5, -1.0),
    (2.0, 3.0, 0.01, 1.0),
    (36.9, 2.0, 0.3, 1.0),
]


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


def log_tails(c, k, r, side) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithms of ``E[(X - c)+ ; side Z > k]`` and of ``P(X > c, side Z > k)``."""
    c, k, r, side = torch.broadcast_tensors(c, k, r, side)
    knots, norm = off_zero(side * k).unsqueeze(0), (1 + r.square()).sqrt()
    log_scale, log_at_c = scale_beyond(c * norm, c, r, norm, knots[0].clamp(min=0.0))
    ratios, mills_k = first_tails(c.abs()), mills_ratio(knots.abs())
    values = bivariate_tails(c * norm, c, r, norm, knots, ratios, mills_k, log_at_c)
    logs = values[:2, 0].clamp(min=1e-300).log() + log_scale + log_phi(k)
    return logs[0], logs[1]


def exact_tail(c: float, k: float, r: float, side: float):
    norm = mp.sqrt(1 + mp.mpf(r) ** 2)
    peak = max(c, 0.0, k / float(norm) if side > 0 else 0.0)
    distances = [s * 2.0**n for n in range(-10, 5) for s in (-1, 1)]
    ends = sorted({c, *(max(c, peak + d) for d in distances), *(max(c, c + d) for d in distances)})

    def mass(x):
        return mp.npdf(x) * mp.erfc((k * norm - side * x) / (r * mp.sqrt(2))) / 2

    unit = mass(peak)  # the rule's error estimate is absolute
    moments = [lambda x: (x - c) * mass(x) / unit, lambda x: mass(x) / unit]
    return [mp.log(mp.quad(moment, ends) * unit) for moment in moments]


@pytest.mark.parametrize("case", TAILS)
def test_bivariate_tail_against_mpmath(case):
    with mp.workdps(25):
        expected = double(*(float(v) for v in exact_tail(*case)))
    got = torch.cat(log_tails(*(double(v) for v in case)))
    assert_close(got, expected, rtol=0.0, atol=1e-10)


def random_tails(num: int) -> list[torch.Tensor]:
    """Parameters of every kind, among them corners and the lines ``k = c``, ``k = rho c``."""
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(5, num, dtype=torch.double, generator=generator)
    normal = torch.randn(num, dtype=torch.double, generator=generator)
    r = 10 ** (6 * u[0] - 4)
    side = torch.where(u[1] < 0.6, 1.0, -1.0).double()
    k = torch.stack([4 * u[2], 10 ** (9 * u[2] - 8), 4 + 26 * u[2], 0 * u[2]])
    k = k.gather(0, (4 * u[3]).long().unsqueeze(0)).squeeze(0)
    norm = (1 + r.square()).sqrt()
    edge = side * k / norm
    c = torch.stack([2 * normal, edge + r * normal, k * norm + r * normal, 12 * normal, edge, k])
    c = c.gather(0, (6 * u[4]).long().unsqueeze(0)).squeeze(0).clamp(-38, 38)
    return [c, k, r, side]


def quadrature_tail(c: float, k: float, r: float, side: float) -> tuple[float, float]:
    """With ``X = (Z + r eps) / norm`` both integrals are those of a truncated normal ``Z``."""
    norm = math.sqrt(1 + r * r)
    knots = [k, math.inf] if side > 0 else [-math.inf, -k]
    value = smoothed(Pieces(knots, [1.0], (False,)), r, c * norm)
    mass = float(log_ndtr(-k))
    return value.log_excess + mass - math.log(norm), value.log_survival + mass


def test_bivariate_tail_against_quadrature():
    arguments = random_tails(400)
    c, _, _, side = arguments
    rows = zip(*(a.tolist() for a in arguments), strict=True)
    expected = torch.tensor([quadrature_tail(*row) for row in rows], dtype=torch.double)
    got = torch.stack(log_tails(*arguments), dim=-1)
    seen = expected > -700
    upper = seen & (side > 0).unsqueeze(-1)
    assert upper.sum() > 300
    assert_close(got[upper], expected[upper], rtol=0.0, atol=1e-10)
    # The lower side is only ever added to the upper one, or subtracted from the whole.
    lower = (side < 0).unsqueeze(-1) & seen
    whole = torch.stack([torch.tensor(log_h(-c.numpy())), torch.special.log_ndtr(-c)], dim=-1)
    difference = (torch.exp(got - whole) - torch.exp(expected - whole))[lower]
    assert_close(difference, torch.zeros_like(difference), rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize("r", [1e-3, 1.0, 50.0])
def test_orthant(side, r):
    """At the origin, where the integrand is singular, both integrals are elementary."""
    rho = side / math.sqrt(1 + r * r)
    prob = math.atan(r) / (2 * math.pi)  # of the quadrant at the acute angle
    prob = 0.5 - prob if side > 0 else prob
    excess = (1 + rho) / (2 * math.sqrt(2 * math.pi))
    c = double(-1e-12, -1e-300, 0.0, 1e-300, 1e-12).unsqueeze(-1)
    got = log_tails(c, double(0.0, 1e-300, 1e-12), double(r), double(side))
    assert_close(got[1].exp(), torch.full_like(got[1], prob), rtol=0.0, atol=1e-11)
    assert_close(got[0].exp(), torch.full_like(got[0], excess), rtol=0.0, atol=1e-11)


def test_many_numbers_equal_few():
    """The quadrature runs in chunks; the Mills ratio of many numbers takes a way of its own."""
    arguments = random_tails(40)
    many = log_tails(*(a.repeat(500) for a in arguments))
    few = log_tails(*arguments)
    for a, b in zip(many, few, strict=True):
        seen = (b > -700) & (arguments[-1] > 0)
        assert seen.sum() > 15
        assert_close(a.view(500, -1)[:, seen], b[seen].expand(500, -1), rtol=0.0, atol=1e-11)
