"""Mean and standard deviation of any posterior, as confidence bounds take them."""

from __future__ import annotations

from typing import Any

import torch
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.settings import min_variance
from torch import Tensor

from botorch_calib.distributions.moments import WithMoments
from botorch_calib.posteriors.single_points import raw_variance

# Smallest variance of the objective that is divided by or differentiated as a standard deviation:
# the default of BoTorch's analytic acquisition functions, which give it no name.
MIN_VARIANCE = 1e-12


def mean_and_deviation(
    posterior: Posterior, least_variance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, ``batch_shape x q x m`` each.

    Both moments of a calibrated posterior cost as much as one, and have a least variance. For
    ``least_variance``, of a Gaussian posterior with a single output, see `marginal_variance`.
    """
    if isinstance(posterior, WithMoments):
        mean, variance = posterior.moments()
        return mean, variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    if least_variance is not None and isinstance(posterior, GPyTorchPosterior):
        return posterior.mean, marginal_variance(posterior, least_variance).sqrt()
    named: Any = posterior  # BoTorch's abstract class does not name the two
    return named.mean, named.variance.clamp_min(MIN_VARIANCE).sqrt()


def marginal_variance(posterior: GPyTorchPosterior, least: Tensor | None = None) -> Tensor:
    """Variances of a single-output Gaussian posterior, ``batch_shape x q x 1``, at least ``least``.

    By default that is GPyTorch's setting ``min_variance``, whatever the units.
    """
    return posterior.variance if least is None else raw_variance(posterior).clamp_min(least)


def least_for_scale(scale_squared: Tensor, dtype: torch.dtype) -> Tensor:
    """The least variance of standardised outcomes, times ``scale_squared``."""
    return scale_squared * usual_least(dtype)


def scale_for_least(least: Tensor) -> Tensor:
    """The inverse of `least_for_scale`, rounded to a power of two, without gradient."""
    usual = usual_least(least.dtype)
    return (least.detach() / usual).log2().mul(0.5).round().exp2()


def usual_least(dtype: torch.dtype) -> float:
    """The least variance in unknown units."""
    return float(max(min_variance.value(dtype), MIN_VARIANCE))
