"""Hyperparameters from a ledger: fitted to observed values, or to censored ones as in the paper."""

from __future__ import annotations

from collections import defaultdict, deque
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

if TYPE_CHECKING:
    from botorch_calib.ledger import FeedbackLedger

Fit = Callable[[Tensor, Tensor], Model]


def fitted_model(ledger: FeedbackLedger, fit: Fit, hyperparameters: str, now: float | None) -> Any:
    """A model of the ledger's observed data, with hyperparameters as asked for.

    Args:
        ledger: What to fit to.
        fit: Builds a fitted model from inputs ``n x d`` and values ``n x 1``.
        hyperparameters: ``"observed"`` or ``"censored"``, see `CensoredDelayModel.from_ledger`.
        now: Time as of which the ledger is read.

    Raises:
        InputDataError: See `CensoredDelayModel.from_ledger`.
        UnsupportedError: See there.
    """
    check_one_of("hyperparameters", hyperparameters, ("observed", "censored"))
    X, Y = ledger.to_observations(now)
    if len(Y) < 2:
        raise InputDataError(
            f"`ledger` holds {len(Y)} observed values, and fitting a model needs at least 2: until "
            "then, choose queries by a space-filling design."
        )
    if hyperparameters == "observed":
        return _checked(fit(X, Y))
    if ledger.censor_value is None:
        raise InputDataError("`hyperparameters='censored'` needs a `ledger` with a `censor_value`.")
    X_all, Y_all = ledger.training_data(now)
    model = _checked(fit(X_all, Y_all))
    rows = matching_rows(torch.cat([X, Y], dim=-1), torch.cat([X_all, Y_all], dim=-1))
    return _restricted(model, X_all, [row for row in rows if row is not None])


def matching_rows(rows: Tensor, table: Tensor) -> list[int | None]:
    """Where each of the ``rows`` (``k x d``) stands in ``table`` (``n x d``), to the last digit.

    A row of the table serves once, earlier ones first; rows without a partner give None.
    """
    places: dict[tuple[float, ...], deque[int]] = defaultdict(deque)
    for index, entry in enumerate(table.tolist()):
        places[tuple(entry)].append(index)
    queues = [places[tuple(row)] for row in rows.tolist()]
    return [queue.popleft() if queue else None for queue in queues]


def _checked(model: Any) -> Any:
    if not isinstance(model, Model):
        raise InputDataError(
            f"`fit` must return a fitted BoTorch model, got {type(model).__name__}."
        )
    return model


def _restricted(model: Any, X: Tensor, rows: list[int]) -> Any:
    """A copy of a model trained on ``X``, with the data of some rows, all else as fitted."""
    if not isinstance(model, ExactGP) or model.train_targets.dim() != 1:
        raise UnsupportedError(
            "`hyperparameters='censored'` needs `fit` to return an exact Gaussian process with one "
            f"output, got {type(model).__name__}. To calibrate, wrap the CensoredDelayModel: a "
            "calibrator must not see censored values."
        )
    twin: Any = deepcopy(model)
    twin.train()  # from here on its inputs are the raw ones
    (inputs,) = twin.train_inputs
    if inputs.shape != X.shape or not torch.equal(inputs, X.to(inputs)):
        raise InputDataError("`fit` must train its model on the inputs it is given, in order.")
    twin.set_train_data(inputs[rows], twin.train_targets[rows], strict=False)
    if isinstance(twin.likelihood, FixedNoiseGaussianLikelihood):
        twin.likelihood.noise_covar.noise = twin.likelihood.noise_covar.noise[..., rows]
    return twin.eval()
