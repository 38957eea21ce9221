"""What stands in for values that are missing."""

from __future__ import annotations

import math
from typing import Any

from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from botorch_calib._validation import check_one_of
from botorch_calib.models.inspection import conditioned_on, gaussian_part, given_noise

IMPUTATIONS = ("censor", "hallucinate", "none")


def check_settings(imputation: str, censor_value: float | None) -> None:
    """Raise ``InputDataError`` for an unknown ``imputation`` or an infinite ``censor_value``."""
    check_one_of("imputation", imputation, IMPUTATIONS)
    if censor_value is not None and not math.isfinite(censor_value):
        raise InputDataError(f"`censor_value` must be finite, got {censor_value}.")


def missing_censor_value(
    X_pending: Tensor, imputation: str, censor_value: float | None
) -> str | None:
    """A message if points ``n x d`` were to be censored by nothing."""
    if imputation != "censor" or censor_value is not None or not len(X_pending):
        return None
    return "`censor_value` is needed to censor pending points: the least possible value."


def impute(
    model: Any, X_pending: Tensor, imputation: str, censor_value: float | None
) -> tuple[Any, Tensor]:
    """A model conditioned on imputed values at pending points, and these values.

    Args:
        model: The model of observed data; where its likelihood has given noise, that of an
            imputed value is their mean.
        X_pending: ``n x d``.
        imputation: ``"censor"`` or ``"hallucinate"``.
        censor_value: See `CensoredDelayModel`.

    Returns:
        The conditioned model and the values ``n x 1``, in units of the outcome.

    Raises:
        InputDataError: If the censoring value is not finite once transformed.
        UnsupportedError: If the model cannot be conditioned on observations, or hallucinated
            values have no counterpart before a nonlinear outcome transform.
    """
    gp = gaussian_part(model)
    if censor_value is not None and imputation == "censor":
        Y = X_pending.new_full((len(X_pending), 1), censor_value)
    else:
        Y = _posterior_mean(gp, X_pending)
    conditioned: Any = conditioned_on(model, X_pending, Y, **given_noise(gp, Y, None))
    if not conditioned.train_targets.isfinite().all():
        raise InputDataError(
            f"`censor_value` {censor_value} is not finite after the outcome transform of "
            f"{type(gp).__name__}."
        )
    return conditioned, Y


def _posterior_mean(gp: Any, X: Tensor) -> Tensor:
    posterior = gp.posterior(X)
    if type(posterior) is not GPyTorchPosterior:
        raise UnsupportedError(
            "`imputation='hallucinate'` needs a posterior that is Gaussian in the units of the "
            f"outcome, got a {type(posterior).__name__}: apply nonlinear transforms to the "
            "observations beforehand."
        )
    mean: Tensor = posterior.mean
    return mean
