"""Stationary radial kernels as functions of the squared distance, with explicit derivatives.

A profile is ``k = f(s)`` with ``f(0) = 1`` and ``s = factor * r^2``, where ``r`` is the distance in
units of the lengthscale. Inputs are scaled such that ``s`` is their squared distance.

GPyTorch composes these kernels from ten or more operations, and autograd differentiates each of
them. Here the gradient in a point is one sum over the other points, ``2 sum_i f'(s_i) (x - x_i)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.lazy import LazyEvaluatedKernelTensor
from torch import Tensor
from torch.autograd import Function

# Lower limit of squared distances, as in GPyTorch, which keeps 1/r finite at coincident points.
LEAST_SQUARE = 1e-30

Buffers = Sequence[Tensor | None]
_NEW: Buffers = (None, None, None)


class RadialProfile(ABC):
    """A profile ``f(s)`` with ``f'(s) = slope * g(s)``; ``f`` and ``g`` are computed together."""

    factor: ClassVar[float]
    slope: ClassVar[float]

    @abstractmethod
    def at(self, s: Tensor, out: Buffers = _NEW) -> tuple[Tensor, Tensor]:
        """Return ``f`` and ``g`` at ``s``, computed in three buffers; ``s`` may be the first one.

        Without buffers they are differentiable twice if ``s`` is at least `LEAST_SQUARE`.
        """

    def prepared(self, squares: Tensor) -> Tensor:
        """Return squared distances along some columns in the form that `at_pairs` combines."""
        return squares

    def at_pairs(self, first: Tensor, second: Tensor, out: Buffers) -> tuple[Tensor, Tensor]:
        """Return ``f`` and ``g`` at all pairs, computed in three buffers ``b x M x n``.

        ``first``, ``b x 1 x n``, and ``second``, ``1 x M x n``, are the results of `prepared` for
        two sets of columns.
        """
        return self.at(torch.add(first, second, out=out[0]), out)


class GaussianProfile(RadialProfile):
    """``f = g = exp(-s) = exp(-r^2/2)``, a product over columns."""

    factor = 0.5
    slope = -1.0

    def prepared(self, squares: Tensor) -> Tensor:
        """Return the factor ``exp(-s)`` of some columns."""
        return squares.neg().exp_()

    def at_pairs(self, first: Tensor, second: Tensor, out: Buffers) -> tuple[Tensor, Tensor]:
        """Return products of factors, which avoids an exponential for each pair."""
        k = torch.mul(first, second, out=out[0])
        return k, k

    def at(self, s: Tensor, out: Buffers = _NEW) -> tuple[Tensor, Tensor]:
        k = torch.neg(s, out=out[0]).exp_()
        return k, k


class Matern32Profile(RadialProfile):
    """``f = (1 + t) exp(-t)`` and ``g = exp(-t)``, with ``t = sqrt(3) r`` and ``ds = 2 t dt``."""

    factor = 3.0
    slope = -0.5

    def at(self, s: Tensor, out: Buffers = _NEW) -> tuple[Tensor, Tensor]:
        t = torch.sqrt(s, out=out[0])
        g = torch.neg(t, out=out[1]).exp_()
        return torch.addcmul(g, g, t, out=out[0]), g


class Matern52Profile(RadialProfile):
    """``f = (1 + t + t^2/3) exp(-t)`` and ``g = (1 + t) exp(-t)``, with ``t = sqrt(5) r``."""

    factor = 5.0
    slope = -1.0 / 6.0

    def at(self, s: Tensor, out: Buffers = _NEW) -> tuple[Tensor, Tensor]:
        t = torch.sqrt(s, out=out[1])
        e = torch.neg(t, out=out[2]).exp_()
        g = torch.addcmul(e, e, t, out=out[1])
        return torch.addcmul(g, e, s, value=1.0 / 3.0, out=out[0]), g


_MATERN: dict[float, type[RadialProfile]] = {1.5: Matern32Profile, 2.5: Matern52Profile}


