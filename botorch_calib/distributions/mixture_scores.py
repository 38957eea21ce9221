r"""Normal scores of a mixture of normal distributions, and their inverse.

Members ``N(mu_s, s_s^2)`` of equal weight have the cdf ``F(y) = mean_s Phi((y - mu_s) / s_s)``, and
the normal score of ``y`` is ``z = Phi^{-1}(F(y))``. For a single member, the score is the
standardised residual. If members are similar, the score is nearly linear in ``y``. The score and
its inverse use logarithms of the smaller tail, in float64, so neither tail loses digits. Both are
differentiable to any order. The first dimension of a tensor is the dimension of members.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from botorch.utils.probability.utils import ndtr
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.nn.functional import pad

from botorch_calib._roots import bracketed_root
from botorch_calib.distributions import _normal_functions as nf

# Number of steps to the root on a GPU, where the search cannot stop early. If members are far
# apart, about 30 bisections shrink a bracket that is 1e9 times as wide as the narrowest member,
# before a few Halley steps. If members overlap, 3 or 4 steps are enough.
_NUM_STEPS = 48
# A table has `_NUM_BULK` evenly spaced nodes, and nodes at `_ABOUT` standard deviations from the
# means of up to `_NUM_CHOSEN` members.
_NUM_BULK, _NUM_CHOSEN, _ABOUT = 49, 16, (-1.5, 0.0, 1.5)
_SHOULDER = (0.7, 1.1, 2.2, 3.2)  # nodes in the widest gap, in deviations from its two members
_FAR = (2.0, 5.0, 11.0, 22.0)  # outer nodes, in deviations beyond 8 deviations from all members
_STEEPEST = 1e26  # cap on slopes of the score and of its inverse
_THIN = 1e-12  # least width of a cell of a table
_SHALLOW = 600.0  # exp(-_SHALLOW) does not underflow, so that `ndtr` keeps its digits
_BELOW_ONE = -1e-16  # replaces the logarithm of a cdf that rounds to 1
_LARGEST = 700.0  # cap on exponents, to avoid overflow
_LARGEST_NUMBER = 1e300  # cap on arguments of a table, which is not defined at infinity


def mixture_score(y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the normal score ``Phi^-1(mean_s Phi((y - mu_s) / s_s))`` of ``y``.

    The means ``mu_s`` and the positive standard deviations ``s_s`` of the members ``s`` are
    ``num_members x shape``. ``y`` broadcasts against ``shape``, and may have further leading
    dimensions.
    """
    mean, deviation = (align_members(values, y.dim()) for values in (mean, deviation))
    return score_of_members((y - mean) / deviation)


def score_of_tails(below: Tensor, above: Tensor) -> Tensor:
    """Return the normal score, given the probabilities below and above it, in float64.

    The smaller probability keeps its digits down to 1e-300, so scores from -37 to 37 are exact.
    """
    lower, upper = (torch.special.ndtri(p.clamp(1e-300, 0.5)) for p in (below, above))
    return torch.where(below < above, lower, -upper)


def score_of_members(t: Tensor) -> Tensor:
    """Return `mixture_score`, given the standardised residuals, ``num_members x shape``."""
    out: Tensor = _Score.apply(t.double()).to(t.dtype)
    return out


