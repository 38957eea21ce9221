"""Batched roots of increasing functions, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_ROUNDING = 1e-15  # relative width of a bracket at which its search ends
_MOST_STEPS = 100  # largest number of steps on a CPU; most searches end after three
# From absolute values up to `_NEAR` one more step may reach the root; up to `_EXACT` it is reached.
_NEAR, _EXACT = 1e-4, 1e-13


@torch.no_grad()
def bracketed_root(
    function: Callable[[Tensor], tuple[Tensor, Tensor, Tensor | float]],
    start: Tensor,
    low: Tensor,
    high: Tensor,
    num_steps: int,
    close: float = 1e-8,
) -> Tensor:
    """Return the roots of an increasing function, found by Halley's or Newton's method.

    A step is replaced by bisection if it leaves the bracket, or if the last step did not halve the
    value. On a GPU the number of steps is fixed, so that the host does not wait for the device. On
    a CPU the search ends as soon as all roots are found. The roots have no gradient.

    ``function`` returns the values ``v``, the slopes ``v'``, and ``v'' / v'`` for Halley's method
    or 0 for Newton's. The search is fast if ``v`` is nearly linear, as normal scores are. It starts
    at ``start``, and the roots lie between ``low`` and ``high``. Once ``|v|`` is at most ``close``,
    one more step reaches the root. ``num_steps`` is the number of steps on a GPU.
    """
    x, last = start, torch.full_like(start, math.nan)
    found = torch.zeros_like(start, dtype=torch.bool)
    on_cpu = start.device.type == "cpu"
    for _ in range(_MOST_STEPS if on_cpu else num_steps):
        value, slope, curve = function(x)
        size = value.abs()
        low, high = torch.where(value <= 0, x, low), torch.where(value >= 0, x, high)
        step = -value / slope
        new = x + step / (0.5 * curve * step).clamp(-0.5, 1.0).add_(1.0)
        inside = (new >= low) & (new <= high)
        # The step is expected to multiply the value by the square of the last step's factor.
        left = size * (size / last).square()
        arrives = inside & ((size <= close) | ((size <= _NEAR) & (left <= 1e-3 * close)))
        is_root = ~(size > _EXACT)
        new = torch.where(inside & (arrives | ~(size >= 0.5 * last)), new, 0.5 * (low + high))
        x, last = torch.where(found | is_root, x, new), size
        narrow = high - low <= _ROUNDING * torch.maximum(low.abs(), high.abs())
        found = found | arrives | is_root | narrow
        if on_cpu and found.numpy().all():
            break
    return x


def with_derivatives(function: Callable[..., Tensor], root: Tensor, *inputs: Tensor) -> Tensor:
    """Return the ``root`` of ``function(root, *inputs)``, as differentiable as the function."""
    out: Tensor = _ImplicitFunction.apply(function, root, *inputs)
    return out


class _ImplicitFunction(Function):
    """Autograd function of `with_derivatives`: ``droot/dinput = -(df/dinput) / (df/droot)``."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], root: Tensor, *inputs: Tensor) -> Tensor:
        root = root.view_as(root)
        ctx.function = function
        ctx.save_for_backward(root, *inputs)
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with_graph = torch.is_grad_enabled()
        needed = [True, *ctx.needs_input_grad[2:]]
        with torch.enable_grad():
            # In separate views, derivatives in the inputs treat the root as a constant.
            root, *inputs = (
                value.view_as(value) if with_graph else value.detach().requires_grad_(need)
                for value, need in zip(ctx.saved_tensors, needed, strict=True)
            )
            value = ctx.function(root, *inputs)
            (slope,) = torch.autograd.grad(value.sum(), root, None, True, with_graph)
            wanted = [value for value, need in zip(inputs, needed[1:], strict=True) if need]
            slopes = iter(torch.autograd.grad(value, wanted, -grad / slope, None, with_graph))
        return None, None, *(next(slopes) if need else None for need in needed[1:])
