"""The tables and the figure, from runs made up by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.decisions import analysis
from benchmarks.decisions.replicate import replicate
from benchmarks.decisions.report import DecisionReport
from benchmarks.decisions.suites import DECISIONS
from benchmarks.decisions.tasks import Search
from benchmarks.framework.archive import Entry
from benchmarks.framework.collected import Collected
from benchmarks.framework.completeness import Selection
from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.framework.report import collect, markdown, write_report
from benchmarks.framework.result import Result, replicate_config
from benchmarks.framework.result_store import ResultStore
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.suite import Suite
from benchmarks.framework.update_archive import update_archive
from tests.benchmarks.decisions.test_analysis import BAD, FINE, OFF, run
from tests.benchmarks.results import ByProblem

SUITE: Suite[Any, Any] = replace(
    DECISIONS, problems=tuple(p for p in DECISIONS.problems if p.name.endswith("_drift"))
)
PROTOCOL = ExperimentProtocol.load("chance_constraints")
SEEDS = range(10000, 10006)

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


def results() -> ByProblem:
    """One more or less violation and a little more or less reward, by seed."""
    found: ByProblem = {}
    for problem in SUITE.problems:
        for method in SUITE.methods:
            violations, reward = RATES[method.name]
            for i, seed in enumerate(SEEDS):
                num = violations + (i % 3 - 1) * (violations > 0)
                made = run(
                    [BAD] * num + [FINE] * (20 - num),
                    seed,
                    reward + 0.01 * (i % 2),
                    (2.0, 0.05 if i else 0.2),
                )
                made = replace(
                    made,
                    problem=problem.name,
                    method=method.name,
                    config=replicate_config(problem, method),
                )
                found.setdefault(problem.name, {}).setdefault(method.name, []).append(made)
    return found


COLLECTED = results()


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


def test_corrections_are_by_family(lines: list[str]) -> None:
    table = rows(lines, "Violations")
    # `refit` has the same runs as `plain`, but is one of four secondary comparisons, of which two
    # have the least p-value and two say nothing: 4 x 0.03125.
    assert table["refit"][6:8] == table["plain"][6:8]
    assert table["refit"][8] == "0.12"
    assert table["refit"][10] == "undecided"
    # The suite's report declares five cases, and counts them before they have been run.
    declared = rows(DECISIONS.report.lines(SUITE, COLLECTED), "Violations")
    assert declared["plain"][8] == "0.16"
    assert declared["refit"][8] == "0.62"


def test_where_the_limit_is_not_kept(lines: list[str]) -> None:
    table = rows(lines, "Where the limit is not kept")
    assert table["plain"][1:] == ["4", "0", "30.0", "30.0"]
    assert table["wide"][1:] == ["4", "0", "20.0", "20.0"]
    assert table["recalibrated"][1:] == ["4", "4", "10.0", "10.0"]
    assert "plain_200" not in table
    one = dict(list(COLLECTED.items())[:1])
    kept = {p: {m: by_method["loo"] for m in by_method} for p, by_method in one.items()}
    assert rows(DECISIONS.report.lines(SUITE, kept), "Where the limit is not kept") == {}


def test_matched_rewards(lines: list[str]) -> None:
    table = rows(lines, "Reward at matched violations")
    assert list(table) == ["loo", "refit", "recalibrated", "localized"]
    # 10 % lies halfway from 20 % at 1.5 to none at 2, where the reward is 1.5.
    assert table["recalibrated"][2] == "+1.000"
    assert table["recalibrated"][4] == "1.75, 1.75, 1.75, 1.75"
    assert table["loo"][2] == "+0.400"
    assert table["refit"][2] == "+0.000"


def test_recommended_points(lines: list[str]) -> None:
    table = rows(lines, "Recommended points")
    # All but the first seed recommend a safe point, of value 2 where 3 is the best.
    assert table["loo"][2] == "83"
    assert table["loo"][4] == "1.000 ± 0.000"


def test_problems(lines: list[str]) -> None:
    for problem in SUITE.problems:
        table = rows(lines, problem.name)
        assert list(table) == [method.name for method in SUITE.methods]
        assert table["plain"][1:5] == ["6", "30.0", "25.3 to 34.7", "0.2000"]
        assert table["plain"][-1] == "10.0"
    # Rates are pooled: a run with one certified round, violated, hardly counts.
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


def test_the_report_states_the_protocol(tmp_path: Path) -> None:
    assert isinstance(DECISIONS.report, DecisionReport)
    text = markdown(SUITE, COLLECTED, 0, PROTOCOL)
    assert f"configuration `{PROTOCOL.configuration}`" in text
    store = ResultStore(tmp_path / "results")
    for by_method in COLLECTED.values():
        for made in by_method.values():
            for result in made:
                store.write(SUITE.name, result)
    seeds = Selection(incomplete_seeds=True)
    written = write_report(DECISIONS, store, tmp_path, tmp_path, seeds)
    assert "**Incomplete: 240 of 10000 replicates have been run.**" in written
    assert (tmp_path / "decisions.png").stat().st_size > 1000


def test_seeds_are_those_of_the_protocol() -> None:
    assert DECISIONS.seeds == PROTOCOL.seeds == range(10000, 10050)


def test_from_the_archive_the_report_is_the_same(tmp_path: Path) -> None:
    task = replace(SUITE.problems[0], num_rounds=12, search=Search(64, 32))
    methods = tuple(m for m in SUITE.methods if m.name in ("plain", "recalibrated"))
    suite = replace(SUITE, problems=(task,), methods=methods, seeds=range(3))
    store = ResultStore(tmp_path / "results", tmp_path / "archives")
    with without_expected_warnings():
        for method in methods:
            for seed in suite.seeds:
                times = [0.125] * task.num_rounds
                result = replicate(task, method, seed)
                timed = replace(result, fit_seconds=times, acquisition_seconds=times)
                store.write(suite.name, timed)
    update_archive(suite, store)
    raw, unfit = collect(suite, store)
    archived, unfit_archived = collect(suite, replace(store, root=tmp_path / "none"))
    assert unfit == unfit_archived == 0
    assert suite.report.lines(suite, archived) == suite.report.lines(suite, raw)
    for ours, theirs in zip(_all(archived), _all(raw), strict=True):
        for score in (analysis.violation_rate, analysis.miss_rate, analysis.certified_share):
            assert score(ours) == pytest.approx(score(theirs), abs=0.0, nan_ok=True)
        assert ours.extras["recommended_probability"] == theirs.extras["recommended_probability"]
        rewards = theirs.f[theirs.num_initial :]
        assert ours.extras["reward"] == pytest.approx(rewards, rel=5e-3)


def _all(collected: Collected) -> list[Result]:
    return [r for by_method in collected.values() for runs in by_method.values() for r in runs]


def test_made_up_runs_are_reported_alike_from_the_archive(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results", tmp_path / "archives")
    suite = replace(SUITE, seeds=SEEDS)
    for made in _all(COLLECTED):
        store.write(suite.name, made)
    update_archive(suite, store)
    archived, _ = collect(suite, replace(store, root=tmp_path / "none"))
    assert suite.report.lines(suite, archived) == suite.report.lines(SUITE, COLLECTED)


def test_a_run_that_certifies_nothing_has_no_rates_in_the_archive_either() -> None:
    made = run([OFF] * 4, 0, 1.0, None)
    entry = Entry.of(made, DECISIONS.archive)
    restored = entry.result()
    for score in (analysis.miss_rate, analysis.true_violation_rate):
        assert np.isnan(score(made)) and np.isnan(score(restored))
    assert analysis.violation_rate(restored) == 0.0
    assert analysis.reward(restored) == analysis.reward(made)
