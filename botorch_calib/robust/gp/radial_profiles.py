"""Stationary radial kernels as functions of the squared distance.

Every profile is ``k = f(s)`` with ``f(0) = 1`` and ``s = factor * r^2``, where ``r`` is the
distance in units of the lengthscale. Inputs are scaled such that ``s`` is their squared distance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

# As in GPyTorch: the distance of coincident points is not quite zero, which keeps 1/r finite.
_LEAST_SQUARE = 1e-30


class RadialProfile(ABC):
    """A profile ``f(s)`` with ``f'(s) = slope * g(s)``, ``g`` being a by-product of ``f``."""

    factor: ClassVar[float]
    slope: ClassVar[float]

    @abstractmethod
    def at(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """``f`` and ``g`` at ``s``, differentiable twice."""

    def at_sum(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """``f`` and ``g`` at the sum of two tensors that broadcast."""
        return self.at(first + second)


class GaussianProfile(RadialProfile):
    """``exp(-r^2/2)``."""

    factor = 0.5
    slope = -1.0

    def at(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """``exp(-s)``, also ``g``."""
        k = s.neg().exp()
        return k, k

    def at_sum(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """As a product: no exponential of the sum."""
        k = first.neg().exp() * second.neg().exp()
        return k, k


class Matern32Profile(RadialProfile):
    """``(1 + t) exp(-t)`` with ``t = sqrt(3) r``."""

    factor = 3.0
    slope = -0.5

    def at(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """``(1 + t) exp(-t)`` and ``g = exp(-t)``; ``f' = -g/2``, as ``ds = 2 t dt``."""
        t = s.clamp_min(_LEAST_SQUARE).sqrt()
        g = t.neg().exp()
        return g + g * t, g


class Matern52Profile(RadialProfile):
    """``(1 + t + t^2/3) exp(-t)`` with ``t = sqrt(5) r``."""

    factor = 5.0
    slope = -1.0 / 6.0

    def at(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """``(1 + t + t^2/3) exp(-t)`` and ``g = (1 + t) exp(-t)``; ``f' = -g/6``."""
        t = s.clamp_min(_LEAST_SQUARE).sqrt()
        e = t.neg().exp()
        g = e + e * t
        return g + e * s / 3.0, g


_MATERN: dict[float, type[RadialProfile]] = {1.5: Matern32Profile, 2.5: Matern52Profile}


def radial_profile(kernel: Kernel) -> RadialProfile | None:
    """The profile of a kernel on all columns without batch dimensions; None if it has another."""
    if type(kernel) not in (RBFKernel, MaternKernel) or kernel.active_dims is not None:
        return None
    if kernel.raw_lengthscale.dim() != 2:
        return None
    if type(kernel) is RBFKernel:
        return GaussianProfile()
    return _MATERN[kernel.nu]() if kernel.nu in _MATERN else None


def base_kernel(kernel: Kernel) -> Kernel:
    """A kernel without its ``ScaleKernel``, if that is plain."""
    # Batch dimensions are the scale's own; the kernel inside is for `radial_profile` to judge.
    is_plain = type(kernel) is ScaleKernel and kernel.raw_outputscale.dim() == 0
    return kernel.base_kernel if is_plain and kernel.active_dims is None else kernel
