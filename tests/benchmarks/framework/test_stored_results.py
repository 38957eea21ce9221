"""Stored results are read from both files, even if their writing was interrupted."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework import metrics
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.runner import Task, run_task
from benchmarks.framework.stored_results import (
    ARCHIVES_DIR,
    EXACT,
    FLAGS,
    Condensation,
    Encoding,
    Entry,
    ResultStore,
    StoredResultsError,
    average,
    ceiling,
    decimals,
    decode,
    read_entries,
    significant,
)


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "results", tmp_path / "archives")


@pytest.fixture(scope="module")
def results() -> list[Result]:
    made = [run_task(Task(SMOKE.problems[0], SMOKE.methods[0], seed)) for seed in range(3)]
    return [result for result in made if isinstance(result, Result)]


@pytest.mark.parametrize(
    ("how", "values", "expected"),
    [
        (EXACT, [1 / 3, None], [1 / 3, None]),
        (FLAGS, [0.0, 1.0, None], [0.0, 1.0, None]),
        (significant(3), [1.2345, None, 1234.5], [1.23, None, 1230.0]),
        (decimals(2), [0.12345, None], [0.12, None]),
        (ceiling(3), [0.2, 0.2001, None], [0.2, 0.201, None]),
        (average(), [1.0, 2.0, None], [1.0, 1.0, 1.0]),
    ],
)
def test_encodings(how: Encoding, values: list, expected: list) -> None:
    kept = json.loads(json.dumps(how.encode(values)))
    assert decode(kept) == expected


def test_rounding_up_keeps_comparisons_with_levels() -> None:
    pits = np.random.default_rng(0).random(1000).tolist()
    kept = decode(ceiling(3).encode(pits))
    for level in metrics.CALIBRATION_LEVELS:
        assert [p <= level for p in pits] == [k <= level for k in kept]


def test_what_is_not_kept_cannot_be_read(results: list[Result]) -> None:
    kept = Entry.of(results[0], SMOKE.archive).result()
    assert kept.inference_by_outcome == results[0].inference_by_outcome
    assert kept.regret_by_outcome == pytest.approx(results[0].regret_by_outcome, rel=5e-4)
    assert metrics.regret_trace(kept, "evaluated") == pytest.approx(
        metrics.regret_trace(results[0], "evaluated"), rel=5e-4
    )
    for read in (lambda: kept.X[0], lambda: len(kept.y), lambda: np.mean(kept.f)):
        with pytest.raises(StoredResultsError, match="do not hold"):
            read()


def test_what_cannot_be_kept_is_named(results: list[Result]) -> None:
    bad = replace(results[1], extras={"covered": [0.5]})
    with pytest.raises(StoredResultsError, match="Seed 1 of random .*0 or 1|Flags"):
        Entry.of(bad, SMOKE.archive)
    with pytest.raises(ValueError, match="nothing"):
        Condensation(fields={"nothing": EXACT})


def test_round_trip_through_both_files(store: ResultStore, results: list[Result]) -> None:
    suite = replace(SMOKE, seeds=range(3))
    for result in results:
        store.add(suite, result)
    collected, unfit = store.collect(suite)
    assert unfit == 0 and [r.seed for r in collected["small_noisy_ackley"]["random"]] == [0, 1, 2]
    assert "3 results, 3 new" in store.archive(suite)
    held = store.archive_path(suite.name).read_bytes()
    assert "3 results, 0 new" in store.archive(suite)
    assert store.archive_path(suite.name).read_bytes() == held
    elsewhere = ResultStore(store.results / "none", store.archives)
    again = elsewhere.collect(suite)[0]["small_noisy_ackley"]["random"]
    held_before = collected["small_noisy_ackley"]["random"]
    for one, two in zip(again, held_before, strict=True):
        assert (one.seed, one.regret_by_outcome) == (two.seed, two.regret_by_outcome)
        assert one.extras == two.extras and one.config == two.config
    # Results of runs take precedence over the archive.
    store.add(suite, replace(results[0], regret_by_outcome=[7.0] * 4))
    assert store.collect(suite)[0]["small_noisy_ackley"]["random"][0].regret_by_outcome == [7.0] * 4


def test_an_interrupted_write_costs_one_result(store: ResultStore, results: list[Result]) -> None:
    for result in results[:2]:
        store.add(SMOKE, result)
    path = store.path(SMOKE.name)
    path.write_bytes(path.read_bytes()[:-20])
    assert [key.seed for key in store.entries(SMOKE)] == [0]
    store.add(SMOKE, results[2])
    assert [key.seed for key in store.entries(SMOKE)] == [0, 2]


def test_an_interrupted_first_write_leaves_no_file_without_a_header(
    store: ResultStore, results: list[Result]
) -> None:
    store.add(SMOKE, results[0])
    path = store.path(SMOKE.name)
    header = path.read_bytes().index(b"\n")
    for length in (1, header):
        path.write_bytes(path.read_bytes()[:length])
        store.add(SMOKE, results[1])
        assert [key.seed for key in store.entries(SMOKE)] == [1]


def test_other_files_are_refused(store: ResultStore, results: list[Result]) -> None:
    store.add(SMOKE, results[0])
    store.archive(SMOKE)
    with pytest.raises(StoredResultsError, match="other data"):
        store.archive(replace(SMOKE, archive=Condensation(fields={"y": EXACT})))
    changed = replace(SMOKE, problems=(replace(SMOKE.problems[0], num_evaluations=9),))
    assert store.collect(changed) == ({}, 1)
    with pytest.raises(StoredResultsError, match="other configurations"):
        store.archive(changed)
    path = store.archive_path(SMOKE.name)
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes())[:-40] + b"}\n"))
    with pytest.raises(StoredResultsError, match="cannot be read"):
        store.entries(SMOKE)


def test_committed_archives_are_read() -> None:
    stated, found = read_entries(ARCHIVES_DIR / "misspecified.jsonl.xz", "misspecified")
    assert stated["extras.covered"] == "exact (0 or 1)"
    assert len(found) == 2400
    with pytest.raises(StoredResultsError, match="of suite 'misspecified'"):
        read_entries(ARCHIVES_DIR / "misspecified.jsonl.xz", "delay")
