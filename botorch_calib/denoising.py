r"""Integrals of one piece of a predictive law against Gaussian noise.

The calibrated law of the objective is that of ``z + r eps`` in rescaled units
(see ``botorch_calib.smoothing``), with ``z`` distributed by pieces and ``eps`` standard
normal. Everything it needs reduces to two pairs of integrals, given here with closed-form
derivatives of every order (the backward passes use differentiable operations only):

* a gaussian piece: ``E[(X - c)+ ; s Z > k]`` and ``P(X > c, s Z > k)`` for a standard
  bivariate normal pair (`log_bivariate_tail`);
* a uniform piece: the means of ``h`` and ``Phi`` over an interval (`log_interval_means`).

Values are logarithms, so that an expected improvement of ``exp(-700)`` keeps its digits.
``botorch.utils.probability.bvn`` is accurate in absolute terms only, which is why the
bivariate probability is computed from Nicholson's V function instead: a sum of positive
terms with a smooth integrand, at a tenth of the cost.

.. [Nicholson1943]
    C. Nicholson. The probability integral for two variables. Biometrika, 1943.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.acquisition.analytic import _log_ei_helper as log_h
from botorch.utils.probability.utils import log_ndtr, log_phi, ndtr
from torch import Tensor
from torch.autograd import Function

from botorch_calib.numerics import mills_ratio, scaled_tails, unit_legendre

_INV_2PI = 1 / (2 * math.pi)
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_LOG_TINY = 1e-300
_ORDER = 20  # of the Gauss-Legendre rule for V: error below 1e-11, relative
_CORNER = 2.0  # below it V is computed from its complement, a smooth arctangent integral
_CUT = 68.0  # the integrand of V is dropped once it has fallen by exp(-34)


def _scaled_v(h: Tensor, eta: Tensor) -> Tensor:
    r"""``exp((h^2 + eta^2) / 2) V(h, eta)`` for ``h, eta >= 0``.

    ``V(h, eta) = 1/(2 pi) int_eta^inf exp(-(h^2 + y^2)/2) h / (h^2 + y^2) dy`` is the normal
    mass of the wedge beyond the line at distance ``h``, on one side of the ray through its
    point at height ``eta``. Near the origin the kernel ``h / (h^2 + y^2)`` is sharp;
    there, with ``h >= eta`` (else ``V(h, eta) + V(eta, h) = Phi(-h) Phi(-eta)``), the
    complement ``Phi(-h)/2 - V`` is an integral over ``[0, eta]`` on which it is smooth.
    """
    nodes, weights = unit_legendre(_ORDER, h)
    corner = (h < _CORNER) & (eta < _CORNER)
    high, low = torch.maximum(h, eta), torch.minimum(h, eta)
    dist = torch.where(corner, high, h).clamp(min=1e-150)
    start = eta.masked_fill(corner, 0.0)
    stop = torch.where(corner, low, (eta.square() + _CUT).sqrt())
    width = stop - start
    y2 = (width.unsqueeze(-1) * nodes + start.unsqueeze(-1)).square_()
    kernel = (start.square().unsqueeze(-1) - y2).mul_(0.5).exp_()
    kernel.div_(y2.add_(dist.square().unsqueeze(-1)))
    integral = (kernel @ weights).mul_(width).mul_(dist).mul_(_INV_2PI)
    wedge = 0.5 * ndtr(-dist) - torch.exp(-0.5 * dist.square()) * integral
    wedge = torch.where(h >= eta, wedge, ndtr(-h) * ndtr(-eta) - wedge)
    scale = torch.exp(0.5 * (h.square() + eta.square()).clamp(max=2 * _CORNER**2))
    return torch.where(corner, wedge * scale, integral)


def _bivariate_tail_values(c: Tensor, k: Tensor, r: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """The two logarithms of `log_bivariate_tail`, without a graph.

    With ``eta_c = (k - rho c)/q`` and ``eta_k = (c - rho k)/q`` the corner of the region lies
    at squared distance ``c^2 + eta_c^2 = k^2 + eta_k^2`` from the origin, and
    ``P = sign(c) V(|c|, eta_c) + V(k, eta_k)``, ``V(h, -eta) = Phi(-h) - V(h, eta)``.
    Everything is scaled by the exponential of the smallest squared distance of the region.
    """
    rho, q, eta_c, eta_k = _corner(c, k, r, side)
    abs_c, negative_c = c.abs(), c < 0
    below_c, below_k = eta_c < 0, eta_k < 0
    c2, k2 = c.square(), k.square()
    corner2 = k2 + eta_k.square()
    nearest2 = torch.where(below_k, k2, torch.where(~negative_c & below_c, c2, corner2))
    wedges = _scaled_v(torch.stack([abs_c, k]), torch.stack([eta_c, eta_k]).abs())
    at_corner = torch.exp(0.5 * (nearest2 - corner2))
    wedges = wedges * at_corner
    phi_c = _INV_SQRT_2PI * torch.exp((0.5 * (nearest2 - c2)).clamp(max=0.0))
    phi_k = _INV_SQRT_2PI * torch.exp((0.5 * (nearest2 - k2)).clamp(max=0.0))
    mills = mills_ratio(torch.stack([abs_c, k, eta_c.abs(), eta_k.abs()]))

    wedge_c = torch.where(below_c, phi_c * mills[0] - wedges[0], wedges[0])
    wedge_k = torch.where(below_k, phi_k * mills[1] - wedges[1], wedges[1])
    prob = wedge_k + torch.where(negative_c, -wedge_c, wedge_c)

    # phi(c) Phi(-eta_c) and phi(k) Phi(-eta_k), on the same scale
    edge_c, edge_k = _INV_2PI * at_corner * mills[2], _INV_2PI * at_corner * mills[3]
    edge_c = torch.where(below_c, phi_c - edge_c, edge_c)
    edge_k = torch.where(below_k, phi_k - edge_k, edge_k)
    excess = edge_c + rho * edge_k - c * prob
    offset = -0.5 * nearest2
    return offset + excess.clamp_(min=_LOG_TINY).log_(), offset + prob.clamp_(min=_LOG_TINY).log_()


def _corner(c: Tensor, k: Tensor, r: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Correlation, its complement ``q`` and the offsets ``eta_c, eta_k`` of the corner."""
    norm = (1 + r.square()).sqrt()
    rho, q = side / norm, r / norm
    return rho, q, (k - rho * c) / q, (c - rho * k) / q


