"""Numbers of the report against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework.markdown import estimate as cell
from benchmarks.framework.markdown import pooled_difference
from benchmarks.framework.plots import mean_and_band, regret_figure
from benchmarks.framework.report import collect, markdown, write_report
from benchmarks.framework.results import Result, replicate_config
from benchmarks.framework.statistics import Estimate, paired_test
from benchmarks.framework.stored_results import ResultStore
from benchmarks.framework.suite import Suite
from tests.benchmarks.results import result_with

OTHER = replace(SMOKE.methods[0], name="other")
SUITE: Suite = replace(SMOKE, methods=(*SMOKE.methods, OTHER))


def result(method: str, seed: int, regret: list[float], covered: list[float]) -> Result:
    """A result with the given regret trace; everything that the report ignores is empty."""
    (problem,) = SUITE.problems
    (entry,) = (m for m in SUITE.methods if m.name == method)
    return result_with(
        problem=problem.name,
        method=method,
        seed=seed,
        num_initial=1,
        regret_by_outcome=regret,
        regret_by_mean=[2 * value for value in regret],
        fit_seconds=[0.5, 1.5],
        acquisition_seconds=[2.0, 4.0],
        extras={"covered": list(covered)},
        config=replicate_config(problem, entry),
        versions={"python": "3"},
    )


BASELINE = [result("random", s, [9.0, r], [1.0, 0.0]) for s, r in enumerate([2.0, 4.0, 6.0])]
METHOD = [result("other", s, [5.0, r], [1.0, 1.0]) for s, r in enumerate([1.0, 2.0, 3.0])]


def estimate(mean: float, error: float) -> Estimate:
    """An estimate that equals any other up to rounding."""
    approx: Any = pytest.approx
    return Estimate(approx(mean), approx(error))


def test_estimate_by_hand() -> None:
    assert Estimate.of([1.0, 2.0, 3.0]) == estimate(2.0, 1 / math.sqrt(3))
    single, empty = Estimate.of([4.0]), Estimate.of([])
    assert single.mean == 4.0
    assert math.isnan(single.standard_error)
    assert math.isnan(empty.mean)


def test_the_rounding_error_of_a_mean_is_no_standard_error() -> None:
    equal = Estimate.of([0.05] * 12)
    assert equal.standard_error > 0.0
    assert cell(equal) == "0.05 ± 0"
    assert cell(Estimate(0.05, 1e-9)) == "0.05 ± 1e-09"
    assert cell(Estimate(0.0, 0.0)) == "0 ± 0"
    assert cell(Estimate.of([2.0])) == "2"


def test_without_the_baseline_there_is_no_pooled_difference() -> None:
    def last(result: Result) -> float:
        return result.regret_by_outcome[-1]

    assert pooled_difference([{"other": METHOD}], "other", "random", last) == "–"


def test_pairs_are_the_common_seeds() -> None:
    test = paired_test({0: 1.0, 1: 5.0, 7: 100.0}, {1: 2.0, 0: 0.0, 8: -100.0})
    assert test.pairs == 2
    assert test.difference.mean == 2.0


def test_tests_that_say_nothing_are_nan() -> None:
    for values, baseline in [
        ({0: 1.0}, {0: 2.0}),
        ({}, {}),
        ({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}),
    ]:
        test = paired_test(values, baseline)
        assert math.isnan(test.t_p_value)
        assert math.isnan(test.wilcoxon_p_value)


def test_markdown_table() -> None:
    collected = {SUITE.problems[0].name: {"random": BASELINE, "other": METHOD}}
    lines = markdown(SUITE, collected, unfit=2).splitlines()
    assert "| other | 3 | 2 ± 0.58 | -2 ± 0.58 | 0.074 | 0.25 | 4 ± 1.2 | 1 ± 0 | 1 | 3 |" in lines
    assert "| random | 3 | 4 ± 1.2 | – | – | – | 8 ± 2.3 | 0.5 ± 0 | 1 | 3 |" in lines
    assert "2 unreadable or outdated result files were left out." in lines
    assert lines[-1] == "python 3"


def test_mixed_versions_are_pointed_out() -> None:
    newer = [replace(r, versions={"python": "4"}) for r in METHOD]
    text = markdown(SUITE, {SUITE.problems[0].name: {"random": BASELINE, "other": newer}})
    assert "The results mix several versions:" in text


def test_report_files(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results")
    for item in (*BASELINE, *METHOD):
        store.write(SUITE.name, item)
    store.write(SUITE.name, replace(METHOD[0], seed=9, config={}))
    collected, unfit = collect(SUITE, store)
    assert unfit == 1
    assert collected == {SUITE.problems[0].name: {"random": BASELINE, "other": METHOD}}
    text = write_report(SUITE, store, tmp_path / "tables", tmp_path / "figures")
    assert (tmp_path / "tables" / "smoke.md").read_text() == text
    assert (tmp_path / "figures" / "smoke.png").stat().st_size > 1000


def test_bands_by_hand() -> None:
    mean, error = mean_and_band(np.array([[1.0, 2.0], [3.0, 2.0]]))
    assert mean.tolist() == [2.0, 2.0]
    assert error.tolist() == [1.0, 0.0]
    assert mean_and_band(np.array([[1.0, 2.0]]))[1].tolist() == [0.0, 0.0]


def test_figure_draws_the_means() -> None:
    figure = regret_figure({"problem": {"random": BASELINE, "other": METHOD}})
    (panel,) = figure.axes
    curves = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in panel.lines}
    assert curves == {"random (3)": [9.0, 4.0], "other (3)": [5.0, 2.0]}
    assert len(panel.collections) == 2


def test_regret_is_drawn_on_a_logarithmic_scale_unless_it_is_zero() -> None:
    solved = [replace(result, regret_by_outcome=[1.0, 0.0]) for result in METHOD]
    collected = {"harder": {"random": BASELINE}, "solved": {"other": solved}}
    harder, easier = regret_figure(collected).axes
    assert harder.get_yscale() == "log"
    assert easier.get_yscale() == "linear"


def test_panels_share_one_legend_and_the_colours_of_methods() -> None:
    both = {"random": BASELINE, "other": METHOD}
    figure = regret_figure({"first": both, "second": {"other": METHOD}})
    first, second = figure.axes
    assert second.lines[0].get_color() == first.lines[1].get_color() == "C1"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["random (3)", "other (3)"]
