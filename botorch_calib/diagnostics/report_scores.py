"""`StatedForecasts`, distributions that were stated of observations, and their `ForecastScores`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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


class StatedForecasts(NamedTuple):
    """Distributions that were stated of ``n`` observations, seen from these."""

    pits: Tensor  # n, stated probabilities of a value below the observed one
    covered: Tensor  # n, whether it lay inside the central 1 - alpha interval
    # Where more than the probabilities is known: the ``width`` of the central interval, the
    # ``deviation``, the ``interval_score`` and the ``crps``, n each, in units of the outcome
    sizes: dict[str, Tensor] = {}

    @classmethod
    def of_pits(cls, pits: Tensor, alpha: float) -> StatedForecasts:
        """Distributions of which nothing but the PITs is known."""
        pits = pits.double()
        return cls(pits, (alpha / 2 <= pits) & (pits <= 1 - alpha / 2))

    @classmethod
    def of_residuals(
        cls, predictive: PiecewisePredictive | None, residuals: Tensor, unit: Tensor, alpha: float
    ) -> StatedForecasts:
        """Distributions (None: normal) of ``n`` residuals in standard deviations, ``unit`` each."""
        if predictive is None:
            predictive = PiecewisePredictive.gaussian((len(unit), 1), device=unit.device)
        # CRPS and the widths scale with the outcome: computed in units of z, then multiplied.
        predictive, unit, z = predictive.to(torch.double), unit.double(), residuals.double()
        z = z.view(-1, *[1] * (len(predictive.batch_shape) - 1))
        lower, upper = (predictive.quantile(p).expand(z.shape) for p in (alpha / 2, 1 - alpha / 2))
        sizes = {
            "width": upper - lower,
            "deviation": predictive.variance.sqrt().expand(z.shape),
            "interval_score": interval_score(lower, upper, z, alpha),
            "crps": crps(predictive, z),
        }
        return cls(
            predictive.cdf(z).reshape(-1),
            ((lower <= z) & (z <= upper)).reshape(-1),
            {name: unit * size.reshape(-1) for name, size in sizes.items()},
        )

    @classmethod
    def of_prediction(cls, stated: Prediction, Y: Tensor, alpha: float) -> StatedForecasts:
        """A prediction at ``n x 1 x d`` or ``n x d`` of observations that were ``Y``, ``n x 1``."""
        y = stated.of_observation()
        Y = Y.double().view(y.shape)
        if y.is_gaussian:
            unit = y.unit_of_scores.expand(y.shape).reshape(-1)
            return cls.of_residuals(y.predictive, y.own_score(Y).reshape(-1), unit, alpha)
        ends = (y.quantile(alpha / 2), y.quantile(1 - alpha / 2))
        lower, upper, at = (values.reshape(-1).double() for values in (*ends, Y))
        sizes = {
            "width": upper - lower,
            "deviation": y.moments()[1].reshape(-1).double().sqrt(),
            "interval_score": interval_score(lower, upper, at, alpha),
            "crps": crps_of_quantiles(y.quantile, at),
        }
        pits = y.cdf(Y).reshape(-1).double()
        return cls(pits, (lower <= at) & (at <= upper), sizes)


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


def forecast_scores(stated: StatedForecasts, levels: Tensor, cells: list[Cell]) -> ForecastScores:
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
        **means,
    )


def _coverage(covered: Tensor) -> tuple[float, tuple[float, float]]:
    """Fraction that is covered, and its binomial interval."""
    low, high = binomial_interval(covered.sum(), len(covered))
    return float(covered.double().mean()), (float(low), float(high))
