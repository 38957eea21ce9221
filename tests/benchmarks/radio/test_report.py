"""The tables and the figure, from runs made up by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.framework.archive import Entry
from benchmarks.framework.collected import Collected
from benchmarks.framework.comparisons import detectable
from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.framework.result import Result
from benchmarks.radio.report import (
    ROUNDS,
    capacities,
    claim_verdict,
    coverage,
    log_recommended,
    recommended,
)
from benchmarks.radio.suites import RADIO

SEEDS = range(12)
# Capacities at the recommended point; the largest outcome is at 90 % of it, the best at 110 %.
LEVELS = {"random": 4.0, "ei": 5.0, "locbo": 5.5, "locbo_global": 5.5, "cbo": 5.0, "ocbo": 5.0}


def made(problem: str, method: str, seed: int) -> Result:
    """One round after two initial points."""
    step = {"locbo": seed % 3, "random": seed % 3 - 1}.get(method, 0)
    level = LEVELS[method] * (1.0 + 0.01 * step)
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
    assert recommended(made("fading_1", "random", 1)) == pytest.approx(3.6)
    assert coverage(run) == 1.0 and math.isnan(coverage(made("fading_1", "random", 0)))


def test_comparisons() -> None:
    table = rows(RADIO.report.lines(RADIO, COLLECTED))
    compared = {tuple(row[:3]): row[3:] for row in table if row[0] == "fading_1"}
    differences = 100.0 * np.log([1.1, 1.1 * 1.01, 1.1 * 1.02] * 4)
    mean, reach = differences.mean(), 2.2010 * differences.std(ddof=1) / math.sqrt(12)
    row = compared["fading_1", "locbo", "ei"]
    assert row[:3] == ["12", f"{mean:+.1f}", f"{mean - reach:+.1f} to {mean + reach:+.1f}"]
    # All twelve of one sign: 2 / 2^12, times the ten comparisons that are declared.
    assert row[3] == f"{10 * 2 / 2**12:.2g}"
    assert row[4] == f"{detectable(differences.tolist(), 10):.1f}"
    assert row[5] == "better"
    # The reverse of none is among the secondary ones, and nothing that has not been run.
    assert ("fading_1", "random", "ei") in compared
    assert ("fading_1", "ei", "locbo") not in compared
    assert ("fading_1", "locbo", "ocbo_localized") not in compared
    # Within the margin of one another: 0 to 2 %.
    assert compared["fading_1", "locbo", "locbo_global"][-1] == "equivalent"
    # Secondary: 3.6 against 5, one percent more or less, in twelve declared comparisons.
    worse = compared["fading_1", "random", "ei"]
    assert worse[1] == f"{100.0 * math.log(3.6 / 5.0):+.1f}"
    assert worse[3] == f"{12 * 2 / 2**12:.2g}" and worse[5] == "worse"


def test_claims() -> None:
    lines = RADIO.report.lines(RADIO, COLLECTED)
    table = rows(lines[: lines.index("## Comparisons")])[2:]
    said = {(row[0], row[1], *row[2:4]): row[4:] for row in table}
    compared = {tuple(row[:3]): row[3:] for row in rows(lines) if row[0].startswith("fading")}
    assert len(said) == 7
    # About 10 %, in all seeds.
    for key in (
        ("2", "fading_1", "locbo", "cbo"),
        ("2", "fading_1", "locbo", "ocbo"),
        ("3", "fading_1", "locbo", "ei"),
        ("3", "fading_4", "locbo", "ei"),
    ):
        assert said[key][-1] == "reproduced"
        assert said[key][:-1] == compared[key[1:]][:-1]
    # Up to 2 %, which is less than the margin.
    assert said["1", "fading_1", "locbo", "locbo_global"][-1] == "not reproduced"
    # A secondary comparison, read the other way round.
    claim = said["4", "fading_4", "ei", "random"]
    opposite = compared["fading_4", "random", "ei"]
    assert claim[1] == f"+{opposite[1].removeprefix('-')}"
    low, high = opposite[2].replace("-", "").split(" to ")
    assert claim[2] == f"+{high} to +{low}"
    assert claim[3:5] == opposite[3:5] and claim[5] == "reproduced"


def test_a_claim_that_has_not_been_run() -> None:
    runs = COLLECTED["fading_1"]
    without = {"fading_1": {name: runs[name] for name in ("locbo", "locbo_global")}}
    lines = RADIO.report.lines(RADIO, without)
    table = rows(lines[: lines.index("## Comparisons")])
    said = {tuple(row[:4]): row[-1] for row in table}
    assert said["3", "fading_1", "locbo", "ei"] == "not run"
    assert said["1", "fading_1", "locbo", "locbo_global"] == "not reproduced"


@pytest.mark.parametrize(
    ("interval", "p", "said"),
    [
        ((5.1, 9.0), 0.01, "reproduced"),
        ((5.1, 9.0), 0.06, "undecided"),
        ((4.9, 9.0), 0.01, "undecided"),
        ((-9.0, 6.0), 1.0, "undecided"),
        ((1.0, 4.9), 0.01, "not reproduced"),
        ((-9.0, 4.9), 1.0, "not reproduced"),
        # Significantly worse, but not by more than the margin.
        ((-9.0, -4.9), 0.01, "not reproduced"),
        ((-9.0, -5.1), 0.01, "reversed"),
        ((-9.0, -5.1), 0.06, "not reproduced"),
    ],
)
def test_verdicts_on_claims(interval: tuple[float, float], p: float, said: str) -> None:
    assert claim_verdict(interval, p, 5.0) == said


def test_capacity_over_the_rounds() -> None:
    lines = RADIO.report.lines(RADIO, COLLECTED)
    start = lines.index("## Capacity over the rounds")
    table = rows(lines[start : lines.index("## fading_1")])
    assert table[0] == ["problem", "method", *map(str, ROUNDS)]
    cells = {tuple(row[:2]): row[2:] for row in table[2:]}
    # One round has been run: the first point, and after it nothing that is shown.
    assert cells["fading_4", "ei"] == ["1 ± 0", *["–"] * (len(ROUNDS) - 1)]
    longer = [
        replace(run, regret_by_mean=[-1.0, *[-2.0] * 24, -(3.0 + run.seed % 2)])
        for run in COLLECTED["fading_1"]["ei"]
    ]
    lines = RADIO.report.lines(RADIO, {"fading_1": {"ei": longer}})
    assert "| fading_1 | ei | 1 ± 0 | 3.5 ± 0.15 | – | – | – | – | – |" in lines


def test_problem_table() -> None:
    lines = RADIO.report.lines(RADIO, COLLECTED)
    table = rows(lines[lines.index("## fading_4") :])
    found = {row[0]: row[1:] for row in table[2:]}
    assert found["ei"] == ["12", "5 ± 0", "4.5 ± 0", "5 ± 0", "1 ± 0", "0.8"]
    assert found["random"][3:] == ["4 ± 0.0098", "–", "0.8"]


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
