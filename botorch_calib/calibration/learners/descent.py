r"""Online descent of the pinball loss, in many columns at once.

A *column* is one threshold function ``theta(x) = c + sum_i B_i k(x_i, x)``: a level of a tracker,
or a level of one member of a bank of trackers. Columns are independent of each other, so all
are carried along in the same loop over the observations. The functions here hold no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Localization(NamedTuple):
    """Columns that share a kernel ``scale * exp(-|x - x'|^2 / lengthscale^2)``."""

    columns: slice
    lengthscale: float


class Local(NamedTuple):
    """The local part of the thresholds at ``n`` points, and what moves it.

    Args:
        values: ``n x C``; changed in place by `descend`.
        kernels: For each localization the correlation matrix ``n x n`` of the points.
        localizations: The columns that each kernel serves.
        scale: ``k(x, x)`` of each column, ``C`` (or 1 for all).
        shrink: For each of the ``n`` steps, the factor by which earlier increments shrink.
    """

    values: Tensor
    kernels: Sequence[Tensor]
    localizations: Sequence[Localization]
    scale: Tensor
    shrink: Sequence[float]


def gaussian_correlation(X1: Tensor, X2: Tensor, lengthscale: float) -> Tensor:
    """``exp(-|x - x'|^2 / lengthscale^2)``, ``... x n`` for ``... x d`` and ``n x d``."""
    return gaussian_correlations(X1, X2, [lengthscale])


def gaussian_correlations(X1: Tensor, X2: Tensor, lengthscales: Sequence[float]) -> Tensor:
    """The correlations at several lengthscales side by side, ``... x (num_lengthscales n)``.

    The squared distance is expanded into a single matrix product, about a common shift
    that keeps cancellation small, and in double precision, in which it is harmless unless
    the inputs spread over more than 1e6 lengthscales. It is not clamped at 0, since that
    would falsify second derivatives where points coincide.
    """
    dtype, shift = X1.dtype, X2[0].double()
    X1, X2 = X1.double() - shift, X2.double() - shift
    # Squares go in elementwise on the left: summing the larger side would cost more.
    left = torch.cat([X1, X1 * X1, X1.new_ones(*X1.shape[:-1], 1)], dim=-1)
    squares = -(X2 * X2).sum(dim=-1, keepdim=True)
    right = torch.cat([2.0 * X2, torch.full_like(X2, -1.0), squares], dim=-1)
    # One product for all: the right factors, divided by each squared lengthscale.
    right = torch.cat([right / (scale * scale) for scale in lengthscales])
    return (left @ right.mT).exp().to(dtype)


def descend(
    u: Tensor, levels: Tensor, steps: Tensor, constants: Tensor, local: Local | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Run through ``n`` observations in order.

    Args:
        u: Scores, ``n``.
        levels: The level of each column, ``C``.
        steps: ``n x C`` step sizes (or ``n x 1`` for all columns).
        constants: The constants ``c`` before the first observation, ``C``.
        local: The local part at the observed points, if there is one.

    Returns:
        The thresholds ``n x C`` that the observations met, the increments ``n x C`` and the
        constants after the last one.
    """
    hits, misses = steps * (levels - 1.0), steps * levels
    thresholds, deltas = [], []
    # Rows are split once: indexing inside the loop would cost more than the arithmetic.
    rows = zip(u.unbind(), hits.unbind(), misses.unbind(), strict=True)
    kernel_rows = [] if local is None else [kernel.unbind() for kernel in local.kernels]
    parts = [] if local is None else [local.values[:, at.columns] for at in local.localizations]
    for i, (u_i, hit, miss) in enumerate(rows):
        theta = constants if local is None else constants + local.values[i]
        delta = torch.where(u_i <= theta, hit, miss)
        constants = constants + delta
        thresholds.append(theta)
        deltas.append(delta)
        if local is not None:
            # Only the batch's own points need the local part, so it is carried along.
            move = delta * local.scale
            for at, part, kernel in zip(local.localizations, parts, kernel_rows, strict=True):
                part.addr_(kernel[i], move[at.columns], beta=local.shrink[i])
    if not deltas:
        return hits, hits, constants
    return torch.stack(thresholds), torch.stack(deltas), constants


def extended(coefficients: Tensor, deltas: Tensor, shrink: Sequence[float]) -> Tensor:
    """Coefficients ``t x C`` after ``n`` more increments, each shrunk by the steps after it."""
    factors = torch.tensor([*shrink, 1.0], dtype=deltas.dtype, device=deltas.device)
    remaining = factors.flip(0).cumprod(0).flip(0).unsqueeze(-1)
    return torch.cat([coefficients * remaining[0], deltas * remaining[1:]])
