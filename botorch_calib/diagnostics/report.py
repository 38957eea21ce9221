"""`calibration_report`: how far a model's stated distributions can be relied on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import (
    check_count,
    check_finite,
    check_inputs,
    check_levels,
    check_model,
    check_one_of,
    check_open_unit,
    check_tensor,
)
from botorch_calib.diagnostics.forecast_scores import ForecastScores, forecast_scores
from botorch_calib.diagnostics.noise import NoiseDiagnosis, noise_diagnosis
from botorch_calib.diagnostics.objective import (
    ObjectiveForecasts,
    Truth,
    predicted_objective,
    present_objective,
    true_values,
    without_pending,
)
from botorch_calib.diagnostics.regions import median_cells
from botorch_calib.diagnostics.table import (
    ON_THE_OBJECTIVE,
    level_rows,
    objective_rows,
    region_rows,
    row,
    summary_rows,
)
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.inspection import (
    as_in_training,
    in_output_task,
    objective_variance,
    observation_noise_variance,
    observed_process,
    outcome_units,
    predicting_process,
    raw_train_inputs,
    with_task_feature,
)
from botorch_calib.models.marginals import posterior_at
from botorch_calib.models.requirements import check_fits
from botorch_calib.models.residuals import RESIDUALS, forecast_history
from botorch_calib.posteriors.single_points import is_gaussian

#: With fewer observations than these a report says that its numbers are rough.
FEW_OBSERVATIONS = 20

_SOURCES = {
    "prequential": "each predicted from those before it",
    "loo": "each predicted from all others",
    "held-out": "held out",
}


# ------------------------------------------------------------ the report


@dataclass(frozen=True, eq=False, repr=False)
class CalibrationReport:
    """Scores of a model's stated distributions beside those of the Gaussian process in it.

    ``print(report)`` shows a table, `to_dict` exports plain numbers; the functions
    ``plot_reliability``, ``plot_pit_histogram`` and ``plot_coverage_over_time`` of
    `botorch_calib.plotting` draw it.

    Attributes:
        alpha: The intervals judged are the central ``1 - alpha`` ones.
        levels: Quantile levels, ``M``.
        source: ``"prequential"``, ``"loo"`` or ``"held-out"``.
        calibrated: Scores of the calibrated distributions; None without a calibrator.
        base: Scores of the Gaussian process without calibration.
        noise: The observation noise that the training data support; None for models of which
            `noise_diagnosis` can tell nothing.
    """

    alpha: float
    levels: Tensor
    source: str
    calibrated: ForecastScores | None
    base: ForecastScores
    noise: NoiseDiagnosis | None = None

    @property
    def num_observations(self) -> int:
        """Number of observations judged."""
        return len(self.base.pits)

    @property
    def forecasts(self) -> dict[str, ForecastScores]:
        """The scores by the name of the forecaster, the calibrated ones first."""
        base = {"Gaussian process": self.base}
        return base if self.calibrated is None else {"calibrated": self.calibrated, **base}

    @property
    def note(self) -> str | None:
        """A word of caution where there are few observations, else None."""
        if self.num_observations >= FEW_OBSERVATIONS:
            return None
        return f"With only {self.num_observations} observations these numbers are rough."

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries, lists and numbers, ready for ``json.dumps``."""
        return {
            "alpha": self.alpha,
            "levels": self.levels.tolist(),
            "source": self.source,
            "num_observations": self.num_observations,
            "calibrated": _plain(self.calibrated),
            "base": _plain(self.base),
            "noise": None if self.noise is None else self.noise.to_dict(),
        }

    def __str__(self) -> str:
        columns = list(self.forecasts.values())
        lines = [
            f"Calibration report: {self.num_observations} observations, {_SOURCES[self.source]}",
            f"Central {1 - self.alpha:.4g} intervals, in units of the outcome; "
            "in brackets, binomial 95 % intervals",
            "",
            row("", list(self.forecasts)),
            *summary_rows(self.alpha, columns),
            *objective_rows(self.alpha, columns),
            *region_rows(columns),
            *level_rows(self.levels, columns),
        ]
        if self.base.objective is not None:
            lines += ["", *ON_THE_OBJECTIVE]
        if self.noise is not None:
            lines += ["", str(self.noise)]
        return "\n".join(lines if self.note is None else [*lines, "", self.note])

    __repr__ = __str__


