"""A design on one side of the optimum, from which a model has to extrapolate."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_count


def one_sided_initial_design(
    n: int = 5,
    dim: int = 2,
    inner: float = 2.0,
    outer: float = 10.0,
    *,
    seed: int | None = None,
    dtype: torch.dtype = torch.double,
) -> Tensor:
    """Points drawn from ``[-outer, -inner]^d`` or ``[inner, outer]^d``, each half the time.

    A model fitted to the design has to extrapolate to find an optimum at the origin.

    Args:
        n: The number of points.
        dim: The input dimension ``d``.
        inner: The smallest distance of a coordinate from 0.
        outer: The largest distance of a coordinate from 0.
        seed: Seeds the draw (default: torch's global random state).
        dtype: The dtype of the points.

    Example:
        >>> one_sided_initial_design(n=5, dim=2, seed=0).shape
        torch.Size([5, 2])
    """
    check_count("n", n)
    check_count("dim", dim)
    if not 0.0 <= inner < outer < math.inf:
        raise InputDataError(f"Expected 0 <= `inner` < `outer`, got {inner=}, {outer=}.")
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    # Drawn in double precision, so that float32 and float64 give the same design.
    magnitude = inner + (outer - inner) * torch.rand(
        n, dim, generator=generator, dtype=torch.double
    )
    right = torch.rand(n, 1, generator=generator, dtype=torch.double) < 0.5
    return torch.where(right, magnitude, -magnitude).to(dtype)
