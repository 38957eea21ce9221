"""`calibration_report`: how far a model's stated distributions can be relied on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from botorch.exceptions import InputDataError, UnsupportedError
from botorch.models.model import Model
from gpytorch.models import ExactGP
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_model, check_one_of, check_open_unit, check_pairs
from botorch_calib.calibration import pit
from botorch_calib.diagnostics.calibration_alarm import CalibrationAlarm
from botorch_calib.diagnostics.noise import noise_diagnosis
from botorch_calib.diagnostics.report import (
    BASE_NAME,
    LEVELS,
    CalibrationReport,
    Forecasts,
    report_of,
)
from botorch_calib.diagnostics.report_scores import StatedForecasts
from botorch_calib.models.predict import history, predict, slots_of
from botorch_calib.models.process import (
    as_in_training,
    has_members,
    observed_process,
    states_cdf_alone,
)
from botorch_calib.models.requirements import batch_of_models, check_process
from botorch_calib.models.residuals import RESIDUALS


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
    """Judge the predictive distributions of a model, beside those of its Gaussian process.

    Without ``X`` and ``Y`` the training data are the evidence. The Gaussian process predicts each
    observation at its current hyperparameters, which were fitted to all of them, and a calibrator
    that has learned nothing is replayed over the residuals: an observation is judged by the
    distribution stated before it was learned from. With held-out data the present model is judged,
    as it is. The model and its calibrator are left as they are.

    All of this is about observations. What is stated of the objective behind the noise rests on the
    stated noise as well: the `noise_diagnosis` of an exact Gaussian process is added.

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
        alarm: One that has watched the predictions as they were made, to stand in the report with
            its guarantee.

    Raises:
        UnsupportedError: If the model has more outputs, or no `CalibratedModel` takes it.
        InputDataError: If there are no observations, or an argument is out of its range.

    Warns:
        CalibrationWarning: If there are fewer than ``1 / alpha`` observations.

    Example:
        >>> print(calibration_report(model))  # doctest: +ELLIPSIS
        Calibration ...
    """
    check_open_unit("alpha", alpha)
    check_one_of("residuals", residuals, RESIDUALS)
    with as_in_training(observed_process(model)):
        if X is None and Y is None:
            forecasts = _of_history(model, num_initial, residuals, alpha)
        elif num_initial:
            raise InputDataError("`num_initial` is for training data: slice `X` and `Y` instead.")
        else:
            forecasts = _of_held_out(model, X, Y, alpha)
    try:
        noise = noise_diagnosis(model)
    except (UnsupportedError, InputDataError):  # not all models that are judged have one
        noise = None
    source, inputs = residuals if X is None else "held-out", cast(Tensor, forecasts.inputs)
    bounds = torch.stack([inputs.amin(dim=0), inputs.amax(dim=0)])
    return report_of(forecasts, alpha, levels, source, num_regions, noise, bounds, alarm)


def _of_history(model: Any, num_initial: int, residuals: str, alpha: float) -> Forecasts:
    """Forecasts of the training data of a model, without the first ``num_initial``."""
    process, calibrator = slots_of(model)[:2]
    if calibrator is None and isinstance(process, Model):
        check_process(process)
    inputs, z, raw, Y, stated = history(process, residuals, num_initial)
    if not len(z):
        raise InputDataError(
            f"`num_initial` {num_initial} leaves no observation to judge: give a smaller one."
        )
    learned: list[Any] = [None]
    if calibrator is not None:
        learned.append(calibrator.fresh().to(z).update(inputs, z))
    name = _base_name(process)
    if stated is None:
        pits = [pit(z)] + [
            each.to(torch.double).cdf(z.double().unsqueeze(-1)).reshape(-1) for each in learned[1:]
        ]
        return Forecasts(raw, [StatedForecasts.of_pits(each, alpha) for each in pits], name)
    forecasts = [
        StatedForecasts.of_prediction(stated.corrected(each), Y, alpha) for each in learned
    ]
    return Forecasts(raw, forecasts, name)


def _base_name(process: Any) -> str:
    is_process = not (has_members(process) or states_cdf_alone(process))
    return BASE_NAME if is_process else type(process).__name__


def _of_held_out(model: Any, X: Tensor | None, Y: Tensor | None, alpha: float) -> Forecasts:
    """Forecasts of observations at single points, which the model has not seen."""
    if X is None or Y is None:
        raise InputDataError("Give both of `X` and `Y`, or neither.")
    check_pairs(X, Y)
    if len(X) == 0:
        raise InputDataError("`X` and `Y` are empty: there is nothing to judge.")
    if isinstance(model, ExactGP) and not isinstance(model, Model):
        return _of_plain_process(model, X, Y, alpha)
    check_model(model)
    if model.num_outputs != 1 or batch_of_models(model):
        raise _unsupported(model)
    slots = slots_of(model)
    if slots.calibrator is None:
        check_process(slots.process)
    else:
        model.warn_if_unlearned()
    stated = predict(model, X.unsqueeze(-2), objective=False)
    if stated.shape[-2:] != (1, 1):
        raise _unsupported(model)
    both = [stated.corrected(None)] + ([] if slots.calibrator is None else [stated])
    forecasts = [StatedForecasts.of_prediction(each, Y, alpha) for each in both]
    return Forecasts(X, forecasts, _base_name(slots.process))


def _of_plain_process(gp: Any, X: Tensor, Y: Tensor, alpha: float) -> Forecasts:
    """Forecasts of an exact process of GPyTorch's that is no BoTorch model."""
    gp.eval()
    points = X.unsqueeze(-2)
    observed = gp.likelihood(gp(points), [points])
    deviation = observed.variance.sqrt().reshape(-1)
    residuals = (Y.reshape(-1) - observed.mean.reshape(-1)) / deviation
    return Forecasts(X, [StatedForecasts.of_residuals(None, residuals, deviation, alpha)])


def _unsupported(model: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{type(model).__name__} must have one output and no batch dimension, and state one value "
        "for each point. Several outputs: one report each."
    )
