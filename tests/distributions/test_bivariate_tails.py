"""Integrals over the tails of a normal piece against quadrature."""

import math

import pytest
import torch
from botorch.utils.probability.utils import log_phi
from scipy.special import log_ndtr
from torch.testing import assert_close

from botorch_calib.distributions._bivariate_tails import bivariate_tails, off_zero, scale_beyond
from botorch_calib.distributions._normal_functions import first_tails, mills_ratio
from tests.oracles import Pieces, log_h, smoothed


def double(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


def log_tails(*arguments: torch.Tensor) -> torch.Tensor:
    """Logarithms of ``E[(X - c)+ ; side Z > k]`` and of ``P(X > c, side Z > k)``."""
    c, k, r, side = torch.broadcast_tensors(*arguments)
    knots, norm = off_zero(side * k).unsqueeze(0), (1 + r.square()).sqrt()
    log_scale, log_at_c = scale_beyond(c * norm, c, r, norm, knots[0].clamp(min=0.0))
    ratios, mills_k = first_tails(c.abs()), mills_ratio(knots.abs())
    values = bivariate_tails(c * norm, c, r, norm, knots, ratios, mills_k, log_at_c)
    return values[:2, 0].clamp(min=1e-300).log() + log_scale + log_phi(k)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_bivariate_tail_against_quadrature(side):
    """With ``X = (Z + r eps) / norm`` both are integrals over a truncated normal ``Z``.

    Parameters include corners and the lines ``k = c`` and ``k = rho c``. The lower tail is only
    added to the upper tail or subtracted from the whole, so its errors are relative to the whole.
    """
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(4, 200, dtype=torch.double, generator=generator)
    normal = torch.randn(200, dtype=torch.double, generator=generator)
    r = 10 ** (6 * u[0] - 4)
    norm = (1 + r.square()).sqrt()
    k = torch.stack([4 * u[1], 10 ** (9 * u[1] - 8), 4 + 26 * u[1], 0 * u[1]])
    k = k.gather(0, (4 * u[2]).long().unsqueeze(0)).squeeze(0)
    edge = side * k / norm
    c = torch.stack([2 * normal, edge + r * normal, k * norm + r * normal, edge, k])
    c = c.gather(0, (5 * u[3]).long().unsqueeze(0)).squeeze(0).clamp(-38, 38)
    rows = []
    for knot, ratio, x in zip(k.tolist(), r.tolist(), (c * norm).tolist(), strict=True):
        knots = [knot, math.inf] if side > 0 else [-math.inf, -knot]
        value = smoothed(Pieces(knots, [1.0], (False,)), ratio, x)
        mass = float(log_ndtr(-knot))
        rows.append((value.log_excess + mass, value.log_survival + mass))
    expected, got = double(*rows).T, log_tails(c, k, r, double(side))
    expected[0] -= norm.log()
    seen = expected > -700
    assert seen.sum() > 150
    if side < 0:
        whole = torch.stack([torch.tensor(log_h(-c.numpy())), torch.special.log_ndtr(-c)])
        expected, got = (expected - whole).exp(), (got - whole).exp()
    assert_close(got[seen], expected[seen], rtol=0.0, atol=1e-10)
