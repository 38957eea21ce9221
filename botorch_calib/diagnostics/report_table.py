"""The lines of a printed report: a label, and a column for each forecaster."""

from __future__ import annotations

import textwrap

import torch
from torch import Tensor

from botorch_calib.diagnostics.calibration_alarm import CalibrationAlarm
from botorch_calib.diagnostics.forecast_scores import ForecastScores, RegionCoverage

_LABEL_WIDTH, _COLUMN_WIDTH = 26, 20

_REPLAYED = (
    "An alarm that is replayed with hyperparameters fitted to the same outcomes is an indication: "
    "nothing bounds its false alarms."
)
_CARRIED = (
    "If each prediction was made before its outcome, knowing those before, the probability that an "
    "alarm is ever false is bounded, however often one looks."
)


def summary_rows(alpha: float, columns: list[ForecastScores]) -> list[str]:
    """Coverage of the central interval and the numbers that score a forecaster."""
    names = {
        "calibration_error": "calibration error",
        "mean_width": "mean interval width",
        "mean_deviation": "mean standard deviation",
        "mean_interval_score": "mean interval score",
        "mean_crps": "mean CRPS",
    }
    coverage = [_share(scores.coverage, scores.coverage_interval) for scores in columns]
    return [
        row(f"coverage (stated {1 - alpha:.4g})", coverage),
        *(
            row(label, [f"{getattr(scores, name):.4g}" for scores in columns])
            for name, label in names.items()
            if all(getattr(scores, name) is not None for scores in columns)
        ),
    ]


def region_rows(columns: list[ForecastScores]) -> list[str]:
    """Coverage in each cell of the inputs."""
    cells = columns[0].regions
    if not cells:
        return []
    lowest = torch.stack([cell.lower for cell in cells]).min(dim=0).values
    highest = torch.stack([cell.upper for cell in cells]).max(dim=0).values
    lines = ["Coverage by region"]
    for index, cell in enumerate(cells):
        shares = [scores.regions[index] for scores in columns]
        texts = [_share(share.coverage, share.interval) for share in shares]
        lines.append(row(f"  region {index + 1}, n = {cell.count}", texts))
        lines += [f"    {text}" for text in _cut_sides(cell, lowest, highest)]
    return lines


def _cut_sides(cell: RegionCoverage, lowest: Tensor, highest: Tensor) -> list[str]:
    """A cell's sides in the coordinates in which it does not span all of the data."""
    return [
        f"x{i + 1} in [{cell.lower[i]:.3g}, {cell.upper[i]:.3g}]"
        for i in range(len(cell.lower))
        if cell.lower[i] > lowest[i] or cell.upper[i] < highest[i]
    ]


def alarm_rows(alarms: dict[str, CalibrationAlarm], source: str) -> list[str]:
    """Whether and when each alarm was raised, and what that proves."""
    if not alarms:
        return []
    lines = [""]
    for name, alarm in alarms.items():
        lines += textwrap.wrap(f"{name}: {alarm}", width=100, subsequent_indent="  ")
    if source == "prequential":
        lines += textwrap.wrap(_REPLAYED, width=100)
    if source == "given" or "carried" in alarms:
        lines += textwrap.wrap(_CARRIED, width=100)
    return lines


def level_rows(levels: Tensor, columns: list[ForecastScores]) -> list[str]:
    """Observed frequencies of quantiles."""
    lines = ["Share at or below the quantile"]
    for j, level in enumerate(levels.tolist()):
        shares = [(float(s.frequencies[j]), s.frequency_intervals[j].tolist()) for s in columns]
        lines.append(row(f"  {level:.4g}", [_share(*share) for share in shares]))
    return lines


def row(label: str, texts: list[str]) -> str:
    """One line of the table."""
    cells = "".join(f"{text:<{_COLUMN_WIDTH}}" for text in texts)
    return f"{label:<{_LABEL_WIDTH}}{cells}".rstrip()


def _share(value: float, interval: tuple[float, float] | list[float]) -> str:
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"