# ------------------------------------------------------------ the report of a model


class _Forecasts(NamedTuple):
    """Forecasts of observations, and their residuals."""

    inputs: Tensor  # n x d, in raw units
    residuals: Tensor  # n, standardised by the Gaussian process
    deviations: Tensor  # n, of the observations, in units of the outcome
    stated: PiecewisePredictive | None  # of the residuals; None without a calibrator
    objective: ObjectiveForecasts | None = None  # where its true values are known


@torch.no_grad()
def calibration_report(
    model: Module,
    X: Tensor | None = None,
    Y: Tensor | None = None,
    *,
    alpha: float = 0.2,
    levels: Tensor | Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    num_initial: int = 0,
    residuals: Literal["prequential", "loo"] = "prequential",
    num_regions: int = 4,
    truth: Truth | None = None,
) -> CalibrationReport:
    """Judge the predictive distributions of a model, beside those of its Gaussian process.

    Without ``X`` and ``Y`` the training data are the evidence. The Gaussian process predicts each
    observation at its current hyperparameters, which were fitted to all of them, and a calibrator
    that has learned nothing is replayed over the residuals: an observation is judged by the
    distribution stated before it was learned from. With held-out data the present model is judged,
    as it is.

    With ``truth``, statements on the objective, without noise, are judged at the same points: as
    each was predicted and, for training data, as the model is now, having seen the observation
    there. The latter is what a claim on a visited point rests on. Held-out points spread over the
    box tell the coverage over the box. No bound on the coverage of the objective is proved: it
    rests on the stated noise, about which `noise_diagnosis` of an exact Gaussian process is added.

    The model keeps its state and what its calibrator has learned; held-out data and ``truth``, like
    any prediction, leave it in eval mode.

    Args:
        model: A `CalibratedModel` or a Gaussian process, with one output.
        X: Held-out inputs, ``n x d``.
        Y: Held-out observations, ``n x 1``.
        alpha: The central ``1 - alpha`` interval is judged, in (0, 1).
        levels: ``M`` increasing quantile levels in (0, 1).
        num_initial: Number of initial training data (the design) to leave out.
        residuals: Whether a training observation is predicted from those before it or, with
            ``"loo"``, from all others.
        num_regions: Number of cells of the inputs in which coverage is counted.
        truth: The objective without noise: its values ``n x 1`` at ``X`` or, without it, at all
            training inputs, or a function that computes them from inputs ``n x d``.

    Raises:
        UnsupportedError: If the model is not Gaussian in units of the outcome, or has more outputs.
        InputDataError: If there are no observations, or an argument is out of its range.
        BotorchTensorDimensionError: If ``X``, ``Y`` or ``truth`` have other shapes.

    Warns:
        CalibrationWarning: If there are fewer than ``1 / alpha`` observations.
    """
    check_open_unit("alpha", alpha)
    check_one_of("residuals", residuals, RESIDUALS)
    check_count("num_regions", num_regions)
    levels = torch.as_tensor(levels, dtype=torch.double, device="cpu")
    check_levels("levels", levels)
    with as_in_training(observed_process(model)):
        if X is None and Y is None:
            forecasts = _of_history(model, num_initial, residuals, truth)
        elif num_initial:
            raise InputDataError("`num_initial` is for training data: slice `X` and `Y` instead.")
        else:
            forecasts = _of_held_out(model, X, Y, truth)
    _warn_if_few(len(forecasts.residuals), alpha)
    try:
        noise = noise_diagnosis(model)
    except (UnsupportedError, InputDataError):  # not all models that are judged have one
        noise = None

    z, objective = forecasts.residuals, forecasts.objective
    cells = median_cells(forecasts.inputs, num_regions)

    def scores(predictive: PiecewisePredictive, who: str) -> ForecastScores:
        on_objective = {} if objective is None else objective.scores(who, alpha)
        return forecast_scores(
            predictive, z, forecasts.deviations, alpha, levels, cells, **on_objective
        )

    normal = PiecewisePredictive.gaussian((len(z), 1), dtype=torch.double, device=z.device)
    stated = forecasts.stated
    calibrated = None if stated is None else scores(stated, "calibrated")
    source = residuals if X is None else "held-out"
    return CalibrationReport(alpha, levels, source, calibrated, scores(normal, "base"), noise)


# ------------------------------------------------------------ forecasts


