"""The report of suite `delay`, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.delay import report as delay_report
from benchmarks.delay.replicate import replicate
from benchmarks.delay.report import (
    FLOOR,
    DelayReport,
    delay_figure,
    log_cumulative_regret,
    log_simple_regret,
)
from benchmarks.delay.suites import DELAY
from benchmarks.framework.report import collect, markdown, write_report
from benchmarks.framework.result import Result
from benchmarks.framework.result_store import ResultStore
from benchmarks.framework.runner import Summary, run_suite
from benchmarks.framework.suite import Suite
from botorch_calib.test_functions.delayed import FixedDelay
from tests.benchmarks.delay.toys import (
    CONTEXTUAL,
    Scripted,
    toy,
)
from tests.benchmarks.results import result_with

TOY_SUITE: Suite[Any, Any] = Suite(
    name="toys",
    problems=(toy(FixedDelay(2.0)), CONTEXTUAL),
    methods=(Scripted("ucb"), Scripted("ts", (3,) * 6), Scripted("ts_sdf", (0,) * 6)),
    baseline="ucb",
    replicate=replicate,
    report=DelayReport(),
)


def test_a_suite_runs_resumes_and_is_reported(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results")
    suite = replace(TOY_SUITE, problems=TOY_SUITE.problems[:1])
    assert run_suite(suite, store, [0, 1], progress=False) == Summary(finished=6)
    assert run_suite(suite, store, [0, 1, 2], progress=False) == Summary(finished=3, skipped=6)
    text = write_report(suite, store, tmp_path / "t", tmp_path / "f")
    assert (tmp_path / "t" / "toys.md").read_text() == text
    assert (tmp_path / "f" / "toys.png").stat().st_size > 0
    assert "## toy" in text
    collected, unfit = collect(suite, store)
    assert unfit == 0
    assert [len(results) for results in collected["toy"].values()] == [3, 3, 3]


def result(
    method: str, seed: int, regret: Sequence[float], every: Sequence[float], best: float = 0.5
) -> Result:
    """A result with the given traces; what the report ignores is empty."""
    extras: dict[str, list[float | None]] = {
        "cumulative_regret": [value / 2 for value in every],
        "cumulative_regret_all": list(every),
        "best_arrived": [0.0, best],
    }
    if regret:
        extras["simple_regret"] = list(regret)
    return result_with(
        problem="toy",
        method=method,
        seed=seed,
        num_initial=1,
        fit_seconds=[0.5, 1.5],
        acquisition_seconds=[2.0, 4.0],
        extras=extras,
        versions={"python": "3"},
    )


# Final simple regrets 2, 4, 6 of `ucb`; 1, 2, 3 of `ucb_sdf`; 5, 5, 5 of `ts`.
BY_METHOD = {
    "ucb": [result("ucb", s, [9.0, r], [0.0, 2 * r]) for s, r in enumerate([2.0, 4.0, 6.0])],
    "ucb_sdf": [
        result("ucb_sdf", s, [9.0, r], [0.0, 6 * r]) for s, r in enumerate([1.0, 2.0, 3.0])
    ],
    "ts": [result("ts", s, [9.0, 5.0], [0.0, 10.0]) for s in range(3)],
    "ts_sdf": [result("ts_sdf", s, [9.0, 4.0 + s], [0.0, 9.0]) for s in range(3)],
    "qlogei_pending": [result("qlogei_pending", s, [9.0, 1.0], [0.0, 1.0]) for s in range(3)],
}


def test_comparison_by_hand() -> None:
    row = delay_report.compare("ucb_sdf", BY_METHOD, "ucb")
    assert (row.method, row.counterpart, row.seeds) == ("ucb_sdf", "ucb", 3)
    assert row.simple.mean == 2.0
    assert (row.arrived.mean, row.every.mean) == (6.0, 12.0)
    ignoring, pending = row.simple_versus
    assert ignoring.difference.mean == -2.0
    # Differences of one sign: Wilcoxon's p-value is 2 / 2^3.
    assert ignoring.wilcoxon_p_value == pytest.approx(0.25)
    assert pending.difference.mean == 1.0
    assert [test.difference.mean for test in row.every_versus] == [4.0, 11.0]
    assert (row.fit_seconds, row.acquisition_seconds) == (1.0, 3.0)


def test_thompson_sampling_is_compared_with_its_own_kind() -> None:
    row = delay_report.compare("ts_sdf", BY_METHOD, "ucb")
    assert row.counterpart == "ts"
    assert row.simple_versus[0].difference.mean == 0.0
    without = {name: runs for name, runs in BY_METHOD.items() if name != "ts"}
    assert delay_report.compare("ts_sdf", without, "ucb").counterpart == "ucb"


def test_tables_by_hand() -> None:
    lines = markdown(TOY_SUITE, {"toy": BY_METHOD}).splitlines()
    row = (
        "| ucb_sdf | 3 | 2 ± 0.58 | -2 ± 0.58 (0.25) | 1 ± 0.58 (0.5) | 6 ± 1.7 | 12 ± 3.5 | "
        "4 ± 1.2 (0.25) | 11 ± 3.5 (0.25) | 1 | 3 |"
    )
    assert row in lines
    assert "| ucb | 3 | 4 ± 1.2 | – |" in "\n".join(lines)
    # Of mean simple regret, -50 %; of cumulative regret, 3 times the baseline's on every seed.
    summary = next(line for line in lines if line.startswith("| ucb_sdf | 1 |"))
    assert "| 0 | 0 | -50 ± 14 (0.25) | 50 ± 14 (0.25) |" in summary
    assert not any("published" in line for line in lines)


def test_significance_counts_by_hand() -> None:
    # Eight seeds with differences of one sign: p = 2 / 2^8 = 0.0078.
    by_method = {
        name: [result(name, s, [9.0, offset + s + 0.1 * s * offset], [0.0, 1.0]) for s in range(8)]
        for name, offset in [("ucb", 2.0), ("ucb_sdf", 1.0), ("ucb_hallucinate", 3.0)]
    }
    lines = markdown(TOY_SUITE, {"toy": by_method}).splitlines()
    assert any(line.startswith("| ucb_sdf | 1 | 1 | 0 |") for line in lines)
    assert any(line.startswith("| ucb_hallucinate | 1 | 0 | 1 |") for line in lines)


# Mean simple regrets, 3 for other methods; what varies by seed and method is a percent.
LEVELS = {"ucb": 4.0, "ucb_sdf": 2.0, "ucb_default": 2.0, "qlogei_pending": 1.0}


def late(name: str, factor: float = 1.0) -> list[Result]:
    """Eight results of a method; cumulative regret is ten times as much."""
    draws = np.random.default_rng(sum(map(ord, name))).uniform(0.99, 1.01, 8)
    values = (factor * LEVELS.get(name, 3.0) * draws).tolist()
    return [result(name, seed, [9.0, v, v], [0.0, 10 * v]) for seed, v in enumerate(values)]


def declared(text: str, *keys: str) -> list[str]:
    """The cells behind ``keys``."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {' | '.join(keys)} |"))
    return [cell.strip() for cell in line.split("|")[len(keys) + 1 : -1]]


