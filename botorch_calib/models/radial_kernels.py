"""Stationary radial kernels as functions of the squared distance, with explicit derivatives.

A profile is ``k = f(s)`` with ``f(0) = 1`` and ``s = factor * r^2``, where ``r`` is the distance in
units of the lengthscale. Inputs are scaled such that ``s`` is the squared distance between them.

GPyTorch composes these kernels from ten or more operations, and autograd differentiates each of
the operations. Here the gradient in a point ``x`` is one sum over the other points ``x_i``,
``2 sum_i f'(s_i) (x - x_i)``, where ``s_i`` is the squared distance between ``x`` and ``x_i``.
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

# Squared distances are raised to this limit, as in GPyTorch, so that 1/r is finite at coincident
# points.
LEAST_SQUARE = 1e-30

Buffers = Sequence[Tensor | None]
_NEW: Buffers = (None, None, None)


class RadialProfile(ABC):
    """A kernel ``f(s)`` of ``s = factor * r^2``, where ``r`` is the distance in lengthscales.

    The derivative is ``f'(s) = slope * g(s)``. ``f`` and ``g`` are computed together, since they
    share terms.
    """

    factor: ClassVar[float]
    slope: ClassVar[float]

    @abstractmethod
    def at(self, s: Tensor, out: Buffers = _NEW) -> tuple[Tensor, Tensor]:
        """Return ``f`` and ``g`` (see the class docstring), with the same shape as ``s``.

        They are computed in the three buffers ``out`` of this shape; the first buffer may be ``s``.
        Without buffers, the results are differentiable twice if ``s`` is at least `LEAST_SQUARE`.
        """

    def prepared(self, squares: Tensor) -> Tensor:
        """Convert squared distances, summed over a subset of columns, to an input of `at_pairs`."""
        return squares

    def at_pairs(self, first: Tensor, second: Tensor, out: Buffers) -> tuple[Tensor, Tensor]:
        """Return ``f`` and ``g`` for all pairs of partial distances, as ``b x M x n``.

        ``first``, ``b x 1 x n``, and ``second``, ``1 x M x n``, are the results of `prepared` for
        two disjoint subsets of the columns; ``s`` is the sum of the squared distances of a pair.
        The results are computed in the three buffers ``out``.
        """
        return self.at(torch.add(first, second, out=out[0]), out)


class GaussianProfile(RadialProfile):
    """``f = g = exp(-s) = exp(-r^2/2)``, a product over columns; notation as in the base class."""

    factor = 0.5
    slope = -1.0

    def prepared(self, squares: Tensor) -> Tensor:
        """Return ``exp(-squares)``, the kernel's factor for a subset of the columns."""
        return squares.neg().exp_()

    def at_pairs(self, first: Tensor, second: Tensor, out: Buffers) -> tuple[Tensor, Tensor]:
        """Return ``f = g`` as products of factors, which avoids an exponential for each pair."""
        k = torch.mul(first, second, out=out[0])
        return k, k

    def at(self, s: Tensor, out: Buffers = _NEW) -> tuple[Tensor, Tensor]:
        k = torch.neg(s, out=out[0]).exp_()
        return k, k


class Matern32Profile(RadialProfile):
    """``f = (1 + t) exp(-t)`` and ``g = exp(-t)``, with ``t = sqrt(s) = sqrt(3) r``.

    The notation is as in the base class. Since ``ds = 2 t dt``, ``f'(s) = -g / 2``.
    """

    factor = 3.0
    slope = -0.5

    def at(self, s: Tensor, out: Buffers = _NEW) -> tuple[Tensor, Tensor]:
        t = torch.sqrt(s, out=out[0])
        g = torch.neg(t, out=out[1]).exp_()
        return torch.addcmul(g, g, t, out=out[0]), g


