"""Integrals of pieces plus noise: against mpmath and quadrature, their derivatives, extremes."""

import math

import mpmath as mp
import pytest
import torch
from torch import Generator, Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.distributions._denoised_improvement import SmoothedIntegrals, log_densities
from botorch_calib.distributions._denoised_pieces import interval_means, piece_values
from botorch_calib.distributions._normal_functions import log_normal_interval
from botorch_calib.distributions._observation_improvement import ObservationIntegrals, _moments
from botorch_calib.distributions.form import PiecewiseForm
from tests.oracles import Pieces, log_h, smoothed

INTERVALS = [(-1.0, 2.0), (-1e-7, 1e-7), (-30.0, -29.999), (-37.0, -2.0), (0.0, 60.0)]


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


def log_means(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of the means of ``h`` and of ``Phi`` over ``[a, b]``."""
    values, offset = interval_means(torch.stack([a, b]), b - a)
    excess, survival = values[:2].clamp(min=1e-300).log() - offset
    return excess, survival


def exact_means(low: float, high: float):
    def family(t, order):
        cdf, density = mp.erfc(-t / mp.sqrt(2)) / 2, mp.npdf(t)
        return density + t * cdf if order == 1 else ((t * t + 1) * cdf + t * density) / 2

    low, high = mp.mpf(low), mp.mpf(high)
    means = [(family(high, n) - family(low, n)) / (high - low) for n in (2, 1)]
    return mp.log(means[0]), mp.log(means[1])


@pytest.mark.parametrize("case", INTERVALS)
def test_interval_means_against_mpmath(case):
    with mp.workdps(60):
        expected = double(*(float(v) for v in exact_means(*case)))
    got = torch.cat(log_means(*(double(v) for v in case)))
    assert_close(got, expected, rtol=0.0, atol=2e-10)


def test_interval_means_against_quadrature():
    generator = torch.Generator().manual_seed(1)
    u = torch.rand(3, 300, dtype=torch.double, generator=generator)
    width = 10 ** (9 * u[0] - 7)
    a = torch.stack([6 * u[1] - 3, -37 * u[1], 60 * u[1] - 30, -width, -width / 2])
    a = a.gather(0, (5 * u[2]).long().unsqueeze(0)).squeeze(0)
    b = a + width
    rows = [
        smoothed(Pieces([x, y], [1.0], (True,)), 1.0, 0.0)
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    expected = [(row.log_excess, row.log_survival) for row in rows]
    got = torch.stack(log_means(a, b), dim=-1)
    exact = torch.tensor(expected, dtype=torch.double)
    seen = exact > -700
    assert_close(got[seen], exact[seen], rtol=0.0, atol=5e-10)


FORMS = {
    "tails": PiecewiseForm((False, True, False), True, True, around_zero=True),
    "normal": PiecewiseForm((False, False, False), True, True),
    "halves": PiecewiseForm((False, True), True, False),
    "bounded": PiecewiseForm((True, False)),
    "uniform": PiecewiseForm((True,)),
    "single": PiecewiseForm((False,)),
}


def case(form: PiecewiseForm, num: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Thresholds, ratios, knots around zero and masses, for ``num`` numbers."""
    generator = Generator().manual_seed(seed)
    count = form.num_pieces + 1 - form.open_low - form.open_high
    x, *knots = torch.randn(count + 1, num, dtype=torch.double, generator=generator)
    u = torch.rand(form.num_pieces + 1, num, dtype=torch.double, generator=generator)
    ends = torch.linspace(-1.0, 1.2, count).double().unsqueeze(-1)
    inputs = (x, 0.3 + u[0], ends + 0.1 * torch.stack(knots), (u[1:] + 0.2).clone())
    return tuple(v.requires_grad_() for v in inputs)


@pytest.mark.parametrize("name", FORMS)
class TestDerivatives:
    """The analytic backward pass against finite differences, twice."""

    def test_both_orders(self, name):
        def function(*inputs):
            return SmoothedIntegrals.apply(*inputs, FORMS[name])[:2]

        inputs = case(FORMS[name], 6)
        assert gradcheck(function, inputs, rtol=1e-4, atol=1e-6)
        assert gradgradcheck(function, inputs, rtol=1e-3, atol=1e-5)

    def test_pieces(self, name):
        def function(*inputs):
            return SmoothedIntegrals.apply(*inputs, FORMS[name])[2:4]

        assert gradcheck(function, case(FORMS[name], 6), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_natural_masses_agree(name):
    """The mass of a piece has one definition and, for speed, three computations."""
    form = FORMS[name]
    x, r, knots, masses = (v.detach() for v in case(form, 300))
    ends = form.pad(knots, -math.inf, math.inf)
    is_normal = form.is_normal(x) > 0
    expected = log_normal_interval(ends[:-1], ends[1:])
    expected = torch.where(is_normal, expected, ends.diff(dim=0).log())
    assert_close(piece_values(x, r, knots, masses, form)[2], expected, rtol=0.0, atol=1e-12)
    assert_close(log_densities(x, r, knots, form)[1], expected, rtol=0.0, atol=1e-12)
    far, own = form.pad(knots, -1e30, 1e30), torch.zeros(1, 300, dtype=torch.long)
    normal = torch.cat([form.is_normal(x).expand(-1, 300), form.is_normal(x)[:1].expand(1, 300)])
    log_mass = _moments(far, far[0], own, normal)[0]
    assert_close(log_mass[:-1], expected, rtol=0.0, atol=1e-11)
    assert_close(log_mass[-1], expected[0], rtol=0.0, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "uniform"])
def test_little_noise_is_no_noise(name):
    x, r, knots, masses = (v.detach() for v in case(FORMS[name], 200, seed=1))
    noisy = SmoothedIntegrals.apply(x, 1e-6 + 0 * r, knots, masses, FORMS[name])
    exact = ObservationIntegrals.apply(x, knots, masses, FORMS[name])
    seen = (x < knots[-1] - 1e-3) & ((x - knots).abs().amin(dim=0) > 1e-3)
    assert seen.sum() > 50
    for a, b in zip(noisy, exact, strict=False):
        assert_close(a[seen], b[seen], rtol=0.0, atol=1e-6)


def test_narrow_uniform_piece():
    """A shift of the whole piece moves its means by those of the derivatives."""
    a = double(-3.0, 0.0, 0.7).requires_grad_()
    knots, one = torch.stack([a, a + 1e-6]), torch.ones(3, dtype=torch.double)
    values = SmoothedIntegrals.apply(0 * one, one, knots, one.unsqueeze(0), FORMS["uniform"])
    t = a.detach()
    slopes = [
        (torch.special.log_ndtr(t) - torch.tensor(log_h(t.numpy()))).exp(),
        (-0.5 * t.square() - torch.special.log_ndtr(t)).exp() / math.sqrt(2 * math.pi),
    ]
    for value, slope in zip(values[:2], slopes, strict=True):
        (grad,) = torch.autograd.grad(value.sum(), a, retain_graph=True)
        assert_close(grad, slope, rtol=1e-5, atol=0.0)


def check_finite(inputs: list[Tensor], form: PiecewiseForm) -> None:
    values = SmoothedIntegrals.apply(*inputs, form)[:2]
    grads = torch.autograd.grad(values, inputs, [torch.ones_like(v) for v in values])
    assert all(v.isfinite().all() for v in (*values, *grads))


@pytest.mark.parametrize("c", [-37.0, 0.0, 37.0])
@pytest.mark.parametrize("k", [0.0, 30.0])
@pytest.mark.parametrize("r", [1e-6, 1e6])
def test_finite_at_extremes(c, k, r):
    """Both tails beyond a knot, which lie on either side of it."""
    form = PiecewiseForm((False, False), open_low=True, open_high=True)
    for side in (-1.0, 1.0):
        x, ratio = double(c * math.sqrt(1 + r * r)), double(r)
        knots, masses = double(side * k).unsqueeze(0), double(0.5, 0.5).unsqueeze(-1)
        check_finite([v.requires_grad_() for v in (x, ratio, knots, masses)], form)


def test_uniform_piece_finite_at_extremes():
    a = double(-60.0, -37.0, -1e-9, 0.0, 30.0, -1e4, -1e6)
    b = double(-59.0, 40.0, 1e-9, 1e-12, 1e4, 1e4, 1e6)
    one = torch.ones_like(a)
    inputs = [v.requires_grad_() for v in (0 * one, one, torch.stack([a, b]), one.unsqueeze(0))]
    check_finite(inputs, FORMS["uniform"])
