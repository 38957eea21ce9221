"""`ForecastScores`: how stated distributions of outcomes fared against observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_calib.diagnostics.objective import ObjectiveScores
from botorch_calib.diagnostics.regions import Cell
from botorch_calib.diagnostics.stated_forecasts import StatedForecasts
from botorch_calib.distributions.scoring import (
    binomial_interval,
    calibration_error,
    observed_frequencies,
)


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

    Widths, deviations and their scores are in units of the outcome, and None where only
    probabilities are known.

    Attributes:
        frequencies: Fractions of observations at or below their stated quantile at each of the
            report's levels, ``M``.
        frequency_intervals: Binomial 95 % intervals of the probabilities behind them, ``M x 2``.
        calibration_error: ``sum_j (level_j - frequency_j)^2``.
        coverage: Fraction of observations inside the central ``1 - alpha`` interval.
        coverage_interval: Binomial 95 % interval of the probability behind it.
        regions: Coverage in each cell of the inputs, if these are known.
        pits: Stated probabilities of a value below the observed one, ``n``, in time order.
        covered: Whether each observation lay inside its central interval, ``n``.
        mean_width: Mean width of the central interval.
        mean_deviation: Mean standard deviation stated.
        mean_interval_score: Mean score of the central interval.
        mean_crps: Mean continuous ranked probability score.
        objective: Where the objective's true values are known, scores of its distributions as the
            observations were predicted.
        objective_now: Scores of its present ones, by the model that has seen the observations; None
            with held-out data.
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
    objective: ObjectiveScores | None = None
    objective_now: ObjectiveScores | None = None

    @property
    def running_coverage(self) -> Tensor:
        """Coverage of the first ``t`` observations, for ``t = 1, ..., n``."""
        covered = self.covered.double()
        return covered.cumsum(dim=0) / torch.ones_like(covered).cumsum(dim=0)


def forecast_scores(
    stated: StatedForecasts,
    levels: Tensor,
    cells: list[Cell],
    objective: ObjectiveScores | None = None,
    objective_now: ObjectiveScores | None = None,
) -> ForecastScores:
    """Scores of distributions that were stated of ``n`` observations, and coverage in ``cells``."""
    pits, covered = stated.pits, stated.covered
    frequencies = observed_frequencies(pits, levels)
    ends = binomial_interval((frequencies * len(pits)).round(), len(pits))
    coverage, coverage_interval = _coverage(covered)
    regions = tuple(
        RegionCoverage(cell.lower, cell.upper, len(cell.indices), *_coverage(covered[cell.indices]))
        for cell in cells
    )
    means: dict[str, Any] = {f"mean_{k}": float(v.mean()) for k, v in stated.sizes.items()}
    return ForecastScores(
        frequencies=frequencies,
        frequency_intervals=torch.stack(ends, dim=-1),
        calibration_error=float(calibration_error(pits, levels)),
        coverage=coverage,
        coverage_interval=coverage_interval,
        regions=regions,
        pits=pits,
        covered=covered,
        objective=objective,
        objective_now=objective_now,
        **means,
    )


def _coverage(covered: Tensor) -> tuple[float, tuple[float, float]]:
    """Fraction that is covered, and its binomial interval."""
    low, high = binomial_interval(covered.sum(), len(covered))
    return float(covered.double().mean()), (float(low), float(high))
