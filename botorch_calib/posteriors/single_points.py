"""`SinglePointPosterior`: means and variances as BoTorch's Gaussian posterior, made on demand."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeGuard

import torch
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.settings import min_variance
from linear_operator import to_linear_operator
from torch import Tensor

NO_SAMPLES = torch.Size()


class SinglePointPosterior(GPyTorchPosterior):
    """A Gaussian posterior at ``batch_shape x 1 x d`` that makes its distribution on demand.

    Closed forms need two tensors, and a multivariate normal around them costs as much as they do.

    Args:
        mean: ``batch_shape x 1 x 1``.
        raw_variance: ``batch_shape x 1 x 1``, which rounding may have made slightly negative.
        inputs: The points in the model's transformed space, ``batch_shape x 1 x d``.
    """

    _is_mt = False

    def __init__(self, mean: Tensor, raw_variance: Tensor, inputs: Tensor) -> None:
        self._mean = mean
        self.raw_variance = raw_variance
        self.inputs = inputs

    @cached_property
    def distribution(self) -> MultivariateNormal:  # type: ignore[override]
        """The multivariate normal of each point."""
        return MultivariateNormal(self._mean.squeeze(-1), to_linear_operator(self.raw_variance))

    @property
    def mean(self) -> Tensor:
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Variance, ``batch_shape x 1 x 1``, not below GPyTorch's setting ``min_variance``."""
        return self.raw_variance.clamp_min(min_variance.value(self.raw_variance.dtype))

    @property
    def dtype(self) -> torch.dtype:
        return self._mean.dtype

    @property
    def device(self) -> torch.device:
        return self._mean.device

    def _extended_shape(self, sample_shape: torch.Size = NO_SAMPLES) -> torch.Size:
        return sample_shape + self._mean.shape


def raw_variance(posterior: GPyTorchPosterior) -> Tensor:
    """Variances of a single-output posterior, ``batch_shape x q x 1``, as rounding left them."""
    if isinstance(posterior, SinglePointPosterior):
        return posterior.raw_variance
    normal = posterior.distribution
    diagonal = normal.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
    # Several means may share one covariance matrix.
    return diagonal.expand(normal.batch_shape + normal.event_shape).unsqueeze(-1)


def is_gaussian(posterior: Any) -> TypeGuard[GPyTorchPosterior]:
    """Whether a posterior is multivariate normal, not a mixture or a transform of such."""
    return type(posterior) in (GPyTorchPosterior, SinglePointPosterior)
