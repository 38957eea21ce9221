"""`training_prior`: returns the prior of an exact Gaussian process at its training data."""

from __future__ import annotations

from typing import NamedTuple

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.models.model import ModelList
from botorch.utils.transforms import is_ensemble
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_model
from botorch_calib.models.process import with_own_hyperparameters


class TrainingPrior(NamedTuple):
    """Prior of a model's training targets: ``deviation ~ N(0, covariance + diag(noise))``."""

    inputs: Tensor  # n x d, transformed
    covariance: Tensor  # n x n, covariance of the objective at the inputs
    noise: Tensor  # n, noise variances of the observations
    deviation: Tensor  # n, targets minus their prior mean
    # n, noise variances of new observations at the inputs. They differ from `noise` if a likelihood
    # has learned variances from observed values, such as the additional variance of an outlier.
    new_noise: Tensor


@torch.no_grad()
def training_prior(
    model: Module, dtype: torch.dtype | None = None, members: bool = False
) -> TrainingPrior:
    """Return the prior of a Gaussian process at the training inputs, in the precision ``dtype``.

    The default ``dtype`` is the precision of the training targets. With ``members`` the model is an
    ensemble, and all tensors except the inputs have the number of members as first dimension. The
    inputs are then averaged over members. The model is unchanged, including its training mode.

    Raises:
        UnsupportedError: If the model is not an exact GP with one output, or is a batch of models.
        InputDataError: If the model has no training data.
    """
    gp = _as_exact(model, members)
    dtype = gp.train_targets.dtype if dtype is None else dtype
    # `forward` expects transformed inputs, which a model has in eval mode. Change the mode and the
    # precision of a copy, not of the model.
    if gp.training or gp.train_targets.dtype != dtype:
        gp = with_own_hyperparameters(gp).to(dtype).eval()
    prior = gp.forward(*gp.train_inputs)
    if not isinstance(prior, MultivariateNormal):
        raise UnsupportedError(
            f"The prior of `model` must be multivariate normal, got {type(prior).__name__}."
        )
    if isinstance(prior, MultitaskMultivariateNormal) or prior.mean.dim() != 1 + members:
        raise _unsupported(model, "has several outputs or a batch dimension")
    covariance = prior.lazy_covariance_matrix.to_dense()
    # Some kernels do not support ``diag=True``, so take diagonals from the dense matrix.
    prior = MultivariateNormal(prior.mean, to_linear_operator(covariance))
    # The noise of some likelihoods depends on the prior's variance, so compute the noise as the
    # difference of variances with and without noise. (`MultivariateNormal.variance` would apply a
    # lower bound.)
    noisy = gp.likelihood(prior, list(gp.train_inputs)).lazy_covariance_matrix
    added = noisy.diagonal(dim1=-1, dim2=-2) - covariance.diagonal(dim1=-1, dim2=-2)
    noise = new_noise = added.clamp(min=0.0)
    if isinstance(gp.likelihood, SparseOutlierGaussianLikelihood):
        base = gp.likelihood.noise_covar.base_noise(*gp.train_inputs, shape=noise.shape)
        new_noise = base.diagonal(dim1=-1, dim2=-2)
    X = gp.train_inputs[0].detach()
    X = X.mean(dim=0) if X.dim() > 2 else X  # members may warp inputs differently
    return TrainingPrior(X, covariance, noise, gp.train_targets - prior.mean, new_noise)


def _as_exact(model: Module, members: bool) -> ExactGP:
    """Return ``model`` if it is a single-output exact GP with training data, or else raise.

    With ``members`` it may have a batch dimension of members.
    """
    if isinstance(model, ModelList):
        raise _unsupported(model, "is a list of models: take one of its `models` at a time")
    if not isinstance(model, Module):
        check_model(model)
    if not isinstance(model, ExactGP):
        raise _unsupported(
            model,
            "is not an exact GP, so it has no training data with a GP prior: calibrate it online, "
            "by calling `CalibratedModel.observe` with each new observation, and judge it on "
            "held-out data",
        )
    # A multi-task process is supported, as its training data are the rows of all tasks, with one
    # target each.
    is_multi_task = isinstance(model, MultiTaskGPyTorchModel)
    if getattr(model, "num_outputs", 1) != 1 and not is_multi_task:
        # For a batched model, BoTorch's `subset_output` returns a model of one output.
        raise _unsupported(model, "has several outputs: use a model of one output at a time")
    targets = model.train_targets
    if model.train_inputs is None or targets is None or targets.numel() == 0:
        raise InputDataError("`model` has no training data: its history is empty.")
    if not members and (targets.dim() != 1 or is_ensemble(model)):
        kind = "an ensemble" if is_ensemble(model) else "a batch of models"
        raise _unsupported(model, f"is {kind}: fit a single model to one set of data")
    return model


def _unsupported(model: Module, reason: str) -> UnsupportedError:
    return UnsupportedError(
        "Residuals of past data need a single-output, non-batched exact GP, and this "
        f"{type(model).__name__} {reason}."
    )
