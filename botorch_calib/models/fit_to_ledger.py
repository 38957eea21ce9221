"""Models of the values in a ledger, with hyperparameters fitted to these or to all rows."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_calib._validation import check_one_of
from botorch_calib.models.matching_rows import matching_rows

if TYPE_CHECKING:
    from botorch_calib.ledger import FeedbackLedger

# Builds a fitted model from inputs ``n x d`` and values ``n x 1``.
Fit = Callable[[Tensor, Tensor], Model]

HYPERPARAMETERS = ("observed", "censored")


def fitted_model(ledger: FeedbackLedger, fit: Fit, hyperparameters: str, now: float | None) -> Any:
    """A model of the ledger's observed data; see `CensoredDelayModel.from_ledger`."""
    check_one_of("hyperparameters", hyperparameters, HYPERPARAMETERS)
    X, Y = ledger.to_observations(now)
    if len(Y) < 2:
        raise InputDataError(
            f"`ledger` holds {len(Y)} observed values, and fitting a model needs at least 2: until "
            "then, choose queries by a space-filling design."
        )
    is_censored = hyperparameters == "censored"
    if is_censored and ledger.censor_value is None:
        raise InputDataError("`hyperparameters='censored'` needs a `ledger` with a `censor_value`.")
    X_fit, Y_fit = ledger.training_data(now) if is_censored else (X, Y)
    model = fit(X_fit, Y_fit)
    if not isinstance(model, Model):
        raise InputDataError(
            f"`fit` must return a fitted BoTorch model, got {type(model).__name__}."
        )
    if not is_censored:
        return model
    rows = matching_rows(torch.cat([X, Y], dim=-1), torch.cat([X_fit, Y_fit], dim=-1))
    return _restricted(model, X_fit, [row for row in rows if row is not None])


def _restricted(model: Any, X: Tensor, rows: list[int]) -> Any:
    """A copy of a model trained on ``X`` that keeps some rows, and the transforms fitted to all."""
    if not isinstance(model, ExactGP) or model.train_targets.dim() != 1:
        raise UnsupportedError(
            "`hyperparameters='censored'` needs `fit` to return an exact Gaussian process with one "
            f"output, got {type(model).__name__}. To calibrate, wrap the CensoredDelayModel: a "
            "calibrator must not see censored values."
        )
    twin: Any = deepcopy(model)
    twin.train()  # in training mode BoTorch's models hold their raw inputs
    (inputs,) = twin.train_inputs
    if inputs.shape != X.shape or not torch.equal(inputs, X.to(inputs)):
        raise InputDataError("`fit` must train its model on the inputs it is given, in order.")
    twin.set_train_data(inputs[rows], twin.train_targets[rows], strict=False)
    if isinstance(twin.likelihood, FixedNoiseGaussianLikelihood):
        twin.likelihood.noise_covar.noise = twin.likelihood.noise_covar.noise[..., rows]
    return twin.eval()
