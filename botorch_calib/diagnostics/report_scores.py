"""Scores of predictive distributions against observations, overall and in regions of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.scoring_rules import (
    binomial_interval,
    calibration_error,
    crps,
    crps_of_quantiles,
    interval_score,
    observed_frequencies,
)
from botorch_calib.posteriors import Prediction


@dataclass(frozen=True, eq=False)
class RegionCoverage:
    """Coverage of the central interval in one cell of the inputs.

    Attributes:
        lower: Lower corner of the cell, ``d``, in the units of the inputs.
        upper: Upper corner of the cell, ``d``.
        count: Number of observations in the cell.
        coverage: Share of these observations inside the interval.
        interval: Binomial 95 % interval for the coverage probability.
    """

    lower: Tensor
    upper: Tensor
    count: int
    coverage: float
    interval: tuple[float, float]


@dataclass(frozen=True, eq=False)
class ForecastScores:
    """Scores of the predictive distributions of one model against ``n`` observations.

    The central interval has the predicted probability ``1 - alpha``, with the ``alpha`` of the
    report. The attributes ``mean_...`` are in units of the outcome, and None if only probabilities
    are known.

    Attributes:
        frequencies: Share of observations at or below the predicted quantile, for each of the
            report's levels, ``M``.
        frequency_intervals: Binomial 95 % intervals for the probabilities that ``frequencies``
            estimate, ``M x 2``.
        calibration_error: ``sum_j (level_j - frequency_j)^2``.
        coverage: Share of observations inside the central interval.
        coverage_interval: Binomial 95 % interval for the coverage probability.
        regions: Coverage in each cell of the inputs; empty if the inputs are unknown.
        pits: Predicted probabilities of a value below the observation, ``n``, in time order.
        covered: Whether each observation is inside the central interval, ``n``.
        mean_width: Mean width of the central interval.
        mean_deviation: Mean predicted standard deviation.
        mean_interval_score: Mean interval score of the central interval.
        mean_crps: Mean continuous ranked probability score.
    """

    frequencies: Tensor
    frequency_intervals: Tensor
    calibration_error: float
    coverage: float
    coverage_interval: tuple[float, float]
    regions: tuple[RegionCoverage, ...]
    pits: Tensor
    covered: Tensor
    mean_width: float | None = None
    mean_deviation: float | None = None
    mean_interval_score: float | None = None
    mean_crps: float | None = None

    @property
    def running_coverage(self) -> Tensor:
        """Coverage of the first ``t`` observations, for ``t = 1, ..., n``, as a tensor."""
        covered = self.covered.double()
        return covered.cumsum(dim=0) / torch.ones_like(covered).cumsum(dim=0)


# ------------------------------------------------------------ one forecaster's distributions


class Judged(NamedTuple):
    """Results of a comparison of ``n`` observations with their predictive distributions."""

    pits: Tensor  # probability integral transforms of the observations, n
    covered: Tensor  # whether each observation is inside the central interval, n
    means: dict[str, float]  # the fields `mean_...` of `ForecastScores` that are known


def judged_predictions(
    stated: Prediction, predictive: PiecewisePredictive | None, Y: Tensor, alpha: float
) -> list[Judged]:
    """Compare observations ``Y``, ``n x 1``, with predictions without and with calibration.

    Args:
        stated: The base model's predictions of the observations.
        predictive: A calibrator's distributions of the residuals, or None.
        Y: The observations.
        alpha: Probability outside of the central interval.

    Returns:
        A result for the base model and, unless ``predictive`` is None, for the calibrated model.
    """
    predictives = (None,) if predictive is None else (None, predictive)
    y = Y.double().view(stated.shape)
    if not stated.is_gaussian:
        return [_judged(stated.corrected(each), y, 1.0, alpha) for each in predictives]
    # Residuals in units of standard deviations lose no digits if the standard deviations are tiny
    # compared with the outcomes.
    z, unit = stated.own_score(y), stated.unit_of_scores
    normal = PiecewisePredictive.gaussian((1, 1), device=z.device)
    laws = [(normal if each is None else each).to(torch.double) for each in predictives]
    return [_judged(law, z, unit, alpha) for law in laws]


def _judged(
    law: PiecewisePredictive | Prediction, at: Tensor, unit: Tensor | float, alpha: float
) -> Judged:
    """Compare the observations ``at`` with the distribution ``law``, both in the same unit.

    Multiplication by ``unit`` converts widths and scores to units of the outcome.
    """
    if isinstance(law, Prediction):
        deviation = law.moments()[1].sqrt()
        score = crps_of_quantiles(law.quantile, at.reshape(-1)).view(at.shape)
    else:
        deviation, score = law.variance.sqrt(), crps(law, at)
    lower, upper = (law.quantile(p).double() for p in (alpha / 2, 1 - alpha / 2))
    sizes = {
        "mean_width": upper - lower,
        "mean_deviation": deviation,
        "mean_interval_score": interval_score(lower, upper, at, alpha),
        "mean_crps": score,
    }
    means = {
        name: float((unit * size.double()).expand(at.shape).mean()) for name, size in sizes.items()
    }
    covered = (lower <= at) & (at <= upper)
    return Judged(law.cdf(at).double().reshape(-1), covered.reshape(-1), means)


def scores_of(judged: Judged, levels: Tensor, cells: Sequence[Cell]) -> ForecastScores:
    """Scores of one model at quantile ``levels``, ``M``, and its coverage in ``cells``."""
    pits, covered, means = judged
    frequencies = observed_frequencies(pits, levels)
    ends = binomial_interval((frequencies * len(pits)).round(), len(pits))
    coverage, coverage_interval = _coverage(covered)
    regions = [
        RegionCoverage(lower, upper, len(rows), *_coverage(covered[rows]))
        for rows, lower, upper in cells
    ]
    return ForecastScores(
        frequencies=frequencies,
        frequency_intervals=torch.stack(ends, dim=-1),
        calibration_error=float(calibration_error(pits, levels)),
        coverage=coverage,
        coverage_interval=coverage_interval,
        regions=tuple(regions),
        pits=pits,
        covered=covered,
        **means,
    )


def _coverage(covered: Tensor) -> tuple[float, tuple[float, float]]:
    """The fraction of ``covered`` (booleans ``n``), and its binomial 95 % interval."""
    low, high = binomial_interval(covered.sum(), len(covered))
    return float(covered.double().mean()), (float(low), float(high))


# ------------------------------------------------------------ regions of the inputs


class Cell(NamedTuple):
    """Some rows of the inputs, and the box that contains them."""

    indices: Tensor  # row numbers, increasing
    lower: Tensor  # lower corner, d
    upper: Tensor  # upper corner, d


def median_cells(X: Tensor, num_cells: int) -> list[Cell]:
    """Partition inputs ``n x d`` by median splits along the widest coordinate, as a k-d tree does.

    The cell with the most points is split until there are ``num_cells`` cells, or until no cell
    holds two different points. The width of a cell along a coordinate is the range of its points,
    relative to the range of all points. The boxes of the cells partition the bounding box of ``X``.
    """
    low, high = X.min(dim=0).values, X.max(dim=0).values
    span = torch.where(high > low, high - low, torch.ones_like(low))
    cells = [Cell(torch.arange(len(X), device=X.device), low, high)]
    while len(cells) < num_cells:
        for i in sorted(range(len(cells)), key=lambda i: -len(cells[i].indices)):
            if halves := _halves(X, cells[i], span):
                cells[i : i + 1] = halves
                break
        else:
            break
    return cells


def _halves(X: Tensor, cell: Cell, span: Tensor) -> list[Cell]:
    """The two parts of a cell, or an empty list if all its points coincide.

    ``span``, ``d``, has the range of all inputs in each coordinate.
    """
    points = X[cell.indices]
    widths = (points.max(dim=0).values - points.min(dim=0).values) / span
    axis = int(widths.argmax())
    if not widths[axis] > 0:
        return []
    values = points[:, axis]
    # Points equal to the median go to the lower part. If the median is the maximum, they go to the
    # upper part, which would otherwise be empty.
    median = values.median()
    left = values <= median if (values > median).any() else values < median
    cut = (values[left].max() + values[~left].min()) / 2
    upper, lower = cell.upper.clone(), cell.lower.clone()
    upper[axis] = lower[axis] = cut
    return [
        Cell(cell.indices[left], cell.lower, upper),
        Cell(cell.indices[~left], lower, cell.upper),
    ]