def test_declared_comparisons_average_over_problems() -> None:
    names = [method.name for method in DELAY.methods]
    # Twice and half the regret, so that the mean of logarithms over both is that of `LEVELS`.
    text = markdown(
        DELAY,
        {
            "a": {name: late(name, 2.0) for name in names},
            "b": {name: late(name, 0.5) for name in names},
        },
    )
    found = declared(text, "primary", "ucb_sdf", "ucb")
    assert found[:2] == ["8", "-50 %"]
    # All eight of one sign: 2 / 2^8, in four comparisons.
    assert found[3:5] == ["0.031", "better"]
    assert found[6] == "-50 %"
    assert declared(text, "primary", "ucb_default", "ucb_sdf")[4] == "equivalent"
    found = declared(text, "primary", "ucb_default", "qlogei_pending")
    assert (found[1], found[4], found[6]) == ("+100 %", "worse", "+100 %")
    assert declared(text, "secondary", "ts_sdf", "ts")[4] == "equivalent"
    assert declared(text, "secondary", "ts", "qlogei_pending")[1] in ("+199 %", "+200 %", "+201 %")


def test_no_pair_of_methods_is_declared_twice() -> None:
    lines = markdown(DELAY, {"a": {m.name: late(m.name) for m in DELAY.methods}}).splitlines()
    pairs = [
        frozenset(cell.strip() for cell in line.split("|")[2:4])
        for line in lines
        if line.startswith(("| primary |", "| secondary |"))
    ]
    assert len(pairs) == len(set(pairs)) == 17
    assert all(len(pair) == 2 for pair in pairs)


def test_a_regret_of_next_to_nothing_counts_as_the_floor() -> None:
    assert log_simple_regret(result("x", 0, [9.0, 0.0, 0.0], [1.0])) == math.log(FLOOR)
    assert log_simple_regret(result("x", 0, [9.0, 0.5, 1.5], [1.0])) == 0.0
    assert log_cumulative_regret(result("x", 0, [9.0, 0.0], [1.0, 3.0])) == math.log(3.0)


def test_published_means_stand_beside_ours() -> None:
    runs = {"ucb_sdf": [result("ucb_sdf", s, [1.0], [0.0], 0.75 + 0.01 * s) for s in range(3)]}
    text = markdown(TOY_SUITE, {"svm_poisson": runs, "svm_fixed": runs})
    # The interval reaches 4.303 standard errors, 0.01 / sqrt(3), to each side.
    row = "| svm_poisson | ucb_sdf | 3 | 0.76 ± 0.0058 | 0.735 to 0.785 | 0.757 ± 0.0075 | 0.003 |"
    assert row in text
    assert (
        "| svm_fixed | ucb_sdf | 3 | 0.76 ± 0.0058 | 0.735 to 0.785 | 0.764 ± 0.0015 | -0.004 |"
        in text
    )


def test_figure_has_a_panel_per_problem() -> None:
    contexts = {"ucb": [result("ucb", s, (), [0.0, 1.0, 4.0]) for s in range(2)]}
    figure = delay_figure({"toy": BY_METHOD, "contexts": contexts})
    first, second = figure.axes
    assert first.get_title() == "toy"
    assert first.get_ylabel() == "simple regret, arrived"
    assert len(first.lines) == 5
    assert np.asarray(first.lines[0].get_ydata()).tolist() == [9.0, 4.0]
    assert second.get_ylabel() == "cumulative regret, all"
    assert np.asarray(second.lines[0].get_ydata()).tolist() == [0.0, 1.0, 4.0]
