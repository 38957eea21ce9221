"""Roots of many increasing functions at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def bracketed_newton(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    low: Tensor,
    high: Tensor,
    guess: Tensor,
    max_steps: int,
    tol: float,
) -> Tensor:
    """Elementwise roots ``n`` of increasing functions between ``low`` and ``high``, no gradient.

    Newton's method; a step that leaves the bracket found so far, or follows one that did not halve
    ``|function(x)|``, is replaced by a bisection. Elements drop out one by one: where
    ``|function(x)| <= tol``, and where a Newton step is about to achieve that, given that errors
    shrink quadratically at the rate just seen.

    Args:
        function: Returns values and slopes at ``x`` for the elements ``rows``.
        low: Lower ends, ``n``.
        high: Upper ends, ``n``.
        guess: Where to start, ``n``.
        max_steps: Largest number of evaluations.
        tol: Largest remaining ``|function(x)|``.
    """
    x = torch.minimum(torch.maximum(guess, low), high)
    root, rows, last = x.clone(), torch.arange(len(x), device=x.device), torch.full_like(x, 1e30)
    for _ in range(max_steps):
        value, slope = function(x, rows)
        size, below = value.abs(), value < 0
        low, high = torch.where(below, x, low), torch.where(below, high, x)
        step = x - value / slope
        newton = (step > low) & (step < high) & (size < 0.5 * last)
        done = size <= tol
        x = torch.where(newton, step, torch.where(done, x, 0.5 * (low + high)))
        root[rows] = x
        going = ~(done | (newton & (last < 1e30) & (size**3 <= tol * last * last)))
        if not bool(going.any()):
            break
        x, rows, low, high, last = (v[going] for v in (x, rows, low, high, size))
    return root
