r"""The pinball loss, and the exact minimiser of its regularised sum."""

from __future__ import annotations

import torch
from torch import Tensor


def pinball_loss(u: Tensor, theta: Tensor, levels: Tensor) -> Tensor:
    """``(u - theta) (p - 1{u <= theta})``, whose expectation the ``p``-quantile of ``u`` minimises.

    All arguments broadcast; the loss is 0 at ``u = theta`` and positive elsewhere.
    """
    return (u - theta) * (levels - (u <= theta).to(theta))


def pinball_minimizer(
    u: Tensor,
    levels: Tensor,
    center: Tensor,
    step_size: float,
    weights: Tensor | None = None,
) -> Tensor:
    r"""Minimiser of ``(q - c)^2 / (2 eta) + sum_i w_i pinball_p(u_i, q)`` at each level ``p``.

    This is OCBO eq. 11 before its losses are linearised, with the regulariser centred at
    ``c``, the threshold of a calibrated model, instead of at 0. With ``W(q)`` the weight of
    the scores at or below ``q``, the subgradient is ``(q - c) / eta + W(q) - p W``: it
    increases in ``q``, by jumps at the scores. Let ``u_(1) <= ... <= u_(n)`` be the sorted scores,
    ``C_k`` the weight of the ``k`` smallest and ``a_k = c + eta (p W - C_k)`` the root of
    the subgradient between ``u_(k)`` and ``u_(k+1)``, as if that piece went on for ever. The
    minimiser is the largest ``q`` at which the subgradient from the left is at most 0, and

        ``q = max_{k = 0..n} min(a_k, u_(k+1))``,  with ``u_(n+1) = inf``.

    (Where ``a_k < u_(k)`` the term is below that of ``k - 1``, so it cannot win.) One sort serves
    all levels and all weights. ``a_k`` and so ``q`` increase with ``p`` if ``c`` does: quantiles
    do not cross.

    Args:
        u: Scores ``n``.
        levels: Levels ``M``.
        center: The centers ``c``, ``M``.
        step_size: ``eta > 0``: a score moves a quantile by at most ``eta``; as it grows the
            minimiser becomes the weighted empirical quantile.
        weights: Nonnegative weights ``... x n`` (default: all 1).

    Returns:
        Minimisers ``... x M``, differentiable in the weights.
    """
    ordered, order = u.sort()
    weights = torch.ones_like(u) if weights is None else weights
    cumulative = weights[..., order].cumsum(dim=-1)
    cumulative = torch.cat([cumulative.new_zeros(*cumulative.shape[:-1], 1), cumulative], dim=-1)
    ceiling = torch.cat([ordered, ordered.new_full((1,), torch.inf)])
    # a_k for all levels and k: ... x M x (n + 1)
    total = cumulative[..., -1:]
    roots = (center + step_size * levels * total).unsqueeze(-1)
    roots = roots - step_size * cumulative.unsqueeze(-2)
    return torch.minimum(roots, ceiling).amax(dim=-1)
