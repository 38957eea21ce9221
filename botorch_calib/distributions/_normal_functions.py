r"""Functions of the standard normal distribution, accurate far into the tails.

Notation: ``phi`` and ``Phi`` are the normal density and distribution function,
``h(t) = phi(t) + t Phi(t)`` is the integral of ``Phi`` (expected improvement in standard
units) and ``H(t) = ((t^2 + 1) Phi(t) + t phi(t)) / 2`` is the integral of ``h``.
All functions work elementwise on tensors of any shape.

Two kinds of functions stand here. Those for the in-place kernels (`_denoised_pieces`,
`_bivariate_tails`, `_separate_pieces`, `_observation_improvement`) return ratios to ``phi`` and
build no graph: `mills_ratio`, `ramp_ratio`, `scaled_tails`. Those for everything else return
logarithms and are differentiable: `log_h`, `log_normal_interval`, `log1mexp`, `ndtri_exp`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from botorch.utils.probability.utils import leggauss, log_ndtr, log_phi
from torch import Tensor
from torch.autograd import Function

# Stands for log(0): finite, also in float32, so that masked branches carry no NaN into a
# gradient.
LOG_ZERO = -1e30
# Exponents below this one count as zero. exp(-600) is still a normal number: subnormal ones, from
# exp(-708) down, would slow every operation on a CPU.
LEAST = -600.0
# Floor under sums of which the logarithm is taken; less than exp(LEAST).
TINY = 1e-280

_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
# Coefficients, by powers of (x - 5)/(x + 5), of (1 + x) Phi(-x)/phi(x), (1 + x)^2 h(-x)/phi(x) and
# (1 + x)^3 H(-x)/phi(x) for x >= 0: Chebyshev series computed with 40 digits, cut off at 1e-15 and
# rearranged. The factors take out the decay like 1/x, 1/x^2 and 1/x^3, and the map takes [0, inf)
# to [-1, 1), so that one polynomial serves everywhere.
_MILLS = (
    1.1568486282918942,
    -0.2294875382521184,
    0.07778159886881932,
    0.02507217930210036,
    -0.06617760078236147,
    0.061505045828185945,
    -0.03802659213490491,
    0.016348231425036042,
    -0.004201290736679092,
    1.95296783263882e-05,
    0.00045704582520787057,
    -0.00013437036855808154,
    -2.4811370461631e-05,
    2.2699386557896492e-05,
    -1.6599786901151327e-07,
    -3.2597570880078616e-06,
    3.0814173813284686e-07,
    4.724032708161005e-07,
    -5.664946491934807e-08,
    -6.383575508496434e-08,
    5.201831922026417e-09,
    5.532292225960163e-09,
)
_RAMP = (
    1.2945411512431624,
    -0.3687229645450205,
    -0.028030699627535318,
    0.2611670078473995,
    -0.2735482037622689,
    0.15402166230393094,
    -0.029310982484216187,
    -0.03186187260375166,
    0.03474622704411568,
    -0.01613170673005695,
    0.0023283136856683535,
    0.0015767797434979535,
    -0.000852726679260871,
    -3.583150113393755e-05,
    0.00014692756303243338,
    -1.7174985619141775e-05,
    -2.3355088213939513e-05,
    4.929070094027732e-06,
    3.9473272317334125e-06,
    -9.567014371423734e-07,
    -6.968399656044212e-07,
    1.3972822924537727e-07,
    1.073022959586397e-07,
    -1.1626132425962912e-08,
    -9.684045797029939e-09,
)
_AREA = (
    1.4051580406066682,
    -0.38877684122300665,
    -0.34243173952461636,
    0.6565626748658616,
    -0.4572997740189959,
    0.06495369890172588,
    0.174034022880147,
    -0.1727293070925873,
    0.061492194388280304,
    0.017958777717068157,
    -0.029583813158052533,
    0.01103768905279188,
    0.001732642183794708,
    -0.0027460777569571146,
    0.00033679378571455125,
    0.0004806175703342735,
    -0.00013745432869142178,
    -8.281906172560058e-05,
    3.333682291970946e-05,
    1.568852925259317e-05,
    -6.6550481146115015e-06,
    -3.1055914504650055e-06,
    1.0293503371724116e-06,
    5.185494951380123e-07,
    -8.961051621203573e-08,
    -4.878967760889192e-08,
)
_CHUNK = 2**15  # numbers at a time, few enough to stay in a CPU's cache
_DEEP = -1e3  # from which down Phi / h is -(t + 2 / t) to 1e-11; above, its logarithm to 1e-10
_MANY = 3000  # numbers from which the polynomial beats ``erfcx`` on a CPU


@lru_cache(maxsize=32)
def unit_legendre(order: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on [0, 1], each of shape ``order``."""
    with torch.inference_mode(False):  # else no graph could use what the cache holds
        nodes, weights = leggauss(order, dtype=dtype, device=device)
        return (nodes + 1) / 2, weights / 2


