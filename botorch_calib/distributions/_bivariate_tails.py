r"""Integrals of a bivariate normal distribution over the tails beyond the knots.

This is where the normal pieces' share of a log expected improvement far below underflow comes from
(the chain is drawn in `botorch_calib.distributions`). With ``X`` proportional to ``z + r eps``
(see `botorch_calib.distributions.smoothed`) and ``Z`` to ``z``, a normal piece needs the expected
excess ``E[(X - c)+ ; Z beyond k]``, the probability ``P(X > c, Z beyond k)`` and its derivative by
``c``, for the standard bivariate normal pair ``(X, Z)``: `bivariate_tails`.

Values are divided by the density at the point of the region that is nearest to the origin, so that
an expected improvement of ``exp(-700)`` keeps its digits. ``botorch.utils.probability.bvn`` is
accurate in absolute terms only, which is why the bivariate probability is computed from Nicholson's
V function instead: a sum of positive terms with a smooth integrand, at a tenth of the cost.

.. [Nicholson1943]
    C. Nicholson. The probability integral for two variables. Biometrika, 1943.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_calib.distributions._normal_functions import LEAST, graded_rule, less, mills_ratio

_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_ORDER = 17  # of the rule for V: relative error about 1e-13 far out, 1e-12 near the origin
_CORNER = 2.5  # below it V is computed from its complement, a smooth arctangent integral
_CUT = 64.0  # the integrand of V is dropped once it has fallen by exp(-32)
_CHUNK = 32_000  # numbers per operation at the nodes of V, few enough to stay in the cache


def _wedge(h: Tensor, eta: Tensor, mills_h: Tensor, mills_eta: Tensor) -> Tensor:
    r"""``2 pi exp((h^2 + eta^2) / 2) V(h, eta)`` for ``h, eta >= 0``, given their Mills ratios.

    ``V(h, eta) = 1/(2 pi) int_eta^inf exp(-(h^2 + y^2)/2) h / (h^2 + y^2) dy`` is the normal
    mass of the wedge beyond the line at distance ``h``, on one side of the ray through its
    point at height ``eta``: in polar coordinates, ``int exp(-h^2 / (2 cos^2)) d angle``.

    Far from the origin the integral is taken over ``[eta, eta + reach]``, where
    ``(y^2 - eta^2) / 2`` has grown to 32 and less than 1e-13 is left. Near the origin the kernel
    ``h / (h^2 + y^2)`` has a sharp peak there, which the rule would miss. With ``h >= eta`` the
    complement ``Phi(-h)/2 - V`` is an integral over ``[0, eta]``, no wider than the peak,
    on which it is smooth; else ``V(h, eta) + V(eta, h) = Phi(-h) Phi(-eta)`` exchanges the two.
    The subtraction costs most where both are 2.5, two digits, which is why the corner ends there.
    Very close to the origin V depends on ``eta / h`` only.
    """
    high, low = torch.maximum(h, eta), torch.minimum(h, eta)
    corner = less(high, _CORNER)
    at_corner = high.clamp(min=1e-10)  # keeps the squares from underflow
    dist = torch.lerp(h, at_corner, corner)
    start = torch.addcmul(eta, eta, corner, value=-1)
    # sqrt(eta^2 + _CUT) - eta, without cancellation
    reach = (eta * eta).add_(_CUT).sqrt_().add_(eta).reciprocal_().mul_(_CUT)
    width = reach.lerp_(at_corner.mul_(low).div_(high), corner)

    # int dist / (dist^2 + y^2) exp((start^2 - y^2) / 2) dy, y - start in [0, width]
    nodes, weights = graded_rule(_ORDER, dist.dtype, dist.device)
    distance2 = torch.addcmul(dist * dist, start, start).view(-1)
    # With y = start + u width the exponent is a polynomial of u, and y^2 = start^2 - 2 exponent.
    terms = torch.stack([start * width, (width * width).mul_(0.5)]).neg_().view(2, -1)
    integral = torch.empty_like(distance2)
    num = max(1, _CHUNK // _ORDER)
    parts = (distance2.split(num), terms.split(num, dim=1), integral.split(num))
    for part, polynomial, total in zip(*parts, strict=True):
        exponent = torch.mm(nodes, polynomial)
        kernel = torch.sub(part, exponent, alpha=2)
        torch.div(exponent.exp_(), kernel, out=kernel)
        torch.mv(kernel.t(), weights, out=total)
    integral = integral.view(dist.shape).mul_(width).mul_(dist)

    near = torch.minimum(mills_h, mills_eta).mul_(_SQRT_HALF_PI).sub_(integral)
    near.mul_((low * low).mul_(0.5).clamp_(max=_CORNER**2).exp_())
    near = torch.lerp(near, mills_h * mills_eta - near, less(h, eta))
    return integral.lerp_(near, corner)


def off_zero(knots: Tensor) -> Tensor:
    """The same knots, those at zero moved away from it by a number of no other effect.

    With both thresholds at zero the angle of the corner would be lost. The square of what
    replaces zero is still above underflow.
    """
    return torch.copysign(knots.abs().clamp_(min=1e-150), knots)


def bivariate_tails(
    c: Tensor,
    knots: Tensor,
    t: Tensor,
    r: Tensor,
    norm: Tensor,
    ratios: Tensor,
    mills_k: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""Integrals over the tails of a normal piece beyond its knots, scaled, without a graph.

    ``(X, Z)`` is standard bivariate normal with correlation ``(1 + r^2)^(-1/2)``. The tail
    of ``Z`` is the upper one for ``knot > 0`` and the lower one for ``knot < 0``:
    ``s Z > k`` with ``k = |knot|``. With ``eta_c = (k - rho c)/q`` and
    ``eta_k = (c - rho k)/q`` the corner of the region lies at squared distance
    ``c^2 + eta_c^2 = k^2 + eta_k^2`` from the origin, and
    ``P = sign(c) V(|c|, eta_c) + V(k, eta_k)``, ``V(h, -eta) = Phi(-h) - V(h, eta)``.

    Args:
        c: Threshold on ``X``, of the shape ``batch_shape``.
        knots: ``num_knots x batch_shape``, or ``x 1`` where they are common; none zero (see
            `off_zero`).
        t: ``(knot - c norm) / r``, which is ``-eta_k``, ``num_knots x batch_shape``.
        r: Noise-to-signal ratio, of the shape of ``c``.
        norm: ``sqrt(1 + r^2)``.
        ratios: `first_tails` of ``|c|``.
        mills_k: Mills ratios of ``|knots|``, of the shape of these.

    Returns:
        ``3 x num_knots x batch_shape``: ``E[(X - c)+ ; s Z > k]``, ``P(X > c, s Z > k)`` and
        ``phi(c) P(s Z > k | X = c)``, divided by the normal density at the distance of the
        region from the origin; and half the square of that distance.
    """
    side = knots.sign()
    eta = torch.stack([torch.addcmul(t, r, knots).mul_(side).div_(norm), -t])
    dist = torch.stack([c.expand_as(t), knots.expand_as(t)]).abs_()
    height, below = eta.abs(), less(eta, 0.0)
    (mills_c, ramp_c), mills_eta = ratios, mills_ratio(height)
    mills_dist = torch.stack([mills_c.expand_as(t), mills_k.expand_as(t)])

    # The region is nearest to the origin at its corner, or at the foot of the perpendicular to one
    # of its two sides, if that foot lies on its border (eta < 0).
    square = dist * dist
    corner2 = torch.addcmul(square[1], t, t)
    nearest2 = torch.minimum(*torch.lerp(corner2.expand_as(square), square, below))
    decay = nearest2 - torch.cat([square, corner2.unsqueeze(0)])
    decay = decay.mul_(0.5).clamp_(LEAST, 0.0).exp_()
    phi, at_corner = decay[:2], decay[2].mul(_INV_SQRT_2PI)
    # V and phi(c) Phi(-eta_c), phi(k) Phi(-eta_k), first for |eta| and then for eta
    wedges = _wedge(dist, height, mills_dist, mills_eta)
    part = torch.stack([wedges, mills_eta]).mul_(at_corner)
    whole = torch.stack([phi * mills_dist, phi])
    (wedge_c, wedge_k), (edge_c, edge_k) = torch.lerp(part, whole - part, below)
    sign = c.sign()
    prob = torch.addcmul(wedge_k, sign, wedge_c)  # at c = 0 the other one vanishes
    # edge_c - c prob; what the whole line beyond c has of it is known, far out to more digits.
    rest, edge = part[:, 0] * (1.0 - 2.0 * below[0])
    excess = torch.addcmul(
        below[0] * phi[0] * ramp_c, c, torch.addcmul(wedge_k, sign, rest), value=-1
    )
    excess.add_(edge).add_(edge_k.mul_(side).div_(norm))
    return torch.stack([excess, prob, edge_c]), nearest2.mul_(0.5)
