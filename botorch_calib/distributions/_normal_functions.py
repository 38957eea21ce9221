r"""Functions of the standard and of truncated normal distributions, accurate far into the tails.

Notation: ``phi`` and ``Phi`` are the standard normal density and distribution function, and ``h(t)
= phi(t) + t Phi(t)`` is the integral of ``Phi`` (expected improvement in standard units). Functions
of the standard normal distribution work elementwise on tensors of any shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import zip_longest
from statistics import NormalDist
from typing import Any, ParamSpec, TypeVar

import torch
from botorch.utils.probability.utils import leggauss, log_ndtr, log_phi
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

# Replaces log(0). It is finite, also in float32, so masked branches have no NaN in their gradients.
LOG_ZERO = -1e30
# Lower limit of exponents. Products of exp(-600) and moderate factors stay above exp(-708), below
# which subnormal numbers slow down operations on a CPU.
LEAST = -600.0
# Lower limit of a sum before its logarithm is computed; less than exp(LEAST)
TINY = 1e-280

_SQRT_HALF = math.sqrt(0.5)
SQRT_HALF_PI = math.sqrt(math.pi / 2)
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
SQRT_2PI = math.sqrt(2 * math.pi)
INV_SQRT_2PI = 1 / SQRT_2PI
# Replaces an infinite end or knot; its square does not overflow.
FAR = 1e140
_THIN = 1e-100  # replaces the width 0 of an empty interval; its square does not underflow
# The integral over an interval is the difference of two tail integrals, which loses digits if the
# interval is narrow. A series about the middle is accurate only if the interval is narrow. The
# series is used if the interval's width plus the change of the log density in it is below this
# number, and differences otherwise. At the limit, both methods have an error of 1e-11: the excess
# cancels twice in differences, 1e-15 / 0.01^2, and the series omits terms like 0.005^4 / 40.
_NARROW = 0.01
# Coefficients, by powers of (x - 5)/(x + 5), of (1 + x) Phi(-x)/phi(x) and (1 + x)^2 h(-x)/phi(x)
# for x >= 0: Chebyshev series computed with 40 digits, truncated at 1e-15 and rearranged. The two
# ratios decay like 1/x and 1/x^2, which the factors cancel. The variable maps [0, inf) to [-1, 1),
# so one polynomial is accurate for all x.
# fmt: off
_MILLS = (
    1.1568486282918942, -0.2294875382521184, 0.07778159886881932, 0.02507217930210036,
    -0.06617760078236147, 0.061505045828185945, -0.03802659213490491, 0.016348231425036042,
    -0.004201290736679092, 1.95296783263882e-05, 0.00045704582520787057, -0.00013437036855808154,
    -2.4811370461631e-05, 2.2699386557896492e-05, -1.6599786901151327e-07, -3.2597570880078616e-06,
    3.0814173813284686e-07, 4.724032708161005e-07, -5.664946491934807e-08, -6.383575508496434e-08,
    5.201831922026417e-09, 5.532292225960163e-09,
)
_RAMP = (
    1.2945411512431624, -0.3687229645450205, -0.028030699627535318, 0.2611670078473995,
    -0.2735482037622689, 0.15402166230393094, -0.029310982484216187, -0.03186187260375166,
    0.03474622704411568, -0.01613170673005695, 0.0023283136856683535, 0.0015767797434979535,
    -0.000852726679260871, -3.583150113393755e-05, 0.00014692756303243338, -1.7174985619141775e-05,
    -2.3355088213939513e-05, 4.929070094027732e-06, 3.9473272317334125e-06, -9.567014371423734e-07,
    -6.968399656044212e-07, 1.3972822924537727e-07, 1.073022959586397e-07, -1.1626132425962912e-08,
    -9.684045797029939e-09,
)
# fmt: on
_CHUNK = 2**15  # numbers that fit into a CPU's cache
# Below this t, Phi(t) / h(t) is computed as -(t + 2 / t), with an error of 1e-11. Above, it is
# computed from the logarithms of Phi and h, whose difference has an error of at most 1e-10.
_DEEP = -1e3
_WHOLE = -6.0  # at and below this number, ``erfc`` rounds to 2
_MANY = 3000  # from this number of elements on, the polynomial is faster than ``erfcx`` on a CPU


_P = ParamSpec("_P")
_T = TypeVar("_T")


def cached_constant(make: Callable[_P, _T]) -> Callable[_P, _T]:
    """Cache the results of a function of hashable arguments.

    Caching avoids copies to a GPU, which would synchronize with it. The function runs outside of
    inference mode, so that graphs can use its results later.
    """
    return lru_cache(maxsize=128)(torch.inference_mode(False)(make))  # type: ignore[return-value]


@cached_constant
def unit_legendre(order: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return Gauss-Legendre nodes and weights on [0, 1], each of shape ``order``."""
    nodes, weights = leggauss(order, dtype=dtype, device=device)
    return (nodes + 1) / 2, weights / 2


