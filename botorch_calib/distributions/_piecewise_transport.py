r"""The monotone map ``T(z) = Q(Phi(z))`` from a standard normal number to a piecewise distribution.

``Q`` is the quantile function of the piecewise distribution. Let ``m`` be the mass of the piece
``[low, high]`` that contains ``T``, and ``p`` the probability below this piece. The fraction of the
piece's mass below ``T`` is ``u = (Phi(z) - p) / m``. A uniform piece has ``T = low + u (high -
low)``. A normal piece has ``Phi(T) = Phi(low) + N u`` with ``N = Phi(high) - Phi(low)``, or in
logarithms ``log Phi(T) = log N + log(Phi(low) / N + u)``. A piece above zero is mirrored, since
``Phi`` is most accurate for negative arguments. In a lowest piece with ``low = -inf`` and ``p =
0``, ``log u = log Phi(z) - log m`` does not underflow.

A recalibrated distribution has about twenty pieces, and transports tens of thousands of joint
samples. So the properties of pieces are computed once, and each sample selects those of its piece.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.special import log_ndtr

from botorch_calib.distributions._normal_functions import log_normal_interval, ndtri_exp

_TINY = torch.finfo(torch.float64).tiny
_BELOW_ONE = -(2.0**-53)  # logarithm of the largest probability below 1


def transported(z: Tensor, knots: Tensor, masses: Tensor, uniform: Tensor | None) -> Tensor:
    """Return ``Q(Phi(z))`` (see the module docstring), with derivatives of every order.

    Args:
        z: Standard normal numbers that broadcast against ``batch_shape``.
        knots: All knots, in units of the scale of the normal pieces, ``batch_shape x (K + 1)``.
        masses: Masses of the pieces, ``batch_shape x K``.
        uniform: Whether each piece is uniform, ``K``; None if no piece is uniform.
    """
    dtype = z.dtype
    z, knots, masses = z.double(), knots.double(), masses.double().clamp(min=_TINY)
    below, above = probabilities(masses)
    low, high = knots[..., :-1], knots[..., 1:]
    turned = low + high > 0
    low, high = torch.where(turned, -high, low), torch.where(turned, -low, high)
    mass_below = torch.where(turned, above[..., 1:], below[..., :-1])
    log_natural = log_normal_interval(low, high)
    is_open = low.isneginf()
    offset = log_ndtr(low.masked_fill(is_open, 0.0)) - log_natural
    offset = offset.masked_fill(is_open, 0.0).exp()

    ends = cuts(below, above).detach()
    if ends.dim() == 1:
        index = torch.bucketize(z.detach().contiguous(), ends)
    else:
        index = (z.unsqueeze(-1) > ends).sum(dim=-1)
    # Index of each sample's piece among the pieces of all distributions, in one vector
    shape = torch.broadcast_shapes(low.shape, masses.shape)
    rows = torch.arange(shape[:-1].numel(), device=z.device).view(shape[:-1])
    at = index + shape[-1] * rows

    def picked(values: Tensor) -> Tensor:
        # `index_select` of a flat tensor is the fastest way on a CPU.
        return values.expand(shape).reshape(-1).index_select(0, at.reshape(-1)).view(at.shape)

    sign, start, end = (picked(v) for v in (1.0 - 2.0 * turned.to(z), low.detach(), high.detach()))
    side, mass, below = sign * z, picked(masses), picked(mass_below)
    # The value for a normal piece, which is mirrored if the piece is above zero
    log_side = log_ndtr(side)
    share = ((log_side.exp() - below) / mass).clamp(min=_TINY, max=1.0)
    log_part = torch.where(start.isneginf(), log_side - mass.log(), (share + picked(offset)).log())
    value = ndtri_exp((log_part + picked(log_natural)).clamp(max=_BELOW_ONE))
    # A rounded value may be outside the piece. Clamping leaves the derivatives unchanged.
    value = value + (torch.clamp(value, start, end) - value).detach()
    if uniform is not None:
        low = low.masked_fill(~uniform, 0.0)
        width = high.masked_fill(~uniform, 1.0) - low
        flat = torch.addcmul(picked(low), share, picked(width))
        value = torch.where(uniform[index], flat, value)
    return (sign * value).to(dtype)


def probabilities(masses: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities below and above each knot, ``... x (K + 1)``."""
    below = masses.cumsum(-1)
    above = masses.flip(-1).cumsum(-1).flip(-1)
    zero = torch.zeros_like(below[..., :1])
    return torch.cat([zero, below], dim=-1), torch.cat([above, zero], dim=-1)


def cuts(below: Tensor, above: Tensor) -> Tensor:
    """Return ``Phi^-1`` of the mass below each inner knot, computed from the smaller mass."""
    below, above = below[..., 1:-1], above[..., 1:-1]
    low = torch.special.ndtri(below.clamp(0.0, 1.0))
    return torch.where(below < 0.5, low, -torch.special.ndtri(above.clamp(0.0, 1.0)))
