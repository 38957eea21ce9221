"""`ForecastScores`: how stated distributions of outcomes fared against observations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_calib.diagnostics.objective import ObjectiveScores
from botorch_calib.diagnostics.regions import Cell
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.scoring import (
    binomial_interval,
    calibration_error,
    crps,
    interval_score,
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

    Widths, deviations and their scores are in units of the outcome.

    Attributes:
        frequencies: Fractions of observations at or below their stated quantile at each of the
            report's levels, ``M``.
        frequency_intervals: Binomial 95 % intervals of the probabilities behind them, ``M x 2``.
        calibration_error: ``sum_j (level_j - frequency_j)^2``.
        coverage: Fraction of observations inside the central ``1 - alpha`` interval.
        coverage_interval: Binomial 95 % interval of the probability behind it.
        regions: Coverage in each cell of the inputs.
        mean_width: Mean width of the central interval.
        mean_deviation: Mean standard deviation stated.
        mean_interval_score: Mean score of the central interval.
        mean_crps: Mean continuous ranked probability score.
        pits: Stated probabilities of a value below the observed one, ``n``, in time order.
        covered: Whether each observation lay inside its central interval, ``n``.
        objective: Scores of the distributions of the objective, as the observations were predicted,
            against its true values, where these are known.
        objective_now: Scores of the present ones, by the model that has seen the observations;
            None with held-out data.
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
    objective: ObjectiveScores | None = None
    objective_now: ObjectiveScores | None = None

    @property
    def running_coverage(self) -> Tensor:
        """Coverage of the first ``t`` observations, for ``t = 1, ..., n``."""
        covered = self.covered.double()
        steps = torch.arange(1, len(covered) + 1, dtype=covered.dtype, device=covered.device)
        return covered.cumsum(dim=0) / steps


def forecast_scores(
    predictive: PiecewisePredictive,
    residuals: Tensor,
    deviations: Tensor,
    alpha: float,
    levels: Tensor,
    cells: list[Cell],
    objective: ObjectiveScores | None = None,
    objective_now: ObjectiveScores | None = None,
) -> ForecastScores:
    """Scores of the distributions of ``n`` residuals that the Gaussian process standardised.

    ``deviations``, ``n``, are its standard deviations of the observations, in units of the outcome.
    The central ``1 - alpha`` interval is judged, also in each of the ``cells``, and quantiles at
    ``levels``.
    """
    # CRPS and the widths scale with the outcome: computed in units of z, then multiplied.
    predictive, unit = predictive.to(torch.double), deviations.double()
    z = residuals.double()
    z = z.view(-1, *[1] * (len(predictive.batch_shape) - 1))
    lower, upper = (predictive.quantile(p).expand(z.shape) for p in (alpha / 2, 1 - alpha / 2))
    covered = ((lower <= z) & (z <= upper)).reshape(-1)
    pits = predictive.cdf(z).reshape(-1)
    frequencies = observed_frequencies(pits, levels)
    ends = binomial_interval((frequencies * len(pits)).round(), len(pits))
    coverage, coverage_interval = _coverage(covered)
    regions = tuple(
        RegionCoverage(cell.lower, cell.upper, len(cell.indices), *_coverage(covered[cell.indices]))
        for cell in cells
    )

    def mean(values: Tensor) -> float:
        return float((unit * values.reshape(-1)).mean())

    return ForecastScores(
        frequencies=frequencies,
        frequency_intervals=torch.stack(ends, dim=-1),
        calibration_error=float(calibration_error(pits, levels)),
        coverage=coverage,
        coverage_interval=coverage_interval,
        regions=regions,
        mean_width=mean(upper - lower),
        mean_deviation=mean(predictive.variance.sqrt().expand(z.shape)),
        mean_interval_score=mean(interval_score(lower, upper, z, alpha)),
        mean_crps=mean(crps(predictive, z)),
        pits=pits,
        covered=covered,
        objective=objective,
        objective_now=objective_now,
    )


def _coverage(covered: Tensor) -> tuple[float, tuple[float, float]]:
    """Fraction that is covered, and its binomial interval."""
    low, high = binomial_interval(covered.sum(), len(covered))
    return float(covered.double().mean()), (float(low), float(high))
