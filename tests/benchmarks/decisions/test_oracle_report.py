"""The tables beside the plain quantile and the oracle, from runs made up by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.decisions.suites import FAULTS
from benchmarks.framework.results import Result
from benchmarks.framework.suite import Suite
from tests.benchmarks.decisions.test_analysis import BAD, FINE, OFF, run
from tests.benchmarks.results import ByProblem, archived, made_up

REPORT: Any = replace(FAULTS.report, cases=("jump",))  # type: ignore[type-var]
SUITE: Suite[Any, Any] = replace(
    FAULTS,
    problems=tuple(p for p in FAULTS.problems if p.name.endswith("_jump")),
    seeds=range(13000, 13004),
    report=REPORT,
)

# Violations among 20 rounds, and rewards.
RATES = {
    **{"budget": (2, 1.5), "plain": (4, 1.8), "wide": (5, 1.0), "oracle": (2, 2.0)},
    **{"wide_2": (1, 0.5), "wide_3": (0, 0.1)},  # of suite `decisions_further` alone
}


def results(suite: Suite[Any, Any] = SUITE) -> ByProblem:
    """One violation more on each further function, and a little reward more for odd seeds."""
    places = {problem.name: i for i, problem in enumerate(suite.problems)}

    def make(problem: str, method: str, i: int) -> Result:
        violations, reward = RATES[method]
        violations += places[problem]
        rounds = [BAD] * violations + [FINE] * (20 - violations) + [OFF] * 4
        point = (1.0, 0.05 + 0.1 * (i % 2)) if method != "budget" else None
        return run(rounds, i, reward + 0.2 * (i % 2), point)

    return made_up(suite, suite.seeds, make)


COLLECTED = results()


def rows(lines: list[str], section: str) -> dict[str, list[str]]:
    """The cells of a section's table by the name in their second column."""
    start = lines.index(f"## {section}")
    end = next(i for i in range(start + 1, len(lines)) if lines[i].startswith("## "))
    cells = [line.strip("| ").split(" | ") for line in lines[start:end] if line.startswith("| ")]
    return {row[1]: row for row in cells[2:]}


@pytest.fixture(scope="module")
def beside() -> dict[str, list[str]]:
    lines = SUITE.report.lines(SUITE, COLLECTED)
    return rows(lines, "Beside the plain quantile and the oracle")


def test_differences_to_the_plain_quantile(beside: dict[str, list[str]]) -> None:
    assert list(beside) == ["budget", "plain", "wide", "oracle"]
    # Rates of 12.5 and 22.5 % on both functions together, in each seed alike.
    assert beside["budget"][2:7] == ["-10.0", "-10.0 to -10.0", "-0.300", "-0.300 to -0.300"] + [
        "reward"
    ]
    assert beside["plain"][2:7] == ["–"] * 5
    assert beside["wide"][2] == "+5.0"
    assert [beside[m][6] for m in ("wide", "oracle")] == ["both", "neither"]


def test_shares_of_the_oracle(beside: dict[str, list[str]]) -> None:
    # Rewards 1.5 and 1.7 of 2.0 and 2.2, each in two of four seeds.
    share = 3.2 / 4.2
    assert beside["budget"][7] == f"{100 * share:.0f}"
    residuals = [1.5 - share * 2.0, 1.7 - share * 2.2] * 2
    reach = 3.182446 * np.std(residuals, ddof=1) / 2 / 2.1
    low, high = (100 * (share + sign * reach) for sign in (-1, 1))
    assert beside["budget"][8] == f"{low:.0f} to {high:.0f}"
    assert beside["oracle"][7:9] == ["100", "100 to 100"]


def test_little_is_no_obstacle() -> None:
    few = {p: {"plain": runs["plain"][:1]} for p, runs in COLLECTED.items()}
    table = rows(SUITE.report.lines(SUITE, few), "Beside the plain quantile and the oracle")
    assert table["plain"][7:] == ["–", "–", "25 (5 of 20)", "2 of 2, 2"]


def test_from_the_archive_the_report_is_the_same() -> None:
    kept = archived(SUITE, COLLECTED)
    assert SUITE.report.lines(SUITE, kept) == SUITE.report.lines(SUITE, COLLECTED)
    figure = FAULTS.report.figure(kept)
    assert [axes.get_title() for axes in figure.axes] == ["jump", ""]
