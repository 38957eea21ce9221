"""The observation noise variance of a Gaussian model, in the units of the outcome."""

from __future__ import annotations

from typing import Any

import torch
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.transforms.outcome import Standardize
from botorch.posteriors import GPyTorchPosterior
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor


def observation_noise_variance(
    model: Any, posterior: GPyTorchPosterior, X: Tensor, given: Tensor | None = None
) -> Tensor:
    """Noise variance that ``model.posterior(X, observation_noise=True)`` would add.

    For a homoscedastic or fixed-noise likelihood with no outcome transform or
    ``Standardize`` it is read off, as BoTorch does (the mean of the fixed noise); elsewhere
    it costs a second evaluation of the posterior.

    Args:
        model: Single-output model with a Gaussian likelihood.
        posterior: ``model.posterior(X)``.
        X: ``batch_shape x q x d``.
        given: Noise variance in the outcome-transformed space, used instead of the
            likelihood's; broadcasts to ``batch_shape x q x 1``.

    Returns:
        Noise variances that broadcast to ``batch_shape x q x 1``.
    """
    scale = _squared_outcome_scale(model)
    noise = _likelihood_noise(model) if given is None else given
    if scale is None or noise is None:
        X = X.expand(*posterior.mean.shape[:-2], *X.shape[-2:])
        noisy = model.posterior(X, observation_noise=True if given is None else given)
        added: Tensor = (noisy.variance - posterior.variance).clamp(min=0.0)
        return added
    return noise if scale is _UNIT else noise * scale


_UNIT = torch.ones(())


def _likelihood_noise(model: Any) -> Tensor | None:
    """Noise variance on the likelihood's scale, ``batch_shape x 1 x 1``, if it is constant."""
    likelihood = model.likelihood
    if isinstance(model, MultiTaskGPyTorchModel):  # may differ from task to task
        return None
    if isinstance(likelihood, FixedNoiseGaussianLikelihood):
        noise: Tensor = likelihood.noise.mean(dim=-1, keepdim=True)
    elif type(likelihood) is GaussianLikelihood:
        noise = likelihood.noise
    else:
        return None
    return noise.unsqueeze(-1)


def _squared_outcome_scale(model: Any) -> Tensor | None:
    """Squared factor of an affine outcome transform, or None where it is not known."""
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return _UNIT
    if type(transform) is Standardize:
        squared: Tensor = transform._stdvs_sq
        return squared
    return None
