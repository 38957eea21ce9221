r"""Integrals of a bivariate normal distribution over the tails beyond the knots.

With ``X`` proportional to ``z + r eps`` (see `botorch_calib.distributions.denoised_piecewise`) and
``Z`` to ``z``, a normal piece needs the expected excess ``E[(X - c)+ ; Z beyond k]``, the
probability ``P(X > c, Z beyond k)`` and its derivative by ``c``, for the standard bivariate normal
pair ``(X, Z)``: `bivariate_tails`.

Values are divided by the density at the knot and by its decay up to the point of the region that is
nearest to the origin, so that an expected improvement of ``exp(-700)`` keeps its digits.
``botorch.utils.probability.bvn`` is accurate in absolute terms only; Nicholson's V function is an
integral of positive terms, at a tenth of its cost.

.. [Nicholson1943]
    C. Nicholson. The probability integral for two variables. Biometrika, 1943.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_calib.distributions._normal_functions import (
    INV_SQRT_2PI,
    LEAST,
    graded_rule,
    less,
    mills_ratio,
)

_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_ORDER = 17  # of the rule for V: relative error about 1e-13 far out, 1e-12 near the origin
_CORNER = 2.5  # below it V is computed from its complement, a smooth arctangent integral
_CUT = 64.0  # the integrand of V is dropped once it has fallen by exp(-32)
# Numbers per operation at the nodes of V: few enough to stay in a CPU's cache, and on a device,
# where each operation counts, to leave room in its memory
_CHUNK, _LARGE_CHUNK = 32_000, 2**24


def _wedge(h: Tensor, eta: Tensor, mills_h: Tensor, mills_eta: Tensor) -> Tensor:
    r"""``2 pi exp((h^2 + eta^2) / 2) V(h, eta)`` for ``h, eta >= 0``, given their Mills ratios.

    ``V(h, eta) = 1/(2 pi) int_eta^inf exp(-(h^2 + y^2)/2) h / (h^2 + y^2) dy`` is the normal
    mass of the wedge beyond the line at distance ``h``, on one side of the ray through its
    point at height ``eta``: in polar coordinates, ``int exp(-h^2 / (2 cos^2)) d angle``.

    ``V(h, eta) + V(eta, h) = Phi(-h) Phi(-eta)`` exchanges the two, so let ``h >= eta``: then the
    peak of the kernel ``h / (h^2 + y^2)`` is no narrower than ``eta``. Far from the origin the
    integral is taken over ``[eta, eta + reach]``, where ``(y^2 - eta^2) / 2`` has grown to 32 and
    less than 1e-13 is left. Near the origin the rule would miss the peak: there the complement
    ``Phi(-h)/2 - V`` is an integral over ``[0, eta]``, on which the kernel is smooth, up to 2.5,
    where the subtraction costs two digits. Very close to the origin V depends on ``eta / h`` only.
    """
    high, low = torch.maximum(h, eta), torch.minimum(h, eta)
    corner, square = less(high, _CORNER), low * low
    dist = high.clamp(min=1e-10)  # keeps its square from underflow
    start = torch.addcmul(low, low, corner, value=-1)
    # sqrt(low^2 + _CUT) - low, without cancellation
    reach = (square + _CUT).sqrt_().add_(low).reciprocal_().mul_(_CUT)
    width = reach.lerp_(low.mul_(dist).div_(high), corner)

    # int dist / (dist^2 + y^2) exp((start^2 - y^2) / 2) dy, y - start in [0, width]
    nodes, weights = graded_rule(_ORDER, dist.dtype, dist.device)
    distance2 = torch.addcmul(dist * dist, start, start).view(-1)
    # With y = start + u width the exponent is a polynomial of u, and y^2 = start^2 - 2 exponent.
    terms = torch.stack([start.mul_(width), (width * width).mul_(0.5)]).neg_().view(2, -1)
    integral = torch.empty_like(distance2)
    num = (_LARGE_CHUNK if dist.is_cuda else _CHUNK) // _ORDER
    parts = (distance2.split(num), terms.split(num, dim=1), integral.split(num))
    for part, polynomial, total in zip(*parts, strict=True):
        exponent = torch.mm(nodes, polynomial)
        kernel = torch.sub(part, exponent, alpha=2)
        torch.div(exponent.exp_(), kernel, out=kernel)
        torch.mv(kernel.t(), weights, out=total)
    integral = integral.view(dist.shape).mul_(width).mul_(dist)

    near = torch.minimum(mills_h, mills_eta).mul_(_SQRT_HALF_PI).sub_(integral)
    near.mul_(square.mul_(0.5).clamp_(max=_CORNER**2).exp_())
    integral.lerp_(near, corner)
    return integral.lerp_(torch.addcmul(-integral, mills_h, mills_eta), less(h, eta))


def off_zero(knots: Tensor) -> Tensor:
    """The same knots, of which 1e-150 replaces zero: its square does not underflow.

    With both thresholds at zero the angle of the corner would be lost.
    """
    return torch.copysign(knots.abs().clamp_(min=1e-150), knots)


def scale_beyond(
    x: Tensor, c: Tensor, r: Tensor, norm: Tensor, knot: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Logarithm of ``P(z + r eps > x)`` given that ``z`` is just beyond ``knot >= 0``, roughly.

    It is half the difference of ``knot^2`` and the squared distance of the region ``X > c, Z >
    knot`` from the origin, with ``c = x / norm``: ``knot^2`` for ``x < knot``, ``c^2 + eta_c^2``
    where the nearest point is the corner, and ``c^2`` from ``x = knot norm^2`` on. The scale
    increases with the knot.

    Returns:
        The scale, and ``-c^2 / 2`` less the scale without the rounding of ``c^2``, which exceeds 1
        from ``c = 1e8`` on.
    """
    half = (knot * knot).mul(0.5)
    rest = torch.addcmul(half, c, c, value=-0.5)
    eta_c = torch.addcdiv(r * knot, knot - x, r).div_(norm).clamp_(min=0.0)
    lead = torch.where(x > knot, eta_c.square_().mul_(0.5), rest)
    return rest.sub_(lead), lead - half


