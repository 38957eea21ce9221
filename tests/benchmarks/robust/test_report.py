"""The report of suite `robust`, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.framework.markdown import interval
from benchmarks.framework.report import markdown
from benchmarks.framework.results import Result
from benchmarks.framework.suite import Suite
from benchmarks.robust import report as robust_report
from benchmarks.robust.replicate import replicate
from benchmarks.robust.report import RobustReport, robust_figure
from tests.benchmarks.results import result_with
from tests.benchmarks.robust.toys import CAMEL, Scripted

TOY_SUITE: Suite[Any, Any] = Suite(
    name="toys",
    problems=(CAMEL, replace(CAMEL, name="camels")),
    methods=(Scripted("erbo", (0.5,)), Scripted("wdrbo", (0.1,)), Scripted("gp_ucb", (0.9,))),
    baseline="erbo",
    replicate=replicate,
    report=RobustReport(),
)


def result(method: str, seed: int, regrets: Sequence[float], seconds: float = 1.0) -> Result:
    """A result with the given regrets; what the report ignores is empty."""
    extras: dict[str, list[float | None]] = {
        "regret": list(regrets),
        "cumulative_regret": [*np.cumsum(regrets).tolist()],
    }
    return result_with(
        problem="toy",
        method=method,
        seed=seed,
        fit_seconds=[0.25 * seconds] * len(regrets),
        acquisition_seconds=[0.75 * seconds] * len(regrets),
        extras=extras,
    )


def toy_results() -> dict[str, list[Result]]:
    """Regrets of two rounds: 3 + seed for the baseline, one less for the other method."""
    return {
        "erbo": [result("erbo", seed, [2.0 + seed, 1.0]) for seed in range(8)],
        "wdrbo": [result("wdrbo", seed, [1.0 + seed, 1.0 + 0.01 * seed], 2.0) for seed in range(8)],
    }


def test_late_regret_is_that_of_the_last_rounds() -> None:
    run = result("erbo", 0, [5.0] * 30 + [1.0] * 10 + [2.0] * 10)
    assert robust_report.late_regret(run) == 1.5
    assert robust_report.cumulative_regret(run) == 180.0


def test_tables() -> None:
    suite = replace(TOY_SUITE, problems=(replace(CAMEL, name="toy"),))
    lines = markdown(suite, {"toy": toy_results()}).splitlines()
    erbo, own = ([line for line in lines if line.startswith(f"| {m} |")] for m in ("erbo", "wdrbo"))
    assert erbo[0].split(" | ")[1:] == ["2", "1.00 x |"]
    assert own[0].split(" | ")[1:] == ["4", "2.00 x |"]
    cells = own[1].split(" | ")
    totals = np.array([2.0 + 1.01 * seed for seed in range(8)])
    assert cells[1:4] == ["8", f"{totals.mean():.3g}", interval(totals.tolist(), ".3g")]
    logs = np.log(totals / (3.0 + np.arange(8)))
    reach = 2.3646 * logs.std(ddof=1) / math.sqrt(8)
    low, mean, high = (100 * math.expm1(logs.mean() + side * reach) for side in (-1, 0, 1))
    assert cells[4:6] == [f"{mean:+.0f} %", f"{low:+.0f} to {high:+.0f} %"]
    # Two rounds are all there are.
    assert cells[6].startswith(f"{np.mean([1.0 + 0.505 * seed for seed in range(8)]):.3g}")
    assert cells[7:] == ["0.5", "1.5", "4 |"]
    assert erbo[1].split(" | ")[4:6] == ["–", "–"]


def test_interval_by_hand() -> None:
    # Mean 2, standard error 1 / sqrt(3), t quantile with 2 degrees of freedom 4.303.
    assert interval([1.0, 2.0, 3.0], ".3g") == "-0.484 to 4.48"
    assert interval([1.0], ".3g") == "–"


def test_report_without_the_baseline_or_with_one_seed() -> None:
    only = {"toy": {"wdrbo": toy_results()["wdrbo"]}}
    assert "| wdrbo | 8 | 5.54 |" in markdown(TOY_SUITE, only)
    single = {"toy": {name: runs[:1] for name, runs in toy_results().items()}}
    assert "| wdrbo | 1 | 2 | – | -33 % | – |" in markdown(TOY_SUITE, single)
    assert len(robust_figure(single).axes) == 1
