"""The model of a ledger: fitted on a schedule, conditioned on later, failed and pending queries."""

from __future__ import annotations

import warnings
from functools import partial
from inspect import signature

import numpy as np
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.model import Model
from torch import Tensor

from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.asynchronous.failed_queries import with_failures_imputed
from botorch_calib.asynchronous.refits import ScheduledFit, fitted_count
from botorch_calib.exceptions import level_of_caller
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.delayed import queries_to_impute
from botorch_calib.models.fit_to_ledger import fitted_model
from botorch_calib.models.matching_rows import matching_rows


class LedgerModel(ScheduledFit):
    """The model of a ledger."""

    def __call__(
        self, ledger: FeedbackLedger, now: float, strategy: DelayStrategy, real: FeedbackLedger
    ) -> CensoredDelayModel:
        """The model of a ledger at ``now``, in which hanging queries have failed.

        In the ``real`` one they are pending, for a censored fit, which is as of an earlier time.
        """
        imputation = strategy.imputation
        if imputation == "censor":
            _warn_of_wrong_sign(ledger, now)
        model = self.of_values(real, now, strategy)
        model = with_failures_imputed(model, ledger, now, strategy)
        pending = queries_to_impute(ledger, imputation, now)
        censor_value = ledger.censor_value
        if imputation == "censor" and censor_value is None:
            _, Y = ledger.to_observations(now)
            censor_value = (Y.min() if ledger.maximize else Y.max()).item()  # the worst one
        return CensoredDelayModel(model, pending, censor_value, imputation)

    def of_values(self, ledger: FeedbackLedger, now: float, strategy: DelayStrategy) -> Model:
        """The model of the values of a ledger alone, without failed and pending queries."""
        if strategy.hyperparameters != "observed":
            return self._fit_with_censored(ledger, now)
        fit = partial(self.of_data, Yvar=self._known_noise(ledger, now))
        return fitted_model(ledger, fit, "observed", now)

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

    def _fit_with_censored(self, ledger: FeedbackLedger, now: float) -> Model:
        """The model of all values, fitted to these and to censored ones.

        The fit is as of the arrival of the last value that the schedule counts: with later queries
        it would have to be repeated after each of them.
        """
        X, Y = ledger.to_observations(now)
        then = _arrival(ledger, now, fitted_count(len(Y), self.refit_every))
        model = fitted_model(ledger, self._fit_to_all, "censored", then)
        known = torch.cat(ledger.to_observations(then), dim=-1)
        rows = matching_rows(torch.cat([X, Y], dim=-1), known)
        later = [index for index, row in enumerate(rows) if row is None]
        return self._with_later_values(model, X, Y, None, later)


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


def _arrival(ledger: FeedbackLedger, now: float, count: int) -> float:
    """The earliest time at which ``count`` of the values known at ``now`` had arrived."""
    times = [
        # On the clock of iterations a query exists only after its time of submission.
        max(trial.observed_at, float(np.nextafter(trial.submitted_at, np.inf)))
        for trial in ledger.trials_at(now)
        if trial.status is TrialStatus.OBSERVED and trial.observed_at is not None
    ]
    return min(sorted(times)[count - 1], now)
