"""`scores_of`: how a prediction, of whatever model, fared against what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_calib.diagnostics.input_regions import Cell
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
        """Coverage of the first ``t`` observations, for ``t = 1, ..., n``."""
        covered = self.covered.double()
        return covered.cumsum(dim=0) / torch.ones_like(covered).cumsum(dim=0)


def scores_of(
    forecast: Prediction | Tensor,
    Y: Tensor | None,
    alpha: float,
    levels: Tensor,
    cells: Sequence[Cell] = (),
) -> ForecastScores:
    """Scores of a prediction at ``n`` single points, and of its coverage in ``cells``.

    Args:
        forecast: The prediction, or its PITs ``n`` where nothing else of it is known.
        Y: What was observed, ``n x 1``; None with PITs.
        alpha: The central ``1 - alpha`` interval is judged.
        levels: Quantile levels, ``M``, float64 on the CPU.
        cells: Regions of the points.
    """
    means: dict[str, float] = {}
    if isinstance(forecast, Tensor):
        pits = forecast.double()
        covered = (alpha / 2 <= pits) & (pits <= 1 - alpha / 2)
    else:
        assert Y is not None
        pits, covered, means = _against(forecast.of_observation(), Y, alpha)
    frequencies = observed_frequencies(pits, levels)
    ends = binomial_interval((frequencies * len(pits)).round(), len(pits))
    coverage, coverage_interval = _coverage(covered)
    regions = tuple(
        RegionCoverage(cell.lower, cell.upper, len(cell.indices), *_coverage(covered[cell.indices]))
        for cell in cells
    )
    return ForecastScores(
        frequencies=frequencies,
        frequency_intervals=torch.stack(ends, dim=-1),
        calibration_error=float(calibration_error(pits, levels)),
        coverage=coverage,
        coverage_interval=coverage_interval,
        regions=regions,
        pits=pits,
        covered=covered,
        **means,
    )


def _against(y: Prediction, Y: Tensor, alpha: float) -> tuple[Tensor, Tensor, dict[str, float]]:
    """PITs ``n``, whether an observation was covered, ``n``, and means in units of the outcome."""
    at = Y.double().view(y.shape)
    law: PiecewisePredictive | Prediction = y
    unit: Tensor | float = 1.0
    if y.is_gaussian:  # in standard deviations, which may be tiny next to the outcomes
        own = y.predictive
        law = PiecewisePredictive.gaussian((1, 1), device=y.device) if own is None else own
        law = law.to(torch.double)
        at, unit = y.own_score(at), y.unit_of_scores
        deviation, score = law.variance.sqrt(), crps(law, at)
    else:
        deviation = y.moments()[1].sqrt()
        score = crps_of_quantiles(y.quantile, at.reshape(-1)).view(y.shape)
    lower, upper = (law.quantile(p).double() for p in (alpha / 2, 1 - alpha / 2))
    sizes = {
        "mean_width": upper - lower,
        "mean_deviation": deviation,
        "mean_interval_score": interval_score(lower, upper, at, alpha),
        "mean_crps": score,
    }
    means = {
        name: float((unit * size.double()).expand(y.shape).mean()) for name, size in sizes.items()
    }
    covered = (lower <= at) & (at <= upper)
    return law.cdf(at).double().reshape(-1), covered.reshape(-1), means


def _coverage(covered: Tensor) -> tuple[float, tuple[float, float]]:
    """Fraction that is covered, and its binomial interval."""
    low, high = binomial_interval(covered.sum(), len(covered))
    return float(covered.double().mean()), (float(low), float(high))