def radial_profile(kernel: Kernel) -> RadialProfile | None:
    """Return a kernel's profile; None if it has batch dimensions or does not use all columns."""
    if type(kernel) not in (RBFKernel, MaternKernel) or kernel.active_dims is not None:
        return None
    if kernel.raw_lengthscale.dim() != 2:
        return None
    if type(kernel) is RBFKernel:
        return GaussianProfile()
    return _MATERN[kernel.nu]() if kernel.nu in _MATERN else None


def base_kernel(kernel: Kernel) -> Kernel:
    """Return the kernel inside a ``ScaleKernel`` with a single scale; others are unchanged."""
    # `radial_profile` checks the kernel inside.
    is_plain = type(kernel) is ScaleKernel and kernel.raw_outputscale.dim() == 0
    return kernel.base_kernel if is_plain and kernel.active_dims is None else kernel


def radial_between(
    inputs: Tensor, own: LazyEvaluatedKernelTensor
) -> tuple[Tensor, Tensor | float] | None:
    """Return the kernel between ``inputs`` and the points of ``own``, and the kernel's variance.

    For ``inputs``, ``... x n x d``, and ``m`` points of ``own`` the results are ``... x n x m`` and
    a scalar. They are differentiable in points as often as the kernel is, but not in
    hyperparameters. The result is None if the kernel is not radial.
    """
    kernel, base = own.kernel, base_kernel(own.kernel)
    profile = radial_profile(base)
    is_usual = not own.params and not own.last_dim_is_batch
    # If the numbers of columns differ, the kernel itself raises an error.
    if profile is None or not is_usual or inputs.shape[-1] != own.x2.shape[-1]:
        return None
    # Inputs are centred before they are scaled, to preserve digits of points far from zero.
    # For an RBF kernel they are scaled first, as in GPyTorch, so that rounding errors agree with
    # the training covariance.
    x1, x2, unit = inputs, own.x2, base.lengthscale.detach()
    if type(base) is RBFKernel:
        x1, x2, unit = x1 / unit, x2 / unit, 1.0
    center, scale = x1.detach().mean(dim=-2, keepdim=True), profile.factor**0.5 / unit
    values = _Between.apply((x1 - center) * scale, (x2 - center) * scale, profile)
    if base is kernel:
        return values, 1.0
    variance = kernel.outputscale.detach()
    return values * variance, variance


class _Between(Function):
    """A profile at the squared distances of two sets of points, differentiable to any order."""

    @staticmethod
    def forward(ctx: Any, x1: Tensor, x2: Tensor, profile: RadialProfile) -> Tensor:
        left, right, squares = _squares(x1, x2)
        k, g = profile.at(squares)
        ctx.save_for_backward(x1, x2, left, right, g)
        ctx.profile = profile
        return k

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (x1, x2, left, right, g), profile = ctx.saved_tensors, ctx.profile
        if torch.is_grad_enabled():  # with a graph for higher derivatives
            left, right, squares = _squares(x1, x2)
            _, g = profile.at(squares)
        weight, d = (profile.slope * g) * grad, x1.shape[-1]
        by_first = by_second = None
        if ctx.needs_input_grad[0]:
            sums = weight @ right
            by_first = 2.0 * x1 * sums[..., d : d + 1] - 2.0 * sums[..., :d]
        if ctx.needs_input_grad[1]:
            sums = weight.mT @ left
            by_second = torch.addcmul(sums[..., :d], x2, sums[..., -1:], value=2.0)
        return by_first, by_second, None


def _squares(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two factors of the squared distances between points, and the squared distances.

    The factors have the columns ``-2 x_1, |x_1|^2, 1`` and ``x_2, 1, |x_2|^2``.
    """
    norms = [(x * x).sum(dim=-1, keepdim=True) for x in (x1, x2)]
    left = torch.cat([-2.0 * x1, norms[0], torch.ones_like(norms[0])], dim=-1)
    right = torch.cat([x2, torch.ones_like(norms[1]), norms[1]], dim=-1)
    return left, right, (left @ right.mT).clamp_min_(LEAST_SQUARE)
