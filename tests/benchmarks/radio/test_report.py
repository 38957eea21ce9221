"""The tables and the figure, from runs made up by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.framework.results import Result
from benchmarks.radio.report import (
    capacities,
    claim_verdict,
    coverage,
    log_recommended,
    recommended,
)
from benchmarks.radio.suites import RADIO
from tests.benchmarks.results import archived, result_with

SEEDS = range(12)
# Capacities at the recommended point; the largest outcome is at 90 % of it, the best at 110 %.
LEVELS = {"random": 4.0, "ei": 5.0, "locbo": 5.5, "locbo_global": 5.5, "cbo": 5.0, "ocbo": 5.0}


def made(problem: str, method: str, seed: int) -> Result:
    """One round after two initial points."""
    step = {"locbo": seed % 3, "random": seed % 3 - 1}.get(method, 0)
    level = LEVELS[method] * (1.0 + 0.01 * step)
    without_model = method == "random"
    f = [1.0, 0.9 * level, level]
    return result_with(
        problem,
        method,
        seed,
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


def test_figure() -> None:
    assert len(RADIO.report.figure(COLLECTED).axes) == 2


def test_the_archive_suffices() -> None:
    kept = archived(RADIO, COLLECTED)
    assert RADIO.report.lines(RADIO, kept) == RADIO.report.lines(RADIO, COLLECTED)
    assert len(RADIO.report.figure(kept).axes) == 2
