r"""Integrals of a bivariate normal distribution over the tails beyond the knots.

Let ``Z`` and ``eps`` be independent and standard normal, and ``X = (Z + r eps) / (1 + r^2)^(1/2)``,
so that ``(X, Z)`` is a standard bivariate normal pair. `bivariate_tails` computes the expected
excess ``E[(X - c)+ ; Z beyond k]``, the probability ``P(X > c, Z beyond k)`` and minus its
derivative in ``c``, for thresholds ``c`` and the knots ``k`` of normal pieces.

Values are divided by the largest density in the region of integration, so that an expected
improvement of ``exp(-700)`` keeps its digits. ``botorch.utils.probability.bvn`` has a small
absolute but a large relative error. Nicholson's V function is an integral of a positive function,
so its relative error is small. Computing V takes a tenth of the time of ``bvn``.

.. [Nicholson1943]
    C. Nicholson. The probability integral for two variables. Biometrika, 1943.
"""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_calib.distributions import _normal_functions as nf

_ORDER = 17  # nodes of the rule for V: relative error about 1e-12 near the origin, 1e-13 far away
_CORNER = 2.5  # if both arguments of V are smaller, V is computed from its complement
_CUT = 64.0  # the rule for V ends where the integrand has decreased by a factor of exp(32)
# Largest number of elements in an operation on the integrand of V. On a CPU, `_CHUNK` elements fit
# into the cache. On a GPU, operations on up to `_LARGE_CHUNK` elements are faster.
_CHUNK, _LARGE_CHUNK = 32_000, 2**24


def _wedge(h: Tensor, eta: Tensor, mills_h: Tensor, mills_eta: Tensor) -> Tensor:
    r"""Return ``2 pi exp((h^2 + eta^2) / 2) V(h, eta)``, given the Mills ratios of ``h, eta >= 0``.

    ``V(h, eta) = 1/(2 pi) int_eta^inf exp(-(h^2 + y^2)/2) h / (h^2 + y^2) dy`` is the probability
    of the wedge ``x > h, y > x eta / h`` under the standard bivariate normal distribution.

    The identity ``V(h, eta) + V(eta, h) = Phi(-h) Phi(-eta)`` exchanges the arguments, so assume
    ``h >= eta``. Then the peak of the kernel ``h / (h^2 + y^2)`` is at least as wide as ``eta``.

    * Far from the origin, the quadrature rule covers ``[eta, eta + reach]``. At the upper end
      ``(y^2 - eta^2) / 2`` is 32, so the rule omits less than 1e-13 of the integral.
    * For ``h`` up to 2.5 the rule would miss the peak. The complement ``Phi(-h)/2 - V`` is an
      integral over ``[0, eta]``, where the kernel is smooth. At ``h = 2.5`` the subtraction loses
      two digits.
    * Very close to the origin, ``V`` depends only on ``eta / h``.
    """
    high, low = torch.maximum(h, eta), torch.minimum(h, eta)
    corner, square = nf.less(high, _CORNER), low * low
    dist = high.clamp(min=1e-10)  # keeps its square from underflow
    start = torch.addcmul(low, low, corner, value=-1)
    # sqrt(low^2 + _CUT) - low, without cancellation
    reach = (square + _CUT).sqrt_().add_(low).reciprocal_().mul_(_CUT)
    width = reach.lerp_(low.mul_(dist).div_(high), corner)

    # int dist / (dist^2 + y^2) exp((start^2 - y^2) / 2) dy, y - start in [0, width]
    nodes, weights = nf.graded_rule(_ORDER, dist.dtype, dist.device)
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

    near = torch.minimum(mills_h, mills_eta).mul_(nf.SQRT_HALF_PI).sub_(integral)
    near.mul_(square.mul_(0.5).clamp_(max=_CORNER**2).exp_())
    integral.lerp_(near, corner)
    return integral.lerp_(torch.addcmul(-integral, mills_h, mills_eta), nf.less(h, eta))


def off_zero(knots: Tensor) -> Tensor:
    """Move knots off zero, where `bivariate_tails` is undefined for ``x = 0``; keep their sign."""
    # The square of 1e-150 does not underflow.
    return torch.copysign(knots.abs().clamp_(min=1e-150), knots)


