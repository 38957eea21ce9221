"""Stationary radial kernels as functions of the squared distance, with their derivatives.

Every profile is ``k = f(s)`` with ``f(0) = 1`` and ``s = factor * r^2``, where ``r`` is the
distance in units of the lengthscale. Inputs are scaled such that ``s`` is their squared distance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

# As in GPyTorch: the distance of coincident points is not quite zero, which keeps 1/r finite.
_LEAST_SQUARE = 1e-30


class RadialProfile(ABC):
    """A profile ``f(s)`` with ``f'(s) = slope * g(s)``, ``g`` being a by-product of ``f``."""

    factor: ClassVar[float]
    slope: ClassVar[float]

    def prepare(self, squares: Tensor) -> Tensor:
        """The input of `fill`, from the squared distances along some columns (overwritten)."""
        return squares

    @abstractmethod
    def at(self, s: Tensor, *buffers: Tensor) -> tuple[Tensor, Tensor]:
        """``f`` and ``g`` at ``s``, which is overwritten, and in two buffers, if they are given."""

    def fill(self, first: Tensor, second: Tensor, buffers: list[Tensor]) -> tuple[Tensor, Tensor]:
        """``f`` and ``g`` in the first two of three or more buffers ``step x M x n``.

        From prepared squared distances by decisions, ``step x 1 x n``, and contexts, ``1 x M x n``.
        """
        return self.at(torch.add(first, second, out=buffers[0]), *buffers[1:3])

    @abstractmethod
    def derivatives(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``f``, ``g`` and ``g'`` at ``s``; the last is finite even where it has a pole."""


class GaussianProfile(RadialProfile):
    """``exp(-r^2/2)``, whose parts multiply."""

    factor = 0.5
    slope = -1.0

    def prepare(self, squares: Tensor) -> Tensor:
        """The factor ``exp(-s)`` of these columns."""
        return squares.neg_().exp_()

    def at(self, s: Tensor, *buffers: Tensor) -> tuple[Tensor, Tensor]:
        """``exp(-s)``, also ``g``."""
        k = s.neg_().exp_()
        return k, k

    def fill(self, first: Tensor, second: Tensor, buffers: list[Tensor]) -> tuple[Tensor, Tensor]:
        """``exp(-(s_1 + s_2))``, also ``g``, as a product: no exponential at all pairs."""
        k = torch.mul(first, second, out=buffers[0])
        return k, k

    def derivatives(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k = s.neg().exp()
        return k, k, -k


class Matern32Profile(RadialProfile):
    """``(1 + t) exp(-t)`` with ``t = sqrt(3) r``."""

    factor = 3.0
    slope = -0.5

    def at(self, s: Tensor, *buffers: Tensor) -> tuple[Tensor, Tensor]:
        """``(1 + t) exp(-t)`` and ``g = exp(-t)``; ``f' = -g/2``, as ``ds = 2 t dt``."""
        t, (out, *_) = s.sqrt_(), buffers or (None,)
        g = torch.neg(t, out=out).exp_()
        return torch.addcmul(g, g, t, out=t), g

    def derivatives(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # g' has a pole at 0; the two differences of points that it multiplies vanish faster.
        t = s.clamp_min(_LEAST_SQUARE).sqrt()
        g = t.neg().exp()
        return (1.0 + t) * g, g, -0.5 * g / t


class Matern52Profile(RadialProfile):
    """``(1 + t + t^2/3) exp(-t)`` with ``t = sqrt(5) r``."""

    factor = 5.0
    slope = -1.0 / 6.0

    def at(self, s: Tensor, *buffers: Tensor) -> tuple[Tensor, Tensor]:
        """``(1 + t + t^2/3) exp(-t)`` and ``g = (1 + t) exp(-t)``; ``f' = -g/6``."""
        first, second = buffers or (None, None)
        t = torch.sqrt(s, out=first)
        e = torch.neg(t, out=second).exp_()
        g = torch.addcmul(e, e, t, out=t)
        return torch.addcmul(g, e, s, value=1.0 / 3.0, out=s), g

    def derivatives(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = s.clamp_min(_LEAST_SQUARE).sqrt()
        e = t.neg().exp()
        g = (1.0 + t) * e
        return torch.addcmul(g, e, s, value=1.0 / 3.0), g, -0.5 * e


_MATERN: dict[float, type[RadialProfile]] = {1.5: Matern32Profile, 2.5: Matern52Profile}


def radial_profile(kernel: Kernel) -> RadialProfile | None:
    """The profile of a kernel on all columns without batch dimensions; None if it has another."""
    if type(kernel) not in (RBFKernel, MaternKernel) or kernel.active_dims is not None:
        return None
    if kernel.raw_lengthscale.dim() != 2:  # a test that is fast, unlike one of the batch shape
        return None
    if type(kernel) is RBFKernel:
        return GaussianProfile()
    return _MATERN[kernel.nu]() if kernel.nu in _MATERN else None


def base_kernel(kernel: Kernel) -> Kernel:
    """A kernel without its ``ScaleKernel``, if that is plain."""
    # Batch dimensions are the scale's own; the kernel inside is for `radial_profile` to judge.
    is_plain = type(kernel) is ScaleKernel and kernel.raw_outputscale.dim() == 0
    return kernel.base_kernel if is_plain and kernel.active_dims is None else kernel
