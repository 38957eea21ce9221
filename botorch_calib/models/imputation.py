"""Values in the place of missing ones, and models conditioned on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from torch import Tensor

from botorch_calib.models.conditioning import with_observations
from botorch_calib.models.inspection import as_in_training, observed_process
from botorch_calib.models.outcome_transforms import check_takes
from botorch_calib.posteriors.single_points import is_gaussian

if TYPE_CHECKING:
    from botorch_calib.ledger import FeedbackLedger

IMPUTATIONS = ("censor", "hallucinate", "none")


def missing_censor_value(
    X_pending: Tensor, imputation: str, censor_value: float | None
) -> str | None:
    """An error message if there are points ``n x d`` to censor but no ``censor_value``."""
    if imputation != "censor" or censor_value is not None or not len(X_pending):
        return None
    return "`censor_value` is needed to censor pending points: the least possible value."


def queries_to_impute(ledger: FeedbackLedger, imputation: str, now: float | None) -> Tensor:
    """Queries ``n x d`` of a ledger whose values are imputed.

    The paper censors expired queries as well; hallucination is for values that will still arrive.
    """
    return ledger.incomplete(now) if imputation == "censor" else ledger.pending(now)


def impute(
    model: Any, X_pending: Tensor, imputation: str, censor_value: float | None
) -> tuple[Any, Tensor]:
    """A model conditioned on imputed values at pending points, and these values, ``n x 1``.

    Each member of an ensemble hallucinates its own, ``num_members x n x 1``. Given noise of imputed
    values is the mean of that of the observed ones.
    """
    gp = observed_process(model)
    if censor_value is not None and imputation == "censor":
        Y = X_pending.new_full((len(X_pending), 1), censor_value)
        check_takes(gp, X_pending, Y, "censor_value")
    else:
        with as_in_training(gp):
            posterior = gp.posterior(X_pending)
        if not (is_gaussian(posterior) or isinstance(posterior, GaussianMixturePosterior)):
            raise UnsupportedError(
                "`imputation='hallucinate'` needs a posterior that is Gaussian in the units of the "
                f"outcome, got a {type(posterior).__name__}: apply nonlinear transforms to the "
                "observations beforehand."
            )
        Y = posterior.mean
    return with_observations(model, X_pending, Y), Y
