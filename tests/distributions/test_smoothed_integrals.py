"""Integrals of pieces plus noise, and without: their derivatives, and extremes."""

import math

import pytest
import torch
from torch import Generator, Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.distributions._piece_integrals import log_integrals_by_pieces
from botorch_calib.distributions._smoothed_integrals import log_excess, log_survival
from botorch_calib.distributions.form import PiecewiseForm
from tests.long_grids import mostly_slow
from tests.oracles import log_h


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


FORMS = {
    "tails": PiecewiseForm((False, True, False), True, True, around_zero=True),
    "normal": PiecewiseForm((False, False, False), True, True),
    "open": PiecewiseForm((False, True, False), True, True),
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


# Without noise, the slope of the survival function of a bounded form jumps.
DIFFERENTIABLE = [(name, True) for name in FORMS] + [
    (name, False) for name in FORMS if name not in ("bounded", "uniform")
]


@pytest.mark.parametrize(
    ("name", "noise"),
    mostly_slow(
        DIFFERENTIABLE,
        [
            ("tails", True),
            ("tails", False),
            ("normal", False),
            ("open", True),
            ("halves", True),
            ("bounded", True),
            ("uniform", True),
            ("single", False),
        ],
    ),
)
def test_derivatives_of_both_orders(name, noise):
    """The analytic backward pass against finite differences, twice."""

    def function(scale, x, r, *inputs):
        arguments = (x, r if noise else None, *inputs, FORMS[name], None, scale)
        return log_excess(*arguments), log_survival(*arguments)

    scale = double(0.4, 1.0, 1.5).requires_grad_()
    inputs = (scale, *(v.detach()[..., ::2].requires_grad_() for v in case(FORMS[name], 6)))
    assert gradcheck(function, inputs, rtol=1e-4, atol=1e-6)
    assert gradgradcheck(function, inputs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "uniform"])
def test_little_noise_is_no_noise(name):
    x, r, knots, masses = (v.detach() for v in case(FORMS[name], 200, seed=1))
    noisy, exact = (
        (
            log_excess(x, ratio, knots, masses, FORMS[name]),
            log_survival(x, ratio, knots, masses, FORMS[name]),
        )
        for ratio in (1e-6 + 0 * r, None)
    )
    seen = (x < knots[-1] - 1e-3) & ((x - knots).abs().amin(dim=0) > 1e-3)
    assert seen.sum() > 50
    for a, b in zip(noisy, exact, strict=False):
        assert_close(a[seen], b[seen], rtol=0.0, atol=1e-6)


def test_narrow_uniform_piece():
    """A shift of the whole piece moves its means by those of the derivatives."""
    a = double(-3.0, 0.0, 0.7).requires_grad_()
    knots, one = torch.stack([a, a + 1e-6]), torch.ones(3, dtype=torch.double)
    values = log_integrals_by_pieces(0 * one, one, knots, one.unsqueeze(0), FORMS["uniform"])
    t = a.detach()
    slopes = [
        (torch.special.log_ndtr(t) - torch.tensor(log_h(t.numpy()))).exp(),
        (-0.5 * t.square() - torch.special.log_ndtr(t)).exp() / math.sqrt(2 * math.pi),
    ]
    for value, slope in zip(values[:2], slopes, strict=True):
        (grad,) = torch.autograd.grad(value.sum(), a, retain_graph=True)
        assert_close(grad, slope, rtol=1e-5, atol=0.0)


def check_finite(inputs: list[Tensor], form: PiecewiseForm) -> None:
    x, r, knots, masses = inputs
    values = [way(x, r, knots, masses, form) for way in (log_excess, log_survival)]
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