def mixture_quantile(z: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return ``F^-1(Phi(z))``, the inverse of `mixture_score`, for the same shapes.

    For any distance between members, the cdf ``F`` of the mixture has an error of 1e-12 at the
    result. If the quantile is in a gap between members, the result may be any number in the gap.
    """
    shape = torch.broadcast_shapes(z.shape, mean.shape[1:], deviation.shape[1:])
    members = [align_members(x.double(), len(shape)).expand(-1, *shape) for x in (mean, deviation)]
    out: Tensor = _Quantile.apply(z.double().expand(shape), *members)
    return out.to(torch.promote_types(z.dtype, mean.dtype))


def log_shares(y: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log probability of each member given ``y``, and the log density of the mixture."""
    mean, deviation = (align_members(values, y.dim()) for values in (mean, deviation))
    each = -0.5 * ((y - mean) / deviation).square() - deviation.log()
    total = each.logsumexp(dim=0)
    return each - total, total - nf.HALF_LOG_2PI - math.log(len(each))


def align_members(values: Tensor, num_dims: int) -> Tensor:
    """Insert dimensions of size 1 after the first, so that at least ``num_dims`` follow it."""
    missing = num_dims + 1 - values.dim()
    return values if missing <= 0 else values[(slice(None), *[None] * missing)]


def widest_gap(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices that sort members by mean, and the number of members below the widest gap.

    The shapes are ``num_members x shape`` and ``1 x shape``. A gap is the difference of two
    successive means, divided by the sum of the standard deviations of these members.
    """
    mean, order = mean.sort(dim=0)
    deviation = deviation.gather(0, order)
    gaps = mean.diff(dim=0) / (deviation[1:] + deviation[:-1])
    if not len(gaps):
        return order, order + 1
    return order, gaps.argmax(dim=0, keepdim=True) + 1


class ScoreTable:
    """Interpolation of `mixture_score` and its inverse, for many numbers under each mixture.

    Cubic polynomials interpolate the score and its derivative at the nodes. Beyond the outermost
    nodes, 30 standard deviations from all members, extrapolation is linear. The cost for each
    number does not depend on the number of members. The error of the score is about 1e-5 if members
    are similar. If means and deviations of members differ by one deviation, the error is up to 4e-4
    for scores up to 4, and up to 1e-3 for scores up to 7. The error is less than 0.1 in the far
    tails, or if members are far apart. Means and deviations are as in `mixture_score`, in float64.
    """

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        with torch.no_grad():
            self._center = mean.mean(dim=0)
            spread = deviation.square() + (mean - self._center).square()
            self._unit = spread.mean(dim=0).sqrt()
            nodes = self._nodes((mean - self._center) / self._unit, deviation / self._unit)
        x = self._center + self._unit * nodes
        z = mixture_score(x, mean, deviation)
        _, log_density = log_shares(x, mean, deviation)
        log_slope = log_density + 0.5 * z.square() + nf.HALF_LOG_2PI
        slope = (log_slope.clamp(max=_LARGEST).exp() * self._unit).clamp(1 / _STEEPEST, _STEEPEST)
        self._nodes_x, self._nodes_z, self._slope = (
            values.movedim(0, -1).contiguous() for values in (nodes, z, slope)
        )

    @staticmethod
    def _nodes(mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the sorted nodes of the table, ``num_nodes x shape`` (see `_NUM_BULK`)."""
        low, high = (mean - 8.0 * deviation).amin(dim=0), (mean + 8.0 * deviation).amax(dim=0)
        steps = torch.linspace(0.0, 1.0, _NUM_BULK, dtype=mean.dtype, device=mean.device)
        steps = align_members(steps, mean.dim() - 1)
        count = len(mean)
        chosen = torch.linspace(0, count - 1, min(count, _NUM_CHOSEN)).round().long()
        order, gap = widest_gap(mean, deviation)
        beside = order.gather(0, torch.cat([gap - 1, gap.clamp(max=count - 1)]))
        (left, right), (wide, other) = (each.gather(0, beside) for each in (mean, deviation))
        widest = deviation.amax(dim=0)
        order = order[chosen.to(mean.device)]
        mean, deviation = mean.gather(0, order), deviation.gather(0, order)
        shoulder, far = (
            align_members(steps.new_tensor(each), left.dim()) for each in (_SHOULDER, _FAR)
        )
        nodes = [
            (12.0 * steps - 6.0).expand(-1, *low.shape),
            torch.lerp(low, high, steps[::4]),
            *(mean + factor * deviation for factor in _ABOUT),
            left + shoulder * wide,
            right - shoulder * other,
            low - far * widest,
            high + far * widest,
        ]
        return torch.cat(nodes).sort(dim=0).values

    def score(self, y: Tensor) -> Tensor:
        """Return the normal scores of ``y``, which has the shape ``... x shape``."""
        return self._interpolated((y - self._center) / self._unit, False)

    def quantile(self, z: Tensor) -> Tensor:
        """Return the numbers with the normal scores ``z``, which has the shape ``... x shape``."""
        return self._center + self._unit * self._interpolated(z, True)

    def _interpolated(self, at: Tensor, inverse: bool) -> Tensor:
        knots, values, slope = self._nodes_x, self._nodes_z, self._slope
        if inverse:
            knots, values, slope = values, knots, slope.reciprocal()
        lead = at.shape[: at.dim() - self._center.dim()]
        at = at.expand(*lead, *self._center.shape).reshape(lead.numel(), *self._center.shape)
        at = at.movedim(0, -1).clamp(-_LARGEST_NUMBER, _LARGEST_NUMBER).contiguous()
        # Coefficients are computed for all cells, which are fewer than the numbers. They are cubic
        # polynomials, and lines in the two cells beyond the outermost nodes.
        widths, rises = knots.diff(dim=-1).clamp(min=_THIN), values.diff(dim=-1)
        # Slopes next to a gap between members are limited, so that the polynomial is monotone.
        first, last = (
            torch.minimum(rates * widths, 3.0 * rises)
            for rates in (slope[..., :-1], slope[..., 1:])
        )
        rates = torch.cat([slope[..., :1], first / widths, slope[..., -1:]], dim=-1)
        squares = pad((3.0 * rises - 2.0 * first - last) / widths.square(), (1, 1))
        cubics = pad((first + last - 2.0 * rises) / widths.pow(3), (1, 1))
        starts, lows = (torch.cat([each[..., :1], each], dim=-1) for each in (knots, values))
        cell = torch.searchsorted(knots.detach(), at.detach(), right=True).unsqueeze(-2)
        cells = torch.stack([starts, lows, rates, squares, cubics], dim=-2)
        cells = cells.gather(-1, cell.expand(*cells.shape[:-1], -1))
        start, value, rate, square, cubic = cells.unbind(-2)
        s = at - start
        rate = torch.addcmul(rate, s, torch.addcmul(square, s, cubic))
        value = torch.addcmul(value, s, rate)
        return value.movedim(-1, 0).reshape(*lead, *self._center.shape)


class _Score(Function):
    """`score_of_members`, with ``dz/dt_s = phi(t_s) / (S phi(z))`` for ``S`` members."""

    @staticmethod
    def forward(ctx: FunctionCtx, t: Tensor) -> Tensor:
        below, above = _LowerTail(t).log_mass, _LowerTail(-t).log_mass
        z = nf.lower_quantile(torch.minimum(below, above))
        z = torch.where(below < above, z, -z)
        ctx.save_for_backward(t, z)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        t, z = ctx.saved_tensors
        log_rate = 0.5 * (z - t) * (z + t)
        return grad * log_rate.clamp(max=_LARGEST).exp() / len(t)


class _Quantile(Function):
    """`mixture_quantile`, with derivatives by the implicit function theorem.

    With ``p_s`` the share of a member in the density at ``y``, and ``t_s = (y - mu_s) / s_s``, the
    derivatives are ``dy/dmu_s = p_s``, ``dy/ds_s = p_s t_s`` and ``dy/dz = phi(z) / F'(y)``.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, z: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        y = _solve(z, mean, deviation)
        ctx.save_for_backward(z, mean, deviation, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, mean, deviation, y = ctx.saved_tensors
        log_share, log_density = log_shares(y, mean, deviation)
        by_z = by_mean = by_deviation = None
        if ctx.needs_input_grad[0]:
            log_rate = -nf.HALF_LOG_2PI - 0.5 * z.square() - log_density
            by_z = grad * log_rate.clamp(max=_LARGEST).exp()
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            by_mean = grad * log_share.exp()
            by_deviation = by_mean * ((y - mean) / deviation)
        return by_z, by_mean, by_deviation


class _LowerTail:
    """The logarithm ``log_mass`` of the cdf of a mixture, without a graph.

    Densities of the standardised residuals ``t``, ``num_members x shape``, are multiplied by
    ``exp(half)``, so that they do not underflow if all residuals are far below 0. Here ``half`` is
    half of the square of the largest residual if this residual is negative, and 0 otherwise.
    """

    def __init__(self, t: Tensor) -> None:
        self._t = t
        self.half = t.amax(dim=0).clamp_(max=0.0).square_().mul_(0.5)
        # `ndtr` takes half of the time on a CPU. On a GPU, the maximum would have to be read back.
        if t.device.type == "cpu" and t.numel() and float(self.half.max()) < _SHALLOW:
            self.log_mass = ndtr(t).mean(dim=0).log_()
            return
        tail = nf.mills_ratio(t.abs()).mul_(self.density).mul_(nf.INV_SQRT_2PI)
        self.log_mass = torch.where(t > 0, 1.0 - tail, tail).mean(dim=0).log_().sub_(self.half)

    @cached_property
    def density(self) -> Tensor:
        """``exp(half - t^2 / 2)``, ``num_members x shape``."""
        return (self._t * self._t).mul_(-0.5).add_(self.half).clamp_(min=nf.LEAST).exp_()


def _solve(z: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the root ``y`` of ``score(y) = z`` by Halley's method within a bracket.

    The cdf is the mean of the members' cdfs, so the members' quantiles ``mu_s + s_s z`` bracket the
    root. With ``g`` the score at ``y``, and ``t_s`` and ``p_s`` as in `_Quantile`, ``g' = mean_s
    phi(t_s) / (s_s phi(g))`` and ``g'' / g' = g g' - sum_s p_s t_s / s_s``. Positive scores are
    mirrored, so that the lower tail is the smaller tail.
    """
    sign = torch.where(z > 0, -1.0, 1.0).to(z)
    center = mean.mean(dim=0)
    mean, z = (mean - center) * sign, z * sign  # so that a common offset costs no digits
    inverse = deviation.reciprocal()
    ends = mean + deviation * z
    low, high = ends.amin(dim=0), ends.amax(dim=0)
    start = (mean.square() + deviation.square()).mean(dim=0).sqrt_().mul_(z)

    def excess_score(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = (x - mean).mul_(inverse)
        tail = _LowerTail(t)
        score = nf.lower_quantile(tail.log_mass.clamp_(max=_BELOW_ONE))
        pull = tail.density * inverse
        total = pull.sum(dim=0)
        rate = (score.square() * 0.5 - tail.half).clamp_(max=_LARGEST).exp_()
        rate.mul_(total).div_(len(t))
        curve = score * rate - t.mul_(pull).mul_(inverse).sum(dim=0).div_(total)
        return score - z, rate, curve

    start = torch.minimum(torch.maximum(start, low), high)
    return bracketed_root(excess_score, start, low, high, _NUM_STEPS) * sign + center
