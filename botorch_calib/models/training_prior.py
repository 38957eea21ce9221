"""`training_prior`: an exact Gaussian process's prior of its training data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import ModelList
from gpytorch.distributions import Distribution, MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module


class TrainingPrior(NamedTuple):
    """Prior of a model's targets: ``deviation ~ N(0, covariance + diag(noise))``.

    In the space of the targets, that is, after an outcome transform.
    """

    inputs: Tensor  # n x d, transformed as the model sees them
    covariance: Tensor  # n x n, of the objective at the inputs
    noise: Tensor  # n, variances of the observations
    deviation: Tensor  # n, targets minus their prior mean
    new_noise: Tensor  # n, variances of a new observation at each input


@torch.no_grad()
def training_prior(
    model: Module, dtype: torch.dtype | None = None, members: bool = False
) -> TrainingPrior:
    """Prior of a Gaussian process at its training inputs, in a given precision (default: its own).

    With ``members`` the model is an ensemble, and all but the inputs have the dimension of its
    members in front.
    """
    gp = _as_exact(model, members)
    with _eval_mode(gp):
        # Eval mode swaps the training inputs for their transforms, which `forward` expects.
        inputs, targets = tuple(gp.train_inputs), gp.train_targets
        module, state = _PriorAndNoise(gp, members), {}
        if dtype is not None:
            inputs, targets = tuple(X.to(dtype) for X in inputs), targets.to(dtype)
            tensors = [*module.named_parameters(), *module.named_buffers()]
            state = {name: t.to(dtype) for name, t in tensors if t.is_floating_point()}
        # With parameters and buffers in that precision, the model itself unchanged
        prior, noises = functional_call(module, state, inputs)
        if not isinstance(prior, MultivariateNormal):
            raise UnsupportedError(
                f"The prior of `model` must be multivariate normal, got {type(prior).__name__}."
            )
        if not _is_single(prior, members):
            raise _unsupported(model, "has several outputs or a batch dimension")
        covariance: Tensor = prior.lazy_covariance_matrix.to_dense()
        (noise, new_noise), deviation = noises, targets - prior.mean
        X = inputs[0].detach()
        X = X.mean(dim=0) if X.dim() > 2 else X  # of members with warps of their own
        return TrainingPrior(X, covariance, noise, deviation, new_noise)


class _PriorAndNoise(Module):
    """A process's prior at some inputs, without conditioning, and its noise there, as a module."""

    def __init__(self, gp: ExactGP, members: bool) -> None:
        super().__init__()
        self.gp, self.members = gp, members

    def forward(self, *inputs: Tensor) -> tuple[Distribution, tuple[Tensor, ...]]:
        """The prior, and the variances that the likelihood adds to it, ``n`` each.

        First those of the rows, then those of new observations at the same inputs: a variance that
        was learned from a row's own value, as that of an outlier, was not known beforehand.
        """
        prior, likelihood = self.gp.forward(*inputs), self.gp.likelihood
        if not _is_single(prior, self.members):
            return prior, ()
        if type(prior) is MultivariateNormal:  # not all kernels tell their diagonal
            dense = to_linear_operator(prior.lazy_covariance_matrix.to_dense())
            prior = MultivariateNormal(prior.mean, dense)
        noise = _added(likelihood, prior, inputs)
        if self.members or isinstance(likelihood, FixedNoiseGaussianLikelihood):
            return prior, (noise, noise)
        # With a row more than it was fitted to, no likelihood takes them for its own.
        mean, variances, *more = (
            torch.cat([rows, rows[:1]]) for rows in (prior.mean, _variances(prior), *inputs)
        )
        known: dict[str, Tensor] = {}
        for part in likelihood.modules():
            if isinstance(part, FixedGaussianNoise):
                known["noise"] = torch.cat([part.noise, part.noise[:1]])
        with warnings.catch_warnings():  # which is what they warn of
            warnings.simplefilter("ignore")
            marginals = MultivariateNormal(mean, DiagLinearOperator(variances))
            return prior, (noise, _added(likelihood, marginals, more, **known)[:-1])


def _is_single(prior: Distribution, members: bool) -> bool:
    """Whether it is of one output, without batch dimensions but one of ``members``."""
    is_normal = isinstance(prior, MultivariateNormal)
    return (
        is_normal
        and prior.mean.dim() == 1 + members
        and not isinstance(prior, MultitaskMultivariateNormal)
    )


def _added(
    likelihood: Any, prior: MultivariateNormal, inputs: Iterable[Tensor], **known: Tensor
) -> Tensor:
    """The variances ``n`` that a likelihood adds to a prior at some inputs."""
    # A difference, since the noise of some likelihoods depends on the prior's variance.
    noise = _variances(likelihood(prior, list(inputs), **known)) - _variances(prior)
    return noise.clamp(min=0.0)


def _variances(distribution: MultivariateNormal) -> Tensor:
    """Marginal variances, without the lower bound that ``variance`` puts on them."""
    diagonal: Tensor = distribution.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
    return diagonal


def _as_exact(model: Module, members: bool) -> ExactGP:
    """``model`` if it is a single-output, non-batched exact GP with training data."""
    if isinstance(model, ModelList):
        raise _unsupported(model, "is a list of models: take one of its `models` at a time")
    if not isinstance(model, ExactGP):
        raise _unsupported(
            model,
            "is no exact GP, so it has no training data with a GP prior: calibrate it online, by "
            "calling `CalibratedModel.observe` with each new observation, and judge it on held-out "
            "data",
        )
    # The rows of several tasks are those of one process, whichever of them it predicts.
    is_multi_task = isinstance(model, MultiTaskGPyTorchModel)
    if getattr(model, "num_outputs", 1) != 1 and not is_multi_task:
        # BoTorch's `subset_output` gives it for a batched model.
        raise _unsupported(model, "has several outputs: take a model of one of them at a time")
    targets = model.train_targets
    if model.train_inputs is None or targets is None or targets.numel() == 0:
        raise InputDataError("`model` has no training data: its history is empty.")
    if not members and (targets.dim() != 1 or getattr(model, "_is_ensemble", False)):
        raise _unsupported(model, "is batched or an ensemble")
    return model


def _unsupported(model: Module, reason: str) -> UnsupportedError:
    return UnsupportedError(
        "Residuals of past data need a single-output, non-batched exact GP, and this "
        f"{type(model).__name__} {reason}."
    )


@contextmanager
def _eval_mode(model: Module) -> Iterator[None]:
    """Switch ``model`` to eval mode and put back every submodule's mode afterwards."""
    if not model.training:
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train()
        for module, training in modes:
            module.training = training
