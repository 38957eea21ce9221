"""`calibration_report`: how far a model's stated distributions can be relied on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ExactGP
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_model, check_one_of, check_open_unit, check_pairs
from botorch_calib.calibration import NoCalibration, pit
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
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.cholesky_factor import in_space_of_targets
from botorch_calib.models.delayed import CensoredDelayModel
from botorch_calib.models.inspection import (
    as_in_training,
    in_output_task,
    least_variance,
    observed_process,
    outcome_units,
    raw_train_inputs,
    with_task_feature,
)
from botorch_calib.models.outcome_transforms import InverseTransform, raw_train_targets
from botorch_calib.models.predictors import Correction, predictor_of
from botorch_calib.models.predictors.transformed_gaussian import TransformedPredictor
from botorch_calib.models.requirements import batch_of_models, check_fits
from botorch_calib.models.residuals import RESIDUALS, forecast_history
from botorch_calib.posteriors import CalibratedPosterior, TransformedOutcomePosterior


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
    gp = observed_process(model)  # without pending points
    inner = model.model if isinstance(model, CensoredDelayModel) else model
    model = inner.with_model(gp) if isinstance(inner, CalibratedModel) else gp
    calibrator = model.calibrator.fresh() if isinstance(model, CalibratedModel) else None
    predictor = predictor_of(model)
    if not predictor.is_process:
        inputs, z = predictor.history(residuals)
        kept = _kept(torch.arange(len(z)), num_initial)
        pits = [pit(z[kept])]
        if calibrator is not None:
            learned = calibrator.to(z).update(inputs[kept], z[kept]).to(torch.double)
            pits.append(learned.cdf(z[kept].double().unsqueeze(-1)).reshape(-1))
        stated = [StatedForecasts.of_pits(each, alpha) for each in pits]
        return Forecasts(inputs[kept], stated, base_name=type(gp).__name__)
    inputs, z, deviations = forecast_history(gp, residuals)
    kept = _kept(in_output_task(gp, inputs).nonzero().squeeze(-1), num_initial)
    predictive = None if calibrator is None else calibrator.to(z).update(inputs[kept], z[kept])
    raw_inputs = cast(Tensor, raw_train_inputs(gp)).detach()
    both = [None] if predictive is None else [None, predictive]
    if isinstance(predictor, TransformedPredictor):
        predictor.check()
        posteriors = [_transformed(gp, z, deviations, kept, each) for each in both]
        observed = raw_train_targets(gp)[kept]
        stated = [StatedForecasts.of_posterior(each, observed, alpha) for each in posteriors]
    else:
        own = z[kept], outcome_units(gp)[kept] * deviations[kept], alpha
        stated = [StatedForecasts.of_residuals(each, *own) for each in both]
    return Forecasts(raw_inputs[kept], stated)


def _transformed(
    gp: Any, residuals: Tensor, deviations: Tensor, kept: Tensor, stated: PiecewisePredictive | None
) -> TransformedOutcomePosterior:
    """What was stated of the ``kept`` observations of a process of transformed outcomes."""
    targets = in_space_of_targets(gp)
    deviations = outcome_units(targets) * deviations
    mean = raw_train_targets(targets).squeeze(-1) - deviations * residuals
    # Independent, as only marginals count, and with the noise in the variance
    normal = MultivariateNormal(mean[kept], DiagLinearOperator(deviations[kept].square()))
    base = GPyTorchPosterior(normal)
    if stated is None:
        stated = PiecewisePredictive.gaussian(dtype=torch.double, device=mean.device)
    least = least_variance(targets, base)
    posterior = CalibratedPosterior(base, stated, 0.0, denoise=False, least_variance=least)
    inputs = cast(Tensor, raw_train_inputs(gp))
    return TransformedOutcomePosterior(posterior, InverseTransform(gp, inputs[kept]))


def _kept(own: Tensor, num_initial: int) -> Tensor:
    """The observations that are judged, by their places."""
    if not 0 <= num_initial < len(own):
        raise InputDataError(
            f"`num_initial` must be at least 0 and leave some of the {len(own)} observations, "
            f"got {num_initial}."
        )
    return own[num_initial:]


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
    is_calibrated = isinstance(model, CalibratedModel)
    predictor = predictor_of(model)
    if not is_calibrated:
        predictor.check()
    points = X.unsqueeze(-2)
    try:
        posteriors = [predictor.posterior(points, Correction(NoCalibration(), denoise=False))]
        if is_calibrated:
            posteriors.append(model.posterior(points, observation_noise=True))
    except (RuntimeError, BotorchTensorDimensionError):
        # Not before: models whose input transforms add columns need not tell their own width.
        gp = predictor.observed
        check_fits(gp, with_task_feature(gp, X))
        raise
    if any(posterior._extended_shape()[-2:] != (1, 1) for posterior in posteriors):
        raise _unsupported(model)
    stated = [StatedForecasts.of_posterior(posterior, Y, alpha) for posterior in posteriors]
    name = BASE_NAME if predictor.is_process else type(predictor.observed).__name__
    return Forecasts(X, stated, name)


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
