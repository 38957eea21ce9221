"""The next query of an asynchronous optimisation, from a ledger of the queries so far."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_calib._validation import (
    check_count,
    check_finite,
    check_inputs,
    check_nonnegative,
    check_one_of,
)
from botorch_calib.acquisition.choices import RowLookup
from botorch_calib.acquisition.delayed import WINDOWS, DelayedUpperConfidenceBound
from botorch_calib.acquisition.randomness import derived_seed, random_stream
from botorch_calib.acquisition.thompson import DelayedThompsonSampling
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.imputation import IMPUTATIONS
from botorch_calib.models.inspection import like

Fit = Callable[[Tensor, Tensor], Model]
Features = Mapping[int, float]

ACQUISITIONS = ("ucb", "ts")
HYPERPARAMETERS = ("observed", "censored")

# What random numbers are for; together with the seed and a count they name a stream.
DESIGN, FIT, SEARCH, DRAW = range(4)


class DelayAwareProposer:
    """Chooses the next query while others are under evaluation [Verma2022].

    Called with a ledger, it fits a model to the values that have arrived, conditions it on the
    queries that are still out, and maximises an acquisition function. Its answer is a function of
    the ledger and the arguments alone, so that a run which was interrupted continues as it would
    have done. It fits anew only when a value has arrived since the last call.

    ============= ====================== ============================
    algorithm     ``acquisition``        other arguments
    ============= ====================== ============================
    GP-UCB-SDF    ``"ucb"``              none (or ``window="all"``)
    GP-TS-SDF     ``"ts"``               none (or ``window="all"``)
    GP-BUCB       ``"ucb"``              ``imputation="hallucinate", window=None``
    GP-BTS        ``"ts"``               ``imputation="hallucinate", window=None``
    GP-UCB        ``"ucb"``              ``imputation="none", window=None``
    asy-TS        ``"ts"``               ``imputation="none", window=None``
    ============= ====================== ============================

    The first queries, and all until two values have arrived, are scrambled Sobol points (of
    ``choices``, a permutation), one for each trial of the ledger.

    Args:
        bounds: The box, ``2 x d``.
        acquisition: ``"ucb"``, ``"ts"``, or a function of the model and the ledger that makes an
            acquisition function for single points.
        fit: Makes a fitted model of ``X`` (``n x d``) and ``Y`` (``n x 1``); default: a
            ``SingleTaskGP`` with normalised inputs and standardised outcomes, fitted by marginal
            likelihood. The model may be in single precision.
        num_initial: Number of queries made without a model (default ``2 d + 1``).
        imputation: How the model is told of queries without values: ``"censor"``,
            ``"hallucinate"`` or ``"none"``, see `CensoredDelayModel`. A ledger without a
            ``censor_value`` has them censored at the worst value observed so far, which is milder.
        hyperparameters: Whether the model is fitted to ``"observed"`` values or, as in the
            paper, to ``"censored"`` ones, all queries made before the last arrival.
        window: The queries that ``nu`` sums over: ``"pending"``, ``"all"`` or None, see
            `DelayedUpperConfidenceBound.from_ledger`.
        beta: See `DelayedUpperConfidenceBound`.
        feedback_bound: See `DelayedUpperConfidenceBound`; in reciprocal units of the outcome. By
            default one over the standard deviation of the values observed so far.
        choices: The points to choose from, ``n x d``, in place of the whole box.
        fixed_features: Values of features that are not for us to choose, such as a context,
            by column; or a function of the ledger that returns them. In ``choices`` these columns
            are overwritten.
        num_restarts: Starting points of the search for the maximiser in the box.
        raw_samples: Points from which these are picked.
        seed: Of all random numbers; torch's own random state is neither used nor changed.
        maximize: Whether the objective is maximised.

    Outcomes may have any unit in which they spread by more than about 1e-3: GPyTorch takes
    variances below 1e-10 (in single precision, 1e-6) to be that. Multiply smaller outcomes.

    Raises:
        InputDataError: If an argument is unknown, out of its range or not finite.
        BotorchTensorDimensionError: If ``bounds`` is not ``2 x d`` or ``choices`` not ``n x d``.

    Example:
        >>> ledger = FeedbackLedger.open("run.ledger", dim=2, censor_value=0.0)
        >>> propose = DelayAwareProposer(bounds)
        >>> trial_id = ledger.submit(propose(ledger))
    """

    def __init__(
        self,
        bounds: Tensor,
        acquisition: str | Callable[[Model, FeedbackLedger], AcquisitionFunction] = "ucb",
        fit: Fit | None = None,
        num_initial: int | None = None,
        imputation: str = "censor",
        hyperparameters: str = "observed",
        window: str | None = "pending",
        beta: float = 1.0,
        feedback_bound: float | None = None,
        choices: Tensor | None = None,
        fixed_features: Features | Callable[[FeedbackLedger], Features] | None = None,
        num_restarts: int = 10,
        raw_samples: int = 256,
        seed: int = 0,
        maximize: bool = True,
    ) -> None:
        self.bounds = _checked_bounds(bounds)
        self.dim = self.bounds.shape[-1]
        if not callable(acquisition):
            check_one_of("acquisition", acquisition, ACQUISITIONS)
        check_one_of("imputation", imputation, IMPUTATIONS)
        check_one_of("hyperparameters", hyperparameters, HYPERPARAMETERS)
        check_one_of("window", window, WINDOWS)
        self.acquisition = acquisition
        self.fit = partial(fit_single_task_gp, bounds=self.bounds) if fit is None else fit
        self.num_initial = 2 * self.dim + 1
        if num_initial is not None:
            self.num_initial = check_count("num_initial", num_initial, 0)
        self.imputation = imputation
        self.hyperparameters = hyperparameters
        self.window = window
        self.beta = check_nonnegative("beta", beta)
        if feedback_bound is not None:
            check_nonnegative("feedback_bound", feedback_bound)
        self.feedback_bound = feedback_bound
        self.choices = None if choices is None else _checked_choices(choices, self.dim)
        self.fixed_features = fixed_features
        if not callable(fixed_features):
            self._checked_features(fixed_features)
        self.num_restarts = check_count("num_restarts", num_restarts, 1)
        self.raw_samples = check_count("raw_samples", raw_samples, 1)
        self.seed = check_count("seed", seed, 0)
        self.maximize = maximize
        self._fitted: tuple[Tensor, Tensor, Model] | None = None

    def __call__(self, ledger: FeedbackLedger) -> Tensor:
        """The next query.

        Args:
            ledger: The queries so far; it is only read.

        Returns:
            A point of the box (but for fixed features, which may lie outside), one of ``choices``
            if there are any: a vector of length ``d``, in double precision on the CPU.

        Raises:
            BotorchTensorDimensionError: If the ledger is not for ``d`` features.
            InputDataError: If hyperparameters are to be those of censored values and the ledger
                has no ``censor_value``, or ``fixed_features`` returns something else.

        Warns:
            InputDataWarning: If every value observed is worse than the ``censor_value``, which
                would draw the search to what is pending.
        """
        if ledger.dim != self.dim:
            raise BotorchTensorDimensionError(
                f"`ledger` holds queries of {ledger.dim} features, and `bounds` is for {self.dim}."
            )
        ledger = ledger.snapshot()  # others may write to it meanwhile
        now, count = ledger.now(), len(ledger)
        given = self.fixed_features
        fixed = self._checked_features(given(ledger) if callable(given) else given)
        choices = _with_features(self.choices, fixed)
        if count < self.num_initial or len(ledger.to_observations(now)[0]) < 2:
            return self._design_point(count, fixed, choices)
        model = self._model(ledger, now)
        with random_stream(derived_seed(self.seed, SEARCH, count)):
            acqf = self._acquisition_function(model, ledger, now, choices)
            if choices is None:
                return self._search(acqf, model, fixed)
            return _best_of(choices, acqf, model)

    def __getstate__(self) -> dict[str, Any]:
        # The fit is made again from the data: a stored one may be large and of no use.
        return {**self.__dict__, "_fitted": None}

    def _design_point(self, count: int, fixed: dict[int, float], choices: Tensor | None) -> Tensor:
        """The point number ``count`` of the initial design."""
        seed = derived_seed(self.seed, DESIGN)
        if choices is not None:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(choices), generator=generator)
            return choices[order[count % len(choices)]]
        engine = SobolEngine(self.dim, scramble=True, seed=seed).fast_forward(count)
        unit = engine.draw(1, dtype=torch.double).squeeze(0)
        point = self.bounds[0] + unit * (self.bounds[1] - self.bounds[0])
        for column, value in fixed.items():
            point[column] = value
        return point

    def _model(self, ledger: FeedbackLedger, now: float) -> CensoredDelayModel:
        """The model of what is known at ``now``; its fit changes when a value arrives."""
        if self.imputation == "censor":
            self._warn_of_wrong_sign(ledger, now)
        if self.hyperparameters == "observed":
            if self.imputation == "censor" and ledger.censor_value is None:
                X, Y = ledger.to_observations(now)
                worst = Y.min() if self.maximize else Y.max()
                return CensoredDelayModel(self._fit(X, Y), ledger.incomplete(now), worst.item())
            return CensoredDelayModel.from_ledger(ledger, self._fit, self.imputation, now=now)
        # Later queries would change the censored data, and so the fit.
        fitted = CensoredDelayModel.from_ledger(
            ledger, self._fit, self.imputation, "censored", now=_last_arrival(ledger, now)
        )
        pending = ledger.incomplete if self.imputation == "censor" else ledger.pending
        return CensoredDelayModel(
            fitted.model, pending(now), ledger.censor_value, imputation=self.imputation
        )

    def _warn_of_wrong_sign(self, ledger: FeedbackLedger, now: float) -> None:
        """Warn if being censored is better than anything observed: the sign is wrong, probably."""
        value, (_, Y) = ledger.censor_value, ledger.to_observations(now)
        if value is None or not (Y < value if self.maximize else Y > value).all():
            return
        kind = "least" if self.maximize else "greatest"
        warnings.warn(
            f"`censor_value` {value} of the ledger is better than every value observed, with "
            f"`maximize={self.maximize}`. It should be the {kind} value that the objective can "
            "take: queries under evaluation now look attractive.",
            InputDataWarning,
            stacklevel=4,
        )

    def _fit(self, X: Tensor, Y: Tensor) -> Model:
        """The fitted model of these data, from the last call if they have not changed."""
        if self._fitted is not None:
            known_X, known_Y, model = self._fitted
            if torch.equal(known_X, X) and torch.equal(known_Y, Y):
                return model
        with random_stream(derived_seed(self.seed, FIT, len(Y))):
            model = self.fit(X, Y)
        self._fitted = (X, Y, model)
        return model

    def _acquisition_function(
        self, model: CensoredDelayModel, ledger: FeedbackLedger, now: float, choices: Tensor | None
    ) -> AcquisitionFunction:
        if callable(self.acquisition):
            return self.acquisition(model, ledger)
        arguments: dict[str, Any] = {
            "window": self.window,
            "now": now,
            "beta": self.beta,
            "feedback_bound": self._feedback_bound(ledger, now),
            "maximize": self.maximize,
        }
        if self.acquisition == "ucb":
            return DelayedUpperConfidenceBound.from_ledger(model, ledger, **arguments)
        seed = derived_seed(self.seed, DRAW, len(ledger))
        return DelayedThompsonSampling.from_ledger(
            model, ledger, choices=choices, seed=seed, **arguments
        )

    def _feedback_bound(self, ledger: FeedbackLedger, now: float) -> float:
        if self.feedback_bound is not None:
            return self.feedback_bound
        scale = ledger.to_observations(now)[1].std().item()
        return 1.0 / scale if scale > 0.0 else 1.0

    def _search(self, acqf: AcquisitionFunction, model: Model, fixed: dict[int, float]) -> Tensor:
        """The maximiser over the box, searched for in the model's precision."""
        candidate, _ = optimize_acqf(
            acqf,
            bounds=like(model, self.bounds),
            q=1,
            num_restarts=self.num_restarts,
            raw_samples=self.raw_samples,
            fixed_features=fixed or None,
        )
        # Rounding a single-precision bound may have led out of the box.
        point = candidate.detach().squeeze(0).to(self.bounds)
        point = point.clamp(self.bounds[0], self.bounds[1])
        for column, value in fixed.items():
            point[column] = value
        return point

    def _checked_features(self, features: Features | None) -> dict[int, float]:
        """Fixed features by column, counted from the front."""
        fixed: dict[int, float] = {}
        if not isinstance(features, Mapping | None):
            raise InputDataError(
                f"`fixed_features` must map columns to values, got a {type(features).__name__}."
            )
        for column, value in (features or {}).items():
            if not isinstance(column, Integral) or not -self.dim <= column < self.dim:
                raise InputDataError(
                    f"`fixed_features` names column {column!r} of {self.dim} columns."
                )
            if column % self.dim in fixed:
                raise InputDataError(f"`fixed_features` names column {column} twice.")
            if not math.isfinite(value):
                raise InputDataError(f"`fixed_features` must be finite, got {value!r}.")
            fixed[int(column) % self.dim] = float(value)
        return fixed


