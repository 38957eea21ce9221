"""`ForecastScores`: how stated distributions of outcomes fared against what was observed.

The scores themselves are in `botorch_calib.distributions.scoring`, the cells of the inputs in
`botorch_calib.diagnostics.regions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
        objective: Scores against the objective's true values, where these are known, of what was
            stated of the objective as the observations were predicted.
        objective_now: The same of what the model, which has seen the observations, states of the
            objective at the same points; None with held-out data.
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
    """Scores of distributions of residuals, in units of the outcome where they have units.

    Args:
        predictive: Distributions of the residuals.
        residuals: Those standardised by the Gaussian process, ``n``.
        deviations: Its standard deviations of the observations, in units of the outcome, ``n``.
        alpha: The central ``1 - alpha`` interval is judged.
        levels: Quantile levels, ``M``.
        cells: Where coverage is counted.
        objective: Passed on.
        objective_now: Passed on.
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
        objective=objective,
        objective_now=objective_now,
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
