r"""Special functions of the standard normal law, accurate far into the tails.

Notation: ``phi`` and ``Phi`` are the normal density and distribution function,
``h(t) = phi(t) + t Phi(t)`` is the integral of ``Phi`` (expected improvement in standard
units) and ``H(t) = ((t^2 + 1) Phi(t) + t phi(t)) / 2`` is the integral of ``h``.
All functions work elementwise on tensors of any shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from botorch.utils.probability.utils import leggauss, log_ndtr, log_phi
from torch import Tensor

# Stands for log(0): finite, so that masked branches carry no NaN into a gradient.
LOG_ZERO = -1e300

_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
# Beyond this argument the asymptotic series of ``scaled_tails`` beat the direct formulas,
# whose cancellation grows like x^4: both are then accurate to about 1e-10.
_FAR = 30.0


def unit_legendre(order: int, ref: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on [0, 1], each of shape ``order``."""
    nodes, weights = leggauss(order, dtype=ref.dtype, device=ref.device)
    return (nodes + 1) / 2, weights / 2


def mills_ratio(x: Tensor) -> Tensor:
    """``Phi(-x) / phi(x)`` for ``x >= 0``."""
    return _SQRT_HALF_PI * torch.special.erfcx(_SQRT_HALF * x)


def scaled_tails(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``(Phi(-x), h(-x), H(-x)) / phi(x)`` for ``x >= 0``, in float64."""
    mills = mills_ratio(x)
    near = x.clamp(max=_FAR)
    mills_near = mills.where(x <= _FAR, mills_ratio(near))
    h = 1 - near * mills_near
    big_h = ((near.square() + 1) * mills_near - near) / 2
    y = x.clamp(min=_FAR).square().reciprocal()
    h_far = y * (1 - y * (3 - y * (15 - y * (105 - 945 * y))))
    big_h_far = y * y.sqrt() * (1 - y * (6 - y * (45 - y * (420 - 4725 * y))))
    far = x > _FAR
    return mills, torch.where(far, h_far, h), torch.where(far, big_h_far, big_h)


def log_normal_interval(lower: Tensor, upper: Tensor) -> Tensor:
    """``log(Phi(upper) - Phi(lower))`` for ``lower < upper``; either end may be infinite.

    Unlike ``botorch.utils.probability.utils.log_prob_normal_in`` it admits infinite
    ends and does not look at the data (no device synchronisation).
    """
    lower, upper = torch.broadcast_tensors(lower, upper)
    # Work in the lower tail, where Phi is small and its logarithm exact.
    flip = lower + upper > 0
    low, high = torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)
    # If low = -inf, nothing is subtracted; if high = inf as well, the mass is 1.
    open_low, open_high = low.isneginf(), high.isposinf()
    log_high = log_ndtr(high.masked_fill(open_high, 0.0)).masked_fill(open_high, 0.0)
    log_low = log_ndtr(low.masked_fill(open_low, -1.0)).masked_fill(open_low, LOG_ZERO)
    return log_high + log1mexp(log_low - log_high)


def log1mexp(x: Tensor) -> Tensor:
    """``log(1 - exp(x))`` for ``x < 0``, with finite value and gradient as ``x -> 0``."""
    x = x.clamp(max=-torch.finfo(x.dtype).eps)
    near = x > -math.log(2.0)
    value_near = torch.log(-torch.expm1(x.masked_fill(~near, -1.0)))
    value_far = torch.log1p(-torch.exp(x.masked_fill(near, -1.0)))
    return torch.where(near, value_near, value_far)


def ndtri_exp(log_p: Tensor) -> Tensor:
    """Inverse of ``log_ndtr``: the ``z`` with ``log Phi(z) = log_p``, for ``log_p < 0``.

    Meant for lower-tail probabilities (``log_p`` may be far below the underflow of
    ``exp``); near ``log_p = 0`` it is as accurate as ``log_p`` itself. Differentiable:
    the last Newton step carries the gradient ``Phi(z) / phi(z)``.
    """
    with torch.no_grad():
        # Above exp(-30), ndtri is exact; below, the Mills-ratio expansion of the tail.
        deep = log_p < -30.0
        z = torch.special.ndtri(log_p.masked_fill(deep, -1.0).exp())
        tail = -2.0 * log_p.masked_fill(~deep, -31.0) - math.log(2 * math.pi)
        z_deep = -(tail - tail.log()).sqrt()
        for _ in range(3):
            z_deep = z_deep - (log_ndtr(z_deep) - (-0.5 * tail - _HALF_LOG_2PI)) / hazard(z_deep)
        z = torch.where(deep, z_deep, z)
        slope = hazard(z)
    # At z = +-inf there is nothing to correct (and inf - inf must not appear).
    finite = torch.isfinite(z)
    z_safe = z.masked_fill(~finite, 0.0)
    step = (log_ndtr(z_safe) - log_p.masked_fill(~finite, 0.0)) / slope.masked_fill(~finite, 1.0)
    return torch.where(finite, z_safe - step, z)


_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def bracketed_root(
    function: Callable[[Tensor], Tensor],
    low: Tensor,
    high: Tensor,
    max_steps: int,
    tol: float = 1e-9,
) -> Tensor:
    """Elementwise root of an increasing function between ``low`` and ``high``, no gradient.

    Chandrupatla's method: inverse quadratic interpolation where the last three points
    allow it, bisection elsewhere, until all ``|function(x)| <= tol`` (one evaluation and one
    comparison read back from the device a step).

    .. [Chandrupatla1997]
        T. R. Chandrupatla. A new hybrid quadratic/bisection algorithm for finding the
        zero of a nonlinear function without using derivatives. 1997.
    """
    a, b = torch.broadcast_tensors(high, low)
    f_a, f_b = function(a), function(b)
    step = torch.full_like(a, 0.5)
    for _ in range(max_steps):
        x = a + step * (b - a)
        f_x = function(x)
        if bool((f_x.abs() <= tol).all()):
            return x
        same = (f_x > 0) == (f_a > 0)
        c, f_c = torch.where(same, a, b), torch.where(same, f_a, f_b)
        b, f_b = torch.where(same, b, a), torch.where(same, f_b, f_a)
        a, f_a = x, f_x
        xi, phi = (a - b) / (c - b), (f_a - f_b) / (f_c - f_b)
        smooth = (phi.square() < xi) & ((1 - phi).square() < 1 - xi)
        curve = f_a / (f_b - f_a) * f_c / (f_b - f_c)
        curve = curve + (c - a) / (b - a) * f_a / (f_c - f_a) * f_b / (f_c - f_b)
        step = torch.where(smooth & curve.isfinite(), curve, torch.full_like(curve, 0.5))
        # Keep away from the ends, which would stall; 0 * (b - a) = 0 once converged.
        step = step.clamp(min=1e-9, max=1 - 1e-9)
    return torch.where(f_a.abs() < f_b.abs(), a, b)


def hazard(z: Tensor) -> Tensor:
    """``phi(z) / Phi(z)``, the derivative of ``log_ndtr``."""
    return torch.exp(log_phi(z) - log_ndtr(z))
