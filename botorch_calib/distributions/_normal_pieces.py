r"""The monotone map onto a distribution of many normal pieces with common masses.

`PiecewisePredictive.transport` finds the quantile at ``Phi(z)`` of any pieces, piece by piece, with
a graph through each step. A recalibrated distribution has twenty of them, and joint samples come by
the ten thousand. Where the masses are common to the batch, the number of the piece depends on ``z``
alone and is found by bisection; everything that belongs to a piece is computed once per piece and
picked by its number; and the derivatives are written down. Here all numbers are float64, and knots
are in units of the scale.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from botorch_calib.distributions._normal_functions import log1mexp, lower_quantile

_LARGEST = 700.0  # of exponents, so that what is discarded does not overflow


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
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, knots: Tensor, cuts: Tensor, masses: Tensor, beyond: Tensor
    ) -> Tensor:
        """The values, of the common shape of ``z`` and the batch of ``knots``.

        Args:
            ctx: Of autograd.
            z: Standard normal numbers, broadcasting against ``batch_shape``.
            knots: ``batch_shape x (K - 1)``, finite and increasing, ``K > 1``.
            cuts: Where ``z`` passes from piece to piece, ``K - 1``.
            masses: ``K``.
            beyond: Probabilities below and above each piece, ``2 x K``.
        """
        index = torch.bucketize(z.contiguous(), cuts)
        low = torch.nn.functional.pad(knots, (1, 0), value=-math.inf)
        high = torch.nn.functional.pad(knots, (0, 1), value=math.inf)
        turned = low + high > 0
        low, high = torch.where(turned, -high, low), torch.where(turned, -low, high)
        # Now no upper end is infinite. This is `log_normal_interval`, whose parts are used again.
        log_low, log_high = (torch.special.log_ndtr(x.clamp(min=-1e150)) for x in (low, high))
        log_natural = log_high + log1mexp(log_low - log_high)
        offset = (log_low - log_natural).exp_()
        # Number of the piece among those of all distributions, which lie in one row
        num_pieces, batch = masses.shape[-1], knots.shape[:-1]
        rows = torch.arange(batch.numel(), device=z.device).view(batch)
        at = index + num_pieces * rows

        def pick(values: Tensor) -> Tensor:
            # Of all ways to do this the one that is fastest on a CPU
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
        """See the class."""
        with torch.no_grad():
            by_z, by_knots = NormalPieces._derivatives(ctx, grad)
        if torch.is_grad_enabled():
            # PyTorch's `once_differentiable` sees the argument `grad` only: where that has no graph
            # it would return constants, and second derivatives would lack a term silently.
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
            # A column in front and one behind take what goes to the infinite ends.
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
    """A derivative that depends on tensors in a way that nobody has written down."""

    @staticmethod
    def forward(ctx: Any, derivative: Tensor, *tensors: Tensor) -> Tensor:
        return derivative.view_as(derivative)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(  # as autograd itself would
            "Quantiles and samples of a recalibrated distribution have first derivatives only. For "
            "second ones take those of a posterior with observation noise and `denoise=True`."
        )