def scale_beyond(
    x: Tensor, c: Tensor, r: Tensor, norm: Tensor, knot: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return a rough ``log P(z + r eps > x | z > knot)`` for ``knot >= 0``, used as a scale.

    The notation is as in `bivariate_tails`. The first result is ``knot^2 / 2`` minus half of the
    squared distance between the origin and the region ``X > c, Z > knot``. The squared distance is
    ``knot^2`` for ``x < knot``, ``c^2 + eta_c^2`` if the nearest point is the corner, and ``c^2``
    for ``x >= knot norm^2``. The scale increases with the knot.

    The second result is ``-c^2 / 2`` minus the scale, computed without ``c^2``, whose rounding
    error exceeds 1 for ``c > 1e8``.
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
    r"""Return scaled integrals over the tails beyond the knots, without a graph.

    ``(X, Z)`` is standard bivariate normal with correlation ``rho = (1 + r^2)^(-1/2)``; ``q =
    sqrt(1 - rho^2)``. The tail of ``Z`` is the upper tail for ``knot > 0`` and the lower tail for
    ``knot < 0``: ``s Z > k`` with ``s = sign(knot)`` and ``k = |knot|``. With ``eta_c = (k - rho s
    c)/q`` and ``eta_k = (c - rho knot)/q = (x - knot)/r``, the corner of the region ``X > c, s Z >
    k`` has the squared distance ``c^2 + eta_c^2 = k^2 + eta_k^2`` from the origin. The region has
    the probability ``sign(c) V(|c|, eta_c) + V(k, eta_k)`` (V: see `_wedge`) with ``V(h, -eta) =
    Phi(-h) - V(h, eta)``. In units of ``phi(k)``, terms of the corner have the factor
    ``exp(-eta_k^2 / 2) = exp((k^2 - c^2 - eta_c^2) / 2)``.

    Args:
        x: Thresholds on ``z + r eps``, ``batch_shape``.
        c: Thresholds ``x / norm`` on ``X``, ``batch_shape``.
        r: Standard deviations of the noise, ``batch_shape``.
        norm: ``sqrt(1 + r^2)``, ``batch_shape``.
        knots: Nonzero knots (see `off_zero`), ``num_knots x batch_shape`` or ``num_knots x 1``.
        ratios: `first_tails` of ``|c|``, ``2 x batch_shape``.
        mills_k: Mills ratios of ``|knots|``, with the same shape as ``knots``.
        log_at_c: Second result of `scale_beyond` for the last knot, or for 0 if the last knot is
            negative.

    Returns:
        ``3 x num_knots x batch_shape``: ``E[(X - c)+ ; s Z > k]``, ``P(X > c, s Z > k)`` and
        ``phi(c) P(s Z > k | X = c)``, divided by ``phi(k)`` and by the exponential of the scale,
        the first result of `scale_beyond`.
    """
    side, sign = knots.sign(), c.sign()
    eta_k = (x - knots).div_(r)
    eta = torch.stack([torch.addcmul(-eta_k, r, knots).mul_(side).div_(norm), eta_k])
    below, height = nf.less(eta, 0.0), eta.abs()
    dist = torch.stack([c.expand_as(eta_k), knots.expand_as(eta_k)]).abs_()
    mills = torch.stack([ratios[0].expand_as(eta_k), mills_k.expand_as(eta_k)])
    edges = nf.mills_ratio(height)
    wedges = _wedge(dist, height, mills, edges)
    # If eta < 0, the point of the region nearest to the origin is not the corner, but the foot of
    # the perpendicular to a side. V is then the mass beyond the whole side minus V(h, -eta).
    at_foot = torch.addcmul(log_at_c, knots, knots, value=0.5)
    corner = torch.addcmul(at_foot, eta[0], eta[0], value=-0.5).clamp_(nf.LEAST, 0.0).exp_()
    corner = torch.addcmul(corner, corner, below, value=-2.0).mul_(nf.INV_SQRT_2PI)
    wedges.mul_(corner)
    edges.mul_(corner)
    foot = at_foot.clamp_(nf.LEAST, 0.0).exp_().mul_(below[0])
    # The density at the foot on the knot's side is the unit phi(k), so its factor is 1.
    wedge_k = torch.addcmul(wedges[1], below[1], mills_k)
    edge_c, edge_k = edges[0] + foot, edges[1] + below[1]
    half = torch.addcmul(wedge_k, sign, wedges[0])
    prob = torch.addcmul(half, sign * ratios[0], foot)  # V(0, eta_c) is 0, as is sign(0)
    # The excess contains edge_c - c prob, in which the two terms with `foot` would nearly cancel.
    # Their difference is exactly `foot * ratios[1]`.
    excess = torch.addcmul(edges[0], foot, ratios[1])
    excess.addcmul_(half, c, value=-1).addcdiv_(edge_k.mul_(side), norm)
    return torch.stack([excess, prob, edge_c])
