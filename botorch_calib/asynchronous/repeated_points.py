"""Which points repeat one of others, such as failed queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# In units of the box: smaller differences are due to rounding, as of multiples of a step.
ROUNDED = 1e-9


def is_any_of(points: Tensor, others: Tensor, tolerance: float = 0.0) -> Tensor:
    """Which points differ from one of the others in no element by more than a tolerance.

    Args:
        points: ``batch_shape x d``.
        others: ``n x d``, where ``n`` may be 0.
        tolerance: In units of the points.

    Returns:
        Booleans of shape ``batch_shape``.
    """
    # For this norm distances are differences of elements: no sum of products loses digits.
    apart = torch.cdist(points.reshape(-1, points.shape[-1]), others, p=math.inf)
    return (apart <= tolerance).any(dim=-1).reshape(points.shape[:-1])
