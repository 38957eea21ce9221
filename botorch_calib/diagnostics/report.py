"""`calibration_report`: how far a model's stated distributions can be relied on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.utils.transforms import is_ensemble
from gpytorch.models import ExactGP
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
    check_unit_interval,
)
from botorch_calib.calibration import NoCalibration, pit
from botorch_calib.diagnostics.forecast_scores import ForecastScores, forecast_scores
from botorch_calib.diagnostics.noise import NoiseDiagnosis, noise_diagnosis
from botorch_calib.diagnostics.objective import (
    ObjectiveForecasts,
    Statements,
    Truth,
    predicted_objective,
    present_objective,
    true_values,
    without_pending,
)
from botorch_calib.diagnostics.regions import median_cells
from botorch_calib.diagnostics.stated_forecasts import StatedForecasts
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
    observed_process,
    outcome_units,
    raw_train_inputs,
    with_task_feature,
)
from botorch_calib.models.marginals import in_space_of_targets
from botorch_calib.models.outcome_transforms import InverseTransform, raw_train_targets
from botorch_calib.models.predictors import GaussianPredictor, predictor_of
from botorch_calib.models.predictors.transformed import TransformedPredictor
from botorch_calib.models.requirements import check_fits
from botorch_calib.models.residuals import RESIDUALS, forecast_history
from botorch_calib.models.wrapper import batch_shape_of

#: With fewer observations than these a report says that its numbers are rough.
FEW_OBSERVATIONS = 20

#: Quantile levels that are judged by default.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

#: How the base model is called where it is a Gaussian process.
BASE_NAME = "Gaussian process"

_SOURCES = {
    "prequential": "each predicted from those before it",
    "loo": "each predicted from all others",
    "held-out": "held out",
    "given": "predicted elsewhere",
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
        source: ``"prequential"``, ``"loo"``, ``"held-out"`` or ``"given"``.
        calibrated: Scores of the calibrated distributions; None without a calibrator.
        base: Scores of the base model without calibration.
        noise: The observation noise that the training data support; None for models of which
            `noise_diagnosis` can tell nothing.
        base_name: What the base model is called in tables and figures.
    """

    alpha: float
    levels: Tensor
    source: str
    calibrated: ForecastScores | None
    base: ForecastScores
    noise: NoiseDiagnosis | None = None
    base_name: str = BASE_NAME

    @property
    def num_observations(self) -> int:
        """Number of observations judged."""
        return len(self.base.pits)

    @property
    def forecasts(self) -> dict[str, ForecastScores]:
        """The scores by the name of the forecaster, the calibrated ones first."""
        base = {self.base_name: self.base}
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
    """Forecasts of observations by a base model and, if there is one, a calibrator."""

    inputs: Tensor | None  # n x d
    base: StatedForecasts
    calibrated: StatedForecasts | None = None
    objective: ObjectiveForecasts | None = None  # where its true values are known
    base_name: str = BASE_NAME


