r"""Integrals of one piece of a predictive law against Gaussian noise.

The calibrated law of the objective is that of ``z + r eps`` in rescaled units
(see `botorch_calib.distributions.smoothed`), with ``z`` distributed by pieces and ``eps``
standard normal. Everything it needs reduces to two pairs of integrals, given here with closed-form
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
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor
from torch.autograd import Function

from botorch_calib.distributions._special import (
    LEAST,
    graded_rule,
    less,
    log_h,
    mills_ratio,
    scaled_tails,
)

_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_TINY = 1e-300
_ORDER = 17  # of the rule for V: relative error about 1e-13 far out, 1e-12 near the origin
_CORNER = 2.5  # below it V is computed from its complement, a smooth arctangent integral
_CUT = 64.0  # the integrand of V is dropped once it has fallen by exp(-32)
_CHUNK = 40_000  # numbers per operation at the nodes of V, few enough to stay in the cache
_NARROW = 0.05  # relative width below which an interval mean is a series about the middle


def _scaled_v(h: Tensor, eta: Tensor, mills_h: Tensor, mills_eta: Tensor) -> Tensor:
    r"""``2 pi exp((h^2 + eta^2) / 2) V(h, eta)`` for ``h, eta >= 0``, given their Mills ratios.

    ``V(h, eta) = 1/(2 pi) int_eta^inf exp(-(h^2 + y^2)/2) h / (h^2 + y^2) dy`` is the normal
    mass of the wedge beyond the line at distance ``h``, on one side of the ray through its
    point at height ``eta``. Near the origin the kernel ``h / (h^2 + y^2)`` is sharp;
    there, with ``h >= eta`` (else ``V(h, eta) + V(eta, h) = Phi(-h) Phi(-eta)``), the
    complement ``Phi(-h)/2 - V`` is an integral over ``[0, eta]`` on which it is smooth. Very
    close to the origin it depends on ``eta / h`` only.
    """
    high, low = torch.maximum(h, eta), torch.minimum(h, eta)
    corner = less(high, _CORNER)
    at_corner = high.clamp(min=1e-10)  # keeps the squares from underflow
    dist = torch.lerp(h, at_corner, corner)
    start = torch.addcmul(eta, eta, corner, value=-1)
    reach = (eta * eta).add_(_CUT).sqrt_().add_(eta).reciprocal_().mul_(_CUT)
    width = reach.lerp_(at_corner.mul_(low).div_(high), corner)
    integral = _wedge_integral(dist, start, width)
    wedge = torch.minimum(mills_h, mills_eta).mul_(_SQRT_HALF_PI).sub_(integral)
    wedge.mul_((low * low).mul_(0.5).clamp_(max=_CORNER**2).exp_())
    wedge = torch.lerp(wedge, mills_h * mills_eta - wedge, less(h, eta))
    return integral.lerp_(wedge, corner)


def _wedge_integral(dist: Tensor, start: Tensor, width: Tensor) -> Tensor:
    """``int dist / (dist^2 + y^2) exp((start^2 - y^2)/2) dy``, ``y - start`` in [0, width]."""
    nodes, weights = graded_rule(_ORDER, dist.dtype, dist.device)
    distance2 = torch.addcmul(dist * dist, start, start).view(-1)
    # With y = start + u width the exponent is a polynomial of u.
    terms = torch.stack([start * width, (width * width).mul_(0.5)]).neg_().view(2, -1)
    total = torch.zeros_like(distance2)
    step = max(1, _CHUNK // max(1, dist.numel()))
    for u, weight in zip(nodes.split(step), weights.split(step), strict=True):
        exponent = torch.mm(u, terms)
        kernel = torch.sub(distance2, exponent, alpha=2)
        torch.div(exponent.exp_(), kernel, out=kernel)
        torch.addmv(total, kernel.t(), weight, out=total)
    return total.view(dist.shape).mul_(width).mul_(dist)


def off_zero(knots: Tensor) -> Tensor:
    """The same knots, those at zero moved away from it by a number of no other effect.

    With both thresholds at zero the angle of the corner would be lost.
    """
    return torch.copysign(knots.abs().clamp_(min=1e-150), knots)


def bivariate_tails(
    c: Tensor, knots: Tensor, t: Tensor, r: Tensor, norm: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Integrals over the tails of a normal piece beyond its knots, scaled, without a graph.

    ``(X, Z)`` is standard bivariate normal with correlation ``(1 + r^2)^(-1/2)``. The tail
    of ``Z`` is the upper one for ``knot > 0`` and the lower one for ``knot < 0``:
    ``s Z > k`` with ``k = |knot|``. With ``eta_c = (k - rho c)/q`` and
    ``eta_k = (c - rho k)/q`` the corner of the region lies at squared distance
    ``c^2 + eta_c^2 = k^2 + eta_k^2`` from the origin, and
    ``P = sign(c) V(|c|, eta_c) + V(k, eta_k)``, ``V(h, -eta) = Phi(-h) - V(h, eta)``.

    Args:
        c: Threshold on ``X``, of the shape ``batch_shape``.
        knots: ``num_knots x batch_shape``, none zero (see `off_zero`).
        t: ``(knot - c norm) / r``, which is ``-eta_k``; of the shape of ``knots``.
        r: Noise-to-signal ratio, of the shape of ``c``.
        norm: ``sqrt(1 + r^2)``.

    Returns:
        ``3 x num_knots x batch_shape``: ``E[(X - c)+ ; s Z > k]``, ``P(X > c, s Z > k)`` and
        ``phi(c) P(s Z > k | X = c)``, divided by the normal density at the distance of the
        region from the origin; half the square of that distance; the Mills ratios of ``k``,
        and in the last row that of ``|c|``.
    """
    side = knots.sign()
    eta = torch.stack([torch.addcmul(t, r, knots).mul_(side).div_(norm), -t])
    dist = torch.stack([c.expand_as(t), knots]).abs_()
    height, below = eta.abs(), less(eta, 0.0)
    num = len(knots)
    mills = mills_ratio(torch.cat([dist[1], dist[0, :1], *height]))
    mills_k, mills_eta = mills[: num + 1], mills[num + 1 :].view_as(eta)
    mills_dist = torch.stack([mills_k[num:].expand_as(t), mills_k[:num]])

    square = dist * dist
    corner2 = torch.addcmul(square[1], t, t)
    nearest2 = torch.minimum(*torch.lerp(corner2.expand_as(square), square, below))
    decay = nearest2 - torch.cat([square, corner2.unsqueeze(0)])
    decay = decay.mul_(0.5).clamp_(LEAST, 0.0).exp_()
    phi, at_corner = decay[:2], decay[2].mul(_INV_SQRT_2PI)
    # V and phi(c) Phi(-eta_c), phi(k) Phi(-eta_k), first for |eta| and then for eta
    wedges = _scaled_v(dist, height, mills_dist, mills_eta)
    part = torch.stack([wedges, mills_eta]).mul_(at_corner)
    whole = torch.stack([phi * mills_dist, phi])
    (wedge_c, wedge_k), (edge_c, edge_k) = torch.lerp(part, whole - part, below)
    prob = torch.addcmul(wedge_k, c.sign(), wedge_c)  # at c = 0 the other one vanishes
    excess = torch.addcmul(edge_c, c, prob, value=-1) + edge_k.mul_(side).div_(norm)
    return torch.stack([excess, prob, edge_c]), nearest2.mul_(0.5), mills_k


