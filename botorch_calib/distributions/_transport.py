r"""The monotone map ``T(z) = Q(Phi(z))`` from a standard normal number to a piecewise distribution.

`transported` finds the quantile at ``Phi(z)`` of any pieces, with a graph through each step. A
recalibrated distribution has twenty of them, and joint samples come by the ten thousand. Where all
pieces are normal and the masses common to the batch, `NormalPieces` does this faster: the number of
the piece depends on ``z`` alone and is found by bisection, the properties of a piece are computed
once and picked by its number, and the derivatives are written down.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.utils.probability.utils import log_ndtr, ndtr
from torch import Tensor
from torch.autograd import Function

from botorch_calib.distributions._normal_functions import (
    log_normal_interval,
    lower_quantile,
    ndtri_exp,
)

_LARGEST = 700.0  # of exponents, so that what is discarded does not overflow


def transported(
    z: Tensor, knots: Tensor, masses: Tensor, probabilities: tuple[Tensor, Tensor], uniform: Tensor
) -> Tensor:
    """``Q(Phi(z))`` of any pieces, with a graph.

    Args:
        z: Standard normal numbers, broadcasting against ``batch_shape``.
        knots: All knots, in units of the scale of the normal pieces, ``batch_shape x (K + 1)``.
        masses: ``batch_shape x K``.
        probabilities: Those below and above each knot, ``... x (K + 1)``.
        uniform: Whether each piece is uniform, ``K``.
    """
    below, above = probabilities
    index = (z.unsqueeze(-1) > cuts(below, above)).sum(dim=-1, keepdim=True)
    low, high = pick(knots[..., :-1], index), pick(knots[..., 1:], index)
    mass = pick(masses, index)
    p_low, p_high = pick(below[..., :-1], index), pick(above[..., 1:], index)
    # A piece that lies above zero is turned over: where Phi is small it has most digits.
    flip = low + high > 0
    z_side = torch.where(flip, -z, z)
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    p_side = torch.where(flip, p_high, p_low)
    value = _piece_quantile(z_side, low, high, mass, p_side, uniform[index.squeeze(-1)])
    return torch.where(flip, -value, value)


def cuts(below: Tensor, above: Tensor) -> Tensor:
    """Where ``z`` passes from piece to piece: ``Phi^-1`` of the masses below the inner knots.

    Each is computed from the smaller one of the masses on its two sides.
    """
    below, above = below[..., 1:-1], above[..., 1:-1]
    low = torch.special.ndtri(below.clamp(0.0, 1.0))
    return torch.where(below < 0.5, low, -torch.special.ndtri(above.clamp(0.0, 1.0)))


def pick(values: Tensor, index: Tensor) -> Tensor:
    """``values`` (``... x K``) at ``index`` (``shape x 1``), broadcast to ``shape``."""
    shape = torch.broadcast_shapes(values.shape[:-1], index.shape[:-1])
    values = values.expand(*shape, values.shape[-1])
    return values.gather(-1, index.expand(*shape, 1)).squeeze(-1)


def _piece_quantile(
    z: Tensor, low: Tensor, high: Tensor, mass: Tensor, p_low: Tensor, uniform: Tensor
) -> Tensor:
    """Quantile at ``Phi(z)`` of the piece ``[low, high]`` in which it falls (lower side).

    With ``u = (Phi(z) - p_low) / mass`` the share of the piece below the quantile ``x``, a normal
    piece has ``Phi(x) = Phi(low) + u (Phi(high) - Phi(low))``, solved in logarithms.
    """
    open_low = low.isneginf()
    tiny = torch.finfo(z.dtype).tiny
    mass = mass.clamp(min=tiny)
    inside = ((ndtr(z) - p_low) / mass).clamp(min=0.0, max=1.0)
    low_safe = low.masked_fill(open_low, 0.0)
    flat = low_safe + (high.masked_fill(~uniform, 1.0) - low_safe) * inside
    # In an open piece p_low is 0 and u = Phi(z) / mass, which may underflow: its logarithm does
    # not.
    log_inside = torch.where(open_low, log_ndtr(z) - mass.log(), inside.clamp(min=tiny).log())
    log_low = log_ndtr(low.masked_fill(open_low, -1.0))
    log_part = log_inside + log_normal_interval(low, high)
    # Not with a log_low of LOG_ZERO, at which second derivatives of the sum are NaN
    log_p = torch.where(open_low, log_part, torch.logaddexp(log_low, log_part))
    # At the upper end rounding may exceed Phi(high) slightly.
    normal = ndtri_exp(log_p.clamp(max=-tiny))
    normal = torch.minimum(torch.maximum(normal, low), high)
    return torch.where(uniform, flat, normal)


class NormalPieces(Function):
    r"""``Q(Phi(z))`` of the distribution with the given knots and masses, all pieces normal.

    On a piece ``[low, high]`` of mass ``m`` and natural mass ``N = Phi(high) - Phi(low)``, above
    the probability ``p``, the value ``T`` is that of ``Phi(T) = Phi(low) + N u`` with
    ``u = (Phi(z) - p) / m``, in logarithms ``log Phi(T) = log N + log(Phi(low) / N + u)``. A piece
    that lies above zero is turned over, since ``Phi`` has most digits where it is small. In the
    lowermost piece ``low = -inf`` and ``p = 0``, so ``log u = log Phi(z) - log m`` does not
    underflow.

    Its derivatives are ``dT/dz = (N / m) phi(z) / phi(T)``, ``dT/dlow = (1 - u) phi(low) / phi(T)``
    and ``dT/dhigh = u phi(high) / phi(T)``; the same for a piece turned over, with both signs
    changed. There are none by the masses. To differentiate them again is an error.

    Args:
        z: Standard normal numbers, broadcasting against ``batch_shape``, float64.
        knots: ``batch_shape x (K - 1)``, finite and increasing, ``K > 1``, in units of the scale.
        cuts: Where ``z`` passes from piece to piece, ``K - 1``.
        masses: ``K``.
        beyond: Probabilities below and above each piece, ``2 x K``.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, knots: Tensor, cuts: Tensor, masses: Tensor, beyond: Tensor
    ) -> Tensor:
        index = torch.bucketize(z.contiguous(), cuts)
        low = torch.nn.functional.pad(knots, (1, 0), value=-math.inf)
        high = torch.nn.functional.pad(knots, (0, 1), value=math.inf)
        turned = low + high > 0
        low, high = torch.where(turned, -high, low), torch.where(turned, -low, high)
        log_natural = log_normal_interval(low, high)
        offset = (torch.special.log_ndtr(low.clamp(min=-1e150)) - log_natural).exp_()
        # Number of the piece among those of all distributions, which lie in one row
        num_pieces, batch = masses.shape[-1], knots.shape[:-1]
        rows = torch.arange(batch.numel(), device=z.device).view(batch)
        at = index + num_pieces * rows

        def pick(values: Tensor) -> Tensor:
            # The fastest way on a CPU
            values = values.expand_as(low).reshape(-1)
            return values.index_select(0, at.reshape(-1)).view(at.shape)

        sign, mass, log_mass = (pick(x) for x in (1.0 - 2.0 * turned.to(z), masses, masses.log()))
        below = pick(torch.where(turned, beyond[1], beyond[0]))
        log_natural, offset, start, end = (pick(x) for x in (log_natural, offset, low, high))
        log_side = torch.special.log_ndtr(sign * z)
        share = (log_side.exp() - below).div_(mass)
        share.clamp_(min=torch.finfo(z.dtype).tiny, max=1.0)
        outermost = start == -math.inf
        log_share = torch.where(outermost, log_side.sub_(log_mass), share.log())
        # Phi(T) / N
        log_value = torch.where(outermost, log_share, share.add_(offset).log_())
        value = lower_quantile(log_value.add_(log_natural).clamp_(max=-torch.finfo(z.dtype).tiny))
        value = torch.minimum(torch.maximum(value, start), end).mul_(sign)
        log_ratio = log_natural - log_mass
        ctx.save_for_backward(z, knots, value, log_share, sign, log_ratio, index, rows)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            by_z, by_knots = NormalPieces._derivatives(ctx, grad)
        if torch.is_grad_enabled():
            # Not `once_differentiable`: where `grad` has no graph it returns constants, and second
            # derivatives would silently lack a term.
            z, knots, *_ = ctx.saved_tensors
            by_z, by_knots = (
                None if by is None else _OnceDifferentiable.apply(by, grad, z, knots)
                for by in (by_z, by_knots)
            )
        return by_z, by_knots, None, None, None

    @staticmethod
    def _derivatives(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        z, knots, value, log_share, sign, log_ratio, index, rows = ctx.saved_tensors
        by_z = by_knots = None
        square = value.square()
        if ctx.needs_input_grad[0]:
            by_z = grad * ((square - z.square()).mul_(0.5) + log_ratio).exp_()
            by_z = by_z.sum_to_size(z.shape)
        if ctx.needs_input_grad[1]:
            # A column on either side takes the share of an infinite end.
            padded = torch.nn.functional.pad(knots, (1, 1))
            halves = padded.square().mul_(0.5).view(-1)
            total = torch.zeros_like(halves)
            lower = index + padded.shape[-1] * rows
            turned = (sign < 0).to(lower)

            def share_of(at: Tensor, log_part: Tensor) -> None:
                at = at.reshape(-1)
                at_knots = halves.index_select(0, at).view(square.shape)
                slope = torch.add(log_part - at_knots, square, alpha=0.5).clamp_(max=_LARGEST)
                total.index_add_(0, at, (grad * slope.exp_()).reshape(-1))

            # The end on the side of zero, and the one away from it
            share_of(lower + 1 - turned, log_share)
            share_of(lower + turned, torch.log1p(-log_share.exp().clamp_(max=1.0)))
            by_knots = total.view_as(padded)[..., 1:-1]
        return by_z, by_knots


class _OnceDifferentiable(Function):
    """A derivative whose own derivatives are not implemented."""

    @staticmethod
    def forward(ctx: Any, derivative: Tensor, *tensors: Tensor) -> Tensor:
        return derivative.view_as(derivative)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(
            "Quantiles and samples of a recalibrated distribution have first derivatives only. For "
            "second ones take those of a posterior with observation noise and `denoise=True`."
        )
