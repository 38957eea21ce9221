"""Functions of the normal distribution compared with mpmath, with gradients."""

import math

import mpmath as mp
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.distributions import _normal_functions as functions

ARGUMENTS = [0.0, 1e-12, 1e-3, 0.7, 1.0, 4.9, 5.0, 12.0, 19.9, 29.9, 30.1, 55.0, 300.0]
INTERVALS = [
    (-math.inf, math.inf),
    (-math.inf, -3.0),
    (-37.0, math.inf),
    (3.0, math.inf),
    (-1.0, 2.0),
    (0.0, 1e-6),
    (-1e-9, 1e-9),
    (12.0, 12.001),
    (-30.0, -29.0),
    (37.0, 37.0 + 1e-6),
    (-40.0, 40.0),
    (35.0, 90.0),
    (35.9, 36.0),
    (-36.0, -35.5),
    (38.0, 38.01),
    (-300.0, -200.0),
]


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


def Phi(x):
    return mp.erfc(-mp.mpf(x) / mp.sqrt(2)) / 2


def phi(x):
    return mp.exp(-(mp.mpf(x) ** 2) / 2) / mp.sqrt(2 * mp.pi)


def h(x):
    return phi(x) + mp.mpf(x) * Phi(x)


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(60):
        yield


def interval(low: float, high: float):
    if low + high > 0:
        low, high = -high, -low
    below = mp.mpf(0) if math.isinf(low) else Phi(low)
    return (mp.mpf(1) if math.isinf(high) else Phi(high)) - below


@pytest.mark.parametrize("copies", [1, 1000])
def test_ratios_by_polynomials(copies):
    """The Mills ratio of many numbers is computed by a polynomial instead of ``erfcx``."""
    values = [*ARGUMENTS, 2.0, 3.3, 7.0, 1e4, 1e8]
    x = double(*values).repeat(copies, 1)
    with mp.workdps(90):  # h cancels like x^2 for each digit of Phi
        mills, ramp = (
            double(*(function(-a) / phi(a) if a < 1e3 else limit(a) for a in values))
            for function, limit in [
                (Phi, lambda a: 1 / a - 1 / a**3),
                (h, lambda a: a**-2 - 3 / a**4),
            ]
        )
    assert_close(functions.mills_ratio(x), mills.expand_as(x), rtol=3e-15, atol=0.0)
    expected = torch.stack([mills.expand_as(x), ramp.expand_as(x)])
    assert_close(functions.first_tails(x), expected, rtol=3e-15, atol=0.0)
    assert (functions.first_tails(double(1e30)) > 0).all()


def test_log_h():
    t = [-1e4, -38.0, -30.1, -29.9, -6.0, -5.9, -1.0, -1e-9, 0.0, 1e-9, 0.3, 5.0, 40.0]
    value = functions.log_h(double(*t))
    assert_close(value, double(*(mp.log(h(v)) for v in t)), rtol=1e-13, atol=1e-10)
    inputs = (double(-30.0, -6.0, -1.0, 0.0, 0.3, 5.0).requires_grad_(),)
    assert gradcheck(functions.log_h, inputs, atol=1e-5, rtol=1e-4)
    assert gradgradcheck(functions.log_h, inputs, atol=1e-5, rtol=1e-4)


def test_slope_of_log_h_without_a_graph():
    """Without a graph, the slope is exact up to rounding; with a graph, logarithms cancel."""
    t = double(*(sign * v for v in [*ARGUMENTS, 998.0, 1002.0] for sign in (-1.0, 1.0)))
    t.requires_grad_()
    (slope,) = torch.autograd.grad(functions.log_h(t).sum(), t)
    with mp.workdps(60):
        expected = double(*(Phi(v) / h(v) for v in t.tolist()))
    assert_close(slope, expected, rtol=4e-15, atol=0.0)
    (again,) = torch.autograd.grad(functions.log_h(t).sum(), t, create_graph=True)
    assert_close(again.detach(), slope, rtol=1e-9, atol=0.0)
    t = double(-1e139, -1e141, -1e153, -1e200).requires_grad_()
    (slope,) = torch.autograd.grad(functions.log_h(t).sum(), t)
    assert_close(slope, -t.detach(), rtol=1e-15, atol=0.0)


def test_slope_of_log_h_far_down():
    """``Phi / h`` is ``x + 2 / x - ...`` at ``t = -x``, though both logarithms are of order x^2."""
    x = torch.logspace(2, 300, 50, dtype=torch.double)
    t = torch.cat([-x, double(-999.0, -1001.0)]).requires_grad_()
    (slope,) = torch.autograd.grad(functions.log_h(t).sum(), t, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), t)
    distance = -t.detach()
    assert_close(slope.detach(), distance + 2 / distance, rtol=1e-7, atol=0.0)
    assert_close(second, torch.full_like(second, -1.0), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("bounds", INTERVALS)
def test_log_normal_interval(bounds):
    low, high = double(bounds[0]), double(bounds[1])
    expected = double(mp.log(interval(*bounds)))
    # The error of a difference of two values of log Phi, which are rounded
    edge = min(abs(bounds[0]), abs(bounds[1]))
    tol = 4e-16 * (1 + abs(expected.item())) * (1 + 1 / (bounds[1] - bounds[0]) / (0.5 + edge))
    assert_close(functions.log_normal_interval(low, high), expected, rtol=0.0, atol=tol)
    assert_close(functions.log_normal_interval(-high, -low), expected, rtol=0.0, atol=tol)


def test_log_normal_interval_derivatives():
    low, high = double(-1.0, 3.0, -5.0, -math.inf, 0.5), double(0.5, 3.2, -4.0, 0.3, math.inf)
    finite_low, finite_high = low[:3].requires_grad_(), high[:3].requires_grad_()
    assert gradcheck(functions.log_normal_interval, (finite_low, finite_high))
    assert gradgradcheck(functions.log_normal_interval, (finite_low, finite_high))
    low, high = low.detach().requires_grad_(), high.detach().requires_grad_()
    functions.log_normal_interval(low, high).sum().backward()
    assert low.grad.isfinite().all() and high.grad.isfinite().all()
    assert low.grad[3] == 0.0 and high.grad[4] == 0.0


def test_ndtri_exp():
    z = [-50.0, -38.0, -30.0, -8.1, -7.4, -7.3, -2.0, -1e-3, 0.0, 1.0]
    log_p = double(*(mp.log(Phi(v)) for v in z))
    # Near log_p = 0 the answer is as sharp as its argument.
    assert_close(functions.ndtri_exp(log_p), double(*z), rtol=1e-13, atol=1e-14)
    assert_close(functions.ndtri_exp(double(-1e6)), double(-1414.2089), rtol=1e-6, atol=0.0)
    safe = log_p.requires_grad_()
    assert gradcheck(functions.ndtri_exp, (safe,), atol=1e-6)
    (slope,) = torch.autograd.grad(functions.ndtri_exp(safe).sum(), safe)
    expected = double(*(Phi(v) / phi(v) for v in z))
    assert_close(slope, expected, rtol=1e-9, atol=0.0)
    assert gradgradcheck(functions.ndtri_exp, (safe,), atol=1e-6)


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_quick_interval(low, high):
    """Of a narrow one the digits are lost that its width has not; far out it is right to 2e-6."""
    ends = double(low, high)
    value = functions.quick_log_interval(*ends)
    expected = mp.log(interval(low, high))
    width = min(high - low, 1.0)
    error = 1e-15 / width if max(low, -high) <= 35.0 else 2e-6
    assert value.item() == pytest.approx(float(expected), rel=1e-13, abs=error)
