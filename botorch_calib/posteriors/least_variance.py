"""The least variance that is stated of an objective."""

from __future__ import annotations

import torch
from gpytorch.settings import min_variance

# Smallest variance of the objective that is divided by or differentiated as a standard deviation:
# the default of BoTorch's analytic acquisition functions, which give it no name.
MIN_VARIANCE = 1e-12


def usual_least(dtype: torch.dtype) -> float:
    """The least variance in the space of a model's targets, which is of order 1."""
    return float(max(min_variance.value(dtype), MIN_VARIANCE))
