"""Batched roots of increasing functions, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

# A search ends if the relative width of its bracket is at most `_ROUNDING`. On a CPU it takes no
# more than `_MOST_STEPS` steps, and three in most cases.
_ROUNDING, _MOST_STEPS = 1e-15, 100
# A point is a root if the function's absolute value is at most `_EXACT`. If the value is at most
# `_NEAR`, a prediction of the next value decides whether the next step is the last step.
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
    """Return a root of an increasing function for each element of ``start``, without a gradient.

    ``function`` maps points to the values ``v``, the slopes ``v'``, and ``v'' / v'`` for Halley's
    method or 0 for Newton's. The search begins at ``start``, and the roots lie between ``low`` and
    ``high``. A step is replaced with bisection if it leaves this bracket, or if the last step did
    not halve ``|v|``. Few steps are needed if ``v`` is nearly linear, as normal scores are. Once
    ``|v|`` is at most ``close``, the next step is the last step.

    On a GPU the search always takes ``num_steps`` steps, so that the host does not wait for the
    device. On a CPU the search ends as soon as all roots are found, and ``num_steps`` is ignored.
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
        # A step is expected to multiply ``|v|`` by the square of the last step's factor, so
        # ``left`` predicts ``|v|`` after this step.
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
    """Return ``root``, a zero of ``function(root, *inputs)``, differentiable in the ``inputs``."""
    out: Tensor = _ImplicitFunction.apply(function, root, *inputs)
    return out


class _ImplicitFunction(Function):
    """Derivative of `with_derivatives`: ``-(df/dinput) / (df/droot)`` for the function ``f``."""

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
            # The root depends on the inputs. Derivatives in separate views ignore this dependence.
            root, *inputs = (
                value.view_as(value) if with_graph else value.detach().requires_grad_(need)
                for value, need in zip(ctx.saved_tensors, needed, strict=True)
            )
            value = ctx.function(root, *inputs)
            (slope,) = torch.autograd.grad(value.sum(), root, None, True, with_graph)
            wanted = [value for value, need in zip(inputs, needed[1:], strict=True) if need]
            slopes = iter(torch.autograd.grad(value, wanted, -grad / slope, None, with_graph))
        return None, None, *(next(slopes) if need else None for need in needed[1:])