def _of_history(model: Any, num_initial: int, residuals: str, truth: Truth | None) -> _Forecasts:
    """Forecasts of the training data of a model, without the first ``num_initial``."""
    model = without_pending(model)
    gp = observed_process(model)
    inputs, z, deviations = forecast_history(gp, residuals)
    own = in_output_task(gp, inputs).nonzero().squeeze(-1)
    if not 0 <= num_initial < len(own):
        raise InputDataError(
            f"`num_initial` must be at least 0 and leave some of the {len(own)} observations, "
            f"got {num_initial}."
        )
    kept = own[num_initial:]
    stated = None
    if isinstance(model, CalibratedModel):
        stated = model.calibrator.fresh().to(z).update(inputs[kept], z[kept])
    deviations = outcome_units(gp) * deviations
    raw_inputs = cast(Tensor, raw_train_inputs(gp)).detach()
    objective = None
    if truth is not None:
        excess = getattr(model, "excess", "noise")  # a Gaussian process alone has none
        objective = ObjectiveForecasts(
            true_values(truth, raw_inputs)[kept],
            predicted_objective(gp, z, deviations, kept, stated, excess),
            present_objective(model, raw_inputs[kept]),
        )
    return _Forecasts(raw_inputs[kept], z[kept], deviations[kept], stated, objective)


def _of_held_out(model: Any, X: Tensor | None, Y: Tensor | None, truth: Truth | None) -> _Forecasts:
    """Forecasts of observations that the model has not seen, each by itself."""
    if X is None or Y is None:
        raise InputDataError("Give both of `X` and `Y`, or neither.")
    check_inputs("X", X)
    if check_tensor("Y", Y).shape != (len(X), 1):
        raise BotorchTensorDimensionError(
            f"`Y` must have shape {len(X)} x 1, one observation for each row of `X`, "
            f"got {tuple(Y.shape)}."
        )
    if len(X) == 0:
        raise InputDataError("`X` and `Y` are empty: there is nothing to judge.")
    check_finite("Y", Y)
    check_model(model)
    if model.num_outputs != 1 or model.batch_shape:
        raise _unsupported(model)
    try:
        posterior: Any = posterior_at(model, X.unsqueeze(-2), isinstance(model, CalibratedModel))
    except (RuntimeError, BotorchTensorDimensionError):
        # Not before: models whose input transforms add columns need not tell their own width.
        gp = observed_process(model)
        check_fits(gp, with_task_feature(gp, X))
        raise
    stated, noise, base = None, None, posterior
    if isinstance(model, CalibratedModel):
        stated, noise = posterior.predictive, posterior.noise_variance
        base = posterior.base_posterior
    if not is_gaussian(base) or base.mean.shape != (len(X), 1, 1):
        raise _unsupported(model)
    if noise is None:
        noise = observation_noise_variance(predicting_process(model), base, X.unsqueeze(-2))
    variance = objective_variance(predicting_process(model), base)
    deviations = (variance + noise).sqrt().reshape(-1)
    z = (Y - base.mean.squeeze(-1)).reshape(-1) / deviations
    objective = None
    if truth is not None:
        objective = ObjectiveForecasts(true_values(truth, X), present_objective(model, X))
    return _Forecasts(X, z, deviations, stated, objective)


def _unsupported(model: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{type(model).__name__} must have one output, no batch dimension, a Gaussian posterior in "
        "units of the outcome and no one-to-many input transform. Several outputs: one report "
        "each; nonlinear outcome transforms: apply them to the observations beforehand."
    )


def _warn_if_few(num_observations: int, alpha: float) -> None:
    needed = math.ceil(1.0 / alpha - 1e-9)
    if num_observations < needed:
        warnings.warn(
            f"{num_observations} observations cannot tell whether 1 in {1 / alpha:.4g} is missed: "
            f"at least {needed} are needed to judge intervals at alpha = {alpha}.",
            CalibrationWarning,
            stacklevel=4,
        )


def _plain(scores: Any) -> Any:
    """Dataclasses, tensors and tuples as dictionaries, lists and numbers."""
    if isinstance(scores, Tensor):
        return scores.tolist()
    if isinstance(scores, (tuple, list)):
        return [_plain(item) for item in scores]
    if is_dataclass(scores):
        return {field.name: _plain(getattr(scores, field.name)) for field in fields(scores)}
    return scores