class _BivariateTail(Function):
    """See `log_bivariate_tail`."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, k: Tensor, r: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        knots, norm = off_zero(side * k).unsqueeze(0), (1 + r.square()).sqrt()
        values, distance2, _ = bivariate_tails(c, knots, (knots - c * norm) / r, r, norm)
        logs = values[:2, 0].clamp_(min=_TINY).log_() - (distance2[0] + _LOG_SQRT_2PI)
        excess, prob = logs.unbind()
        ctx.save_for_backward(c, k, r, side, excess, prob)
        return excess, prob

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        c, k, r, side, excess, prob = ctx.saved_tensors
        grad_excess, grad_prob = grads
        norm = (1 + r.square()).sqrt()
        log_q = (r / norm).log()
        eta_c, eta_k = (k * norm - side * c) / r, (c * norm - side * k) / r
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


def interval_means(ends: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Means of ``h``, ``Phi`` and ``phi`` over intervals, scaled, without a graph.

    Wide intervals use the differences of the antiderivatives ``H``, ``h`` and ``Phi``, with
    ``Phi(t) = 1 - Phi(-t)``, ``h(t) = t + h(-t)`` and ``H(t) = (t^2 + 1)/2 - H(-t)`` for
    ``t > 0``; narrow ones, where that cancels, the trapezoidal rule with its first two
    corrections: ``-w/12`` and ``w^3/720`` times the differences of ``g'`` and of ``g'''``.

    Args:
        ends: Lower and upper ends, ``2 x shape``.
        width: Their difference, perhaps known better than from them.

    Returns:
        ``3 x shape``, divided by ``exp(-d^2 / 2)``, and ``d^2 / 2``.
    """
    distance, ramp, sign = ends.abs(), ends.clamp(min=0.0), ends.sign()
    offset = ends[1].clamp(max=0.0).square_().mul_(0.5)
    density = (distance * distance).mul_(-0.5).add_(offset).clamp_(LEAST, 0.0).exp_()
    density.mul_(_INV_SQRT_2PI)
    ndtr, h, big_h = scaled_tails(distance).mul_(density).unbind()
    minus = -density
    first = ends * minus  # phi', phi'' and phi'''
    second = torch.addcmul(minus, ends, first, value=-1)
    third = torch.addcmul(first * -2, ends, second, value=-1)
    below = torch.lerp(1 - ndtr, ndtr, less(ends, 0.0))
    smooth = [ramp + h, below, density, first, second, third]
    low, high = torch.stack([*smooth, h, ndtr * sign, big_h * sign, sign]).unbind(1)
    change = high - low

    # Where the lower end is positive, the positive part rises by the width itself.
    rise_h, rise_ndtr, rise_big_h, jump = change[6:].unbind()
    climb, jump = torch.minimum(ramp[1], width), jump * 0.5
    square = torch.addcmul(jump, climb, ramp[0] + ramp[1]).mul_(0.5)
    wide = torch.stack([square - rise_big_h, climb + rise_h, jump - rise_ndtr]).div_(width)
    narrow = torch.addcmul((low[:3] + high[:3]).mul_(0.5), change[1:4], width, value=-1 / 12)
    narrow.addcmul_(change[3:6], width * width * width, value=1 / 720)
    relative = torch.minimum(distance[0], distance[1]).add_(1.0).mul_(width)
    return torch.lerp(wide, narrow, relative.lt_(_NARROW)), offset


class _IntervalMeans(Function):
    """See `log_interval_means`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        values, offset = interval_means(torch.stack([a, b]), b - a)
        excess, prob = (values[:2].clamp_(min=_TINY).log_() - offset).unbind()
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
