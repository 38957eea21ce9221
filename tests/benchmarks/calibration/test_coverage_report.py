"""The report of suites `misspecified` and `wellspecified`, from made-up runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.calibration.coverage_report import gap
from benchmarks.calibration.suites import MISSPECIFIED, WELLSPECIFIED
from benchmarks.framework.report import markdown
from benchmarks.framework.results import Result
from tests.benchmarks.calibration.runs import cells, run
from tests.benchmarks.results import ByProblem, made_up

SUITES = pytest.mark.parametrize("suite", [MISSPECIFIED, WELLSPECIFIED], ids=lambda s: s.name)
SEEDS = range(10000, 10006)

# Of the last twenty outcomes, and of the others.
MISSED = {"bo": 12, "locbo": 5, "locbo_fixed": 3, "ocbo": 12}
EARLY = 20


def results(suite: Any) -> ByProblem:
    """Localized runs have a tenth of the plain regret; one outcome more is missed by odd seeds."""

    def make(problem: str, method: str, i: int) -> Result:
        level = 0.1 if method.startswith("locbo") else 1.0
        wobble = 1 + 0.01 * math.sin(7 * i + len(method))
        missed = MISSED[method] + i % 2
        result = run(4.0 * level * wobble)
        del result.extras["spread"]
        # What is missed early does not count.
        covered: Any = [0.0] * (EARLY + missed) + [1.0] * (20 - missed)
        result.extras.update(covered=covered, pit=[0.3, 0.6])
        result.extras["regret_evaluated"] = [1.0, 1.0, 0.5 * wobble]
        return result

    return made_up(suite, SEEDS, make)


COLLECTED = {suite.name: results(suite) for suite in (MISSPECIFIED, WELLSPECIFIED)}


def test_the_gap_is_of_the_last_half() -> None:
    first, second, *_ = COLLECTED[MISSPECIFIED.name]["branin_noise"]["locbo_fixed"]
    assert gap(first) == pytest.approx(0.05)
    assert gap(second) == pytest.approx(0.0)


@SUITES
def test_all_problems_are_drawn(suite: Any) -> None:
    names = [  # a panel leaves the name of its group out
        (group, problem.removesuffix(f"_{group}"))
        for group, problems in suite.report.groups.items()
        for problem in problems
    ]
    drawn = [
        (axes.get_title(), label.get_text())
        for axes in suite.report.figure(COLLECTED[suite.name]).axes
        for label in axes.get_xticklabels()
    ]
    assert drawn == names and len(names) == len(suite.problems)


def test_parts_of_a_run_are_reported() -> None:
    suite: Any = WELLSPECIFIED
    runs = COLLECTED[suite.name]
    (first, *_) = runs
    part = {first: {name: runs[first][name][:1] for name in ("bo", "locbo")}}
    text = markdown(suite, part)
    section = text[text.index("## Miscoverage") : text.index("## Regret")]
    assert cells(section, first)[2:] == ["–", "–"]
    assert len(suite.report.figure(part).axes) == len(suite.report.groups)
