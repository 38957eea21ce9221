"""The tables beside the plain quantile and the oracle, from runs made up by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.decisions.suites import FAULTS, FURTHER, SMALL_SETS
from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.framework.report import collect
from benchmarks.framework.result import replicate_config
from benchmarks.framework.result_store import ResultStore
from benchmarks.framework.suite import Suite
from benchmarks.framework.update_archive import update_archive
from tests.benchmarks.decisions.test_analysis import BAD, FINE, OFF, run
from tests.benchmarks.results import ByProblem

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
    found: ByProblem = {}
    for i, problem in enumerate(suite.problems):
        for method in suite.methods:
            violations, reward = RATES[method.name]
            for seed in suite.seeds:
                rounds = [BAD] * (violations + i) + [FINE] * (20 - violations - i) + [OFF] * 4
                point = (1.0, 0.05 + 0.1 * (seed % 2)) if method.name != "budget" else None
                made = run(rounds, seed, reward + 0.2 * (seed % 2), point)
                config = replicate_config(problem, method)
                made = replace(made, problem=problem.name, method=method.name, config=config)
                found.setdefault(problem.name, {}).setdefault(method.name, []).append(made)
    return found


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


def test_the_worst_run_and_recommendations(beside: dict[str, list[str]]) -> None:
    assert beside["budget"][9] == "15 (3 of 20)"
    assert beside["wide"][9] == "30 (6 of 20)"
    # Of eight runs all recommend, and half of the points are safe; `budget` has none.
    assert beside["plain"][10] == "8 of 8, 4"
    assert beside["budget"][10] == "0 of 8, 0"


def test_little_is_no_obstacle() -> None:
    few = {p: {"plain": runs["plain"][:1]} for p, runs in COLLECTED.items()}
    table = rows(SUITE.report.lines(SUITE, few), "Beside the plain quantile and the oracle")
    assert table["plain"][7:] == ["–", "–", "25 (5 of 20)", "2 of 2, 2"]


def test_from_the_archive_the_report_is_the_same(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results", tmp_path / "archives")
    for by_method in COLLECTED.values():
        for made in by_method.values():
            for result in made:
                store.write(SUITE.name, result)
    update_archive(SUITE, store)
    archived, _ = collect(SUITE, replace(store, root=tmp_path / "none"))
    assert SUITE.report.lines(SUITE, archived) == SUITE.report.lines(SUITE, COLLECTED)
    figure = FAULTS.report.figure(archived)
    assert [axes.get_title() for axes in figure.axes] == ["jump", ""]


@pytest.mark.parametrize("suite", [FAULTS, SMALL_SETS], ids=lambda suite: suite.name)
def test_the_protocol_is_that_of_the_suite(suite: Suite[Any, Any]) -> None:
    assert suite.protocol == suite.name
    protocol = ExperimentProtocol.load(suite.name)
    protocol.check(suite)
    assert protocol.seeds == suite.seeds == range(13000, 13030)


def test_cases_beside_one_another() -> None:
    names = [f"{f}_{case}" for case in ("d5", "workers") for f in ("levy", "dixon_price")]
    problems = tuple(p for name in names for p in FURTHER.problems if p.name == name)
    suite = replace(FURTHER, problems=problems, seeds=range(15000, 15004))
    runs = results(suite)
    for name in names[2:]:
        runs[name]["budget"] = [replace(r, f=[0.5 * f for f in r.f]) for r in runs[name]["budget"]]
    lines = [*suite.report.lines(suite, runs), "## End"]
    # Multiples that stand for others are in no table of methods.
    assert not any("wide_2" in line for line in lines[: lines.index("## Problems")])
    start = lines.index("## Cases beside one another")
    table = [line.strip("| ").split(" | ") for line in lines[start:] if line.startswith("| worke")]
    # Two violations more of 20 rounds on each function.
    same = ["+10.0", "+10.0 to +10.0"]
    assert table == [
        ["workers", "d5", "budget", "50", "50 to 50", *same],
        *(
            ["workers", "d5", name, "100", "100 to 100", *same]
            for name in ("plain", "wide", "oracle")
        ),
    ]