class _BivariateTail(Function):
    """See `log_bivariate_tail`."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, k: Tensor, r: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        excess, prob = _bivariate_tail_values(c, k, r, side)
        ctx.save_for_backward(c, k, r, side, excess, prob)
        return excess, prob

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        c, k, r, side, excess, prob = ctx.saved_tensors
        grad_excess, grad_prob = grads
        _, q, eta_c, eta_k = _corner(c, k, r, side)
        log_q = q.log()
        at_k, at_c = log_phi(k), log_phi(c)
        edge_k = log_ndtr(-eta_k) + at_k  # log phi(k) Phi(-eta_k)
        # d E = -P dc - phi(k) q h(-eta_k) dk + phi(k) Phi(-eta_k) d rho
        # d P = -phi(c) Phi(-eta_c) dc - phi(k) Phi(-eta_k) dk + phi2(c, k; rho) d rho
        d_rho_d_r = -side * r * (1 + r.square()).pow(-1.5)
        e_c = torch.exp(prob - excess)
        e_k = torch.exp(at_k + log_q + log_h(-eta_k) - excess)
        e_r = torch.exp(edge_k - excess) * d_rho_d_r
        p_c = torch.exp(at_c + log_ndtr(-eta_c) - prob)
        p_k = torch.exp(edge_k - prob)
        p_r = torch.exp(at_k + log_phi(eta_k) - log_q - prob) * d_rho_d_r
        return (
            -(grad_excess * e_c + grad_prob * p_c),
            -(grad_excess * e_k + grad_prob * p_k),
            grad_excess * e_r + grad_prob * p_r,
            None,
        )


def log_bivariate_tail(c: Tensor, k: Tensor, r: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    r"""Logarithms of ``E[(X - c)+ ; side Z > k]`` and of ``P(X > c, side Z > k)``.

    ``(X, Z)`` is standard bivariate normal with correlation ``rho = (1 + r^2)^(-1/2)``.

    Args:
        c: Threshold on ``X``, any sign.
        k: Threshold on ``side Z``, at least 0.
        r: Noise-to-signal ratio ``sqrt(1 - rho^2) / rho``, positive.
        side: ``+1`` for the upper and ``-1`` for the lower tail of ``Z``; no gradient.

    Returns:
        Two tensors of the common shape of the (float64) arguments, differentiable in
        ``c``, ``k`` and ``r``. Relative accuracy about 1e-11 while both stay above
        ``exp(-800)``; on the lower side with ``c > 0`` the excess is accurate relative to the
        upper side (it is negligible beside it).
    """
    out: tuple[Tensor, Tensor] = _BivariateTail.apply(*torch.broadcast_tensors(c, k, r, side))
    return out


def _log_tail_family(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``log Phi(t)``, ``log h(t)`` and ``log H(t)``."""
    upper = t > 0
    tails = scaled_tails(t.abs())
    density = _INV_SQRT_2PI * torch.exp(-0.5 * t.square())
    full = (torch.ones_like(t), t, 0.5 * (t.square() + 1))
    # Phi(t) = 1 - Phi(-t),  h(t) = t + h(-t),  H(t) = (t^2 + 1)/2 - H(-t)
    signs = (-1.0, 1.0, -1.0)
    logs = [
        torch.where(
            upper,
            (value + sign * density * tail).where(upper, torch.ones_like(t)).log(),
            log_phi(t) + tail.log(),
        )
        for value, sign, tail in zip(full, signs, tails, strict=True)
    ]
    return logs[0], logs[1], logs[2]


