"""Tables and figure of suite `understated_noise`, from runs made up by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.calibration.claims import EXCESS
from benchmarks.calibration.suites import UNDERSTATED_NOISE
from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.framework.report import write_report
from benchmarks.framework.result import replicate_config
from benchmarks.framework.result_store import ResultStore
from benchmarks.framework.statistics import pooled_ratio
from benchmarks.framework.suite import Suite
from benchmarks.framework.update_archive import update_archive
from tests.benchmarks.calibration.runs import run
from tests.benchmarks.results import ByProblem

SUITE: Suite[Any, Any] = UNDERSTATED_NOISE
SEEDS = range(10000, 10008)

# Mean logarithms of regret.
LEVELS = {
    "plain": 0.0,
    "refit": -0.5,
    "loo": 0.0,
    "robust": 0.3,
    "recalibrated": 0.0,
    "localized": -0.3,
}


def results() -> ByProblem:
    """Differences of a hundredth of a decade between seeds; half of these make false claims."""
    found: ByProblem = {}
    for problem in SUITE.problems:
        for method in SUITE.methods:
            for i, seed in enumerate(SEEDS):
                # Without ties, which rounding would break.
                wobble = 0.01 * math.sin(7 * i + len(method.name)) * (method.name != "plain")
                made = run(
                    2.0 * 10.0 ** (LEVELS[method.name] + wobble),
                    better=(1.0, 1.0, None, float(i >= 4)),
                    problem=problem.name,
                    method=method.name,
                    seed=seed,
                    config=replicate_config(problem, method),
                )
                if method.name in ("recalibrated", "localized"):
                    made.extras[f"claimed{EXCESS}"] = [0.0, 0.0, None, 0.0]
                    made.extras[f"objective_covered{EXCESS}"] = [1.0] * 4
                    made.extras[f"objective_covered_in_box{EXCESS}"] = [1.0]
                found.setdefault(problem.name, {}).setdefault(method.name, []).append(made)
    return found


COLLECTED = results()
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


def test_the_archive_gives_the_same_report(tmp_path: Any) -> None:
    store = ResultStore(tmp_path / "results", tmp_path / "archives")
    for by_method in COLLECTED.values():
        for made in by_method.values():
            for result in made:
                # Raw results hold the values themselves.
                raw = {k: v for k, v in result.extras.items() if k != "regret_evaluated"}
                f = [0.0, 0.0, 0.0, 3.8]
                store.write(SUITE.name, replace(result, f=f, extras=raw))
    first = write_report(SUITE, store, tmp_path, tmp_path)
    assert "**Incomplete: 288 of 3600 replicates have been run.**" in first
    assert "configuration" in first and "10000 to 10099" in first
    update_archive(SUITE, store)
    archived = ResultStore(tmp_path / "none", tmp_path / "archives")
    second = write_report(SUITE, archived, tmp_path, tmp_path)
    note = "288 replicates are read from the archive, which holds them rounded."
    assert [line for line in second.splitlines() if line != note and line] == [
        line for line in first.splitlines() if line
    ]
    assert (tmp_path / "understated_noise.png").stat().st_size > 0


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


def test_the_protocol_is_of_this_suite() -> None:
    ExperimentProtocol.load("understated_noise").check(SUITE)
