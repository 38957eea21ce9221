r"""Expected excess and survival probability of single pieces, with or without noise.

Let ``omega`` be the standard normal density for a normal piece, and 1 for a uniform piece. For
thresholds ``x``, noise with the standard deviation ``r``, and ``h(t) = phi(t) + t Phi(t)``, this
module computes the logarithms of the following integrals over a piece:

    ``int omega(z) r h((z - x) / r) dz`` and ``int omega(z) Phi((z - x) / r) dz``.

Without noise, these are ``int omega(z) (z - x)+ dz`` and ``int omega(z) 1{z > x} dz``, in closed
form. With noise, Gauss-Legendre rules with 72 nodes in a piece compute both as sums of positive
terms. So the relative error is small, and autograd computes derivatives of every order.
`_denoised_integrals` is faster for the distributions that it supports.
"""

from __future__ import annotations

import math

import torch
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor

from botorch_calib.distributions import _normal_functions as nf
from botorch_calib.distributions.form import Pieces

_ORDER = 24  # nodes on a panel: relative error about 1e-12
_CUT = 72.0  # a panel ends where a normal density has decreased by a factor of exp(36)
_CLEAR = 8.5  # noise has no effect on integrands for z above x + _CLEAR r
_LOG_2 = math.log(2.0)
_NOTHING = 2 * nf.LOG_ZERO


def log_integrals_by_pieces(x: Tensor, r: Tensor | None, pieces: Pieces) -> tuple[Tensor, Tensor]:
    """Return ``log E(z + r eps - x)+`` and ``log P(z + r eps > x)`` for any piecewise distribution.

    ``x`` are ``n`` thresholds, and ``r`` are ``n`` positive ratios of the noise to the scale of
    normal pieces, or None without noise. Logarithms of 0 are `LOG_ZERO`.
    """
    (log_e, log_s), natural = piece_logs(x, r, pieces)
    return log_mixed(log_e - natural, pieces.masses), log_mixed(log_s - natural, pieces.masses)


