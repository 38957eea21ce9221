"""Gaussian posteriors and distributions that vary from point to point."""

from __future__ import annotations

from typing import Any

import torch
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from torch import Generator, Tensor

from botorch_calib.calibration import GaussianScore
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.posteriors import CalibratedPosterior
from tests.predictive_examples import DECILES
from tests.random_numbers import uniform

KINDS = ["gaussian", "conformal", "stretched", "recalibrated", "skewed"]
CORRECTED = KINDS[1:]
NOISE = 0.3


def make_base(X: Tensor, factor: float = 1.0) -> GPyTorchPosterior:
    """A correlated Gaussian posterior at points ``X`` of shape ``batch_shape x q x 2``."""
    mean = (3 * X[..., 0]).sin() + 0.5 * X[..., 1]
    distance = (X.unsqueeze(-2) - X.unsqueeze(-3)).square().sum(dim=-1)
    spread = 0.5 + X[..., 0]
    covariance = spread.unsqueeze(-1) * spread.unsqueeze(-2) * torch.exp(-2 * distance)
    covariance = covariance + 1e-3 * torch.eye(X.shape[-2]).to(X)
    return GPyTorchPosterior(MultivariateNormal(mean, factor * covariance))


def make_predictive(kind: str, X: Tensor) -> PiecewisePredictive:
    """A distribution that varies from point to point, of batch shape ``batch_shape x q x 1``."""
    x = X[..., :1]
    if kind == "gaussian":
        return PiecewisePredictive.gaussian(x.shape, dtype=X.dtype)
    if kind in ("conformal", "stretched"):
        tails = "stretched" if kind == "stretched" else "gaussian"
        return PiecewisePredictive.conformal(0.2, half_width=0.6 + 2 * x, tails=tails)
    if kind == "skewed":
        knots = torch.cat([0.3 + x, 0.8 + 2 * x], dim=-1).unsqueeze(-2)
        levels = torch.tensor([0.3, 0.7], dtype=X.dtype)
        return PiecewisePredictive.recalibrated(levels, knots=knots)
    thresholds = (DECILES.to(X) ** (1 + x)).unsqueeze(-2)
    knots = GaussianScore(8.0).knots(thresholds)
    return PiecewisePredictive.recalibrated(DECILES.to(X), knots)


def make_points(*batch_shape: int, q: int, dtype: torch.dtype = torch.double) -> Tensor:
    """Points of which the first ones do not depend on ``q``."""
    generator = Generator().manual_seed(0)
    return uniform(*batch_shape, 8, 2, generator=generator)[..., :q, :].to(dtype)


def make(kind: str, X: Tensor, noise: Tensor | float = NOISE, **kwargs: Any) -> CalibratedPosterior:
    return CalibratedPosterior(make_base(X), make_predictive(kind, X), noise, **kwargs)


def draws_for(posterior: CalibratedPosterior, num: int, seed: int = 0) -> Tensor:
    """Independent standard normal base samples."""
    shape = (num, *posterior.base_sample_shape)
    generator = Generator().manual_seed(seed)
    draws = torch.randn(shape, dtype=torch.double, generator=generator, device="cpu")
    return draws.to(torch.get_default_device())
