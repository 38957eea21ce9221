"""Result files are written whole or not at all, and changed configurations are noticed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.framework.update_archive import update_archive

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework import result_store
from benchmarks.framework.sequential import Problem, replicate
from benchmarks.framework.stored_results import ResultStore, Status, write_atomically

PROBLEM, METHOD = SMOKE.problems[0], SMOKE.methods[0]


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path)


LONGER = replace(PROBLEM, num_evaluations=PROBLEM.num_evaluations + 1)


def status(store: ResultStore, problem: Problem = PROBLEM) -> Status:
    return store.status("smoke", problem, METHOD, 0)


def test_write_and_read_back(store) -> None:
    result = replicate(PROBLEM, METHOD, 0)
    assert status(store) is Status.MISSING
    path = store.write("smoke", result)
    assert path == store.root / "smoke" / PROBLEM.name / METHOD.name / "seed_0000.json"
    assert status(store) is Status.FINISHED
    assert store.load("smoke", PROBLEM, METHOD) == ([result], 0)
    assert status(store, LONGER) is Status.CHANGED
    assert store.load("smoke", LONGER, METHOD) == ([], 1)


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("old", [None, "old"])
def test_interrupted_write_leaves_the_old_file_or_none(tmp_path, monkeypatch, function, old):
    path = tmp_path / "folder" / "file.json"
    if old is not None:
        write_atomically(path, old)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, function, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert [p.name for p in path.parent.iterdir()] == ([] if old is None else ["file.json"])
    assert old is None or path.read_text() == old


def test_what_a_killed_writer_leaves_is_ignored(store) -> None:
    # A kill -9 skips the clean-up: the temporary file stays, under a name nothing reads.
    result = replicate(PROBLEM, METHOD, 0)
    path = store.path("smoke", PROBLEM.name, METHOD.name, 0)
    path.parent.mkdir(parents=True)
    (path.parent / ".half.tmp").write_text(result.to_json()[:100])
    assert status(store) is Status.MISSING
    assert store.load("smoke", PROBLEM, METHOD) == ([], 0)


def test_an_archive_is_lent_to_another_suite_where_configurations_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ResultStore(tmp_path, tmp_path / "archives")
    result = replicate(PROBLEM, METHOD, 0)
    store.write("smoke", result)
    update_archive(replace(SMOKE, seeds=range(1)), store)
    borrower = ResultStore(tmp_path / "other", store.archives)
    assert borrower.status("again", PROBLEM, METHOD, 0) is Status.MISSING
    monkeypatch.setitem(result_store.LENT, "again", "smoke")
    assert borrower.status("again", PROBLEM, METHOD, 0) is Status.FINISHED
    assert borrower.status("again", PROBLEM, METHOD, 1) is Status.MISSING
    assert borrower.status("again", LONGER, METHOD, 0) is Status.CHANGED
    (lent,), _ = borrower.load("again", PROBLEM, METHOD)
    (own,), _ = ResultStore(tmp_path / "other", store.archives).load("smoke", PROBLEM, METHOD)
    assert (lent.config, lent.extras, lent.seed) == (own.config, own.extras, own.seed)
    # What it has itself comes first.
    borrower.write("again", result)
    assert borrower.load("again", PROBLEM, METHOD) == ([result], 0)
