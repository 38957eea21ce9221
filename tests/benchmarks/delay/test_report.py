"""The report of suite `delay`, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.delay.replicate import replicate
from benchmarks.delay.report import (
    FLOOR,
    DelayReport,
    delay_figure,
    log_cumulative_regret,
    log_simple_regret,
)
from benchmarks.framework.report import markdown
from benchmarks.framework.results import Result
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


def test_a_regret_of_next_to_nothing_counts_as_the_floor() -> None:
    assert log_simple_regret(result("x", 0, [9.0, 0.0, 0.0], [1.0])) == math.log(FLOOR)
    assert log_simple_regret(result("x", 0, [9.0, 0.5, 1.5], [1.0])) == 0.0
    assert log_cumulative_regret(result("x", 0, [9.0, 0.0], [1.0, 3.0])) == math.log(3.0)


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
