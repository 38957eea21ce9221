"""Quasi-random draws: of the unit cube, and of a kernel density estimate inside a box."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_calib._validation import check_bounds, check_count, check_finite, check_positive


def density_draws(
    samples: Tensor, bounds: Tensor, num_points: int, bandwidth: str | float | Tensor, seed: int
) -> Tensor:
    """Draws of `ContextDistribution.kde`, ``num_points x d_c``."""
    num_dims = samples.shape[-1]
    if check_bounds(bounds).shape[-1] != num_dims:
        raise BotorchTensorDimensionError(f"`bounds` must have shape 2 x {num_dims}.")
    low, high = bounds.detach().to(samples)
    if not (low < high).all():
        raise InputDataError("`bounds` must hold lower bounds below upper bounds.")
    if ((samples < low) | (samples > high)).any():
        raise InputDataError("`samples` must lie inside `bounds`.")
    scale = kernel_bandwidth(samples, bandwidth)
    uniform = sobol_points(num_points, num_dims + 1, seed).to(samples.device)
    index = (uniform[:, 0] * len(samples)).long().clamp(max=len(samples) - 1)
    draws = samples.double()[index] + scale * torch.special.ndtri(uniform[:, 1:])
    return reflect(draws, low.double(), high.double()).to(samples)


def kernel_bandwidth(samples: Tensor, bandwidth: str | float | Tensor) -> Tensor:
    """Standard deviation of the kernel in each coordinate, ``d_c``, float64."""
    num, num_dims = samples.shape
    if isinstance(bandwidth, str):
        if bandwidth != "scott":
            raise InputDataError(f"`bandwidth` must be 'scott' or positive, got {bandwidth!r}.")
        spread = samples.double().std(dim=0) if num > 1 else samples.new_zeros(num_dims).double()
        return spread * num ** (-1.0 / (num_dims + 4))
    if not isinstance(bandwidth, Tensor):
        bandwidth = torch.full((), check_positive("bandwidth", bandwidth))
    if bandwidth.shape not in ((), (1,), (num_dims,)):
        raise BotorchTensorDimensionError(
            f"`bandwidth` must have {num_dims} elements, got {tuple(bandwidth.shape)}."
        )
    if not (check_finite("bandwidth", bandwidth) > 0).all():
        raise InputDataError("`bandwidth` must be positive.")
    return bandwidth.detach().double().to(samples.device).expand(num_dims)


def sobol_points(num_points: int, dim: int, seed: int) -> Tensor:
    """Scrambled Sobol points strictly inside the unit cube, ``num_points x dim``, float64."""
    num_points, dim = check_count("num_points", num_points), check_count("dim", dim)
    draws = SobolEngine(dim, scramble=True, seed=seed).draw(num_points, dtype=torch.double)
    edge = 0.5**32  # the points are multiples of 2^-30, of which 0 has no finite normal quantile
    return draws.clamp(edge, 1 - edge)


def reflect(points: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Fold ``points`` into the box by reflection at its faces, however far outside they are."""
    # Reflection at both faces is periodic, with twice the width of the box.
    width = high - low
    phase = torch.remainder(points - low, 2 * width)
    return low + torch.minimum(phase, 2 * width - phase).clamp(min=0.0)