def _log_mean(log_low: Tensor, log_high: Tensor, width: Tensor) -> Tensor:
    """``log((exp(log_high) - exp(log_low)) / width)``."""
    gap = (log_low - log_high).clamp(max=-1e-16)
    return log_high + torch.log(-torch.expm1(gap)) - width.log()


def _interval_mean_values(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The two logarithms of `log_interval_means`, without a graph.

    Wide intervals use the difference of the antiderivatives; narrow ones, where that
    cancels, an 8-point rule, which is exact to rounding there.
    """
    width = b - a
    log_phi_ab, log_h_ab, log_big_h_ab = _log_tail_family(torch.stack([a, b]))
    excess = _log_mean(log_big_h_ab[0], log_big_h_ab[1], width)
    prob = _log_mean(log_h_ab[0], log_h_ab[1], width)
    narrow = width * (1 + torch.minimum(a.abs(), b.abs())) < 0.5
    nodes, weights = unit_legendre(8, a)
    t = torch.where(narrow, a, b).unsqueeze(-1) + (width * narrow).unsqueeze(-1) * nodes
    log_phi_t, log_h_t, _ = _log_tail_family(t)
    excess_narrow = torch.logsumexp(log_h_t + weights.log(), dim=-1)
    prob_narrow = torch.logsumexp(log_phi_t + weights.log(), dim=-1)
    return torch.where(narrow, excess_narrow, excess), torch.where(narrow, prob_narrow, prob)


class _IntervalMeans(Function):
    """See `log_interval_means`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        excess, prob = _interval_mean_values(a, b)
        ctx.save_for_backward(a, b, excess, prob)
        return excess, prob

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        a, b, excess, prob = ctx.saved_tensors
        grad_excess, grad_prob = grads
        width = b - a
        # A mean m of g over [a, b] has dm/da + dm/db = (g(b) - g(a)) / width, the mean of g',
        # and dm/db - dm/da = (g(a) + g(b) - 2 m) / width, which tends to 0 with the width.
        tiny = width < 1e-5
        wide = width.masked_fill(tiny, 1.0)
        density_a, density_b = log_phi(a), log_phi(b)
        phi_a, phi_b = log_ndtr(a), log_ndtr(b)
        shift_e = torch.exp(prob - excess)
        spread_e = (torch.exp(log_h(a) - excess) + torch.exp(log_h(b) - excess) - 2) / wide
        shift_p = torch.where(
            tiny,
            torch.exp(density_a - prob),
            (torch.exp(phi_b - prob) - torch.exp(phi_a - prob)) / wide,
        )
        spread_p = (torch.exp(phi_a - prob) + torch.exp(phi_b - prob) - 2) / wide
        spread_e = torch.where(tiny, torch.exp(density_b - excess) * width / 6, spread_e)
        spread_p = torch.where(tiny, -b * torch.exp(density_b - prob) * width / 6, spread_p)
        shift = grad_excess * shift_e + grad_prob * shift_p
        spread = grad_excess * spread_e + grad_prob * spread_p
        return 0.5 * (shift - spread), 0.5 * (shift + spread)


def log_interval_means(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of the means of ``h`` and of ``Phi`` over ``[a, b]``, for finite ``a < b``.

    Args:
        a: Lower ends, float64.
        b: Upper ends, of the same shape.

    Returns:
        Two tensors of the shape of ``a``, differentiable in both ends.
    """
    out: tuple[Tensor, Tensor] = _IntervalMeans.apply(*torch.broadcast_tensors(a, b))
    return out
