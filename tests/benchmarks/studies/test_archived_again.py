"""Runs beside archived ones: what counts as the same, where they part, and who is worse."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework.result import Result
from benchmarks.framework.result_store import ResultStore
from benchmarks.framework.sequential import replicate
from benchmarks.framework.update_archive import update_archive
from benchmarks.studies.archived_again import agree, main, markdown, measure_of

PROBLEM, METHOD = SMOKE.problems[0], SMOKE.methods[0]
SEEDS = range(3)
RUNS = [replicate(PROBLEM, METHOD, seed) for seed in SEEDS]


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    store = ResultStore(tmp_path / "first", tmp_path / "archives")
    for result in RUNS:
        store.write(SMOKE.name, result)
    update_archive(replace(SMOKE, seeds=SEEDS), store, None)
    return tmp_path / "archives"


def row(archives: Path, *runs: Result) -> list[str]:
    """The cells of the suite's row, if these are the runs of today."""
    store = ResultStore(archives.parent / "again", archives.parent / "none")
    for result in runs:
        store.write(SMOKE.name, result)
    rows = [text for text in markdown(store.root, archives).split("\n") if SMOKE.name in text]
    return [cell.strip() for cell in rows[0].strip("|").split("|")]


def test_runs_that_are_the_same_but_for_the_last_digits(archives: Path) -> None:
    again = replace(RUNS[1], regret_by_outcome=[r * 1.0005 for r in RUNS[1].regret_by_outcome])
    slow = replace(RUNS[0], fit_seconds=[9.0 for _ in RUNS[0].fit_seconds])
    assert row(archives, slow, again) == [SMOKE.name, "0 to 1", "2", "2", "–", "–", "–"]


def test_where_runs_part_and_by_how_much_they_are_worse(archives: Path) -> None:
    regrets = [run.regret_by_outcome for run in RUNS]
    means = [math.fsum(regret) / len(regret) for regret in regrets]
    spread = (sum((m - sum(means) / 3) ** 2 for m in means) / 2) ** 0.5
    worse = [*regrets[2][:2], *(r + 1.0 for r in regrets[2][2:])]
    change = (len(worse) - 2) / len(worse) / spread
    cells = row(archives, RUNS[0], replace(RUNS[2], regret_by_outcome=worse))
    assert cells[2:5] == ["2", "1", "2 to 2"]
    # The archive holds four digits.
    assert float(cells[5]) == pytest.approx(change, rel=0.01, abs=0.01)


def test_runs_with_another_configuration_are_only_counted(archives: Path) -> None:
    other = replace(RUNS[1], config={"changed": True})
    assert row(archives, RUNS[0], other)[2:4] == ["1 (and 1 others)", "1"]


def test_the_table_is_written(archives: Path, tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "again", tmp_path / "none")
    store.write(SMOKE.name, RUNS[0])
    folders = [str(store.root), "--archives", str(archives), "--tables", str(tmp_path)]
    assert main(folders) == 0
    assert f"| {SMOKE.name} | 0 to 0 | 1 | 1 |" in (tmp_path / "archived_again.md").read_text()


def test_numbers_that_agree() -> None:
    assert agree(1.0, 1.001)
    assert agree(None, None)
    assert not agree(1.0, 1.01)
    assert not agree(None, 0.0)
    assert not agree(0.0, 1.0)


def test_a_measure_without_numbers_is_passed_over() -> None:
    assert measure_of({"regret_by_outcome": [], "regret": [1.0], "reward": [2.0]}) == "regret"
