"""The tables and the figure, from runs made up by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.framework.archive import Entry
from benchmarks.framework.completeness import Collected
from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.framework.result import Result
from benchmarks.radio.report import capacities, coverage, log_recommended, recommended
from benchmarks.radio.suites import RADIO

SEEDS = range(6)
# Capacities at the recommended point; the largest outcome is at 90 % of it, the best at 110 %.
LEVELS = {"random": 4.0, "ei": 5.0, "locbo": 5.5, "locbo_global": 5.5, "cbo": 5.0, "ocbo": 5.0}


def made(problem: str, method: str, seed: int) -> Result:
    """One round after two initial points."""
    level = LEVELS[method] * (1.0 + 0.01 * (seed % 3) * (method == "locbo"))
    without_model = method == "random"
    f = [1.0, 0.9 * level, level]
    return Result(
        problem=problem,
        method=method,
        seed=seed,
        num_initial=2,
        X=[[0.0]] * 3,
        y=[1.0, 9.0, 2.0],
        f=f,
        inference_by_outcome=[1, 1],
        inference_by_mean=None if without_model else [0, 2],
        regret_by_outcome=[-f[1], -f[1]],
        regret_by_mean=None if without_model else [-f[0], -f[2]],
        fit_seconds=[0.25],
        acquisition_seconds=[0.5],
        extras={} if without_model else {"covered": [1.0], "pit": [0.3], "width": [2.0]},
        config={},
    )


COLLECTED = {
    problem.name: {name: [made(problem.name, name, seed) for seed in SEEDS] for name in LEVELS}
    for problem in RADIO.problems
}


def rows(lines: list[str]) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]


def test_capacities() -> None:
    run = made("fading_1", "ei", 0)
    assert capacities(run, "recommended") == [1.0, 5.0]
    assert capacities(run, "outcome") == [4.5, 4.5]
    assert capacities(run, "evaluated") == [4.5, 5.0]
    assert log_recommended(run) == pytest.approx(100.0 * math.log(5.0))
    # Without a model the largest outcome is all there is to go by.
    assert recommended(made("fading_1", "random", 0)) == pytest.approx(3.6)
    assert coverage(run) == 1.0 and math.isnan(coverage(made("fading_1", "random", 0)))


def test_comparisons() -> None:
    table = rows(RADIO.report.lines(RADIO, COLLECTED))
    compared = {tuple(row[:3]): row[3:] for row in table if row[0] == "fading_1"}
    differences = 100.0 * np.log([1.1, 1.1 * 1.01, 1.1 * 1.02] * 2)
    mean, reach = differences.mean(), 2.5706 * differences.std(ddof=1) / math.sqrt(6)
    row = compared["fading_1", "locbo", "ei"]
    assert row[:3] == ["6", f"{mean:+.1f}", f"{mean - reach:+.1f} to {mean + reach:+.1f}"]
    # All six of one sign: 2 / 2^6, times the ten comparisons that are declared.
    assert row[3] == f"{10 * 2 / 64:.2g}"
    # The reverse of none is among the secondary ones, and nothing that has not been run.
    assert ("fading_1", "random", "ei") in compared
    assert ("fading_1", "ei", "locbo") not in compared
    assert ("fading_1", "locbo", "ocbo_localized") not in compared
    # Within the margin of one another: 0 to 2 %.
    assert compared["fading_1", "locbo", "locbo_global"][-1] == "equivalent"
    # Secondary: 3.6 against 5, in both problems and all seeds; five comparisons are left.
    assert compared["fading_1", "random", "ei"][1] == f"{100.0 * math.log(3.6 / 5.0):+.1f}"


def test_problem_table() -> None:
    lines = RADIO.report.lines(RADIO, COLLECTED)
    table = rows(lines[lines.index("## fading_4") :])
    found = {row[0]: row[1:] for row in table[2:]}
    assert found["ei"] == ["6", "5 ± 0", "4.5 ± 0", "5 ± 0", "1 ± 0", "0.8"]
    assert found["random"][3:] == ["4 ± 0", "–", "0.8"]


def test_figure() -> None:
    assert len(RADIO.report.figure(COLLECTED).axes) == 2


def test_the_archive_suffices() -> None:
    kept: Collected = {
        problem: {
            name: [Entry.of(run, RADIO.archive).result() for run in runs]
            for name, runs in by_method.items()
        }
        for problem, by_method in COLLECTED.items()
    }
    assert RADIO.report.lines(RADIO, kept) == RADIO.report.lines(RADIO, COLLECTED)
    assert len(RADIO.report.figure(kept).axes) == 2


def test_the_suite_is_that_of_the_protocol() -> None:
    protocol = ExperimentProtocol.load("radio")
    protocol.check(RADIO)
    assert protocol.seeds == range(10000, 10040)
    assert len(RADIO.problems) * len(RADIO.methods) * len(RADIO.seeds) == 640