def less(x: Tensor, bound: Tensor | float) -> Tensor:
    """1 where ``x < bound`` and else 0, as numbers.

    ``torch.lerp(a, b, mask)`` is exactly ``a`` or ``b`` with such a mask, given that both are
    finite, at a fraction of the time of ``torch.where`` with a mixed one.
    """
    return torch.lt(x, bound, out=torch.empty_like(x))


def mills_ratio(x: Tensor) -> Tensor:
    """``Phi(-x) / phi(x)`` for ``x >= 0``, float64, without a graph, accurate to 1e-15.

    On a CPU ``erfcx`` runs number by number. The polynomial takes some 20 vectorised operations:
    more than that for few numbers, half of it for many. On a device ``erfcx`` is one kernel.
    """
    if x.is_cuda or x.numel() < _MANY:
        return torch.special.erfcx(_SQRT_HALF * x).mul_(_SQRT_HALF_PI)
    return _polynomials(x, (_MILLS,))[0].div_(x + 1.0)


def ramp_ratio(x: Tensor) -> Tensor:
    """``h(-x) / phi(x)`` for ``x >= 0``, float64, without a graph, accurate to 1e-15.

    Always the polynomial: ``1 - x mills_ratio(x)`` loses digits like ``x^2``.
    """
    return _polynomials(x, (_RAMP,))[0].div_((x + 1.0).square_())


def first_tails(x: Tensor) -> Tensor:
    """`mills_ratio` and `ramp_ratio` together, ``2 x shape``."""
    values, decay = _polynomials(x, (_MILLS, _RAMP)), (x + 1.0).reciprocal_()
    values.mul_(decay)
    values[1].mul_(decay)
    return values


def scaled_tails(x: Tensor) -> Tensor:
    """``(Phi(-x), h(-x), H(-x)) / phi(x)`` for ``x >= 0``, ``3 x shape``, float64, without a graph.

    All by polynomials: the recurrences ``h(-x) = phi(x) - x Phi(-x)`` and
    ``2 H(-x) = Phi(-x) - x h(-x)`` lose digits like ``x^2`` and ``x^4``.
    """
    values, decay = _polynomials(x, (_MILLS, _RAMP, _AREA)), (x + 1.0).reciprocal_()
    for k in range(3):
        values[k:].mul_(decay)
    return values


def _polynomials(x: Tensor, polynomials: tuple[tuple[float, ...], ...]) -> Tensor:
    """Polynomials in ``t = (x - 5) / (x + 5) = 1 - 10 / (x + 5)``, ``num x shape``.

    Each is split into polynomials in ``t^2``, or ``t^4``, of coefficients that many places apart:
    ``p(t) = p_0(t^2) + t p_1(t^2)``. They run through Horner's rule side by side, and fewer,
    larger operations take the place of many small ones. Of many numbers on a CPU an operation costs
    what it moves, so they are split less.
    """
    if x.numel() > _CHUNK and not x.is_cuda:
        parts = [_polynomials(part, polynomials) for part in x.reshape(-1).split(_CHUNK)]
        return torch.cat(parts, dim=1).view(-1, *x.shape)
    num_parts = 2 if x.numel() > _MANY and not x.is_cuda else 4
    *rest, value = _coefficients(polynomials, num_parts, x.dtype, x.device)
    t = torch.add(x.reshape(-1), 5.0).reciprocal_().mul_(-10.0).add_(1.0)
    powers = [t, t * t]
    if num_parts == 4:
        powers.append(powers[1] * powers[1])
    for row in reversed(rest):
        value = torch.addcmul(row, value, powers[-1])
    for power in reversed(powers[:-1]):
        even, odd = value.chunk(2)
        value = torch.addcmul(even, odd, power)
    return value.view(len(polynomials), *x.shape)


