"""`calibration_report`: how far a model's stated distributions can be relied on.

The function collects what the model stated of each observation, and what came, scores
it, and returns a `CalibrationReport`, which prints itself as a table. The scores themselves are in
`botorch_calib.distributions.scoring`, the cells of the inputs
in `botorch_calib.diagnostics.regions`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, cast

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import (
    check_count,
    check_finite,
    check_inputs,
    check_levels,
    check_one_of,
    check_open_unit,
)
from botorch_calib.diagnostics.regions import Cell, median_cells
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.scoring import (
    binomial_interval,
    calibration_error,
    crps,
    interval_score,
    observed_frequencies,
)
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.inspection import (
    gaussian_part,
    observed_part,
    outcome_scale,
    raw_train_inputs,
)
from botorch_calib.models.residuals import RESIDUALS, forecast_history

#: Quantile levels that are judged unless others are given.
DEFAULT_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

#: With fewer observations than these a report says that its numbers are rough.
FEW_OBSERVATIONS = 20

_SOURCES = {
    "prequential": "each predicted from those before it",
    "loo": "each predicted from all others",
    "held-out": "held out",
}
_LABEL_WIDTH, _COLUMN_WIDTH = 26, 20


# ------------------------------------------------------------ what a report holds


@dataclass(frozen=True, eq=False)
class RegionCoverage:
    """Coverage of the central interval in one cell of the inputs.

    Attributes:
        lower: Lower corner of the cell, ``d``, in the units of the inputs.
        upper: Upper corner, ``d``.
        count: Number of observations in the cell.
        coverage: Fraction of them inside their interval.
        interval: Binomial 95 % interval of the probability behind ``coverage``.
    """

    lower: Tensor
    upper: Tensor
    count: int
    coverage: float
    interval: tuple[float, float]


@dataclass(frozen=True, eq=False)
class ForecastScores:
    """How the distributions that one model stated fared against ``n`` observations.

    Attributes:
        frequencies: Fractions of observations at or below their stated quantile at each of
            the report's levels, ``M``.
        frequency_intervals: Binomial 95 % intervals of the probabilities behind them, ``M x 2``.
        calibration_error: ``sum_j (level_j - frequency_j)^2``.
        coverage: Fraction of observations inside the central ``1 - alpha`` interval.
        coverage_interval: Binomial 95 % interval of the probability behind it.
        regions: Coverage in each cell of the inputs.
        mean_width: Mean width of the central interval, in units of the outcome.
        mean_deviation: Mean standard deviation stated, in units of the outcome.
        mean_interval_score: Mean score of the central interval, in units of the outcome.
        mean_crps: Mean continuous ranked probability score, in units of the outcome.
        pits: Stated probabilities of a value below the observed one, ``n``, in time order.
        covered: Whether each observation lay inside its central interval, ``n``.
    """

    frequencies: Tensor
    frequency_intervals: Tensor
    calibration_error: float
    coverage: float
    coverage_interval: tuple[float, float]
    regions: tuple[RegionCoverage, ...]
    mean_width: float
    mean_deviation: float
    mean_interval_score: float
    mean_crps: float
    pits: Tensor
    covered: Tensor

    @property
    def running_coverage(self) -> Tensor:
        """Coverage of the first ``t`` observations, for ``t = 1, ..., n``."""
        covered = self.covered.double()
        steps = torch.arange(1, len(covered) + 1, dtype=covered.dtype, device=covered.device)
        return covered.cumsum(dim=0) / steps


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
    """

    alpha: float
    levels: Tensor
    source: str
    calibrated: ForecastScores | None
    base: ForecastScores

    @property
    def num_observations(self) -> int:
        """Number of observations judged."""
        return len(self.base.pits)

    @property
    def forecasts(self) -> dict[str, ForecastScores]:
        """The scores by the name of what they judge, the calibrated ones first."""
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
        calibrated = None if self.calibrated is None else _plain(self.calibrated)
        return {
            "alpha": self.alpha,
            "levels": self.levels.tolist(),
            "source": self.source,
            "num_observations": self.num_observations,
            "calibrated": calibrated,
            "base": _plain(self.base),
        }

    def __str__(self) -> str:
        columns = list(self.forecasts.values())
        lines = [
            f"Calibration report: {self.num_observations} observations, {_SOURCES[self.source]}",
            f"Central {1 - self.alpha:.4g} intervals, in units of the outcome; "
            "in brackets, binomial 95 % intervals",
            "",
            _row("", list(self.forecasts)),
            *_summary_rows(self.alpha, columns),
            *_region_rows(columns),
            "Share at or below the quantile",
            *_level_rows(self.levels, columns),
        ]
        return "\n".join(lines if self.note is None else [*lines, "", self.note])

    __repr__ = __str__


