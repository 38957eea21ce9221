"""Calibration reports on models, and on predictions of any library.

A report compares predictive distributions with observations. In this module, to *judge*
observations or predictions means to make this comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.model import Model
from gpytorch.models import ExactGP
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import (
    check_array,
    check_count,
    check_levels,
    check_numbers,
    check_one_of,
    check_open_unit,
    check_pairs,
    check_unit_interval,
)
from botorch_calib.diagnostics.calibration_alarm import CalibrationAlarm, replayed_alarm
from botorch_calib.diagnostics.noise import NoiseDiagnosis, noise_diagnosis
from botorch_calib.diagnostics.report import BASE_NAME, CalibrationReport
from botorch_calib.diagnostics.report_scores import (
    Judged,
    judged_predictions,
    median_cells,
    scores_of,
)
from botorch_calib.exceptions import warn
from botorch_calib.models.predict import history, predict, slots_of
from botorch_calib.models.process import (
    as_in_training,
    batch_of_models,
    kind_of,
    observed_process,
)
from botorch_calib.models.requirements import check_process, check_sole_outcome
from botorch_calib.models.residuals import RESIDUALS
from botorch_calib.models.wrapper import WrapperModel
from botorch_calib.posteriors import Prediction
from botorch_calib.posteriors.outcome_maps import Affine

#: Default levels of the predicted quantiles that are compared with observations.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

# The remedy for a model of several outcomes.
_EACH = "make one report for each outcome, of"


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
    alarm: CalibrationAlarm | None = None,
) -> CalibrationReport:
    """Compare the predictive distributions of a model and of its base model with observations.

    With held-out data ``X`` and ``Y``, the present model predicts ``Y``. Otherwise the report is on
    the training data. The base model predicts each training observation with the current
    hyperparameters, which were fitted to all data. A fresh copy of the calibrator is run over the
    residuals in order. Each observation is compared with the distribution that was predicted before
    the calibrator learned from this observation. The model and the calibrator are not changed.

    The report is about observations. Predictions of the noise-free objective depend on the noise in
    the model as well, so the `noise_diagnosis` of an exact Gaussian process is added.

    Args:
        model: A `CalibratedModel`, a BoTorch model that a `CalibratedModel` supports, or an exact
            Gaussian process of GPyTorch, with one output.
        X: Held-out inputs, ``n x d``; give both ``X`` and ``Y``, or neither.
        Y: Held-out observations, ``n x 1``.
        alpha: Predicted probability, in (0, 1), outside of the central intervals whose coverage is
            reported.
        levels: ``M`` increasing levels in (0, 1) of the quantiles whose frequencies are reported.
        num_initial: Number of initial training points (the design) that are left out of the report.
        residuals: How training observations are predicted: each from the earlier observations
            (``"prequential"``), or each from all other observations (``"loo"``). Held-out
            observations are all predicted from the training data.
        num_regions: Number of cells of the input space for which coverage is reported.
        alarm: An alarm that observed the outcomes as they arrived. It is added to the report as
            ``alarms["carried"]``.

    Raises:
        UnsupportedError: If the model has several outputs or is not supported.
        InputDataError: If there are no observations, or an argument is out of range.

    Warns:
        CalibrationWarning: If there are fewer than ``1 / alpha`` observations.

    Example:
        >>> print(calibration_report(model))  # doctest: +ELLIPSIS
        Calibration ...
    """
    alpha = check_open_unit("alpha", alpha)
    check_one_of("residuals", residuals, RESIDUALS)
    with as_in_training(observed_process(model)):
        if X is None and Y is None:
            forecasts = _of_history(model, num_initial, residuals, alpha)
        elif num_initial:
            raise InputDataError("`num_initial` is for training data: slice `X` and `Y` instead.")
        elif residuals != "prequential":
            raise InputDataError(
                f"`residuals={residuals!r}` is for training data: omit it, or `X` and `Y`."
            )
        else:
            forecasts = _of_held_out(model, X, Y, alpha)
    try:
        noise = noise_diagnosis(model)
    except (UnsupportedError, InputDataError):  # the diagnosis supports fewer models
        noise = None
    source = residuals if X is None else "held-out"
    return _report_of(forecasts, alpha, levels, source, num_regions, noise=noise, carried=alarm)


@torch.no_grad()
def report_from_pits(
    pits: ArrayLike | Tensor,
    *,
    alpha: float = 0.2,
    levels: Tensor | Sequence[float] = LEVELS,
    X: ArrayLike | Tensor | None = None,
    num_regions: int = 4,
    bounds: Tensor | None = None,
) -> CalibrationReport:
    """Report on predictive distributions of any library, given as probability integral transforms.

    Widths of intervals, and scores that depend on widths, are unknown and left out.

    Args:
        pits: Probability integral transforms, ``n``, in time order: the predicted probabilities, in
            [0, 1], of a value below the observation. A tensor, an array or a list.
        alpha: Predicted probability, in (0, 1), outside of the central intervals whose coverage is
            reported.
        levels: ``M`` increasing levels in (0, 1) of the quantiles whose frequencies are reported.
        X: The inputs, ``n x d``, if coverage is to be reported in cells of the inputs.
        num_regions: Number of cells of the inputs.
        bounds: A box ``2 x d``, chosen before the observations were made; it needs ``X``. The
            `CalibrationAlarm` of the report then also tests each half of the box along each input.

    Warns:
        CalibrationWarning: If there are fewer than ``1 / alpha`` observations.

    Example:
        >>> report = report_from_pits([0.69, 0.07, 0.69, 1.0, 0.5, 0.31])
    """
    alpha = check_open_unit("alpha", alpha)
    values = check_unit_interval("pits", _vector("pits", pits))
    covered = (alpha / 2 <= values) & (values <= 1 - alpha / 2)
    forecasts = Forecasts(_inputs(X, len(values)), bounds, [Judged(values, covered, {})])
    return _report_of(forecasts, alpha, levels, "given", num_regions)


@torch.no_grad()
def report_from_moments(
    mean: ArrayLike | Tensor,
    deviation: ArrayLike | Tensor,
    observed: ArrayLike | Tensor,
    *,
    alpha: float = 0.2,
    levels: Tensor | Sequence[float] = LEVELS,
    X: ArrayLike | Tensor | None = None,
    num_regions: int = 4,
    bounds: Tensor | None = None,
) -> CalibrationReport:
    """Report on normal predictive distributions of any library.

    Args:
        mean: Predicted means, ``n``, in time order: a tensor, an array or a list.
        deviation: Predicted standard deviations of observations, noise included, ``n``.
        observed: The observations, ``n``, none of which was used for its own prediction.
        alpha: This argument and all further arguments are as in `report_from_pits`.
        levels: Quantile levels.
        X: The inputs, ``n x d``.
        num_regions: Number of cells.
        bounds: A box, ``2 x d``.

    Example:
        >>> mean, deviation = torch.zeros(20), torch.full((20,), 0.2)
        >>> report = report_from_moments(mean, deviation, observed=0.2 * torch.randn(20))
    """
    alpha = check_open_unit("alpha", alpha)
    y = _vector("observed", observed)
    center, size = _vector("mean", mean, len(y)), _vector("deviation", deviation, len(y))
    if not (size > 0.0).all():
        raise InputDataError("`deviation` must be positive.")
    zero = torch.zeros_like(y).unsqueeze(-1)
    units = Affine(size.unsqueeze(-1), center.unsqueeze(-1))
    stated = Prediction(zero, zero + 1.0, outcome_map=units, objective=False)
    judged = judged_predictions(stated, None, y, alpha)
    forecasts = Forecasts(_inputs(X, len(y)), bounds, judged)
    return _report_of(forecasts, alpha, levels, "given", num_regions)


# ------------------------------------------------------------ forecasts


class Forecasts(NamedTuple):
    """Judged predictions of a base model and, if there is a calibrator, of the calibrated model."""

    inputs: Tensor | None  # n x d
    bounds: Tensor | None  # 2 x d; an alarm also tests the halves of this box
    judged: list[Judged]  # of the base model and, with a calibrator, of the calibrated model
    base_name: str = "stated"  # name of the base model in the report


def _vector(name: str, values: ArrayLike | Tensor, num: int | None = None) -> Tensor:
    """Convert ``num`` finite numbers (None: at least one) to a vector in double precision.

    The numbers may be in a tensor, an array or a list. ``name`` is for error messages.
    """
    vector = check_array(name, values, (num,))
    if not len(vector):
        raise BotorchTensorDimensionError(f"`{name}` must hold at least one number.")
    return torch.from_numpy(vector)


def _inputs(X: ArrayLike | Tensor | None, num: int) -> Tensor | None:
    return None if X is None else torch.from_numpy(check_array("X", X, (num, None)))


def _of_history(model: Module, num_initial: int, residuals: str, alpha: float) -> Forecasts:
    """Judged predictions of the training data without the first ``num_initial`` observations."""
    process, calibrator = slots_of(model)[:2]
    if calibrator is None and isinstance(process, Model):
        check_sole_outcome(process, _EACH)
        check_process(process)
    inputs, z, raw, Y, stated = history(process, residuals, num_initial)
    if not len(z):
        raise InputDataError(
            f"`num_initial` {num_initial} leaves no observation to judge: choose a smaller number."
        )
    predictive = None if calibrator is None else calibrator.fresh().to(z).update(inputs, z)
    if stated is not None:
        judged = judged_predictions(stated, predictive, Y, alpha)
    else:  # the outcome's units are unknown
        zero = torch.zeros_like(z).unsqueeze(-1)
        own = Prediction(zero, zero + 1.0, objective=False)
        judged = judged_predictions(own, predictive, z, alpha)
        judged = [each._replace(means={}) for each in judged]
    box = torch.stack([raw.amin(dim=0), raw.amax(dim=0)])
    return Forecasts(raw, box, judged, _base_name(process))


def _of_held_out(model: Module, X: Tensor | None, Y: Tensor | None, alpha: float) -> Forecasts:
    """Judged predictions of held-out observations ``Y``, ``n x 1``, at ``X``, ``n x d``."""
    if X is None or Y is None:
        raise InputDataError("Give both of `X` and `Y`, or neither.")
    check_pairs(X, Y)
    if len(X) == 0:
        raise InputDataError("`X` and `Y` are empty: there are no observations to judge.")
    process, calibrator = slots_of(model)[:2]
    points = X.unsqueeze(-2)
    if isinstance(model, ExactGP) and not isinstance(model, Model):
        model.eval()
        normal = model.likelihood(model(points), [points])
        mean, variance = normal.mean.unsqueeze(-1), normal.variance.unsqueeze(-1)
        stated = Prediction(mean, variance, objective=False)
    else:
        check_sole_outcome(process, _EACH)
        if batch_of_models(model):
            raise _unsupported(model)
        if calibrator is None:
            check_process(process)
        elif isinstance(model, WrapperModel):
            model.warn_if_unlearned()
        stated = predict(model, points, objective=False)
        if stated.shape[-2:] != (1, 1):
            raise _unsupported(model)
    predictive = None if calibrator is None else stated.predictive
    judged = judged_predictions(stated, predictive, Y, alpha)
    return Forecasts(X, None, judged, _base_name(process))


def _unsupported(model: Module) -> UnsupportedError:
    return UnsupportedError(
        f"{type(model).__name__} must have no batch dimension, and predict one value for each "
        "point."
    )


def _base_name(process: Module) -> str:
    return BASE_NAME if kind_of(process) == "gaussian" else type(process).__name__


# ------------------------------------------------------------ the report


def _report_of(
    forecasts: Forecasts,
    alpha: float,
    levels: Tensor | Sequence[float],
    source: str,
    num_regions: int,
    noise: NoiseDiagnosis | None = None,
    carried: CalibrationAlarm | None = None,
) -> CalibrationReport:
    """Return the report on judged predictions, with alarms if they were made in time order.

    ``carried`` is an alarm that observed the outcomes as they arrived, or None.
    """
    levels = check_levels("levels", check_numbers("levels", levels).to("cpu", torch.double))
    check_count("num_regions", num_regions)
    inputs, bounds, judged, name = forecasts
    cells = [] if inputs is None else median_cells(inputs, num_regions)
    base, *others = [scores_of(each, levels, cells) for each in judged]
    calibrated = others[0] if others else None
    num, needed = len(base.pits), math.ceil(1.0 / alpha - 1e-9)
    if num < needed:
        warn(
            f"{num} observations cannot tell whether 1 in {1 / alpha:.4g} is missed: at least "
            f"{needed} are needed to judge intervals at alpha = {alpha}."
        )
    alarms = {} if carried is None else {"carried": carried}
    report = CalibrationReport(alpha, levels, source, calibrated, base, noise, name, alarms)
    if source in ("prequential", "given"):
        for who, forecaster in report.forecasts.items():
            alarms[who] = replayed_alarm(forecaster.pits, inputs, bounds)
    return report
