"""Which points repeat one of others, such as failed queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# In units of the box: smaller differences are due to rounding, as of multiples of a step.
ROUNDED = 1e-9


def is_any_of(points: Tensor, others: Tensor, tolerance: float = 0.0) -> Tensor:
    """Which points differ from one of the others in no element by more than a tolerance.

    Booleans ``batch_shape``, for points ``batch_shape x d`` and others ``n x d``, of which there
    may be none; the tolerance is in their units.
    """
    # For this norm distances are differences of elements: no sum of products loses digits.
    apart = torch.cdist(points.reshape(-1, points.shape[-1]), others, p=math.inf)
    return (apart <= tolerance).any(dim=-1).reshape(points.shape[:-1])
