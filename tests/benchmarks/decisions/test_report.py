"""The tables and the figure, from runs made up by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.decisions import analysis
from benchmarks.decisions.suites import DECISIONS
from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.framework.results import Collected, Result
from benchmarks.framework.stored_results import Entry
from benchmarks.framework.suite import Suite
from tests.benchmarks.decisions.test_analysis import BAD, FINE, OFF, run
from tests.benchmarks.results import archived, made_up

SUITE: Suite[Any, Any] = replace(
    DECISIONS, problems=tuple(p for p in DECISIONS.problems if p.name.endswith("_drift"))
)
PROTOCOL = ExperimentProtocol.load("chance_constraints")

# Violations among 20 rounds, and rewards: the plain quantile violates too often, its multiples less
# so, the learners as stated.
RATES = {
    "plain_050": (8, 4.0),
    "plain_075": (7, 3.5),
    "plain": (6, 3.0),
    "wide": (4, 2.0),
    "plain_200": (0, 1.0),
    "plain_300": (0, 0.0),
    "loo": (2, 1.9),
    "refit": (6, 3.0),
    "recalibrated": (2, 2.5),
    "localized": (2, 2.5),
}


def make(problem: str, method: str, i: int) -> Result:
    """One more or less violation and a little more or less reward, by seed."""
    violations, reward = RATES[method]
    num = violations + (i % 3 - 1) * (violations > 0)
    rounds = [BAD] * num + [FINE] * (20 - num)
    return run(rounds, i, reward + 0.01 * (i % 2), (2.0, 0.05 if i else 0.2))


COLLECTED = made_up(SUITE, range(10000, 10006), make)


def rows(lines: list[str], section: str) -> dict[str, list[str]]:
    """The cells of the rows of a section's table by the name in their first or second column."""
    start = lines.index(f"## {section}")
    end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("## ")), len(lines))
    cells = [line.strip("| ").split(" | ") for line in lines[start:end] if line.startswith("| ")]
    return {(row[1] if row[0] == "drift" else row[0]): row for row in cells[2:]}


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Of a report that declares no other case."""
    report: Any = DECISIONS.report
    return replace(report, cases=("drift",)).lines(SUITE, COLLECTED)


def test_violations(lines: list[str]) -> None:
    table = rows(lines, "Violations")
    # Multiples that are no methods of their own stay hidden.
    assert list(table) == ["plain", "wide", "loo", "refit", "recalibrated", "localized"]
    plain = table["plain"]
    # Rates of 25, 30 and 35 %, each twice: gaps of 0.15, 0.2 and 0.25, against 0.05, 0 and 0.05.
    assert plain[2:6] == ["6", "30.0", "25.3 to 34.7", "0.2000"]
    assert plain[6] == "+0.1667"
    differences = [0.1, 0.2, 0.2] * 2
    reach = 2.5706 * np.std(differences, ddof=1) / np.sqrt(6)
    assert plain[7] == f"{1 / 6 - reach:+.4f} to {1 / 6 + reach:+.4f}"
    # All six of one sign: Wilcoxon's p is 2 / 2^6, and the case is the only one of its family.
    assert plain[8] == "0.031"
    assert plain[10] == "worse"
    assert table["localized"][6] == "+0.0000"
    assert table["recalibrated"][6:11] == ["–"] * 5
    assert plain[13:] == ["100", "3.005"]


def test_rates_of_a_problem_are_pooled() -> None:
    # A run with one certified round, violated, hardly counts.
    one = {SUITE.problems[0].name: {"plain": [run([FINE] * 19, 1), run([BAD], 2)]}}
    table = rows(DECISIONS.report.lines(SUITE, one), SUITE.problems[0].name)
    assert table["plain"][2] == "5.0"
    idle = {SUITE.problems[0].name: {"plain": [run([OFF], 1), run([OFF], 2)]}}
    table = rows(DECISIONS.report.lines(SUITE, idle), SUITE.problems[0].name)
    assert table["plain"][2:4] == ["–", "–"]


def test_a_suite_without_a_protocol_cannot_say_what_matters() -> None:
    with pytest.raises(ValueError, match="protocol"):
        DECISIONS.report.lines(replace(SUITE, protocol=None), COLLECTED)


def test_few_results_are_no_obstacle() -> None:
    first = {
        problem: {m: r[:1] for m, r in by_method.items() if m in ("plain", "loo")}
        for problem, by_method in COLLECTED.items()
    }
    lines = DECISIONS.report.lines(SUITE, first)
    assert rows(lines, "Violations")["plain"][6:11] == ["–"] * 5
    assert rows(lines, "Reward at matched violations") == {}
    DECISIONS.report.figure(first)


def test_the_figure_shows_rates_with_intervals_and_rewards() -> None:
    figure = DECISIONS.report.figure(COLLECTED)
    rates, rewards = figure.axes
    assert [t.get_text() for t in rates.get_yticklabels()] == [
        "plain",
        "wide",
        "loo",
        "refit",
        "recalibrated",
        "localized",
    ]
    assert rates.get_title() == "drift"
    points = [np.asarray(c[0].get_data()).flatten().tolist() for c in rates.containers]
    assert points[0] == pytest.approx([30.0, 0])
    assert points[4] == pytest.approx([10.0, 4])
    curve = np.asarray(rewards.lines[0].get_xydata())
    assert curve[:, 0] == pytest.approx([40.0, 35.0, 30.0, 20.0, 0.0, 0.0])
    assert rewards.lines[1].get_xdata() == pytest.approx([10.0, 10.0])


def _all(collected: Collected) -> list[Result]:
    return [r for by_method in collected.values() for runs in by_method.values() for r in runs]


def test_the_archive_suffices_for_the_report() -> None:
    kept = archived(SUITE, COLLECTED)
    assert SUITE.report.lines(SUITE, kept) == SUITE.report.lines(SUITE, COLLECTED)
    for ours, theirs in zip(_all(kept), _all(COLLECTED), strict=True):
        for score in (analysis.violation_rate, analysis.miss_rate, analysis.certified_share):
            assert score(ours) == pytest.approx(score(theirs), abs=0.0, nan_ok=True)
        assert ours.extras["recommended_probability"] == theirs.extras["recommended_probability"]
        rewards = theirs.f[theirs.num_initial :]
        assert ours.extras["reward"] == pytest.approx(rewards, rel=5e-3)


def test_a_run_that_certifies_nothing_has_no_rates_in_the_archive_either() -> None:
    made = run([OFF] * 4, 0, 1.0, None)
    entry = Entry.of(made, DECISIONS.archive)
    restored = entry.result()
    for score in (analysis.miss_rate, analysis.true_violation_rate):
        assert np.isnan(score(made)) and np.isnan(score(restored))
    assert analysis.violation_rate(restored) == 0.0
    assert analysis.reward(restored) == analysis.reward(made)