@lru_cache(maxsize=32)
def _coefficients(
    polynomials: tuple[tuple[float, ...], ...],
    num_parts: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, ...]:
    """Those of each power of ``t^num_parts``, from the lowest, ``num_parts x num x 1``.

    Of part ``i`` they are those of the polynomial that is multiplied with ``t^i``.
    """
    num_rows = -(-max(map(len, polynomials)) // num_parts)
    padded = [[*row, *[0.0] * (num_rows * num_parts - len(row))] for row in polynomials]
    with torch.inference_mode(False):  # else no graph could use what the cache holds
        table = torch.tensor(padded, dtype=dtype, device=device)
        table = table.view(-1, num_rows, num_parts).permute(1, 2, 0).contiguous()
        return table.unsqueeze(-1).unbind()


class _LogH(Function):
    """`log_h`; its derivative is ``Phi / h``, again a function of differentiable ones."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ramp = t.clamp(min=0.0)
        # Over phi(min(t, 0)), with h(t) = t + h(-t) for t > 0
        h = ramp_ratio(t.abs())
        h.mul_((ramp * ramp).mul_(-0.5).clamp_(min=LEAST).exp_().mul_(_INV_SQRT_2PI))
        value = h.add_(ramp).log_().sub_((t - ramp).square_().mul_(0.5))
        ctx.save_for_backward(t, value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        t, value = ctx.saved_tensors
        # Far down both logarithms are about -t^2 / 2, and rounding leaves nothing of their
        # difference: there the asymptotic series, Phi / h = -(t + 2 / t - 6 / t^3 + ...).
        far = t.clamp(max=_DEEP)
        # The bound keeps what is replaced finite.
        ratio = torch.exp((log_ndtr(t) - value).clamp(max=math.log(-2.0 * _DEEP)))
        return grad * torch.where(t < _DEEP, -(far + 2.0 / far), ratio)


def log_h(t: Tensor) -> Tensor:
    """``log h(t)`` at finite ``t``, in float64, with derivatives of every order."""
    out: Tensor = _LogH.apply(t)
    return out


def log_normal_interval(lower: Tensor, upper: Tensor) -> Tensor:
    """``log(Phi(upper) - Phi(lower))`` for ``lower < upper``; either end may be infinite.

    The natural mass of a normal piece, for all callers that need it alone or with a graph. The
    kernels `_denoised_pieces._NormalPieces` and `_observation_improvement` derive it
    from the same Mills ratios as the integrals that they divide by it; a test holds them together.

    The interval is turned into the lower tail, where ``Phi`` is small and its logarithm exact, and
    ``Phi(lower)`` subtracted from ``Phi(upper)`` in logarithms. At width ``w`` and distance ``x``
    from zero these differ by about ``w x`` and are known to ``eps x^2 / 2``: the relative
    error of the mass is about ``eps x / (2 w)``.

    Unlike ``botorch.utils.probability.utils.log_prob_normal_in`` it admits infinite
    ends and does not look at the data (no device synchronisation).
    """
    lower, upper = torch.broadcast_tensors(lower, upper)
    flip = lower + upper > 0
    low, high = torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)
    # If low = -inf, nothing is subtracted; if high = inf as well, the mass is 1.
    open_low, open_high = low.isneginf(), high.isposinf()
    log_high = log_ndtr(high.masked_fill(open_high, 0.0)).masked_fill(open_high, 0.0)
    log_low = log_ndtr(low.masked_fill(open_low, -1.0)).masked_fill(open_low, LOG_ZERO)
    return log_high + log1mexp(log_low - log_high)


def log1mexp(x: Tensor) -> Tensor:
    """``log(1 - exp(x))`` for ``x < 0``, with finite value and gradient as ``x -> 0``.

    ``1 - exp(x)`` is exact as ``-expm1(x)`` near 0; where it is close to 1 its logarithm is
    ``log1p(-exp(x))``. They change places at ``exp(x) = 1/2``.
    """
    x = x.clamp(max=-torch.finfo(x.dtype).eps)
    near = x > -math.log(2.0)
    value_near = torch.log(-torch.expm1(x.masked_fill(~near, -1.0)))
    value_far = torch.log1p(-torch.exp(x.masked_fill(near, -1.0)))
    return torch.where(near, value_near, value_far)


class _NdtriExp(Function):
    """`ndtri_exp`; its derivative is ``Phi / phi`` at the value, in turn a differentiable one.

    In the deep tail ``log Phi(z)`` is about ``-z^2/2 - log(-z sqrt(2 pi))``. Solved for ``z`` with
    ``z^2 = -2 log_p - log(2 pi)`` in the last term this starts within 0.003 of the root at
    ``log_p = -30``, and closer further down. ``log Phi`` is nearly a parabola there, so each Newton
    step doubles the digits, and three reach rounding.
    """

    @staticmethod
    def forward(ctx: Any, log_p: Tensor) -> Tensor:
        # Above exp(-30) ndtri is exact to rounding, and exp(log_p) loses 30 eps at most.
        deep = log_p < -30.0
        z = torch.special.ndtri(log_p.masked_fill(deep, -1.0).exp())
        tail = -2.0 * log_p.masked_fill(~deep, -31.0) - math.log(2 * math.pi)
        z_deep = -(tail - tail.log()).sqrt()
        for _ in range(3):
            z_deep = z_deep - (log_ndtr(z_deep) - (-0.5 * tail - _HALF_LOG_2PI)) / hazard(z_deep)
        z = torch.where(deep, z_deep, z)
        # At z = +-inf there is nothing to correct (and inf - inf must not appear).
        finite = torch.isfinite(z)
        safe = z.masked_fill(~finite, 0.0)
        step = (log_ndtr(safe) - log_p.masked_fill(~finite, 0.0)) / hazard(safe)
        z = torch.where(finite, safe - step, z)
        ctx.save_for_backward(z)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        finite = torch.isfinite(z)
        safe = z.masked_fill(~finite, 0.0)
        return grad * torch.exp(log_ndtr(safe) - log_phi(safe)).masked_fill(~finite, 0.0)


def ndtri_exp(log_p: Tensor) -> Tensor:
    """Inverse of ``log_ndtr``: the ``z`` with ``log Phi(z) = log_p``, for ``log_p < 0``.

    Meant for lower-tail probabilities (``log_p`` may be far below the underflow of
    ``exp``); near ``log_p = 0`` it is as accurate as ``log_p`` itself. Differentiable to every
    order; where the value is infinite its derivative counts as zero.
    """
    out: Tensor = _NdtriExp.apply(log_p)
    return out


def lower_quantile(log_p: Tensor) -> Tensor:
    """`ndtri_exp` without a graph, in float64, to rounding for ``log_p < 0``.

    Down to ``exp(-690)``, where ``z = -37``, an error of ``eps |log_p|`` in the exponential moves
    ``z`` by ``eps |z| / 2``. Beyond, with ``w = z^2``, ``u = -2 log_p - log(2 pi)`` and the
    asymptotic series of the Mills ratio,
    ``w + log w - 2 log(1 - 1/w + 3/w^2 - 15/w^3 + 105/w^4) = u``, known to ``1e-13`` for ``w`` of
    1400 and more. From ``u - log u + (log u - 2) / u``, within 1e-4 of ``w``, one Newton step
    reaches rounding.
    """
    z = torch.special.ndtri(log_p.exp())
    u = log_p.clamp(max=-690.0).mul_(-2.0).sub_(math.log(2 * math.pi))
    log_u = u.log()
    w = torch.addcdiv(u - log_u, log_u.sub_(2.0), u)
    v = w.reciprocal()
    series = torch.add(v * 105.0, -15.0).mul_(v).add_(3.0).mul_(v).sub_(1.0).mul_(v).log1p_()
    excess = (w - u).add_(w.log()).sub_(series, alpha=2.0)
    slope = torch.addcmul(v + 1.0, v, v, value=-2.0)
    return torch.where(log_p < -690.0, w.addcdiv_(excess, slope, value=-1.0).sqrt_().neg_(), z)


def hazard(z: Tensor) -> Tensor:
    """``phi(z) / Phi(z)``, the derivative of ``log_ndtr``."""
    return torch.exp(log_phi(z) - log_ndtr(z))
