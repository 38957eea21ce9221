"""The report on calibration against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.calibration.calibration_report import (
    CalibrationReport,
    Comparison,
    overall,
)
from benchmarks.calibration.suites import SMOKE
from benchmarks.framework.report import markdown
from benchmarks.framework.results import Result, replicate_config
from benchmarks.framework.statistics import Estimate, PairedTest
from benchmarks.framework.suite import Suite
from tests.benchmarks.results import result_with

OTHER = replace(SMOKE.methods[0], name="other")
SUITE: Suite = replace(
    SMOKE, methods=(*SMOKE.methods, OTHER), report=CalibrationReport(inference="mean")
)


def result(
    regret: list[float],
    pit: list[float] | None = None,
    covered: list[float] | None = None,
    method: str = "random",
    seed: int = 0,
) -> Result:
    """A result with the given trace by posterior mean; the trace by outcome is half of it."""
    problem = SUITE.problems[0]
    extras: dict[str, Any] = {"pit": pit, "covered": covered}
    return result_with(
        problem=problem.name,
        method=method,
        seed=seed,
        num_initial=1,
        regret_by_outcome=[value / 2 for value in regret],
        regret_by_mean=regret,
        fit_seconds=[0.5, 1.5],
        acquisition_seconds=[2.0, 4.0],
        extras={name: values for name, values in extras.items() if values is not None},
        config=replicate_config(problem, replace(OTHER, name=method)),
        versions={"python": "3"},
    )


BASELINE = [
    result([4.0, 3.0, r], [0.5, 1.0], [1.0, 0.0], seed=s) for s, r in enumerate([2.0, 3.0, 2.5])
]
METHOD = [
    result([4.0, 2.0, r], [0.5, 0.5], [0.0, 1.0], method="other", seed=s)
    for s, r in enumerate([1.0, 1.0, 2.5])
]


def comparison(difference: float, p: float, won: float, miscoverage: float) -> Comparison:
    """A comparison of which the summary reads only these."""
    test = PairedTest(30, Estimate(difference, 0.1), math.nan, p)
    one = Estimate(1.0, 0.1)
    return Comparison("m", 30, one, one, test, won, one, Estimate(miscoverage, 0.1), one, 0.1)


def test_summary_counts_what_is_significant_after_correction() -> None:
    rows = [
        comparison(-1.0, 0.001, 0.9, 0.2),
        comparison(-1.0, 0.02, 0.8, 0.4),  # 2 x 0.02 after correction
        comparison(1.0, 1e-6, 0.1, 0.1),
        comparison(-1.0, 0.2, 0.6, 0.3),
    ]
    summary = overall(rows, alpha=0.2)
    assert (summary.problems, summary.better, summary.worse) == (4, 2, 1)
    assert summary.coverage_gap == pytest.approx((0.0 + 0.2 + 0.1 + 0.1) / 4)
    assert summary.mean_fraction_won == pytest.approx(0.6)
    rows[1] = comparison(-1.0, 0.03, 0.8, 0.4)
    assert overall(rows, alpha=0.2).better == 1


def test_report_of_a_suite_that_compares_calibration() -> None:
    collected = {SUITE.problems[0].name: {"random": BASELINE, "other": METHOD}}
    lines = markdown(SUITE, collected, unfit=1).splitlines()
    assert any("largest posterior mean" in line for line in lines)
    assert "| random | 1 | – | – | – | 0.688 | 0.8 |" in lines
    assert "| other | 1 | 0 | 0 | 0.833 | 0.417 | 0.2 |" in lines
    (row,) = (line for line in lines if line.startswith("| other | 3 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:4] == ["1.5 ± 0.5", "-1 ± 0.58"]
    assert cells[6:10] == ["0.833", "1.5 ± 0.5", "0.417 ± 0.042", "0 ± 0"]
    assert "1 unreadable or outdated result files were left out." in lines
    assert lines[-1] == "python 3"


def test_percentages_leave_out_what_the_baseline_solves() -> None:
    hard = {"random": BASELINE, "other": METHOD}
    solved = {
        name: [replace(r, problem="easy", regret_by_mean=[4.0, 3.0, last]) for r in runs]
        for name, runs, last in (("random", BASELINE, 0.0), ("other", METHOD, 1.0))
    }
    text = markdown(SUITE, {"hard": hard, "easy": solved})
    alone = markdown(SUITE, {"hard": hard})
    # Differences of -1, -2 and 0 in units of 2.5.
    row = "| other | -40 ± 23 |"
    assert row in text
    assert row in alone
    assert "Without easy, where random has no regret in any run." in text
    assert "Without" not in alone


def test_panels_are_laid_out_in_rows() -> None:
    collected = {str(i): {"random": BASELINE} for i in range(6)}
    figure = SUITE.report.figure(collected)
    assert len(figure.axes) == 6
    (line,) = figure.axes[5].lines
    # Of the point with the largest posterior mean, as the suite says.
    assert np.asarray(line.get_ydata()).tolist() == [4.0, 3.0, 2.5]