def fit_single_task_gp(X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
    """A ``SingleTaskGP`` fitted by marginal likelihood, with ``Normalize`` and ``Standardize``.

    Args:
        X: Inputs ``n x d``.
        Y: Values ``n x 1``.
        bounds: The box, ``2 x d``, which is mapped to the unit cube.
    """
    gp = SingleTaskGP(
        X,
        Y,
        input_transform=Normalize(X.shape[-1], bounds=bounds),
        outcome_transform=Standardize(1),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


def _best_of(choices: Tensor, acqf: AcquisitionFunction, model: Model) -> Tensor:
    """The maximiser among the choices, to the last digit, whatever the model's precision."""
    rows = like(model, choices)
    best, _ = optimize_acqf_discrete(acqf, q=1, choices=rows)
    return choices[RowLookup(rows)(best).item()].clone()


def _last_arrival(ledger: FeedbackLedger, now: float) -> float:
    """The earliest time at which all values of the time ``now`` were there."""
    times = [
        # On the clock of iterations a query is there only after its time.
        max(trial.observed_at, float(np.nextafter(trial.submitted_at, np.inf)))
        for trial in ledger.trials_at(now)
        if trial.status is TrialStatus.OBSERVED and trial.observed_at is not None
    ]
    return min(max(times), now)


def _with_features(choices: Tensor | None, fixed: dict[int, float]) -> Tensor | None:
    """The choices with their fixed columns overwritten, each of them once."""
    if choices is None or not fixed:
        return choices
    choices = choices.clone()
    for column, value in fixed.items():
        choices[:, column] = value
    return choices.unique(dim=0)


def _checked_bounds(bounds: Tensor) -> Tensor:
    """The bounds in double precision on the CPU, as a ledger's data are."""
    if bounds.dim() != 2 or len(bounds) != 2 or bounds.shape[-1] == 0:
        raise BotorchTensorDimensionError(
            f"`bounds` must have shape 2 x d, got {tuple(bounds.shape)}."
        )
    bounds = check_finite("bounds", bounds.detach()).to("cpu", torch.double)
    if (bounds.diff(dim=0) <= 0).any():
        raise InputDataError("`bounds` must hold the lower bounds first, then greater upper ones.")
    return bounds


def _checked_choices(choices: Tensor, dim: int) -> Tensor:
    choices = check_inputs("choices", choices.detach(), dim).to("cpu", torch.double)
    if len(choices) == 0:
        raise InputDataError("`choices` holds no points.")
    return choices