@torch.no_grad()
def calibration_report(
    model: Module,
    X: Tensor | None = None,
    Y: Tensor | None = None,
    *,
    alpha: float = 0.2,
    levels: Tensor | Sequence[float] = LEVELS,
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
        model: A `CalibratedModel`, a BoTorch model that it takes, or an exact Gaussian process of
            GPyTorch's, with one output.
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
        UnsupportedError: If the model has more outputs, or is of a kind that no `CalibratedModel`
            takes.
        InputDataError: If there are no observations, or an argument is out of its range.
        BotorchTensorDimensionError: If ``X``, ``Y`` or ``truth`` have other shapes.

    Warns:
        CalibrationWarning: If there are fewer than ``1 / alpha`` observations.
    """
    check_open_unit("alpha", alpha)
    check_one_of("residuals", residuals, RESIDUALS)
    with as_in_training(observed_process(model)):
        if X is None and Y is None:
            forecasts = _of_history(model, num_initial, residuals, truth, alpha)
        elif num_initial:
            raise InputDataError("`num_initial` is for training data: slice `X` and `Y` instead.")
        else:
            forecasts = _of_held_out(model, X, Y, truth, alpha)
    try:
        noise = noise_diagnosis(model)
    except (UnsupportedError, InputDataError):  # not all models that are judged have one
        noise = None
    source = residuals if X is None else "held-out"
    return _report(forecasts, alpha, levels, source, num_regions, noise)


def report_from_pits(
    pits: Any,
    *,
    alpha: float = 0.2,
    levels: Tensor | Sequence[float] = LEVELS,
    X: Any = None,
    num_regions: int = 4,
) -> CalibrationReport:
    """Judge predictive distributions of any library, by their PITs alone.

    Widths and the scores that depend on them are not known, and left out.

    Args:
        pits: Stated probabilities of a value below the observed one, ``n``, in [0, 1], in time
            order: a tensor, an array or a list.
        alpha: The central ``1 - alpha`` interval is judged, in (0, 1).
        levels: ``M`` increasing quantile levels in (0, 1).
        X: The inputs, ``n x d``, if coverage is to be counted in cells of these.
        num_regions: Number of cells.

    Raises:
        InputDataError: If an argument is malformed or out of its range.
        BotorchTensorDimensionError: If a shape is another one.

    Warns:
        CalibrationWarning: If there are fewer than ``1 / alpha`` observations.
    """
    check_open_unit("alpha", alpha)
    values = check_unit_interval("pits", _vector("pits", pits))
    forecasts = _Forecasts(
        _rows_of(X, len(values)), StatedForecasts.of_pits(values, alpha), base_name="stated"
    )
    return _report(forecasts, alpha, levels, "given", num_regions)


def report_from_moments(
    mean: Any,
    deviation: Any,
    observed: Any,
    *,
    alpha: float = 0.2,
    levels: Tensor | Sequence[float] = LEVELS,
    X: Any = None,
    num_regions: int = 4,
) -> CalibrationReport:
    """Judge normal predictive distributions of any library.

    Args:
        mean: Their means, ``n``, in units of the outcome: a tensor, an array or a list.
        deviation: Their standard deviations, noise included, ``n``.
        observed: The observations, ``n``, none of which the prediction of it had seen, in time
            order.
        alpha: As in `report_from_pits`, with the same errors; and the rest too.
        levels: As in `report_from_pits`.
        X: As in `report_from_pits`.
        num_regions: As in `report_from_pits`.
    """
    check_open_unit("alpha", alpha)
    names = ("mean", "deviation", "observed")
    mean, deviation, observed = map(_vector, names, (mean, deviation, observed))
    if not len(mean) == len(deviation) == len(observed):
        raise BotorchTensorDimensionError(
            "`mean`, `deviation` and `observed` must have the same length, got "
            f"{len(mean)}, {len(deviation)} and {len(observed)}."
        )
    if not (deviation > 0.0).all():
        raise InputDataError("`deviation` must be positive.")
    base = _normal((observed - mean) / deviation, deviation, alpha)
    forecasts = _Forecasts(_rows_of(X, len(mean)), base, base_name="stated")
    return _report(forecasts, alpha, levels, "given", num_regions)


def _report(
    forecasts: _Forecasts,
    alpha: float,
    levels: Tensor | Sequence[float],
    source: str,
    num_regions: int,
    noise: NoiseDiagnosis | None = None,
) -> CalibrationReport:
    """The scores of forecasts."""
    levels = torch.as_tensor(levels, dtype=torch.double, device="cpu")
    check_levels("levels", levels)
    check_count("num_regions", num_regions)
    _warn_if_few(len(forecasts.base.pits), alpha)
    inputs, objective = forecasts.inputs, forecasts.objective
    cells = [] if inputs is None else median_cells(inputs, num_regions)

    def scores(stated: StatedForecasts, who: str) -> ForecastScores:
        on_objective = {} if objective is None else objective.scores(who, alpha)
        return forecast_scores(stated, levels, cells, **on_objective)

    stated = forecasts.calibrated
    calibrated = None if stated is None else scores(stated, "calibrated")
    base = scores(forecasts.base, "base")
    return CalibrationReport(alpha, levels, source, calibrated, base, noise, forecasts.base_name)


# ------------------------------------------------------------ forecasts


def _of_history(
    model: Any, num_initial: int, residuals: str, truth: Truth | None, alpha: float
) -> _Forecasts:
    """Forecasts of the training data of a model, without the first ``num_initial``."""
    model = without_pending(model)
    calibrator = model.calibrator.fresh() if isinstance(model, CalibratedModel) else None
    predictor = predictor_of(model.model if calibrator is not None else model)
    gp = predictor.observed
    if not isinstance(predictor, GaussianPredictor):
        inputs, z = predictor.history(residuals)
        kept = _kept(torch.arange(len(z)), num_initial)
        base = StatedForecasts.of_pits(pit(z[kept]), alpha)
        if calibrator is None:
            return _Forecasts(inputs[kept], base, base_name=type(gp).__name__)
        stated = calibrator.to(z).update(inputs[kept], z[kept])
        pits = stated.to(torch.double).cdf(z[kept].double().unsqueeze(-1)).reshape(-1)
        calibrated = StatedForecasts.of_pits(pits, alpha)
        return _Forecasts(inputs[kept], base, calibrated, base_name=type(gp).__name__)
    inputs, z, deviations = forecast_history(gp, residuals)
    kept = _kept(in_output_task(gp, inputs).nonzero().squeeze(-1), num_initial)
    predictive = None
    if calibrator is not None:
        predictive = calibrator.to(z).update(inputs[kept], z[kept])
    raw_inputs = cast(Tensor, raw_train_inputs(gp)).detach()
    is_transformed = isinstance(predictor, TransformedPredictor)
    if is_transformed:
        predictor.check()
    targets = in_space_of_targets(gp) if is_transformed else gp
    deviations = outcome_units(targets) * deviations
    excess = getattr(model, "excess", "noise")  # a Gaussian process alone has none

    def predicted(denoise: bool) -> Statements:
        parts = predicted_objective(targets, z, deviations, kept, predictive, excess, denoise)
        return parts.mapped(InverseTransform(gp, raw_inputs[kept])) if is_transformed else parts

    objective = None
    if truth is not None:
        objective = ObjectiveForecasts(
            true_values(truth, raw_inputs)[kept],
            predicted(denoise=True),
            present_objective(model, raw_inputs[kept]),
        )
    if is_transformed:
        observed, statements = raw_train_targets(gp)[kept], predicted(denoise=False)
        of_base, *of_calibrated = (
            StatedForecasts.of_posterior(each, observed, alpha)
            for each in statements
            if each is not None
        )
        return _Forecasts(raw_inputs[kept], of_base, next(iter(of_calibrated), None), objective)
    z, deviations = z[kept], deviations[kept]
    base = _normal(z, deviations, alpha)
    if predictive is None:
        return _Forecasts(raw_inputs[kept], base, objective=objective)
    calibrated = StatedForecasts.of_residuals(predictive, z, deviations, alpha)
    return _Forecasts(raw_inputs[kept], base, calibrated, objective)


def _kept(own: Tensor, num_initial: int) -> Tensor:
    """The observations that are judged, by their places."""
    if not 0 <= num_initial < len(own):
        raise InputDataError(
            f"`num_initial` must be at least 0 and leave some of the {len(own)} observations, "
            f"got {num_initial}."
        )
    return own[num_initial:]


def _normal(residuals: Tensor, deviations: Tensor, alpha: float) -> StatedForecasts:
    """Normal distributions with these standard deviations, missed by as many of them."""
    normal = PiecewisePredictive.gaussian(
        (len(residuals), 1), dtype=torch.double, device=residuals.device
    )
    return StatedForecasts.of_residuals(normal, residuals, deviations, alpha)


def _of_held_out(
    model: Any, X: Tensor | None, Y: Tensor | None, truth: Truth | None, alpha: float
) -> _Forecasts:
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
    if isinstance(model, ExactGP) and not isinstance(model, Model):
        return _of_plain_process(model, X, Y, alpha)
    check_model(model)
    if model.num_outputs != 1 or (batch_shape_of(model) and not is_ensemble(model)):
        raise _unsupported(model)
    is_calibrated = isinstance(model, CalibratedModel)
    predictor = predictor_of(model.model if is_calibrated else model)
    if not is_calibrated:
        predictor.check()
    points = X.unsqueeze(-2)
    try:
        posteriors = [predictor.posterior(points, NoCalibration(), False, "noise")]
        if is_calibrated:
            posteriors.append(model.posterior(points, observation_noise=True))
    except (RuntimeError, BotorchTensorDimensionError):
        # Not before: models whose input transforms add columns need not tell their own width.
        gp = predictor.observed
        check_fits(gp, with_task_feature(gp, X))
        raise
    if any(posterior.quantile(0.5).shape != (len(X), 1, 1) for posterior in posteriors):
        raise _unsupported(model)
    stated = [StatedForecasts.of_posterior(posterior, Y, alpha) for posterior in posteriors]
    objective = None
    if truth is not None:
        objective = ObjectiveForecasts(true_values(truth, X), present_objective(model, X))
    is_gaussian = isinstance(predictor, GaussianPredictor)
    name = BASE_NAME if is_gaussian else type(predictor.observed).__name__
    return _Forecasts(X, stated[0], stated[1] if is_calibrated else None, objective, name)


def _of_plain_process(gp: Any, X: Tensor, Y: Tensor, alpha: float) -> _Forecasts:
    """Forecasts of an exact process of GPyTorch's that is no BoTorch model."""
    gp.eval()
    points = X.unsqueeze(-2)
    observed = gp.likelihood(gp(points), [points])
    deviation = observed.variance.sqrt().reshape(-1)
    residuals = (Y.reshape(-1) - observed.mean.reshape(-1)) / deviation
    return _Forecasts(X, _normal(residuals, deviation, alpha))


def _unsupported(model: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{type(model).__name__} must have one output and no batch dimension, and state one value "
        "for each point. Several outputs: one report each."
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


def _vector(name: str, values: Any) -> Tensor:
    """Finite numbers in any container as a vector in double precision."""
    vector = torch.as_tensor(values, dtype=torch.double).detach().cpu()
    if vector.dim() != 1 or not len(vector):
        raise BotorchTensorDimensionError(
            f"`{name}` must be a vector of at least one number, got {tuple(vector.shape)}."
        )
    return check_finite(name, vector)


def _rows_of(X: Any, num: int) -> Tensor | None:
    """Given inputs as a matrix of ``num`` rows."""
    if X is None:
        return None
    rows = check_inputs("X", torch.as_tensor(X, dtype=torch.double).detach().cpu())
    if len(rows) != num:
        raise BotorchTensorDimensionError(
            f"`X` must have {num} rows, one for each observation, got {len(rows)}."
        )
    return rows


def _plain(scores: Any) -> Any:
    """Dataclasses, tensors and tuples as dictionaries, lists and numbers."""
    if isinstance(scores, Tensor):
        return scores.tolist()
    if isinstance(scores, (tuple, list)):
        return [_plain(item) for item in scores]
    if is_dataclass(scores):
        return {field.name: _plain(getattr(scores, field.name)) for field in fields(scores)}
    return scores
