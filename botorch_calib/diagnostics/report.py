"""`CalibrationReport`: scores of predictive distributions, printed as a table.

A *forecaster* is a model whose predictive distributions are scored: the calibrated model or its
base model.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_calib.diagnostics.calibration_alarm import CalibrationAlarm
from botorch_calib.diagnostics.noise import NoiseDiagnosis
from botorch_calib.diagnostics.report_scores import ForecastScores

#: A report on fewer observations than this says that its numbers are rough.
FEW_OBSERVATIONS = 20

#: The name of the base model in a report, if that model is a Gaussian process.
BASE_NAME = "Gaussian process"

_SOURCES = {
    "prequential": "each predicted from those before it",
    "loo": "each predicted from all others",
    "held-out": "held out",
    "given": "predicted elsewhere",
}

_LABEL_WIDTH, _COLUMN_WIDTH = 26, 20
_MEANS = {
    "calibration_error": "calibration error",
    "mean_width": "mean interval width",
    "mean_deviation": "mean standard deviation",
    "mean_interval_score": "mean interval score",
    "mean_crps": "mean CRPS",
}

_REPLAYED = (
    "An alarm replayed with hyperparameters fitted to the same outcomes is an indication: its "
    "false alarms are not bounded."
)
_CARRIED = (
    "If each prediction was made before the outcome was known, the probability of ever raising a "
    "false alarm is bounded, however often the alarm is checked."
)


@dataclass(frozen=True, eq=False, repr=False)
class CalibrationReport:
    """Scores of the predictive distributions of a calibrated model and of its base model.

    ``print(report)`` shows a table, and `to_dict` exports plain numbers. The functions
    ``plot_reliability``, ``plot_pit_histogram`` and ``plot_coverage_over_time`` of
    `botorch_calib.plotting` draw the report, and ``plot_calibration_alarm`` draws one alarm.

    Attributes:
        alpha: Predicted probability of an outcome outside the central prediction interval.
        levels: Quantile levels, ``M``, increasing.
        source: How outcomes were predicted: ``"prequential"`` (from earlier outcomes), ``"loo"``
            (from all other outcomes), ``"held-out"`` (outcomes that are not in the training data),
            or ``"given"`` (the predictions were passed to the report).
        calibrated: Scores of the calibrated distributions; None without a calibrator.
        base: Scores of the base model without calibration.
        noise: The result of `noise_diagnosis`, or None if `noise_diagnosis` does not support the
            model.
        base_name: The name of the base model in tables and figures.
        alarms: A `CalibrationAlarm` for each of the ``forecasts``, by the same names, if outcomes
            were predicted in time order; and the alarm ``"carried"``, if the caller of
            `calibration_report` passed an alarm. The probability of a false alarm is bounded if
            each prediction was made before its outcome was known, as for ``"carried"``. It is not
            bounded for an alarm that was replayed over the training data
            (``source="prequential"``).
    """

    alpha: float
    levels: Tensor
    source: str
    calibrated: ForecastScores | None
    base: ForecastScores
    noise: NoiseDiagnosis | None = None
    base_name: str = BASE_NAME
    alarms: dict[str, CalibrationAlarm] = field(default_factory=dict)

    @property
    def num_observations(self) -> int:
        """Number of observations that the predictions are compared with."""
        return len(self.base.pits)

    @property
    def forecasts(self) -> dict[str, ForecastScores]:
        """Scores by name: ``"calibrated"``, if there is a calibrator, then ``base_name``."""
        base = {self.base_name: self.base}
        return base if self.calibrated is None else {"calibrated": self.calibrated, **base}

    @property
    def note(self) -> str | None:
        """A text that warns of rough numbers if there are few observations, else None."""
        if self.num_observations >= FEW_OBSERVATIONS:
            return None
        return f"With only {self.num_observations} observations these numbers are rough."

    def to_dict(self) -> dict[str, Any]:
        """Return the report as nested dictionaries, lists and numbers for ``json.dumps``."""
        return {
            "alpha": self.alpha,
            "levels": self.levels.tolist(),
            "source": self.source,
            "num_observations": self.num_observations,
            "calibrated": _plain(self.calibrated),
            "base": _plain(self.base),
            "noise": None if self.noise is None else self.noise.to_dict(),
            "alarms": {name: alarm.to_dict() for name, alarm in self.alarms.items()},
        }

    def __str__(self) -> str:
        lines = [
            f"Calibration report: {self.num_observations} observations, {_SOURCES[self.source]}",
            f"Central {1 - self.alpha:.4g} intervals, in units of the outcome; "
            "in brackets, binomial 95 % intervals",
            "",
            *_table(self),
            *_alarm_rows(self.alarms, self.source),
        ]
        if self.noise is not None:
            lines += ["", str(self.noise)]
        return "\n".join(lines if self.note is None else [*lines, "", self.note])

    __repr__ = __str__


def _plain(scores: object) -> object:
    """Convert dataclasses, tensors and tuples to dictionaries, lists and numbers, recursively."""
    if isinstance(scores, Tensor):
        return scores.tolist()
    if isinstance(scores, tuple):
        return [_plain(item) for item in scores]
    if is_dataclass(scores):
        return {name: _plain(value) for name, value in vars(scores).items()}
    return scores


# ------------------------------------------------------------ the table


def _table(report: CalibrationReport) -> list[str]:
    """Lines of text with coverage, scores, coverage by region and frequencies of quantiles."""
    columns = list(report.forecasts.values())
    lines = [
        _row("", list(report.forecasts)),
        _row(
            f"coverage (stated {1 - report.alpha:.4g})",
            [_share(scores.coverage, scores.coverage_interval) for scores in columns],
        ),
    ]
    for name, label in _MEANS.items():
        values = [vars(scores)[name] for scores in columns]
        if None not in values:
            lines.append(_row(label, [f"{value:.4g}" for value in values]))
    lines += _region_rows(columns)
    lines.append("Share at or below the quantile")
    for j, level in enumerate(report.levels.tolist()):
        shares = [(float(s.frequencies[j]), s.frequency_intervals[j].tolist()) for s in columns]
        lines.append(_row(f"  {level:.4g}", [_share(*share) for share in shares]))
    return lines


def _region_rows(columns: list[ForecastScores]) -> list[str]:
    """Lines with the coverage in each region of the input space, one column per forecaster."""
    cells = columns[0].regions
    if not cells:
        return []
    lowest = torch.stack([cell.lower for cell in cells]).min(dim=0).values
    highest = torch.stack([cell.upper for cell in cells]).max(dim=0).values
    lines = ["Coverage by region"]
    for index, cell in enumerate(cells):
        shares = [scores.regions[index] for scores in columns]
        texts = [_share(share.coverage, share.interval) for share in shares]
        lines.append(_row(f"  region {index + 1}, n = {cell.count}", texts))
        # Only inputs in which the cell is smaller than the range of the data describe the cell.
        cut = ((cell.lower > lowest) | (cell.upper < highest)).nonzero().flatten().tolist()
        lines += [f"    x{i + 1} in [{cell.lower[i]:.3g}, {cell.upper[i]:.3g}]" for i in cut]
    return lines


def _alarm_rows(alarms: dict[str, CalibrationAlarm], source: str) -> list[str]:
    """Lines on whether and when each alarm was raised, and whether false alarms are bounded."""
    lines = [""] if alarms else []
    for name, alarm in alarms.items():
        lines += textwrap.wrap(f"{name}: {alarm}", width=100, subsequent_indent="  ")
    if alarms and source == "prequential":
        lines += textwrap.wrap(_REPLAYED, width=100)
    if alarms and (source == "given" or "carried" in alarms):
        lines += textwrap.wrap(_CARRIED, width=100)
    return lines


def _row(label: str, texts: list[str]) -> str:
    cells = "".join(f"{text:<{_COLUMN_WIDTH}}" for text in texts)
    return f"{label:<{_LABEL_WIDTH}}{cells}".rstrip()


def _share(value: float, interval: tuple[float, float] | list[float]) -> str:
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"
