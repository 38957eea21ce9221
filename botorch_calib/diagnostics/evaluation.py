"""`calibration_report`: how far a model's stated laws can be relied on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.transforms import Standardize
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import (
    check_finite,
    check_inputs,
    check_levels,
    check_open_unit,
)
from botorch_calib.diagnostics.regions import Cell, median_cells
from botorch_calib.diagnostics.report import CalibrationReport, ForecastScores, RegionCoverage
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.scoring import (
    binomial_interval,
    calibration_error,
    crps,
    interval_score,
    observed_frequencies,
)
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models.residuals import forecast_history

DEFAULT_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class _Forecasts(NamedTuple):
    """Observations as forecasters saw them: what was stated, and what came."""

    inputs: Tensor  # n x d, in raw units
    residuals: Tensor  # n, standardised by the Gaussian process
    deviations: Tensor  # n, of the observations, in units of the outcome
    law: PiecewisePredictive | None  # of the residuals; None without a calibrator


@torch.no_grad()
def calibration_report(
    model: Module,
    X: Tensor | None = None,
    Y: Tensor | None = None,
    *,
    alpha: float = 0.2,
    levels: Tensor | Sequence[float] | None = None,
    num_initial: int = 0,
    residuals: Literal["prequential", "loo"] = "prequential",
    num_regions: int = 4,
) -> CalibrationReport:
    """Judge the predictive laws of a model, and those of its Gaussian process beside them.

    Without ``X`` and ``Y`` the training data are the evidence. The Gaussian process predicts
    each observation at its current hyperparameters, which were fitted to all of them, and a
    calibrator that has learned nothing is replayed over the residuals: an observation
    is judged by the law that stood before it was learned from. With held-out data the
    present model is judged, as it is.

    The model keeps its state and what its calibrator has learned; held-out data, like any
    prediction, leave it in eval mode.

    Args:
        model: A `CalibratedModel` or a Gaussian process, with one output.
        X: Held-out inputs, ``n x d``.
        Y: Held-out observations, ``n x 1``.
        alpha: The central ``1 - alpha`` interval is judged, in (0, 1).
        levels: ``M`` increasing quantile levels in (0, 1); 0.1 to 0.9 by default.
        num_initial: Number of initial training data (the design) to leave out.
        residuals: Whether a training observation is predicted from those before it or,
            with ``"loo"``, from all others.
        num_regions: Number of cells of the inputs in which coverage is counted.

    Raises:
        UnsupportedError: If the model is not Gaussian in units of the outcome or has several
            outputs, or, without held-out data, is not an exact Gaussian process.
        InputDataError: If there are no observations, or an argument is out of its range.
        BotorchTensorDimensionError: If ``X`` and ``Y`` are not ``n x d`` and ``n x 1``.

    Warns:
        CalibrationWarning: If there are fewer than ``1 / alpha`` observations, of which not
            even one need lie outside its interval.

    Example:
        >>> model = CalibratedModel.from_history(gp, LocalizedConformal(0.2, lengthscale=0.25))
        >>> print(calibration_report(model))
    """
    checked = _check_arguments(alpha, levels, residuals, num_regions)
    if X is None and Y is None:
        forecasts = _of_history(model, num_initial, leave_one_out=residuals == "loo")
    elif num_initial:
        raise InputDataError("`num_initial` is for training data: slice `X` and `Y` instead.")
    else:
        forecasts = _of_held_out(model, *_check_held_out(X, Y))
    _warn_if_few(len(forecasts.residuals), alpha)
    source = residuals if X is None else "held-out"
    return _judged(forecasts, source, alpha, checked, num_regions)


# ------------------------------------------------------------ forecasts


def _of_history(model: Any, num_initial: int, leave_one_out: bool) -> _Forecasts:
    """Forecasts of the training data of a model, without the first ``num_initial``."""
    model = _observed_part(model)
    is_calibrated = _is_calibrated(model)
    gp = _observed_part(model.model) if is_calibrated else model
    inputs, z, deviations = forecast_history(gp, leave_one_out)
    if not 0 <= num_initial < len(z):
        raise InputDataError(
            f"`num_initial` must be at least 0 and leave some of the {len(z)} observations, "
            f"got {num_initial}."
        )
    kept = slice(num_initial, None)
    law = None
    if is_calibrated:
        law = model.calibrator.fresh().to(z).update(inputs[kept], z[kept])
    deviations = _outcome_scale(gp) * deviations
    return _Forecasts(_raw_inputs(gp, inputs)[kept], z[kept], deviations[kept], law)


def _observed_part(model: Any) -> Any:
    """What a model that also knows pending points, a `CensoredDelayModel`, says of the others."""
    return getattr(model, "observed_model", model)


def _of_held_out(model: Any, X: Tensor, Y: Tensor) -> _Forecasts:
    """Forecasts of observations that the model has not seen, each by itself."""
    if model.num_outputs != 1 or model.batch_shape:
        raise _unsupported(model)
    posterior = model.posterior(X.unsqueeze(-2), observation_noise=True)
    law, noise, base = None, 0.0, posterior
    if _is_calibrated(model):
        law, noise, base = posterior.predictive, posterior.noise_variance, posterior.base_posterior
    if type(base) is not GPyTorchPosterior or base.mean.shape != (len(X), 1, 1):
        raise _unsupported(model)
    deviations = (base.variance + noise).sqrt().reshape(-1)
    return _Forecasts(X, (Y - base.mean.squeeze(-1)).reshape(-1) / deviations, deviations, law)


def _unsupported(model: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{type(model).__name__} must have one output, no batch dimension, a Gaussian posterior in "
        "units of the outcome and no one-to-many input transform. Several outputs: one report "
        "each; nonlinear outcome transforms: apply them to the observations beforehand."
    )


def _is_calibrated(model: Any) -> bool:
    # By its parts, since the class itself is defined on top of this package.
    return hasattr(model, "calibrator") and hasattr(model, "model")


def _raw_inputs(gp: Any, transformed: Tensor) -> Tensor:
    """Training inputs in the user's units, which BoTorch keeps where it transforms them."""
    original: Tensor | None = getattr(gp, "_original_train_inputs", None)
    if original is not None and getattr(gp, "_has_transformed_inputs", False):
        return original.detach()
    return transformed if not gp.training else gp.train_inputs[0].detach()


