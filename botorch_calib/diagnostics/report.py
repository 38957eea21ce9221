"""What a calibration report holds, and how it is shown and exported."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

#: With fewer observations than these a report says that its numbers are rough.
FEW_OBSERVATIONS = 20

_SOURCES = {
    "prequential": "each predicted from those before it",
    "loo": "each predicted from all others",
    "held-out": "held out",
}
_LABEL_WIDTH, _COLUMN_WIDTH = 26, 20


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
    """How the laws that one model stated fared against ``n`` observations.

    Attributes:
        frequencies: Fractions of observations at or below their stated quantile at each of
            the report's levels, ``M``.
        frequency_intervals: Binomial 95 % intervals of the probabilities behind them, ``M x 2``.
        calibration_error: ``sum_j (level_j - frequency_j)^2``.
        coverage: Fraction of observations inside the central ``1 - alpha`` interval.
        coverage_interval: Binomial 95 % interval of the probability behind it.
        regions: Coverage in each cell of the inputs.
        mean_width: Mean width of the central interval, in units of the outcome.
        mean_deviation: Mean standard deviation of the stated laws, in units of the outcome.
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
    """Scores of a model's stated laws beside those of the Gaussian process beneath it.

    ``print(report)`` shows a table, `to_dict` exports plain numbers; the functions
    ``plot_reliability``, ``plot_pit_histogram`` and ``plot_coverage_over_time`` of
    `botorch_calib.plotting` draw it.

    Attributes:
        alpha: The intervals judged are the central ``1 - alpha`` ones.
        levels: Quantile levels, ``M``.
        source: ``"prequential"``, ``"loo"`` or ``"held-out"``.
        calibrated: Scores of the calibrated laws; None for a model without calibrator.
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
