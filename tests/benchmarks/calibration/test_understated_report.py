"""Tables and figure of suite `understated_noise`, from runs made up by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.calibration.claims import EXCESS
from benchmarks.calibration.suites import UNDERSTATED_NOISE
from benchmarks.framework.results import Result
from benchmarks.framework.statistics import pooled_ratio
from benchmarks.framework.suite import Suite
from tests.benchmarks.calibration.runs import run
from tests.benchmarks.results import ByProblem, archived, made_up

SUITE: Suite[Any, Any] = UNDERSTATED_NOISE

# Mean logarithms of regret.
LEVELS = {
    "plain": 0.0,
    "refit": -0.5,
    "loo": 0.0,
    "robust": 0.3,
    "recalibrated": 0.0,
    "localized": -0.3,
}


def make(problem: str, method: str, i: int) -> Result:
    """Differences of a hundredth of a decade between seeds; half of these make false claims."""
    # Without ties, which rounding would break.
    wobble = 0.01 * math.sin(7 * i + len(method)) * (method != "plain")
    made = run(2.0 * 10.0 ** (LEVELS[method] + wobble), better=(1.0, 1.0, None, float(i >= 4)))
    if method in ("recalibrated", "localized"):
        made.extras[f"claimed{EXCESS}"] = [0.0, 0.0, None, 0.0]
        made.extras[f"objective_covered{EXCESS}"] = [1.0] * 4
        made.extras[f"objective_covered_in_box{EXCESS}"] = [1.0]
    return made


COLLECTED = made_up(SUITE, range(10000, 10008), make)
LINES = SUITE.report.lines(SUITE, COLLECTED)


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its header."""
    start = LINES.index(section)
    end = next((i for i in range(start + 1, len(LINES)) if LINES[i].startswith("#")), len(LINES))
    found = [line.strip("| ").split(" | ") for line in LINES[start:end] if line.startswith("| ")]
    return found[2:]


def test_the_primary_family_is_that_of_the_protocol() -> None:
    found = {(row[0], row[1]): row[2:] for row in rows("## Comparisons")}
    assert [key for key in found if key[0] == "primary"] == [
        ("primary", "recalibrated − plain"),
        ("primary", "localized − plain"),
    ]
    assert [name for kind, name in found if kind == "secondary"] == [
        "refit − plain",
        "loo − plain",
        "robust − plain",
        "recalibrated − refit",
        "localized − refit",
    ]
    cells = found["primary", "localized − plain"]
    assert cells[0] == "8"
    assert float(cells[1]) == pytest.approx(-0.3, abs=0.003)
    # 10^-0.3 is a half.
    assert cells[3].startswith("-50 (-5")
    # All eight seeds of one sign, in two comparisons.
    assert cells[4] == "0.016"
    assert cells[6] == "better"
    # All found the same best point.
    assert cells[7:] == ["+0.000", "+0.000 to +0.000"]
    assert found["primary", "recalibrated − plain"][6] == "equivalent"
    assert found["secondary", "robust − plain"][6] == "worse"
    assert found["secondary", "recalibrated − refit"][6] == "worse"


def test_regret_is_in_geometric_means() -> None:
    found = {row[0]: row[1:] for row in rows("## Regret")}
    assert found["plain"] == ["8", "1 (1 to 1)", "0.1 (0.1 to 0.1)"]
    mean = float(found["robust"][1].partition(" ")[0])
    assert mean == pytest.approx(10**0.3, rel=0.01)


def test_each_problem_has_its_differences() -> None:
    found = rows("## By problem")
    groups = ["all", "the 4 of `misspecified`", *(problem.name for problem in SUITE.problems)]
    # The second table has a header, and a line below it, of its own.
    assert [row[0] for row in found] == [*groups, "best evaluated", "---", *groups]
    for row in found[:8]:
        assert row[1].startswith("-0.50 (-0.5")
    for row in found[-8:]:
        assert row[1] == "+0.00 (+0.00 to +0.00)"
    last = rows(f"### {SUITE.problems[-1].name}")
    assert [row[0] for row in last] == list(LEVELS)
    assert last[0][1] == "8"
    assert last[0][-1] == "1.0"


def test_coverage_in_both_versions() -> None:
    found = {row[0]: row[1:] for row in rows("## Coverage")}
    assert list(found) == [
        "plain",
        "refit",
        "loo",
        "robust",
        "recalibrated",
        "recalibrated, excess objective's",
        "localized",
        "localized, excess objective's",
    ]
    shown = [cell.partition(" ")[0] for cell in found["localized"]]
    assert shown == ["50.0", "90.0", "70.0", "60.0", "50.0"]
    assert found["localized, excess objective's"][0].startswith("100.0 ")
    assert found["localized, excess objective's"][2:] == ["–", "–", "–"]


def test_false_claims_are_a_ratio() -> None:
    found = {row[0]: row[1:] for row in rows("## Claims of superiority")}
    made, false = [2.0] * 8, [1.0] * 4 + [0.0] * 4
    ratio, low, high = pooled_ratio(false, made)
    assert ratio == 0.25
    assert found["plain"][4:] == ["2.00", f"25.0 ({100 * low:.1f} to {100 * high:.1f})"]
    # Over the start all claims are true, over the incumbent half of them.
    assert found["plain"][0:2] == ["1.00", "0.0 (0.0 to 0.0)"]
    assert found["plain"][3].startswith("50.0 ")
    assert found["localized, excess objective's"][:2] == ["0.00", "–"]


def test_the_archive_gives_the_same_report() -> None:
    # Raw results hold the values themselves.
    raw = {
        problem: {
            name: [
                replace(
                    result,
                    f=[0.0, 0.0, 0.0, 3.8],
                    extras={k: v for k, v in result.extras.items() if k != "regret_evaluated"},
                )
                for result in made
            ]
            for name, made in by_method.items()
        }
        for problem, by_method in COLLECTED.items()
    }
    kept = archived(SUITE, raw)
    assert SUITE.report.lines(SUITE, kept) == SUITE.report.lines(SUITE, raw)


def test_one_seed_and_missing_methods_make_a_report() -> None:
    one: ByProblem = {
        problem: {name: made[:1] for name, made in by_method.items() if name != "robust"}
        for problem, by_method in COLLECTED.items()
    }
    lines = SUITE.report.lines(SUITE, one)
    assert "| plain | 1 | – | – |" in lines
    assert len(SUITE.report.figure(one).axes) == 3
    # Not all problems yet: nothing is said over all of them.
    first, second = list(one)[:2]
    some = {first: one[first], second: {"plain": one[second]["plain"]}}
    assert SUITE.report.lines(SUITE, some)
    assert SUITE.report.lines(SUITE, {"levy4": one["levy4"]})
    assert SUITE.report.figure(some)
