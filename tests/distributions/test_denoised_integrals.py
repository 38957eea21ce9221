"""Integrals of pieces plus noise, and without: their derivatives of both orders."""

import pytest
import torch
from torch import Generator, Tensor
from torch.autograd import gradcheck, gradgradcheck

from botorch_calib.distributions._denoised_integrals import log_excess, log_survival
from botorch_calib.distributions.form import Pieces, PiecewiseForm
from tests.long_grids import mostly_slow


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


FORMS = {
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
    ("name", "noise"), mostly_slow(DIFFERENTIABLE, [("open", True), ("single", False)])
)
def test_derivatives_of_both_orders(name, noise):
    """The analytic backward pass against finite differences, twice."""

    def function(scale, x, r, *inputs):
        arguments = (x, r if noise else None, Pieces(*inputs, FORMS[name]), None, scale)
        return log_excess(*arguments), log_survival(*arguments)

    scale = double(0.4, 1.0).requires_grad_()
    inputs = (scale, *(v.detach()[..., :4:2].requires_grad_() for v in case(FORMS[name], 6)))
    assert gradcheck(function, inputs, rtol=1e-4, atol=1e-6)
    assert gradgradcheck(function, inputs, rtol=1e-3, atol=1e-5)
