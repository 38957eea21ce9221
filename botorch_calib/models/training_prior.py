"""`training_prior`: returns the prior of an exact Gaussian process at its training data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import ModelList
from botorch.utils.transforms import is_ensemble
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_model
from botorch_calib.models.process import with_own_hyperparameters


class TrainingPrior(NamedTuple):
    """Prior of a model's targets: ``deviation ~ N(0, covariance + diag(noise))``."""

    inputs: Tensor  # n x d, transformed
    covariance: Tensor  # n x n, covariance of the objective at the inputs
    noise: Tensor  # n, noise variances of the observations
    deviation: Tensor  # n, targets minus their prior mean
    new_noise: Tensor  # n, noise variances of a new observation at each input


@torch.no_grad()
def training_prior(
    model: Module, dtype: torch.dtype | None = None, members: bool = False
) -> TrainingPrior:
    """Return the prior of a Gaussian process at the training inputs, in the precision ``dtype``.

    The default is the precision of the model. With ``members`` the model is an ensemble, and all
    tensors except the inputs have a first dimension of members. The model and its mode do not
    change.
    """
    gp: Any = _as_exact(model, members)
    dtype = gp.train_targets.dtype if dtype is None else dtype
    # `forward` expects transformed inputs, which a model has in eval mode.
    if gp.training or gp.train_targets.dtype != dtype:
        gp = with_own_hyperparameters(gp).to(dtype).eval()
    prior = gp.forward(*gp.train_inputs)
    if not isinstance(prior, MultivariateNormal):
        raise UnsupportedError(
            f"The prior of `model` must be multivariate normal, got {type(prior).__name__}."
        )
    if isinstance(prior, MultitaskMultivariateNormal) or prior.mean.dim() != 1 + members:
        raise _unsupported(model, "has several outputs or a batch dimension")
    covariance: Tensor = prior.lazy_covariance_matrix.to_dense()
    # Some kernels do not support ``diag=True``, so use the dense matrix.
    prior = MultivariateNormal(prior.mean, to_linear_operator(covariance))
    noise = new_noise = _added(gp.likelihood, prior, gp.train_inputs)
    if not (members or isinstance(gp.likelihood, FixedNoiseGaussianLikelihood)):
        new_noise = _noise_of_new_rows(gp.likelihood, prior, gp.train_inputs)
    X = gp.train_inputs[0].detach()
    X = X.mean(dim=0) if X.dim() > 2 else X  # members may warp inputs differently
    return TrainingPrior(X, covariance, noise, gp.train_targets - prior.mean, new_noise)


def _noise_of_new_rows(
    likelihood: Any, prior: MultivariateNormal, inputs: Iterable[Tensor]
) -> Tensor:
    """Return the noise variances ``n`` of new observations at the training inputs.

    They exclude variances that were learned from a row's value, such as the variance of an outlier.
    For this, one more row is passed, so that a likelihood does not take the rows for its training
    data.
    """
    mean, variances, *more = (
        torch.cat([rows, rows[:1]]) for rows in (prior.mean, _variances(prior), *inputs)
    )
    known: dict[str, Tensor] = {}
    for part in likelihood.modules():
        if isinstance(part, FixedGaussianNoise):
            known["noise"] = torch.cat([part.noise, part.noise[:1]])
    with warnings.catch_warnings():  # likelihoods warn about rows that are not their training data
        warnings.simplefilter("ignore")
        marginals = MultivariateNormal(mean, DiagLinearOperator(variances))
        return _added(likelihood, marginals, more, **known)[:-1]


def _added(
    likelihood: Any, prior: MultivariateNormal, inputs: Iterable[Tensor], **known: Tensor
) -> Tensor:
    """Return the variances ``n`` that a likelihood adds to a prior at ``n`` inputs."""
    # The noise of some likelihoods depends on the prior's variance, so it is computed as a
    # difference.
    noise = _variances(likelihood(prior, list(inputs), **known)) - _variances(prior)
    return noise.clamp(min=0.0)


def _variances(distribution: MultivariateNormal) -> Tensor:
    """Marginal variances, without the lower bound that ``distribution.variance`` applies."""
    diagonal: Tensor = distribution.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
    return diagonal


def _as_exact(model: Module, members: bool) -> ExactGP:
    """Return ``model`` if it is a single-output, non-batched exact GP with training data."""
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
    # A multi-task process has the rows of all tasks.
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