def piece_logs(x: Tensor, r: Tensor | None, pieces: Pieces) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return `log_integrals` of all pieces, and the logs of their natural masses, ``K x n``.

    The natural mass of a normal piece is its probability under the standard normal distribution.
    The natural mass of a uniform piece is its width.
    """
    form = pieces.form
    ends, normal = form.pad(pieces.knots, -nf.FAR, nf.FAR), form.is_normal(x.device)
    natural = nf.log_normal_interval(ends[:-1], ends[1:])
    if any(form.uniform):
        natural = torch.where(normal, natural, ends.diff(dim=0).masked_fill(normal, 1.0).log())
    low, high = ends[:-1].expand(-1, len(x)), ends[1:].expand(-1, len(x))
    return log_integrals(x, r, low, high, normal), natural


def log_mixed(logs: Tensor, masses: Tensor) -> Tensor:
    """Return ``log(sum(masses * exp(logs)))`` over the first dimension, at least `LOG_ZERO`.

    Gradients also flow to masses that are 0.
    """
    scale = logs.detach().masked_fill(masses == 0.0, _NOTHING).amax(dim=0)
    total = (masses * (logs - scale).clamp(nf.LEAST, -nf.LEAST).exp()).sum(dim=0)
    return (total.clamp(min=nf.TINY).log() + scale).clamp(min=nf.LOG_ZERO)


def log_integrals(
    x: Tensor, r: Tensor | None, low: Tensor, high: Tensor, normal: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the logs ``K x n`` of both integrals over each piece (see the module docstring).

    Thresholds ``x`` and ratios ``r`` have the shape ``n``. The finite ends ``low`` and ``high`` of
    the pieces have the shape ``K x n``, and the flags ``normal`` the shape ``K x 1``. The logarithm
    of 0 is `_NOTHING`.

    As a function of ``z``, the integrand over a normal piece resembles a normal density of mean ``x
    / (1 + r^2)`` and standard deviation ``r / (1 + r^2)^(1/2)`` below ``x``, and ``omega`` above
    ``x``. Over a uniform piece, the mean is ``x`` and the standard deviation is ``r``. Three
    panels, each with its own quadrature nodes, meet at the peaks of both densities, so that the
    integrand decreases from the start of each panel. Above the last panel the noise has no effect,
    and the integral has a closed form.
    """
    if r is None:
        return _sharp_integrals(x, low, high, normal)
    with torch.no_grad():  # the integral does not depend on where panels meet
        shrink = torch.where(normal, 1.0 / (1.0 + r * r), 1.0)
        center, deviation = x * shrink, r * shrink.sqrt()
        first, last = torch.minimum(center, x), torch.where(normal, x.clamp(min=0.0), x)
        clear, rising = x + _CLEAR * r, (x < 0.0) & normal
    top = _lower(high, clear)
    from_first, to_last = _upper(low, first), _lower(top, last)
    starts = torch.stack(
        [_lower(high, first), torch.where(rising, to_last, from_first), _upper(low, last)]
    )
    lengths = torch.stack([starts[0] - low, to_last - from_first, top - starts[2]])
    with torch.no_grad():
        # Distance of each panel's start from the peak of its normal density (at `center` or 0), in
        # standard deviations of this density
        about_center = torch.stack([torch.ones_like(rising), ~rising, torch.zeros_like(rising)])
        about_center = about_center.expand_as(lengths)
        unit = torch.where(about_center, deviation, 1.0)
        distance = ((starts - torch.where(about_center, center, 0.0)) / unit).abs()
        reach = unit * (_CUT / ((distance.square() + _CUT).sqrt() + distance))
        reach = torch.where(normal | about_center, reach, torch.inf)
        empty = lengths <= 0.0
    lengths = torch.where(empty, r, _lower(lengths, reach))
    starts = torch.where(empty, x, starts)

    nodes, weights = nf.graded_rule(_ORDER, x.dtype, x.device)
    downwards = torch.stack([~torch.zeros_like(rising), rising, torch.zeros_like(rising)])
    signed = torch.where(downwards.expand_as(lengths), -lengths, lengths)
    step = signed * nodes[:, 0].view(-1, 1, 1, 1)
    t, z = (starts - x) / r + step / r, starts + step
    log_weight = torch.where(normal, log_phi(z), 0.0) + lengths.log()
    log_weight = log_weight.masked_fill(empty, _NOTHING) + weights.log().view(-1, 1, 1, 1)
    plain = _sharp_integrals(x, low, high, normal, start=clear)
    sums = (
        (log_weight + values).logsumexp(dim=(0, 1))
        for values in (nf.log_h(t) + r.log(), log_ndtr(t))
    )
    # Unlike `logsumexp`, `logaddexp` has no second derivatives if one of the terms is 0.
    log_excess, log_survival = (
        torch.stack(pair).logsumexp(dim=0) for pair in zip(sums, plain, strict=True)
    )
    return log_excess, log_survival


def _lower(end: Tensor, point: Tensor) -> Tensor:
    """Return the elementwise minimum; if both numbers are equal, only ``end`` has a gradient."""
    return torch.where(point < end, point, end)


def _upper(end: Tensor, point: Tensor) -> Tensor:
    """Return the elementwise maximum; if both numbers are equal, only ``end`` has a gradient."""
    return torch.where(point > end, point, end)


def _sharp_integrals(
    x: Tensor, low: Tensor, high: Tensor, normal: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return `log_integrals` without noise, restricted to ``z > start`` (default: ``z > x``)."""
    start = _upper(low, x if start is None else start)
    empty = start >= high
    start, high = torch.where(empty, x, start), torch.where(empty, x + 1.0, high)
    log_mass, log_rise = nf.log_interval_integrals(start, high)
    width = torch.where(normal, 1.0, high - start).log()
    log_mass = torch.where(normal, log_mass, width)
    log_rise = torch.where(normal, log_rise, 2 * width - _LOG_2)
    log_excess = log_rise + ((start - x) * (log_mass - log_rise).exp()).log1p()
    return log_excess.masked_fill(empty, _NOTHING), log_mass.masked_fill(empty, _NOTHING)