@cached_constant
def graded_rule(order: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return nodes ``u`` and weights on [0, 1] for a function that decreases exponentially.

    This is the Gauss-Legendre rule in ``v`` with ``u = 0.8 v + 0.2 v^4``. It has fewer nodes near
    1, where the integrand is small. The first result contains the nodes and their squares, ``order
    x 2``, and the second result the weights, ``order``.
    """
    v, weights = unit_legendre(order, dtype, device)
    u = 0.8 * v + 0.2 * v**4
    return torch.stack([u, u.square()], dim=1), weights * (0.8 + 0.8 * v**3)


def less(x: Tensor, bound: Tensor | float) -> Tensor:
    """Return the mask ``x < bound`` as floating-point numbers, 1 if true and 0 if false.

    For finite ``a`` and ``b``, ``torch.lerp(a, b, mask)`` with such a mask is exactly ``a`` or
    ``b``. It is several times as fast as ``torch.where``.
    """
    return torch.lt(x, bound, out=torch.empty_like(x))


def mills_ratio(x: Tensor) -> Tensor:
    """Return ``Phi(-x) / phi(x)`` for ``x >= 0``, float64, without a graph, accurate to 1e-15."""
    # On a GPU ``erfcx`` is one kernel. On a CPU it is not vectorised.
    if x.is_cuda or x.numel() < _MANY:
        return torch.special.erfcx(_SQRT_HALF * x).mul_(SQRT_HALF_PI)
    return _polynomials(x, (_MILLS,))[0].div_(x + 1.0)


def first_tails(x: Tensor) -> Tensor:
    """Return `mills_ratio` and ``h(-x) / phi(x)`` for ``x >= 0``, as ``2 x shape``."""
    # The second ratio is 1 - x mills_ratio(x), whose relative error would grow like x^2. So it has
    # a polynomial of its own.
    growth = x + 1.0
    values = _polynomials(x, (_MILLS, _RAMP)).div_(growth)
    values[1].div_(growth)
    return values


def _polynomials(x: Tensor, polynomials: tuple[tuple[float, ...], ...]) -> Tensor:
    """Return values of polynomials in ``t = (x - 5) / (x + 5)``, ``num x shape``."""
    # One matrix product evaluates groups of four powers. Horner's rule in t^4 adds the groups.
    if x.numel() > _CHUNK and not x.is_cuda:
        parts = x.reshape(-1).chunk(-(-x.numel() // _CHUNK))
        return torch.cat([_polynomials(part, polynomials) for part in parts], dim=1).view(
            -1, *x.shape
        )
    t = torch.add(x.reshape(-1), 5.0).reciprocal_().mul_(-10.0).add_(1.0)
    square = t * t
    powers = torch.stack([torch.ones_like(t), t, square, square * t])
    table = _coefficients(polynomials, x.dtype, x.device)
    *rest, value = (table @ powers).unflatten(0, (-1, len(polynomials))).unbind()
    fourth = square.mul_(square)
    for row in reversed(rest):
        value = row.addcmul_(value, fourth)
    return value.view(len(polynomials), *x.shape)


@cached_constant
def _coefficients(
    polynomials: tuple[tuple[float, ...], ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return coefficients in groups of four powers, ``(num_groups * num_polynomials) x 4``."""
    rows = list(zip_longest(*polynomials, fillvalue=0.0))
    rows += [(0.0,) * len(polynomials)] * (-len(rows) % 4)
    table = torch.tensor(rows, dtype=dtype, device=device).view(-1, 4, len(polynomials))
    return table.mT.reshape(-1, 4)


class _LogH(Function):
    """`log_h`, with the derivative ``Phi / h``.

    For first derivatives, the forward pass computes ``Phi / h`` from `first_tails`. For higher
    derivatives, the backward pass computes ``Phi / h`` from the differentiable `log_ndtr` and
    `log_h`.
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ramp = t.clamp(min=0.0)
        # h is computed in units of exp(-min(t, 0)^2 / 2). For t > 0, h(t) = t + h(-t).
        scale = (ramp * ramp).mul_(-0.5).clamp_(min=LEAST).exp_().mul_(INV_SQRT_2PI)
        tail, h = first_tails(t.abs()).mul_(scale)
        h.add_(ramp).clamp_(min=TINY)
        value, slope = h.log().sub_((t - ramp).square_().mul_(0.5)), None
        if ctx.needs_input_grad[0]:  # the slope is at least -t, even if h underflows
            slope = torch.fmax(torch.where(t > 0.0, 1.0 - tail, tail).div_(h), -t)
        ctx.save_for_backward(t, value, slope)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        t, value, slope = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return grad * slope
        # For large negative t, log Phi and log h are about -t^2 / 2, and their difference is lost
        # in rounding. The asymptotic series Phi / h = -(t + 2 / t - 6 / t^3 + ...) replaces it.
        far = t.clamp(max=_DEEP)
        # The clamp keeps values finite that `torch.where` does not select.
        ratio = torch.exp((log_ndtr(t) - value).clamp(max=math.log(-2.0 * _DEEP)))
        return grad * torch.where(t < _DEEP, -(far + 2.0 / far), ratio)


def log_h(t: Tensor) -> Tensor:
    """Return ``log h(t)`` at finite ``t``, in float64, with derivatives of every order."""
    out: Tensor = _LogH.apply(t)
    return out


class _NormalInterval(Function):
    """`log_interval_integrals` of finite ends; derivatives are ratios of integrals and densities.

    The interval ``[a, b]`` is mirrored if necessary, so that the end nearer to zero is ``a``. Let
    ``N(t)`` be the normal mass above ``t``, and ``R(t)`` the integral of ``N`` above ``t``. Both
    are in units of the density at ``a``, or at zero if the interval contains zero. The mass of the
    interval is ``N(a) - N(b)``, and the mean excess over ``a`` is ``(R(a) - R(b) - (b - a) N(b)) /
    mass``. In a narrow interval these differences cancel. Then the density at ``m + t`` over the
    density at the middle ``m`` is expanded as ``sum_n He_n(m) (-t)^n / n!``, with Hermite
    polynomials ``He_n``. With ``v`` half of the width and ``y = m v``, the mean of this ratio over
    the interval is ``1 + (y^2 - v^2) / 6 + ...``, and the mean of ``t`` times the ratio is ``-v y
    (1/3 + (y^2 - 3 v^2) / 30 + ...)``.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        width, total = (high - low).clamp_(min=_THIN), low + high
        right = less(-total, 0.0)
        ends = torch.stack([torch.lerp(-high, low, right), torch.lerp(-low, high, right)])
        across = less(ends[0], 0.0)
        half = (ends[0] * ends[0]).mul_(0.5)
        fall = total.abs_().mul_(0.5).mul_(width)  # (b^2 - a^2) / 2
        at_a = (half * across).neg_().clamp_(min=LEAST).exp_()
        at_b = torch.addcmul(fall, half, across).neg_().clamp_(min=LEAST).exp_()

        mills, ramp = first_tails(ends.abs())
        mass = (mills[0] * at_a).lerp_((mills[0] * at_a).neg_().add_(SQRT_2PI), across)
        mass.addcmul_(at_b, mills[1], value=-1).clamp_(min=TINY)
        rise = torch.addcmul(ramp[0] * at_a, ends[0].clamp(max=0.0), across, value=-SQRT_2PI)
        rise.addcmul_(at_b, torch.addcmul(ramp[1], width, mills[1]), value=-1)
        offset = rise.div_(mass)

        narrow = less(width + fall, _NARROW)
        v, y = (0.5 * width).clamp_(max=_NARROW), (0.5 * fall).clamp_(max=_NARROW)
        vv, yy = v * v, y * y
        middle = torch.sub(0.5 * vv, y).exp_().mul_(width).mul_(at_a)
        mass.lerp_(middle.addcmul_(middle, yy - vv, value=1 / 6), narrow)
        y.mul_(yy.add_(vv, alpha=2.0).mul_(-1 / 45).add_(1 / 3))
        offset.lerp_(v.addcmul_(v, y, value=-1), narrow)

        offset = torch.lerp(width - offset, offset, right)  # over ``low``, also if mirrored
        log_mass = mass.log_().sub_(half * (1.0 - across)).sub_(HALF_LOG_2PI)
        log_rise = offset.clamp_(min=_THIN).log_().add_(log_mass)
        ctx.save_for_backward(low, high, log_mass, log_rise)
        return log_mass, log_rise

    @staticmethod
    def backward(ctx: Any, by_mass: Tensor, by_rise: Tensor) -> tuple[Tensor, Tensor]:
        low, high, log_mass, log_rise = ctx.saved_tensors
        at_low, at_high = log_phi(low), log_phi(high)
        by_low = by_mass * (at_low - log_mass).exp() + by_rise * (log_mass - log_rise).exp()
        by_high = by_rise * (at_high - log_rise).exp() * (high - low)
        return -by_low, by_high + by_mass * (at_high - log_mass).exp()


def log_interval_integrals(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logs of ``int phi(z) dz`` and ``int (z - low) phi(z) dz`` over ``[low, high]``.

    Ends may be infinite. An empty interval is treated as a very narrow interval. The computation is
    in double precision, and has derivatives of every order.
    """
    dtype = low.dtype
    low, high = (end.double().clamp(-FAR, FAR) for end in torch.broadcast_tensors(low, high))
    log_mass, log_rise = _NormalInterval.apply(low, high)
    return log_mass.to(dtype), log_rise.to(dtype)


def log_normal_interval(lower: Tensor, upper: Tensor) -> Tensor:
    """Return ``log(Phi(upper) - Phi(lower))``, the first result of `log_interval_integrals`."""
    return log_interval_integrals(lower, upper)[0]


def quick_log_interval(low: Tensor, high: Tensor) -> Tensor:
    """Return `log_normal_interval` without a graph, at a third of the cost.

    The result is the difference of two tail probabilities on the side with less cancellation. For a
    narrow interval the relative error is 1e-16 divided by the width.
    """
    mirrored = -high
    near = torch.maximum(low, mirrored).mul_(_SQRT_HALF).clamp_(min=_WHOLE)
    far = torch.minimum(low, mirrored).mul_(-_SQRT_HALF)
    # Unlike near^2 - far^2, the product is exactly 0 for an empty interval, so the mass is too.
    beyond = torch.sub(near, far).mul_(near + far).exp_().mul_(torch.special.erfcx(far))
    share = torch.special.erfcx(near).sub_(beyond).mul_(0.5).clamp_(min=TINY)
    return share.log_().sub_(near.square())


class _NdtriExp(Function):
    """`ndtri_exp`, with the differentiable derivative ``Phi(z) / phi(z)``."""

    @staticmethod
    def forward(ctx: FunctionCtx, log_p: Tensor) -> Tensor:
        z = lower_quantile(log_p.double()).to(log_p.dtype)
        ctx.save_for_backward(log_p, z)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        log_p, z = ctx.saved_tensors
        infinite = ~torch.isfinite(z)
        log_p, z = log_p.masked_fill(infinite, 0.0), z.masked_fill(infinite, 0.0)
        return grad * torch.exp(log_p - log_phi(z)).masked_fill(infinite, 0.0)


def ndtri_exp(log_p: Tensor) -> Tensor:
    """Return the ``z`` with ``log Phi(z) = log_p``, the inverse of ``log_ndtr``, for ``log_p < 0``.

    The result is accurate for arbitrarily small probabilities. Near ``log_p = 0`` its accuracy is
    limited by the rounding of ``log_p``. Derivatives of every order exist, and are 0 where the
    result is infinite.
    """
    out: Tensor = _NdtriExp.apply(log_p)
    return out


def upper_score(tail: float | Tensor) -> float | Tensor:
    """Return ``-Phi^-1(tail)``, a number for a number and a tensor for a tensor."""
    return -torch.special.ndtri(tail) if isinstance(tail, Tensor) else -NormalDist().inv_cdf(tail)


def lower_quantile(log_p: Tensor) -> Tensor:
    """Return `ndtri_exp` without a graph, in float64, exact up to rounding for ``log_p < 0``.

    For ``log_p`` down to -690, where ``z = -37``, ``z`` is ``Phi^-1(exp(log_p))``. With the
    rounding unit ``eps``, the exponential has the relative error ``eps |log_p|``, which changes
    ``z`` by ``eps |z| / 2``. For smaller ``log_p``, let ``w = z^2`` and ``u = -2 log_p - log(2
    pi)``. The asymptotic series of the Mills ratio gives the equation ``w + log w - 2 log(1 - 1/w +
    3/w^2 - 15/w^3 + 105/w^4) = u``, with an error of 1e-13 for ``w`` above 1400. The starting value
    ``u - log u + (log u - 2) / u`` is within 1e-4 of ``w``, so one Newton step is exact up to
    rounding.
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


class NormalShares:
    """Truncated normal pieces as differences of the tails beyond their ends, without a graph.

    The tail of an end is the normal mass beyond this end, on the side away from zero, with the sign
    of the end. The natural mass of a piece, its probability under the standard normal distribution,
    is the tail of its lower end minus the tail of its upper end. For the piece around zero, the
    mass 1 of the whole normal distribution is added.

    Args:
        ends: Increasing finite ends (`FAR` for infinite ends), ``(K + 1) x n``, float64.

    Attributes:
        mills: Mills ratios of the absolute values of the ends.
        at_low, at_high: Density of each piece, normalised to mass 1, at its lower and upper end.
        around: Reciprocal of the natural mass of the piece around zero (half of it for a piece that
            ends at zero); 0 for other pieces.
    """

    def __init__(self, ends: Tensor) -> None:
        sign = ends.sign()
        around = sign.diff(dim=0).mul_(0.5)  # 1 around zero, 1/2 if zero is an end
        self.mills, half = mills_ratio(ends.abs()), (ends * ends).mul_(0.5)
        tails = sign.mul_(self.mills)
        # Natural masses are in units of the largest density in the piece, to avoid underflow.
        depth = torch.minimum(half[:-1], half[1:]).mul_(1.0 - around)
        a, b = (depth - half[:-1]).exp_(), depth.sub_(half[1:]).exp_()
        self.around = around.mul_(SQRT_2PI)
        natural = torch.addcmul(around, a, tails[:-1]).addcmul_(b, tails[1:], value=-1)
        natural.clamp_(min=TINY).reciprocal_()
        around.mul_(natural)
        self.at_low, self.at_high = a.mul_(natural), b.mul_(natural)


class _EndDensities(Function):
    """Densities of each piece at its ends, ``a = phi(low) / N`` and ``b = phi(high) / N``.

    ``N = Phi(high) - Phi(low)`` is the natural mass of the piece. Since ``dN/dlow = -phi(low)`` and
    ``dN/dhigh = phi(high)``, the derivatives are ``da/dlow = a (a - low)``, ``da/dhigh = -a b``,
    ``db/dlow = a b`` and ``db/dhigh = -b (b + high)``.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, ends: Tensor) -> tuple[Tensor, Tensor]:
        shares = NormalShares(ends)
        ctx.save_for_backward(ends, shares.at_low, shares.at_high)
        return shares.at_low, shares.at_high

    @staticmethod
    def backward(ctx: Any, by_a: Tensor, by_b: Tensor) -> Tensor:
        ends, a, b = ctx.saved_tensors
        total = torch.addcmul(by_a * a, by_b, b)
        by_low = a * torch.addcmul(total, by_a, ends[:-1], value=-1)
        by_high = b * torch.addcmul(total, by_b, ends[1:])
        return torch.cat([by_low[:1], by_low[1:] - by_high[:-1], -by_high[-1:]])


def normal_moments(ends: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return weighted sums over normal pieces of their means, and of their mean squares minus 1.

    With the densities ``a`` and ``b`` at its ends (see `_EndDensities`), a piece has the mean ``a -
    b`` and the mean square ``1 + a low - b high``. The ends, ``(K + 1) x shape``, are as in
    `NormalShares`, and the weights can be broadcast to ``K x shape``. Both results, of shape
    ``shape``, have derivatives of every order.
    """
    if ends.numel() > _CHUNK and not ends.is_cuda and weights.shape[1:].numel() == 1:
        columns, own = ends.flatten(1).split(_CHUNK // len(ends), dim=1), weights.view(-1, 1)
        found = zip(*(normal_moments(part, own) for part in columns), strict=True)
        mean, square = (torch.cat(parts).view(ends.shape[1:]) for parts in found)
        return mean, square
    a, b = _EndDensities.apply(ends)
    squares = torch.addcmul(a * ends[:-1], b, ends[1:], value=-1)
    mean = torch.linalg.vecdot(weights, a - b, dim=0)
    return mean, torch.linalg.vecdot(weights, squares, dim=0)
