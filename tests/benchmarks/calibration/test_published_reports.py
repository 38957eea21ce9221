"""Areas under regret curves by hand, and verdicts on claims about capacities."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.calibration.area_report import Area, AreaReport
from benchmarks.calibration.radio_report import RadioReport, claim_verdict
from benchmarks.framework.comparisons import Difference
from benchmarks.framework.replicate_result import Result
from benchmarks.suites import SUITES
from tests.benchmarks.made_up_results import result_with


def run(problem: str, method: str, seed: int, regret: list[float], **fields: Any) -> Result:
    extras = {"regret_evaluated": regret, "covered": [1.0], "pit": [0.3, 0.6]}
    return result_with(problem, method, seed, extras=extras, regret_by_outcome=regret, **fields)


def test_areas_are_in_units_of_the_mean_initial_regret() -> None:
    plain = [run("linear", "bo", seed, [first, 1.0, 0.5]) for seed, first in enumerate((2.0, 4.0))]
    stuck = run("linear", "ocbo_loo", 0, [3.0, 3.0, 3.0])
    area = Area.of({"linear": {"bo": plain, "ocbo_loo": [stuck]}}, "bo")
    assert area(plain[0]) == pytest.approx(0.75 / 3.0)
    assert area(stuck) == 1.0


def test_the_rows_of_the_report() -> None:
    suite = SUITES["ocbo_table_4"]
    assert isinstance(suite.report, AreaReport)
    values = {"bo": 1.0, "ocbo_loo_trained": 0.5}
    collected = {
        "linear": {
            method: [run("linear", method, seed, [2.0, v, v + seed]) for seed in range(6)]
            for method, v in values.items()
        }
    }
    text = "\n".join(suite.report.lines(suite, collected))
    assert "| primary | linear | ocbo_loo_trained | 6 | -0.250 | -0.250 to -0.250 |" in text
    # The published areas, plain and calibrated.
    assert "| 1.000 | 0.522 |" in text and "secondary" not in text
    assert len(suite.report.figure(collected).axes) == 1


@pytest.mark.parametrize(
    ("mean", "p", "said"),
    [
        (9.0, 0.01, "reproduced"),
        (9.0, 0.3, "undecided"),
        (0.0, 0.9, "not reproduced"),
        (-9.0, 0.01, "reversed"),
        (-9.0, 0.3, "not reproduced"),
    ],
)
def test_what_is_said_of_a_claim(mean: float, p: float, said: str) -> None:
    # The half-width of the interval is 1.2.
    found = Difference((mean - 0.5, mean, mean + 0.5), p, detectable=1.0)
    assert claim_verdict(found, margin=5.0) == said


def test_capacities_and_their_comparison() -> None:
    suite = SUITES["radio_published"]
    assert isinstance(suite.report, RadioReport)

    def made(method: str, seed: int, log: float) -> Result:
        regret = [-1.0, -math.exp(log)]
        seconds = {"fit_seconds": [1.0], "acquisition_seconds": [0.5]}
        return run("text_1", method, seed, regret, regret_by_mean=regret, **seconds)

    collected = {
        "text_1": {
            "ei": [made("ei", seed, 0.0) for seed in range(6)],
            "locbo": [made("locbo", seed, 0.1 + 0.01 * (-1) ** seed) for seed in range(6)],
        }
    }
    text = "\n".join(suite.report.lines(suite, collected))
    # Wilcoxon's p of six equal signs is 0.03, and there are twenty comparisons.
    assert "| primary | text_1 | locbo | ei | 6 | +10.0 | +8.9 to +11.1 | 0.62 | 1.7 |" in text
    assert "| undecided | undecided |" in text and "| 1 ± 0 | 1.5 ± 0 |" in text
    assert len(suite.report.figure(collected).axes) == 1


def test_one_color_for_each_method_and_one_style_for_each_level() -> None:
    suite = SUITES["radio_levels"]
    assert isinstance(suite.report, RadioReport)
    names = ["ei", "ocbo_localized", "locbo_0.15", "locbo_0.45", "locbo_global_0.45"]
    made = {n: [run("text_1", n, 0, [-1.0], regret_by_mean=[-1.0])] for n in names}
    lines = suite.report.figure({"text_1": made}).axes[0].lines
    assert [line.get_linestyle() for line in lines] == ["-", "-", ":", "-.", "-."]
    colors = [line.get_color() for line in lines]
    assert colors[2] == colors[3] and len({*colors}) == 4
