r"""The Matern kernel of smoothness 5/2 between two sets of points, with its derivative by both.

GPyTorch composes it of ten operations, which autograd goes back through one by one, the slow
derivative of ``torch.cdist`` among them. With ``d`` the distance in lengthscales times
``sqrt(5)`` and ``k = (1 + d + d^2 / 3) exp(-d)``, by half of the squared distance the derivative is
``-5/3 (1 + d) exp(-d)``, and that by a point a sum over the others. On the way to log expected
improvement at 512 points, 100 data, that takes a third of the time of the composition.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.lazy import LazyEvaluatedKernelTensor
from torch import Tensor
from torch.autograd import Function

_SQRT_5 = math.sqrt(5.0)


def matern_between(inputs: Tensor, own: LazyEvaluatedKernelTensor) -> Tensor | None:
    """The kernel of a lazy matrix between others' points ``n x d`` and its own, ``n x m``.

    Points may have batch dimensions. None where it is not this one, scaled or not, or one of a
    batch.
    """
    kernel: Any = own.kernel
    base = kernel.base_kernel if type(kernel) is ScaleKernel else kernel
    if not (
        type(base) is MaternKernel
        and base.nu == 2.5
        and base.lengthscale.dim() == 2
        and not own.params
        and not own.last_dim_is_batch
    ):
        return None
    values: Tensor = _Matern.apply(inputs / base.lengthscale, own.x2 / base.lengthscale)
    return values if base is kernel else values * kernel.outputscale


class _Matern(Function):
    """The kernel with the lengthscale 1, differentiable to any order."""

    @staticmethod
    def forward(ctx: Any, x1: Tensor, x2: Tensor) -> Tensor:
        center = x1.mean(dim=-2, keepdim=True)  # for the digits of distances
        d = torch.cdist(x1 - center, x2 - center).mul_(_SQRT_5)
        decay, rest = torch.exp(-d), d + 1.0
        ctx.save_for_backward(x1, x2, decay, rest)
        return torch.addcmul(rest, d, d, value=1 / 3).mul_(decay)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x1, x2, decay, rest = ctx.saved_tensors
        if torch.is_grad_enabled():
            center = x1.mean(dim=-2, keepdim=True)
            d = torch.cdist(x1 - center, x2 - center).clamp_min(1e-15) * _SQRT_5
            decay, rest = torch.exp(-d), d + 1.0
        weight = rest * decay * (-5 / 3) * grad
        by_first = by_second = None
        if ctx.needs_input_grad[0]:
            by_first = x1 * weight.sum(dim=-1, keepdim=True) - weight @ x2
            by_first = by_first.sum_to_size(x1.shape)
        if ctx.needs_input_grad[1]:
            by_second = x2 * weight.sum(dim=-2).unsqueeze(-1) - weight.mT @ x1
        return by_first, by_second