# ------------------------------------------------------------ the report of a model


class _Forecasts(NamedTuple):
    """Observations as forecasters saw them: what was stated, and what came."""

    inputs: Tensor  # n x d, in raw units
    residuals: Tensor  # n, standardised by the Gaussian process
    deviations: Tensor  # n, of the observations, in units of the outcome
    stated: PiecewisePredictive | None  # of the residuals; None without a calibrator


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
    """Judge the predictive distributions of a model, beside those of its Gaussian process.

    Without ``X`` and ``Y`` the training data are the evidence. The Gaussian process predicts
    each observation at its current hyperparameters, which were fitted to all of them, and a
    calibrator that has learned nothing is replayed over the residuals: an observation
    is judged by the distribution stated before it was learned from. With held-out data the
    present model is judged, as it is.

    The model keeps its state and what its calibrator has learned; held-out data, like any
    prediction, leave it in eval mode.

    Args:
        model: A `CalibratedModel` or a Gaussian process, with one output.
        X: Held-out inputs, ``n x d``.
        Y: Held-out observations, ``n x 1``.
        alpha: The central ``1 - alpha`` interval is judged, in (0, 1).
        levels: ``M`` increasing quantile levels in (0, 1) (default: 0.1, 0.2, ..., 0.9).
        num_initial: Number of initial training data (the design) to leave out.
        residuals: Whether a training observation is predicted from those before it or,
            with ``"loo"``, from all others.
        num_regions: Number of cells of the inputs in which coverage is counted.

    Returns:
        The report, with the scores of the calibrated model and of its Gaussian process.

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
        forecasts = _of_history(model, num_initial, residuals)
    elif num_initial:
        raise InputDataError("`num_initial` is for training data: slice `X` and `Y` instead.")
    else:
        forecasts = _of_held_out(model, *_check_held_out(X, Y))
    _warn_if_few(len(forecasts.residuals), alpha)
    source = residuals if X is None else "held-out"
    return _judged(forecasts, source, alpha, checked, num_regions)


# ------------------------------------------------------------ forecasts


def _of_history(model: Any, num_initial: int, residuals: str) -> _Forecasts:
    """Forecasts of the training data of a model, without the first ``num_initial``."""
    model = observed_part(model)
    gp = observed_part(gaussian_part(model))
    inputs, z, deviations = forecast_history(gp, residuals)
    if not 0 <= num_initial < len(z):
        raise InputDataError(
            f"`num_initial` must be at least 0 and leave some of the {len(z)} observations, "
            f"got {num_initial}."
        )
    kept = slice(num_initial, None)
    stated = None
    if isinstance(model, CalibratedModel):
        stated = model.calibrator.fresh().to(z).update(inputs[kept], z[kept])
    scale = outcome_scale(gp)
    if scale is None:
        raise UnsupportedError(
            f"The outcome transform {type(gp.outcome_transform).__name__} leaves no Gaussian "
            "prediction in units of the outcome: use Standardize, and apply others to the "
            "observations beforehand."
        )
    deviations = scale.detach().reshape(()) * deviations
    raw_inputs = cast(Tensor, raw_train_inputs(gp)).detach()
    return _Forecasts(raw_inputs[kept], z[kept], deviations[kept], stated)


def _of_held_out(model: Any, X: Tensor, Y: Tensor) -> _Forecasts:
    """Forecasts of observations that the model has not seen, each by itself."""
    if model.num_outputs != 1 or model.batch_shape:
        raise _unsupported(model)
    posterior = model.posterior(X.unsqueeze(-2), observation_noise=True)
    stated, noise, base = None, 0.0, posterior
    if isinstance(model, CalibratedModel):
        stated, noise = posterior.predictive, posterior.noise_variance
        base = posterior.base_posterior
    if type(base) is not GPyTorchPosterior or base.mean.shape != (len(X), 1, 1):
        raise _unsupported(model)
    deviations = (base.variance + noise).sqrt().reshape(-1)
    z = (Y - base.mean.squeeze(-1)).reshape(-1) / deviations
    return _Forecasts(X, z, deviations, stated)


def _unsupported(model: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{type(model).__name__} must have one output, no batch dimension, a Gaussian posterior in "
        "units of the outcome and no one-to-many input transform. Several outputs: one report "
        "each; nonlinear outcome transforms: apply them to the observations beforehand."
    )


# ------------------------------------------------------------ their scores


def _judged(
    forecasts: _Forecasts, source: str, alpha: float, levels: Tensor, num_regions: int
) -> CalibrationReport:
    """The report on forecasts: scores of what was stated, beside those of the normal."""
    z = forecasts.residuals
    cells = median_cells(forecasts.inputs, num_regions)
    normal = PiecewisePredictive.gaussian((len(z), 1), dtype=torch.double, device=z.device)
    calibrated = None
    if forecasts.stated is not None:
        calibrated = _scores(forecasts, forecasts.stated, alpha, levels, cells)
    base = _scores(forecasts, normal, alpha, levels, cells)
    return CalibrationReport(alpha, levels, source, calibrated, base)


def _scores(
    forecasts: _Forecasts,
    predictive: PiecewisePredictive,
    alpha: float,
    levels: Tensor,
    cells: list[Cell],
) -> ForecastScores:
    """Scores of distributions of the residuals, in units of the outcome where they have units."""
    # CRPS and the widths scale with the outcome: computed in units of z, then multiplied.
    predictive, unit = predictive.to(torch.double), forecasts.deviations.double()
    z = forecasts.residuals.double()
    z = z.view(-1, *[1] * (len(predictive.batch_shape) - 1))
    tails = (z.new_tensor(p) for p in (alpha / 2, 1 - alpha / 2))
    lower, upper = (predictive.quantile(p).expand(z.shape) for p in tails)
    covered = ((lower <= z) & (z <= upper)).reshape(-1)
    pits = predictive.cdf(z).reshape(-1)
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
        mean_deviation=mean(predictive.variance.sqrt().expand(z.shape)),
        mean_interval_score=mean(interval_score(lower, upper, z, alpha)),
        mean_crps=mean(crps(predictive, z)),
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
    check_one_of("residuals", residuals, RESIDUALS)
    check_count("num_regions", num_regions)
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


# ------------------------------------------------------------ the printed table


def _summary_rows(alpha: float, columns: list[ForecastScores]) -> list[str]:
    names = {
        "calibration_error": "calibration error",
        "mean_width": "mean interval width",
        "mean_deviation": "mean standard deviation",
        "mean_interval_score": "mean interval score",
        "mean_crps": "mean CRPS",
    }
    coverage = [_share(scores.coverage, scores.coverage_interval) for scores in columns]
    return [
        _row(f"coverage (stated {1 - alpha:.4g})", coverage),
        *(
            _row(label, [f"{getattr(scores, name):.4g}" for scores in columns])
            for name, label in names.items()
        ),
    ]


def _region_rows(columns: list[ForecastScores]) -> list[str]:
    cells = columns[0].regions
    lowest = torch.stack([cell.lower for cell in cells]).min(dim=0).values
    highest = torch.stack([cell.upper for cell in cells]).max(dim=0).values
    lines = ["Coverage by region"]
    for index, cell in enumerate(cells):
        shares = [scores.regions[index] for scores in columns]
        texts = [_share(share.coverage, share.interval) for share in shares]
        lines.append(_row(f"  region {index + 1}, n = {cell.count}", texts))
        lines += [f"    {text}" for text in _cut_sides(cell, lowest, highest)]
    return lines


def _cut_sides(cell: RegionCoverage, lowest: Tensor, highest: Tensor) -> list[str]:
    """A cell's sides in the coordinates in which it does not span all of the data."""
    return [
        f"x{i + 1} in [{cell.lower[i]:.3g}, {cell.upper[i]:.3g}]"
        for i in range(len(cell.lower))
        if cell.lower[i] > lowest[i] or cell.upper[i] < highest[i]
    ]


def _level_rows(levels: Tensor, columns: list[ForecastScores]) -> list[str]:
    lines = []
    for j, level in enumerate(levels.tolist()):
        shares = [(float(s.frequencies[j]), s.frequency_intervals[j].tolist()) for s in columns]
        lines.append(_row(f"  {level:.4g}", [_share(*share) for share in shares]))
    return lines


def _row(label: str, texts: list[str]) -> str:
    cells = "".join(f"{text:<{_COLUMN_WIDTH}}" for text in texts)
    return f"{label:<{_LABEL_WIDTH}}{cells}".rstrip()


def _share(value: float, interval: tuple[float, float] | list[float]) -> str:
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _plain(scores: Any) -> Any:
    """Dataclasses, tensors and tuples as dictionaries, lists and numbers."""
    if isinstance(scores, Tensor):
        return scores.tolist()
    if isinstance(scores, (tuple, list)):
        return [_plain(item) for item in scores]
    if isinstance(scores, (ForecastScores, RegionCoverage)):
        return {field.name: _plain(getattr(scores, field.name)) for field in fields(scores)}
    return scores
