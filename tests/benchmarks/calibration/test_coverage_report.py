"""The report of suites `misspecified` and `wellspecified`, from made-up runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.calibration.coverage_report import gap
from benchmarks.calibration.suites import MISSPECIFIED, WELLSPECIFIED
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.report import markdown
from benchmarks.framework.result import replicate_config
from tests.benchmarks.calibration.runs import cells, run
from tests.benchmarks.results import ByProblem

SUITES = pytest.mark.parametrize("suite", [MISSPECIFIED, WELLSPECIFIED], ids=lambda s: s.name)
SEEDS = range(10000, 10006)

# Of the last twenty outcomes, and of the others.
MISSED = {"bo": 12, "locbo": 5, "locbo_fixed": 3, "ocbo": 12}
EARLY = 20


def made_up(suite: Any) -> ByProblem:
    """Localized runs have a tenth of the plain regret; one outcome more is missed by odd seeds."""
    found: ByProblem = {}
    for problem in suite.problems:
        for method in suite.methods:
            level = 0.1 if method.name.startswith("locbo") else 1.0
            for i, seed in enumerate(SEEDS):
                wobble = 1 + 0.01 * math.sin(7 * i + len(method.name))
                missed = MISSED[method.name] + i % 2
                result = run(
                    4.0 * level * wobble,
                    problem=problem.name,
                    method=method.name,
                    seed=seed,
                    config=replicate_config(problem, method),
                )
                del result.extras["spread"]
                # What is missed early does not count.
                covered: Any = [0.0] * (EARLY + missed) + [1.0] * (20 - missed)
                result.extras.update(covered=covered, pit=[0.3, 0.6])
                result.extras["regret_evaluated"] = [1.0, 1.0, 0.5 * wobble]
                found.setdefault(problem.name, {}).setdefault(method.name, []).append(result)
    return found


def test_the_gap_is_of_the_last_half() -> None:
    collected = made_up(MISSPECIFIED)
    first, second, *_ = collected["branin_noise"]["locbo_fixed"]
    assert gap(first) == pytest.approx(0.05)
    assert gap(second) == pytest.approx(0.0)


@SUITES
def test_declared_comparisons_are_reported(suite: Any) -> None:
    text = markdown(suite, made_up(suite))
    primary, *beside = {
        "misspecified": ("gap", "recommended", "evaluated"),
        "wellspecified": ("recommended", "gap", "evaluated"),
    }[suite.name]
    assert suite.report.endpoint.endswith(primary)
    # 5 or 6 of 20 beside 12 or 13: gaps of 0.05 and 0.1 beside 0.4 and 0.45.
    differences = {"gap": -0.35, "recommended": -1.0, "evaluated": 0.0}
    for group in suite.report.groups:
        found = cells(text, "primary", group, "locbo")
        assert found[0] == "6"
        assert float(found[1]) == pytest.approx(differences[primary], abs=0.006)
        assert [float(found[i]) for i in (6, 8)] == pytest.approx(
            [differences[name] for name in beside], abs=0.006
        )
        for method in ("locbo_fixed", "ocbo"):
            cells(text, "secondary", group, method)
        same = cells(text, "secondary", group, "ocbo")
        assert float(same[1]) == pytest.approx(0.0, abs=0.005)
        assert same[5] == "equivalent"


def test_p_values_are_corrected_for_the_groups() -> None:
    suite: Any = WELLSPECIFIED
    text = markdown(suite, made_up(suite))
    for group in suite.report.groups:
        found = cells(text, "primary", group, "locbo")
        # All six of one sign, in two comparisons.
        assert found[3] == "0.062"
        assert found[5] == "undecided"


@SUITES
def test_miscoverage_stands_for_each_problem_with_its_interval(suite: Any) -> None:
    text = markdown(suite, made_up(suite))
    section = text[text.index("## Miscoverage") : text.index("## Regret")]
    rates = np.array([MISSED["locbo"] + i % 2 for i in range(len(SEEDS))]) / 20
    low, high = stats.t.interval(0.95, len(rates) - 1, rates.mean(), stats.sem(rates))
    for problem in suite.problems:
        assert cells(section, problem.name)[1] == f"{rates.mean():.3f} ({low:.3f} to {high:.3f})"
    count = str(len(suite.problems))
    # 0.625, 0.275, 0.175 and 0.625.
    assert cells(section, "within ± 0.07") == ["0", "0", count, "0"]


@SUITES
def test_regret_stands_for_each_problem_beside_the_plain_one(suite: Any) -> None:
    text = markdown(suite, made_up(suite))
    section = text[text.index("## Regret") : text.index("## Further")]
    recommended, evaluated = section.split("| best evaluated |")
    for problem in suite.problems:
        plain, localized, *_ = cells(recommended, problem.name)
        assert float(plain) == pytest.approx(4.0, rel=0.01)
        assert localized.startswith("-1.00 (")
        plain, localized, *_ = cells(evaluated, problem.name)
        assert float(plain) == pytest.approx(0.5, rel=0.01)
        assert float(localized.split()[0]) == pytest.approx(0.0, abs=0.01)


@SUITES
def test_objective_and_times_are_averages_over_problems(suite: Any) -> None:
    text = markdown(suite, made_up(suite))
    section = text[text.index("## Further") :]
    found = cells(section, "bo")
    assert [cell.split()[0] for cell in found[1:]] == ["0.500", "0.900", "0.500"]


@SUITES
def test_parts_of_a_run_are_reported(suite: Any) -> None:
    collected = made_up(suite)
    (first, *_) = collected
    part = {first: {name: collected[first][name][:1] for name in ("bo", "locbo")}}
    text = markdown(suite, part)
    section = text[text.index("## Miscoverage") : text.index("## Regret")]
    assert cells(section, first)[2:] == ["–", "–"]
    assert len(suite.report.figure(part).axes) == len(suite.report.groups)


@SUITES
def test_all_problems_are_drawn_once(suite: Any) -> None:
    collected = made_up(suite)
    names = {  # a panel leaves the name of its group out
        (group, problem.removesuffix(f"_{group}"))
        for group, problems in suite.report.groups.items()
        for problem in problems
    }
    drawn = [
        (axes.get_title(), label.get_text())
        for axes in suite.report.figure(collected).axes
        for label in axes.get_xticklabels()
    ]
    assert sorted(drawn) == sorted(names)
    assert margin_of(suite) > 0.0
