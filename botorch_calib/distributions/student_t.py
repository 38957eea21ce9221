r"""Normal scores of Student's t distribution, and their inverse.

PyTorch implements neither the cdf nor the quantile function of this distribution.

With ``nu`` degrees of freedom, ``w = sqrt(nu log(1 + t^2 / nu))``, with the sign of ``t``, is close
to the normal score of ``t``. For a constant ``C``, its density is ``C exp(-w^2 / 2) h(w)`` with
``h(w) = (a / (1 - exp(-a)))^(1/2)`` and ``a = w^2 / nu``: a normal density times a slowly varying
factor. So a short quadrature rule computes tail probabilities accurately for all ``t`` and ``nu``,
and Newton's method inverts them in a few steps.
"""

from __future__ import annotations

import torch
from botorch.utils.probability.utils import log_ndtr
from torch import Tensor

from botorch_calib._roots import bracketed_root, with_derivatives
from botorch_calib.distributions._normal_functions import HALF_LOG_2PI, graded_rule

_ORDER = 24
_STEPS = 8  # Newton steps on a GPU, from a start with an error below 0.1
_CUT = 72.0  # the integral ends where the integrand has decreased by a factor of exp(36)
_LARGEST = 1200.0  # cap on log(t^2), which keeps t below 1e261
_HUGE = 1e100  # squares of larger numbers may overflow, and adding 1 does not change them
_FARTHEST = 37.0  # largest normal score: more extreme probabilities underflow


def student_t_score(t: Tensor, df: Tensor) -> Tensor:
    """Return the normal scores ``Phi^-1(F(t))`` of float64 numbers, which are differentiable.

    ``F`` is the cdf of Student's t distribution with ``df`` degrees of freedom and scale 1.
    """
    near, far = t.clamp(-_HUGE, _HUGE), t.abs().clamp(min=_HUGE)
    squares = torch.where(t.abs() < _HUGE, (near.square() / df).log1p(), 2.0 * far.log() - df.log())
    w = squares.mul(df).clamp(min=1e-30).sqrt()
    log_tail = _log_tail(w, df).clamp(min=-0.5 * _FARTHEST**2)
    return -t.sign() * torch.special.ndtri(log_tail.exp().clamp(max=0.5))


def student_t_quantile(score: Tensor, df: Tensor) -> Tensor:
    """Return ``F^-1(Phi(score))``, the inverse of `student_t_score`, for float64 numbers.

    Quantiles beyond 1e260, which occur with few degrees of freedom, are clamped to about 1e260.
    """
    z = score.abs().clamp(max=_FARTHEST)
    target = log_ndtr(-z.detach())

    def depth(w: Tensor) -> tuple[Tensor, Tensor, float]:
        log_tail = _log_tail(w, df)
        return target - log_tail, (_log_density(w, df) - log_tail).exp(), 0.0

    def excess(w: Tensor, z: Tensor, df: Tensor) -> Tensor:
        return log_ndtr(-z) - _log_tail(w, df)

    start = (z * (8.0 * df + 3.0) / (8.0 * df + 1.0)).detach()  # Wallace (1959)
    low, high = torch.zeros_like(start), 4.0 * start + 1.0
    w = bracketed_root(depth, start, low, high, _STEPS, close=1e-12)
    w = with_derivatives(excess, w, z, df)
    # t^2 = nu (exp(a) - 1) = w^2 (1 - exp(-a)) exp(a) / a
    a = (w.square() / df).clamp(max=_LARGEST)
    return score.sign() * w * (0.5 * a - _log_factor(a)).exp()


def _log_factor(a: Tensor) -> Tensor:
    """Return ``log h(w) = log(a / (1 - exp(-a))) / 2`` for ``a = w^2 / df``."""
    large = a.clamp(min=1e-6)
    return 0.5 * torch.where(a < 1e-6, 0.5 * a, (large / -(-large).expm1()).log())


def _log_density(w: Tensor, df: Tensor) -> Tensor:
    """Return the log of the density ``C exp(-w^2 / 2) h(w)`` (see the module docstring)."""
    half = 0.5 * df
    constant = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * half.log() - HALF_LOG_2PI
    return constant - 0.5 * w.square() + _log_factor(w.square() / df)


def _log_tail(w: Tensor, df: Tensor) -> Tensor:
    """Return the logarithm of the density's integral above ``w >= 0``."""
    nodes, weights = graded_rule(_ORDER, w.dtype, w.device)
    column = (-1, *[1] * len(torch.broadcast_shapes(w.shape, df.shape)))
    reach = (_CUT / ((w.square() + _CUT).sqrt() + w)).detach()
    x = w + nodes[:, 0].view(column) * reach
    return (_log_density(x, df) + weights.log().view(column)).logsumexp(dim=0) + reach.log()