class Matern52Profile(RadialProfile):
    """``f = (1 + t + t^2/3) exp(-t)`` and ``g = (1 + t) exp(-t)``, with ``t = sqrt(5) r``.

    The notation is as in the base class. Since ``s = t^2`` and ``ds = 2 t dt``, ``f'(s) = -g / 6``.
    """

    factor = 5.0
    slope = -1.0 / 6.0

    def at(self, s: Tensor, out: Buffers = _NEW) -> tuple[Tensor, Tensor]:
        t = torch.sqrt(s, out=out[1])
        e = torch.neg(t, out=out[2]).exp_()
        g = torch.addcmul(e, e, t, out=out[1])
        return torch.addcmul(g, e, s, value=1.0 / 3.0, out=out[0]), g


_MATERN: dict[float, type[RadialProfile]] = {1.5: Matern32Profile, 2.5: Matern52Profile}


def radial_profile(kernel: Kernel) -> RadialProfile | None:
    """Return a kernel's profile; None if the kernel is not supported.

    RBF kernels and Matern kernels with ``nu`` 1.5 or 2.5 are supported, unless they have batch
    dimensions or use only some of the columns.
    """
    if type(kernel) not in (RBFKernel, MaternKernel) or kernel.active_dims is not None:
        return None
    if kernel.raw_lengthscale.dim() != 2:
        return None
    if type(kernel) is RBFKernel:
        return GaussianProfile()
    return _MATERN[kernel.nu]() if kernel.nu in _MATERN else None


def base_kernel(kernel: Kernel) -> Kernel:
    """Return the kernel inside a ``ScaleKernel``; other kernels are returned themselves.

    A ``ScaleKernel`` with several scales or with ``active_dims`` is returned itself, too.
    """
    # The kernel inside may be of any class, which `radial_profile` checks.
    is_plain = type(kernel) is ScaleKernel and kernel.raw_outputscale.dim() == 0
    return kernel.base_kernel if is_plain and kernel.active_dims is None else kernel


def radial_between(
    inputs: Tensor, own: LazyEvaluatedKernelTensor
) -> tuple[Tensor, Tensor | float] | None:
    """Return the kernel between ``inputs`` and the points of ``own``, and the kernel's variance.

    For ``inputs``, ``... x n x d``, and a lazily evaluated kernel ``own`` of ``m`` points, the
    values are ``... x n x m``. They are differentiable in both sets of points as often as the
    kernel is, but not in hyperparameters. The variance, which is the kernel at distance 0, is a
    scalar. The result is None if the kernel has no `radial_profile`.
    """
    kernel, base = own.kernel, base_kernel(own.kernel)
    profile = radial_profile(base)
    is_usual = not own.params and not own.last_dim_is_batch
    # If the numbers of columns differ, return None: the kernel itself then raises an error.
    if profile is None or not is_usual or inputs.shape[-1] != own.x2.shape[-1]:
        return None
    # Inputs are centred before they are scaled, to preserve digits of points far from zero. For an
    # RBF kernel, inputs are scaled first, as in GPyTorch, so that rounding errors agree with the
    # rounding errors of the training covariance.
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
    """A profile at the squared distances of two sets of points, differentiable to any order.

    The sets are ``... x n x d`` and ``... x m x d``, and the values are ``... x n x m``.
    """

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
        if torch.is_grad_enabled():  # compute them again, with a graph for higher derivatives
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
    """Return two factors of the squared distances between ``x1`` and ``x2``, and these distances.

    The squared distances are the product of the first factor, with the columns ``-2 x1, |x1|^2,
    1``, and the transpose of the second factor, with the columns ``x2, 1, |x2|^2``. They are raised
    to `LEAST_SQUARE`.
    """
    norms = [(x * x).sum(dim=-1, keepdim=True) for x in (x1, x2)]
    left = torch.cat([-2.0 * x1, norms[0], torch.ones_like(norms[0])], dim=-1)
    right = torch.cat([x2, torch.ones_like(norms[1]), norms[1]], dim=-1)
    return left, right, (left @ right.mT).clamp_min_(LEAST_SQUARE)