def _outcome_scale(gp: Any) -> Tensor | float:
    """Factor from the space of a GP's targets to units of the outcome."""
    transform = getattr(gp, "outcome_transform", None)
    if transform is None:
        return 1.0
    if type(transform) is Standardize:
        return transform.stdvs.detach().reshape(())
    raise UnsupportedError(
        f"The outcome transform {type(transform).__name__} leaves no Gaussian prediction in units "
        "of the outcome: use Standardize, and apply others to the observations beforehand."
    )


# ------------------------------------------------------------ their scores


def _judged(
    forecasts: _Forecasts, source: str, alpha: float, levels: Tensor, num_regions: int
) -> CalibrationReport:
    """The report on forecasts: that of their laws beside that of the normal law."""
    z = forecasts.residuals
    cells = median_cells(forecasts.inputs, num_regions)
    normal = PiecewisePredictive.gaussian((len(z), 1), dtype=torch.double, device=z.device)
    calibrated = None
    if forecasts.law is not None:
        calibrated = _scores(forecasts, forecasts.law, alpha, levels, cells)
    base = _scores(forecasts, normal, alpha, levels, cells)
    return CalibrationReport(alpha, levels, source, calibrated, base)


def _scores(
    forecasts: _Forecasts,
    law: PiecewisePredictive,
    alpha: float,
    levels: Tensor,
    cells: list[Cell],
) -> ForecastScores:
    """Scores of laws of the residuals, in units of the outcome where they have units."""
    law, unit = law.to(torch.double), forecasts.deviations.double()
    z = forecasts.residuals.double()
    z = z.view(-1, *[1] * (len(law.batch_shape) - 1))
    tails = (z.new_tensor(p) for p in (alpha / 2, 1 - alpha / 2))
    lower, upper = (law.quantile(p).expand(z.shape) for p in tails)
    covered = ((lower <= z) & (z <= upper)).reshape(-1)
    pits = law.cdf(z).reshape(-1)
    frequencies = observed_frequencies(pits, levels)
    ends = binomial_interval((frequencies * len(pits)).round(), len(pits))

    def mean(values: Tensor) -> float:
        return float((unit * values.reshape(-1)).mean())

    return ForecastScores(
        frequencies=frequencies,
        frequency_intervals=torch.stack(ends, dim=-1),
        calibration_error=float(calibration_error(pits, levels)),
        **_coverage(covered),
        regions=tuple(_region(cell, covered) for cell in cells),
        mean_width=mean(upper - lower),
        mean_deviation=mean(law.variance.sqrt().expand(z.shape)),
        mean_interval_score=mean(interval_score(lower, upper, z, alpha)),
        mean_crps=mean(crps(law, z)),
        pits=pits,
        covered=covered,
    )


def _coverage(covered: Tensor) -> dict[str, Any]:
    low, high = binomial_interval(covered.sum(), len(covered))
    share = float(covered.double().mean())
    return {"coverage": share, "coverage_interval": (float(low), float(high))}


def _region(cell: Cell, covered: Tensor) -> RegionCoverage:
    counted = _coverage(covered[cell.indices])
    return RegionCoverage(
        lower=cell.lower,
        upper=cell.upper,
        count=len(cell.indices),
        coverage=counted["coverage"],
        interval=counted["coverage_interval"],
    )


# ------------------------------------------------------------ checks


def _check_arguments(
    alpha: float, levels: Tensor | Sequence[float] | None, residuals: str, num_regions: int
) -> Tensor:
    """The levels in double precision, if all arguments are valid."""
    check_open_unit("alpha", alpha)
    if residuals not in ("prequential", "loo"):
        raise InputDataError(f"`residuals` must be 'prequential' or 'loo', got {residuals!r}.")
    if num_regions < 1:
        raise InputDataError(f"`num_regions` must be at least 1, got {num_regions}.")
    given = DEFAULT_LEVELS if levels is None else levels
    return check_levels("levels", torch.as_tensor(given, dtype=torch.double, device="cpu"))


def _check_held_out(X: Tensor | None, Y: Tensor | None) -> tuple[Tensor, Tensor]:
    if X is None or Y is None:
        raise InputDataError("Give both of `X` and `Y`, or neither.")
    check_inputs("X", X)
    if Y.shape != (len(X), 1):
        raise BotorchTensorDimensionError(
            f"`Y` must have shape {len(X)} x 1, one observation for each row of `X`, "
            f"got {tuple(Y.shape)}."
        )
    if len(X) == 0:
        raise InputDataError("`X` and `Y` are empty: there is nothing to judge.")
    return X, check_finite("Y", Y)


def _warn_if_few(num_observations: int, alpha: float) -> None:
    needed = math.ceil(1.0 / alpha - 1e-9)
    if num_observations < needed:
        warnings.warn(
            f"{num_observations} observations cannot tell whether 1 in {1 / alpha:.4g} is missed: "
            f"at least {needed} are needed to judge intervals at alpha = {alpha}.",
            CalibrationWarning,
            stacklevel=4,
        )
