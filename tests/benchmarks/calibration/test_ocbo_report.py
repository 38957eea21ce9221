"""The report of suites `ocbo_designs` and `ocbo_tasks`, from made-up runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.calibration.ocbo_report import Area
from benchmarks.calibration.suites import OCBO_DESIGNS, OCBO_TASKS
from benchmarks.framework import metrics
from benchmarks.framework.report import markdown
from benchmarks.framework.results import Result
from tests.benchmarks.calibration.runs import cells, run
from tests.benchmarks.results import ByProblem, made_up

SUITES = pytest.mark.parametrize("suite", [OCBO_DESIGNS, OCBO_TASKS], ids=lambda suite: suite.name)

# Regret after the initial points, differently large on each problem.
START = {"forrester_random_3": 8.0, "forrester_random_4": 2.0}


def results(suite: Any) -> ByProblem:
    """Curves of regret fall to a half of their start, those of `ocbo` to a quarter.

    They do so after the first of two evaluations.
    """

    def make(problem: str, method: str, i: int) -> Result:
        start, share = START.get(problem, 4.0), 0.25 if method == "ocbo" else 0.5
        regret = share * start * (1 + 0.01 * math.sin(7 * i + len(method)))
        result = run(regret, regret_by_outcome=[start, start, regret])
        del result.extras["spread"]
        result.extras["pit"] = [0.3, 0.6] if method == "ocbo" else [0.01, 0.02]
        return result

    return made_up(suite, range(10000, 10006), make)


def test_an_area_is_in_units_of_the_problem() -> None:
    collected = results(OCBO_DESIGNS)
    area = Area.of(collected, "bo")
    assert area.scales["forrester_random_3"] == 8.0
    for problem in START:
        (result, *_) = collected[problem]["bo"]
        # The mean of 1 and about a half.
        assert area(result) == pytest.approx(0.75, abs=0.005)


@SUITES
def test_declared_comparisons_are_reported(suite: Any) -> None:
    collected = results(suite)
    text = markdown(suite, collected)
    for group in suite.report.groups:
        found = cells(text, "primary", group, "ocbo")
        assert found[0] == "6"
        # (1 + 1/4) / 2 - (1 + 1/2) / 2.
        assert float(found[1]) == pytest.approx(-0.125, abs=0.005)
        # All six of one sign, in two comparisons.
        assert found[3] == "0.062"
        assert float(found[6]) == pytest.approx(-math.log10(2), abs=0.02)
        ocbo, bo = (
            metrics.calibration_error(collected[suite.problems[0].name][name][0])
            for name in ("ocbo", "bo")
        )
        assert float(found[8]) == pytest.approx(ocbo - bo, abs=0.006)
        for method in ("ocbo_l", "locbo"):
            other = cells(text, "secondary", group, method)
            assert float(other[1]) == pytest.approx(0.0, abs=0.005)
            assert other[5] == "equivalent"
    families = [line.split(" | ")[0] for line in text.splitlines() if "ndary |" in line]
    assert len(families) == 4
    assert len(suite.report.figure(collected).axes) == len(suite.problems)
    grouped = [name for names in suite.report.groups.values() for name in names]
    assert grouped == [problem.name for problem in suite.problems]
    # Areas are given for each problem.
    for problem in suite.problems:
        plain, recalibrated, *others = cells(text, problem.name)
        assert float(plain.split()[0]) == pytest.approx(0.75, abs=0.005)
        assert float(recalibrated.split()[0]) == pytest.approx(-0.125, abs=0.005)
        assert len(others) == 2


def test_incomplete_results_are_reported() -> None:
    suite: Any = OCBO_DESIGNS
    collected = results(suite)
    first, second = (problem.name for problem in suite.problems[:2])
    del collected[first]["locbo"]
    text = markdown(suite, {first: collected[first]})
    group, other = suite.report.groups
    found = cells(text, "primary", group, "ocbo")
    assert float(found[1]) == pytest.approx(-0.125, abs=0.005)
    # Two comparisons are declared, whatever there is of the other.
    assert found[3] == "0.062"
    assert f"| primary | {other} |" not in text
    # A problem that only the baseline lacks takes the comparison of its group with it.
    del collected[second]["bo"]
    text = markdown(suite, {name: collected[name] for name in (first, second)})
    assert f"| primary | {group} |" not in text
    assert not any(line.startswith(f"| {second} |") for line in text.splitlines())
    assert cells(text, first)[-1] == "–"
