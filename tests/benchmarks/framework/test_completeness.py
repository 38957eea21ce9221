"""What a report says of an unfinished suite, and which seeds it uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.framework.completeness import IncompleteError, Selection, listed, select

from benchmarks.__main__ import main
from benchmarks.calibration.suites import SMOKE
from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.framework.report import markdown
from benchmarks.framework.results import Collected, Result, replicate_config
from benchmarks.framework.stored_results import ResultStore
from benchmarks.framework.suite import Suite
from benchmarks.suites import SUITES
from tests.benchmarks.results import result_with

PROBLEM, METHOD = SMOKE.problems[0], SMOKE.methods[0]
SUITE: Suite = replace(
    SMOKE,
    problems=(replace(PROBLEM, name="f"), replace(PROBLEM, name="g")),
    methods=tuple(replace(METHOD, name=name) for name in ("base", "cheap", "dear")),
    baseline="base",
    seeds=range(10, 16),
)

# The seeds that each method has on the two problems.
SEEDS = {
    "base": (range(10, 16), range(10, 15)),
    "cheap": (range(10, 15), range(11, 16)),
    "dear": (range(10, 13), range(12, 14)),
}


def made(problem: str, method: str, seed: int) -> Result:
    (task,) = (p for p in SUITE.problems if p.name == problem)
    (entry,) = (m for m in SUITE.methods if m.name == method)
    regret = [9.0, float(seed)]
    return result_with(
        problem=problem,
        method=method,
        seed=seed,
        num_initial=1,
        regret_by_outcome=regret,
        fit_seconds=[1.0],
        acquisition_seconds=[1.0],
        config=replicate_config(task, entry),
        versions={"python": "3"},
    )


def collected(without: str = "") -> Collected:
    return {
        problem.name: {
            method: [made(problem.name, method, seed) for seed in by_problem[i]]
            for method, by_problem in SEEDS.items()
            if method != without
        }
        for i, problem in enumerate(SUITE.problems)
    }


def seeds_of(found: Collected) -> dict[str, dict[str, list[int]]]:
    return {
        problem: {method: [r.seed for r in results] for method, results in by_method.items()}
        for problem, by_method in found.items()
    }


def test_only_seeds_count_that_all_methods_have_on_all_problems() -> None:
    found, completeness = select(SUITE, collected(), Selection())
    assert seeds_of(found) == {name: {m: [12] for m in SEEDS} for name in ("f", "g")}
    assert completeness.asked == 12
    assert completeness.there == {"base": 11, "cheap": 10, "dear": 5}
    assert completeness.complete == {"base": 5, "cheap": 4, "dear": 1}
    assert (completeness.used, completeness.unused) == ((12,), 26 - 6)
    lines = completeness.lines()
    assert lines[0].startswith("**Incomplete: 26 of 36 replicates have been run.** This is an")
    assert "| dear | 5 of 12 | 1 |" in lines
    seeds = lines[-2]
    assert "Seeds used: 12, 1 in all: those with which all methods shown have been" in seeds
    assert "20 further replicates" in seeds


def test_a_method_that_is_left_out_is_a_deviation() -> None:
    found, completeness = select(SUITE, collected(), Selection(without=["dear"]))
    assert seeds_of(found)["g"] == {m: [11, 12, 13, 14] for m in ("base", "cheap")}
    assert completeness.unused == 21 - 16
    text = "\n".join(completeness.lines())
    # What there is of it is counted and shown all the same.
    assert "**Incomplete: 26 of 36 replicates have been run.**" in text
    assert "**Deviation: `dear` is left out**; 5 of its 12 replicates have been run." in text
    assert "Comparisons with it are missing" in text
    assert "| dear | 5 of 12 | 1 |" in text
    assert "Seeds used: 11 to 14, 4 in all" in text


def test_all_seeds_on_request() -> None:
    found, completeness = select(SUITE, collected(), Selection(incomplete_seeds=True))
    assert found == collected()
    assert (completeness.used, completeness.unused) == (tuple(range(10, 16)), 0)
    text = "\n".join(completeness.lines())
    assert "**Means of two methods may be over different seeds;**" in text
    assert "Nothing has been run" not in text
    one = {"g": collected()["g"]}
    found, completeness = select(SUITE, one, Selection(incomplete_seeds=True))
    assert found == one and completeness.complete["base"] == 0
    assert "Nothing has been run on `f`" in "\n".join(completeness.lines())


def test_without_a_common_seed_there_is_no_report() -> None:
    with pytest.raises(IncompleteError, match=r"base 5, cheap 4, dear 0\). Leave .* --without"):
        select(SUITE, collected(without="dear"), Selection())
    with pytest.raises(IncompleteError):
        select(SUITE, {"g": collected()["g"]}, Selection())


def test_a_complete_suite_has_one_sentence() -> None:
    suite = replace(SUITE, seeds=range(12, 13))
    found, completeness = select(suite, collected(), Selection())
    assert seeds_of(found)["f"] == {m: [12] for m in SEEDS}
    assert completeness.lines() == ["6 of 6 replicates have been run.", ""]


def test_what_cannot_be_left_out() -> None:
    Selection(without=["dear"]).check(SUITE)
    with pytest.raises(ValueError, match="no methods \\['rare'\\]"):
        Selection(without=["dear", "rare"]).check(SUITE)
    with pytest.raises(ValueError, match="baseline 'base' cannot"):
        Selection(without=["base"]).check(SUITE)


def test_seeds_in_words() -> None:
    assert listed([7]) == "7"
    assert listed([3, 1, 2, 8, 9, 11]) == "1 to 3, 8, 9, 11"


def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SUITES, "smoke", SUITE)
    store = ResultStore(tmp_path / "results")
    for by_method in collected(without="dear").values():
        for results in by_method.values():
            for result in results:
                store.write("smoke", result)
    folders = ["--results", str(store.root), "--archives", str(tmp_path / "archives")]
    folders += ["--tables", str(tmp_path), "--figures", str(tmp_path)]
    assert main(["report", "smoke", *folders]) == 2
    assert "dear 0" in capsys.readouterr().err
    assert main(["report", "smoke", "--without", "base", *folders]) == 2
    assert "cannot be left out" in capsys.readouterr().err
    assert main(["report", "smoke", "--without", "dear", *folders]) == 0
    text = (tmp_path / "smoke.md").read_text()
    assert "then `python -m benchmarks report smoke --without dear`." in text
    assert text.index("Deviation: `dear`") < text.index("## f")
    # Seeds 11 to 14 on both problems.
    assert text.count("| cheap | 4 | 12.5 ± 0.65 |") == 2
    assert "| dear |" in text and "| dear | 4" not in text
    assert main(["report", "smoke", "--incomplete-seeds", *folders]) == 0
    text = (tmp_path / "smoke.md").read_text()
    assert "report smoke --incomplete-seeds`" in text
    assert "| base | 6 |" in text and "| base | 5 |" in text


def test_what_is_left_out_is_among_the_deviations() -> None:
    # Of whichever protocol.
    protocol = replace(ExperimentProtocol.load("radio"), deviations="")
    found, completeness = select(SUITE, collected(), Selection(without=["dear"]))
    text = markdown(SUITE, found, 0, protocol, completeness)
    assert "- deviations: `dear` is left out of this report." in text
    found, completeness = select(SUITE, collected(), Selection())
    assert "- deviations: none" in markdown(SUITE, found, 0, protocol, completeness)
