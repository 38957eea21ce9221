"""The model of a ledger: fitted on a schedule, conditioned on later, failed and pending queries."""

from __future__ import annotations

import warnings
from functools import partial
from inspect import signature

from botorch.exceptions.warnings import InputDataWarning
from torch import Tensor

from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.asynchronous.failed_queries import with_failures_imputed
from botorch_calib.asynchronous.refits import ScheduledFit
from botorch_calib.exceptions import level_of_caller
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.delayed import queries_to_impute
from botorch_calib.models.fit_to_ledger import fitted_model


class LedgerModel(ScheduledFit):
    """The model of a ledger."""

    def __call__(
        self, ledger: FeedbackLedger, now: float, strategy: DelayStrategy
    ) -> CensoredDelayModel:
        """The model of a ledger at ``now``, in which hanging queries have failed."""
        imputation = strategy.imputation
        if imputation == "censor":
            _warn_of_wrong_sign(ledger, now)
        fit = partial(self.of_data, Yvar=self._known_noise(ledger, now))
        model = fitted_model(ledger, fit, "observed", now)
        model = with_failures_imputed(model, ledger, now, strategy)
        pending = queries_to_impute(ledger, imputation, now)
        censor_value = ledger.censor_value
        if imputation == "censor" and censor_value is None:
            _, Y = ledger.to_observations(now)
            censor_value = (Y.min() if ledger.maximize else Y.max()).item()  # the worst one
        return CensoredDelayModel(model, pending, censor_value, imputation)

    def _known_noise(self, ledger: FeedbackLedger, now: float) -> Tensor | None:
        """The noise variances of the observed values, if any is known and `fit` takes them."""
        Yvar = ledger.noise_variances(now)
        if Yvar.isnan().all():
            return None
        if "Yvar" in signature(self.fit).parameters:
            return Yvar
        warnings.warn(
            "The variances of the noise that the ledger knows are not used, as `fit` has no "
            "`Yvar`: the model learns the noise instead.",
            InputDataWarning,
            stacklevel=level_of_caller(),
        )
        return None


def _warn_of_wrong_sign(ledger: FeedbackLedger, now: float) -> None:
    """Warn if the censoring value is better than all observed ones: its sign may be wrong."""
    value, (_, Y) = ledger.censor_value, ledger.to_observations(now)
    if value is None or not (Y < value if ledger.maximize else Y > value).all():
        return
    kind = "least" if ledger.maximize else "greatest"
    warnings.warn(
        f"`censor_value` {value} of the ledger is better than every value observed, with "
        f"`maximize={ledger.maximize}`. It should be the {kind} value that the objective can "
        "take: queries under evaluation now look attractive.",
        InputDataWarning,
        stacklevel=level_of_caller(),
    )
