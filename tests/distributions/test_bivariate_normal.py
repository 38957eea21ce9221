"""The integrals of one piece: against mpmath, against quadrature, and their derivatives."""

import math

import mpmath as mp
import pytest
import torch
from scipy.special import log_ndtr
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.distributions._bivariate_normal import log_bivariate_tail, log_interval_means
from tests.oracles import Law, log_h, smoothed

# c, k, r, side; values from 0.4 down to exp(-700).
TAILS = [
    (0.3, 0.7, 0.5, 1.0),
    (-1.5, 0.2, 0.5, -1.0),
    (2.0, 3.0, 0.01, 1.0),
    (-6.0, 1.3, 30.0, 1.0),
    (36.9, 2.0, 0.3, 1.0),
    (5.0, 25.0, 1.0, 1.0),
]
INTERVALS = [(-1.0, 2.0), (-1e-7, 1e-7), (-30.0, -29.999), (-37.0, -2.0), (0.0, 60.0)]


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


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


def exact_means(low: float, high: float):
    def family(t, order):
        cdf, density = mp.erfc(-t / mp.sqrt(2)) / 2, mp.npdf(t)
        return density + t * cdf if order == 1 else ((t * t + 1) * cdf + t * density) / 2

    low, high = mp.mpf(low), mp.mpf(high)
    means = [(family(high, n) - family(low, n)) / (high - low) for n in (2, 1)]
    return mp.log(means[0]), mp.log(means[1])


@pytest.mark.parametrize("case", TAILS)
def test_bivariate_tail_against_mpmath(case):
    with mp.workdps(25):
        expected = double(*(float(v) for v in exact_tail(*case)))
    got = torch.cat(log_bivariate_tail(*(double(v) for v in case)))
    assert_close(got, expected, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("case", INTERVALS)
def test_interval_means_against_mpmath(case):
    with mp.workdps(60):
        expected = double(*(float(v) for v in exact_means(*case)))
    got = torch.cat(log_interval_means(*(double(v) for v in case)))
    assert_close(got, expected, rtol=0.0, atol=2e-10)


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
    """With ``X = (Z + r eps) / norm`` both integrals are those of a truncated normal law."""
    norm = math.sqrt(1 + r * r)
    knots = [k, math.inf] if side > 0 else [-math.inf, -k]
    value = smoothed(Law(knots, [1.0], (False,)), r, c * norm)
    mass = float(log_ndtr(-k))
    return value.log_excess + mass - math.log(norm), value.log_survival + mass


def test_bivariate_tail_against_quadrature():
    arguments = random_tails(400)
    c, _, _, side = arguments
    rows = zip(*(a.tolist() for a in arguments), strict=True)
    expected = torch.tensor([quadrature_tail(*row) for row in rows], dtype=torch.double)
    got = torch.stack(log_bivariate_tail(*arguments), dim=-1)
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
    got = log_bivariate_tail(c, double(0.0, 1e-300, 1e-12), double(r), double(side))
    assert_close(got[1].exp(), torch.full_like(got[1], prob), rtol=0.0, atol=1e-11)
    assert_close(got[0].exp(), torch.full_like(got[0], excess), rtol=0.0, atol=1e-11)


def test_interval_means_against_quadrature():
    generator = torch.Generator().manual_seed(1)
    u = torch.rand(3, 300, dtype=torch.double, generator=generator)
    width = 10 ** (9 * u[0] - 7)
    a = torch.stack([6 * u[1] - 3, -37 * u[1], 60 * u[1] - 30, -width, -width / 2])
    a = a.gather(0, (5 * u[2]).long().unsqueeze(0)).squeeze(0)
    b = a + width
    rows = [
        smoothed(Law([x, y], [1.0], (True,)), 1.0, 0.0)
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    expected = [(row.log_excess, row.log_survival) for row in rows]
    got = torch.stack(log_interval_means(a, b), dim=-1)
    exact = torch.tensor(expected, dtype=torch.double)
    seen = exact > -700
    assert_close(got[seen], exact[seen], rtol=0.0, atol=5e-10)


class TestDerivatives:
    """Analytic backward passes against finite differences, twice."""

    c = double(-2.0, -0.4, 0.3, 1.0, 3.0, 0.5)
    k = double(0.5, 1.3, 0.7, 2.0, 2.5, 3.0)
    r = double(0.3, 0.7, 1.0, 2.0, 0.5, 5.0)

    @pytest.mark.parametrize("side", [-1.0, 1.0])
    def test_bivariate_tail(self, side):
        sides = torch.full_like(self.c, side)
        inputs = [v.clone().requires_grad_() for v in (self.c, self.k, self.r)]

        def function(*args):
            return log_bivariate_tail(*args, sides)

        assert gradcheck(function, inputs, rtol=1e-4, atol=1e-6)
        assert gradgradcheck(function, inputs, rtol=1e-3, atol=1e-5)

    def test_interval_means(self):
        a = double(-3.0, -1.0, 0.2, 2.0, -6.0, 0.0).requires_grad_()
        b = double(-1.0, 2.0, 0.5, 9.0, -5.7, 1.0).requires_grad_()
        assert gradcheck(log_interval_means, (a, b), rtol=1e-4, atol=1e-6)
        assert gradgradcheck(log_interval_means, (a, b), rtol=1e-3, atol=1e-5)

    def test_narrow_interval(self):
        a = double(-3.0, 0.0, 0.7).requires_grad_()
        width = double(1e-6).requires_grad_()
        for value, slope in zip(
            log_interval_means(a, a + width),
            [
                (
                    torch.special.log_ndtr(a.detach()) - torch.tensor(log_h(a.detach().numpy()))
                ).exp(),
                (-0.5 * a.detach().square() - torch.special.log_ndtr(a.detach())).exp()
                / math.sqrt(2 * math.pi),
            ],
            strict=True,
        ):
            (grad,) = torch.autograd.grad(value.sum(), a, retain_graph=True)
            assert_close(grad, slope, rtol=1e-5, atol=0.0)

    @pytest.mark.parametrize("c", [-37.0, 0.0, 37.0])
    @pytest.mark.parametrize("k", [0.0, 30.0])
    @pytest.mark.parametrize("r", [1e-6, 1e6])
    def test_finite_at_extremes(self, c, k, r):
        for side in (-1.0, 1.0):
            inputs = [double(v).requires_grad_() for v in (c, k, r)]
            values = log_bivariate_tail(*inputs, double(side))
            grads = torch.autograd.grad(values, inputs, [torch.ones_like(v) for v in values])
            assert all(v.isfinite().all() for v in (*values, *grads))

    def test_interval_means_finite_at_extremes(self):
        a = double(-60.0, -37.0, -1e-9, 0.0, 30.0, -1e4, -1e6).requires_grad_()
        b = double(-59.0, 40.0, 1e-9, 1e-12, 1e4, 1e4, 1e6).requires_grad_()
        values = log_interval_means(a, b)
        grads = torch.autograd.grad(values, (a, b), [torch.ones_like(a)] * 2)
        assert all(v.isfinite().all() for v in (*values, *grads))


def test_broadcasting():
    c, k, r = double(0.1, 0.2, 0.3), double(1.0, 2.0).unsqueeze(-1), double(0.5)
    excess, prob = log_bivariate_tail(c, k, r, double(1.0))
    assert excess.shape == prob.shape == (2, 3)
    assert_close(excess[1, 2], log_bivariate_tail(c[2], k[1, 0], r[0], double(1.0)[0])[0])
    means, _ = log_interval_means(c, k)
    assert means.shape == (2, 3)