def bivariate_tails(
    x: Tensor,
    c: Tensor,
    r: Tensor,
    norm: Tensor,
    knots: Tensor,
    ratios: Tensor,
    mills_k: Tensor,
    log_at_c: Tensor,
) -> Tensor:
    r"""Integrals over the tails of a normal piece beyond its knots, scaled, without a graph.

    ``(X, Z)`` is standard bivariate normal with correlation ``(1 + r^2)^(-1/2)``. The tail
    of ``Z`` is the upper one for ``knot > 0`` and the lower one for ``knot < 0``:
    ``s Z > k`` with ``k = |knot|``. With ``eta_c = (k - rho c)/q`` and
    ``eta_k = (c - rho k)/q = (x - knot)/r`` the corner of the region lies at squared distance
    ``c^2 + eta_c^2 = k^2 + eta_k^2`` from the origin, and
    ``P = sign(c) V(|c|, eta_c) + V(k, eta_k)``, ``V(h, -eta) = Phi(-h) - V(h, eta)``.
    In units of ``phi(k)`` all that the corner enters has the factor
    ``exp(-eta_k^2 / 2) = exp((k^2 - c^2 - eta_c^2) / 2)``.

    These arguments have the shape ``batch_shape``: the thresholds ``x`` on ``z + r eps`` and ``c =
    x / norm`` on ``X``, the ratio ``r`` of the noise, ``norm = sqrt(1 + r^2)``, the ``ratios``,
    which are `first_tails` of ``|c|``, and ``log_at_c``, the second of `scale_beyond` the last
    knot, or beyond 0 if that knot is negative. Knots are ``num_knots x batch_shape``, or ``x 1``
    where they are common; none is zero (see `off_zero`). ``mills_k`` has the Mills ratios of
    ``|knots|``.

    Returns:
        ``3 x num_knots x batch_shape``: ``E[(X - c)+ ; s Z > k]``, ``P(X > c, s Z > k)`` and
        ``phi(c) P(s Z > k | X = c)``, divided by ``phi(k)`` and by the exponential of the scale.
    """
    side, sign = knots.sign(), c.sign()
    eta_k = (x - knots).div_(r)
    eta = torch.stack([torch.addcmul(-eta_k, r, knots).mul_(side).div_(norm), eta_k])
    below, height = less(eta, 0.0), eta.abs()
    dist = torch.stack([c.expand_as(eta_k), knots.expand_as(eta_k)]).abs_()
    mills = torch.stack([ratios[0].expand_as(eta_k), mills_k.expand_as(eta_k)])
    edges = mills_ratio(height)
    wedges = _wedge(dist, height, mills, edges)
    # Where eta < 0 the point nearest to the origin is the foot of the perpendicular to the side of
    # the corner, and the part that the ray cuts off is taken from the whole side.
    at_foot = torch.addcmul(log_at_c, knots, knots, value=0.5)
    corner = torch.addcmul(at_foot, eta[0], eta[0], value=-0.5).clamp_(LEAST, 0.0).exp_()
    corner = torch.addcmul(corner, corner, below, value=-2.0).mul_(INV_SQRT_2PI)
    wedges.mul_(corner)
    edges.mul_(corner)
    foot = at_foot.clamp_(LEAST, 0.0).exp_().mul_(below[0])
    # The scale is 1 wherever the nearest point is the foot on the knot's side.
    wedge_k = torch.addcmul(wedges[1], below[1], mills_k)
    edge_c, edge_k = edges[0] + foot, edges[1] + below[1]
    half = torch.addcmul(wedge_k, sign, wedges[0])
    prob = torch.addcmul(half, sign * ratios[0], foot)  # at c = 0 the other one vanishes
    # edge_c - c prob; the share of the whole line beyond c is known to more digits far out.
    excess = torch.addcmul(edges[0], foot, ratios[1])
    excess.addcmul_(half, c, value=-1).addcdiv_(edge_k.mul_(side), norm)
    return torch.stack([excess, prob, edge_c])
