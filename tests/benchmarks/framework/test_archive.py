"""Archives stand in for result files, are the same bytes for the same results, and never guess."""

from __future__ import annotations

import json
import lzma
import math
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.framework.update_archive import ArchiveSummary, update_archive

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework.report import collect, markdown
from benchmarks.framework.results import Result
from benchmarks.framework.runner import pending_tasks, run_suite
from benchmarks.framework.sequential import replicate
from benchmarks.framework.stored_results import (
    REGRETS,
    Archive,
    ArchivedResult,
    ArchiveError,
    Condensation,
    Entry,
    ReplicateKey,
    ResultStore,
    Status,
    archive_path,
    read_archive,
    significant,
)
from benchmarks.framework.suite import Suite

PROBLEM, METHOD = SMOKE.problems[0], SMOKE.methods[0]
LONGER = replace(PROBLEM, num_evaluations=PROBLEM.num_evaluations + 1)
TIMES = [0.125] * PROBLEM.num_evaluations
RESULTS = [
    replace(replicate(PROBLEM, METHOD, seed), fit_seconds=TIMES, acquisition_seconds=TIMES)
    for seed in range(4)
]
SUITE: Suite[Any, Any] = replace(SMOKE, seeds=range(4))


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "results", tmp_path / "archives")


def folder(store: ResultStore) -> Path:
    """That of the archives."""
    assert store.archives is not None
    return store.archives


def elsewhere(store: ResultStore) -> ResultStore:
    """The same archives without the files."""
    return replace(store, root=store.root.parent / "other")


def archived(store: ResultStore, results: list[Result], **options: Any) -> ArchiveSummary:
    for result in results:
        store.write("smoke", result)
    return update_archive(SUITE, store, **options)


def test_results_there_and_back(store) -> None:
    summary = archived(store, RESULTS)
    assert (summary.total, summary.added, summary.unfit) == (4, 4, 0)
    assert summary.num_bytes == archive_path(folder(store), "smoke").stat().st_size
    found, unfit = elsewhere(store).load("smoke", PROBLEM, METHOD)
    assert unfit == 0
    assert [result.seed for result in found] == [0, 1, 2, 3]
    for result, raw in zip(found, RESULTS, strict=True):
        assert isinstance(result, ArchivedResult)
        assert (result.config, result.versions) == (raw.config, raw.versions)
        assert list(result.versions) == list(raw.versions)
        assert result.regret_by_outcome == pytest.approx(raw.regret_by_outcome, rel=5e-4)
    assert [r.seed for r in elsewhere(store).load("smoke", PROBLEM, METHOD, [1, 9])[0]] == [1]
    # Without a folder of archives there is none.
    assert ResultStore(elsewhere(store).root).load("smoke", PROBLEM, METHOD) == ([], 0)


def test_a_run_that_was_killed_resumes_from_the_archive(store, monkeypatch) -> None:
    write = ResultStore.write

    def killed(self: ResultStore, suite: str, result: Result) -> Path:
        if result.seed == 2:
            raise KeyboardInterrupt
        return write(self, suite, result)

    with monkeypatch.context() as patch:
        patch.setattr(ResultStore, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            run_suite(SUITE, store, progress=False)
    assert update_archive(SUITE, store).total == 2
    # The files are lost, or lie on another machine.
    other = elsewhere(store)
    summary = run_suite(SUITE, other, progress=False)
    assert (summary.finished, summary.skipped, summary.failures) == (2, 2, [])
    assert sorted(path.stem for path in other.root.rglob("*.json")) == ["seed_0002", "seed_0003"]
    assert update_archive(SUITE, other).added == 2
    assert run_suite(SUITE, elsewhere(other), progress=False).skipped == 4


def test_an_archive_is_read_once(store, monkeypatch) -> None:
    archived(store, RESULTS[:3])
    decompressed: list[bytes] = []
    real = lzma.decompress

    def counted(content: bytes) -> bytes:
        decompressed.append(content)
        return real(content)

    monkeypatch.setattr("benchmarks.framework.archive.lzma.decompress", counted)
    store.write("smoke", RESULTS[3])
    assert update_archive(SUITE, store).added == 1
    assert len(decompressed) == 1
    # What was written is another file, which every replicate asks for.
    assert pending_tasks(SUITE, elsewhere(store), None, overwrite=False) == ([], 4)
    assert len(elsewhere(store).load("smoke", PROBLEM, METHOD)[0]) == 4
    assert len(decompressed) == 2
    assert update_archive(SUITE, store, overwrite=True).added == 4
    assert len(decompressed) == 2


def test_of_another_configuration(store) -> None:
    archived(store, RESULTS)
    other = elsewhere(store)
    assert other.status("smoke", LONGER, METHOD, 0) is Status.CHANGED
    assert other.status("smoke", PROBLEM, METHOD, 0) is Status.FINISHED
    assert other.status("smoke", PROBLEM, METHOD, 9) is Status.MISSING
    assert other.load("smoke", LONGER, METHOD) == ([], 4)
    changed = replace(SUITE, problems=(LONGER,))
    with pytest.raises(ArchiveError, match="4 results of other configurations"):
        update_archive(changed, other)
    # A file in place of each makes the archive fit again.
    for seed in range(4):
        other.write("smoke", replicate(LONGER, METHOD, seed))
    assert update_archive(changed, other).added == 4


def test_files_win(store) -> None:
    archived(store, RESULTS)
    again = replace(RESULTS[1], regret_by_outcome=[7.0] * 4)
    other = elsewhere(store)
    other.write("smoke", again)
    found, _ = other.load("smoke", PROBLEM, METHOD)
    assert [isinstance(result, ArchivedResult) for result in found] == [True, False, True, True]
    assert found[1] == again
    summary = update_archive(SUITE, other)
    assert (summary.total, summary.added) == (4, 1)
    assert elsewhere(store).load("smoke", PROBLEM, METHOD)[0][1] == again
    archive = read_archive(store.archives, "smoke")
    assert archive is not None
    entry = archive.entries[ReplicateKey(PROBLEM.name, METHOD.name, 1)]
    assert entry.result().regret_by_outcome == [7.0] * 4
    # A damaged file hides what the archive has, as it would be run again.
    other.path("smoke", PROBLEM.name, METHOD.name, 2).write_text("{")
    assert other.load("smoke", PROBLEM, METHOD)[1] == 1
    assert other.status("smoke", PROBLEM, METHOD, 2) is Status.UNREADABLE


def test_the_order_of_results_does_not_matter() -> None:
    newer = replace(RESULTS[3], versions={"python": "4"})
    entries = {e.key: e for e in (Entry.of(r, REGRETS) for r in [*RESULTS[:3], newer])}
    shuffled = list(entries.items())
    random.Random(0).shuffle(shuffled)
    archive = Archive("smoke", REGRETS.statement(), entries)
    assert Archive("smoke", REGRETS.statement(), dict(shuffled)).to_bytes() == archive.to_bytes()
    # The header, a line for each of two groups, and the results.
    assert len(archive.text().splitlines()) == 1 + 2 + 4


def test_nothing_new_leaves_the_file_alone(store, monkeypatch) -> None:
    archived(store, RESULTS)

    def refuse(*args: object) -> None:
        raise AssertionError("written")

    monkeypatch.setattr("benchmarks.framework.update_archive.write_atomically", refuse)
    assert update_archive(SUITE, elsewhere(store)).added == 0


def test_other_seeds_are_archived_on_request(store) -> None:
    archived(store, RESULTS)
    store.write("smoke", replicate(PROBLEM, METHOD, 1000))
    assert update_archive(SUITE, store).total == 4
    assert update_archive(SUITE, store, [1000]).total == 5


def test_the_report_is_the_same(store) -> None:
    archived(store, RESULTS)
    reports = []
    for one in (store, elsewhere(store)):
        collected, unfit = collect(SUITE, one)
        reports.append(markdown(SUITE, collected, unfit).splitlines())
    raw, rounded = reports
    note = "4 replicates are read from the archive, which holds them rounded."
    assert note not in raw
    rounded.remove(note)
    assert [line for line in rounded if line] == [line for line in raw if line]


def test_the_header_states_the_rounding(store) -> None:
    archived(store, RESULTS)
    text = lzma.decompress(archive_path(folder(store), "smoke").read_bytes()).decode()
    header = json.loads(text.splitlines()[0])
    assert header["archive"] == "smoke"
    assert header["kept"]["regret_by_outcome"] == "4 significant digits"
    assert header["kept"]["all else"] == "left out"


def test_another_rounding_needs_the_results_again(store) -> None:
    archived(store, RESULTS)
    coarse = replace(SUITE, archive=Condensation(fields={"regret_by_outcome": significant(2)}))
    with pytest.raises(ArchiveError, match="other things"):
        update_archive(coarse, store)
    assert update_archive(coarse, store, overwrite=True).total == 4


def lines_of(store: ResultStore) -> list[str]:
    return lzma.decompress(archive_path(folder(store), "smoke").read_bytes()).decode().splitlines()


def compressed(lines: list[str]) -> bytes:
    return lzma.compress("\n".join(lines).encode())


def test_a_damaged_archive_is_an_error(store) -> None:
    archived(store, RESULTS)
    path = archive_path(folder(store), "smoke")
    content, lines = path.read_bytes(), lines_of(store)
    damaged = {
        "truncated": content[:-20],
        "empty": b"",
        "not xz": b"no xz",
        "no header": compressed(lines[1:]),
        "no group": compressed([lines[0], *lines[2:]]),
        "twice": compressed([*lines, lines[-1]]),
        "half a line": compressed([*lines[:-1], lines[-1][:-9]]),
        "no traces": compressed([*lines[:-1], '{"seed":9}']),
        "no object": compressed([*lines[:-1], "[]"]),
        "format": compressed([lines[0].replace('"format":1', '"format":2')]),
        "nothing stated": compressed(
            [json.dumps({**json.loads(lines[0]), "kept": None}), *lines[1:]]
        ),
    }
    for name, found in damaged.items():
        path.write_bytes(found)
        with pytest.raises(ArchiveError, match=r"smoke\.jsonl\.xz cannot be read"):
            elsewhere(store).load("smoke", PROBLEM, METHOD)
            pytest.fail(name)
    for use in (
        lambda: elsewhere(store).status("smoke", PROBLEM, METHOD, 0),
        lambda: update_archive(SUITE, store),
    ):
        with pytest.raises(ArchiveError, match=r"smoke\.jsonl\.xz cannot be read"):
            use()
    assert update_archive(SUITE, store, overwrite=True).total == 4


def test_a_result_that_cannot_be_kept_is_named(store) -> None:
    archived(store, RESULTS[:2])
    content = archive_path(folder(store), "smoke").read_bytes()
    changes: dict[str, dict[str, Any]] = {
        "not JSON compliant": {"regret_by_outcome": [math.nan] * 4},
        r"got 0\.5": {"extras": {"covered": [0.5]}},
        "items": {"extras": None},
    }
    for reason, change in changes.items():
        changed = json.loads(RESULTS[2].to_json()) | change
        store.path("smoke", PROBLEM.name, METHOD.name, 2).write_text(json.dumps(changed))
        with pytest.raises(ArchiveError, match=f"Seed 2 of {METHOD.name}.*{reason}"):
            update_archive(SUITE, store)
    assert archive_path(folder(store), "smoke").read_bytes() == content


def test_the_archive_of_another_suite(store) -> None:
    archived(store, RESULTS)
    path = archive_path(folder(store), "smoke")
    path.rename(archive_path(folder(store), "locbo"))
    with pytest.raises(ArchiveError, match="of suite 'smoke'"):
        read_archive(store.archives, "locbo")


def test_nothing_to_archive(store) -> None:
    with pytest.raises(FileNotFoundError, match="no results"):
        update_archive(SUITE, store)
    with pytest.raises(ArchiveError, match="no folder"):
        update_archive(SUITE, ResultStore(store.root))


def test_an_interrupted_update_leaves_the_old_archive(store, monkeypatch) -> None:
    archived(store, RESULTS[:2])
    content = archive_path(folder(store), "smoke").read_bytes()
    store.write("smoke", RESULTS[2])

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            update_archive(SUITE, store)
    assert [p.name for p in store.archives.iterdir()] == ["smoke.jsonl.xz"]
    assert archive_path(folder(store), "smoke").read_bytes() == content
    assert update_archive(SUITE, store).total == 3


def test_while_a_run_writes(store) -> None:
    # Each file appears as a whole, so that an update finds some of them and spoils none.
    store.write("smoke", replace(RESULTS[0], seed=0))
    num = 60
    many = replace(SUITE, seeds=range(num))
    writer = threading.Thread(
        target=lambda: [store.write("smoke", replace(RESULTS[0], seed=s)) for s in range(num)]
    )
    writer.start()
    totals = []
    while writer.is_alive():
        summary = update_archive(many, store)
        assert summary.unfit == 0
        totals.append(summary.total)
    writer.join()
    assert totals == sorted(totals)
    assert update_archive(many, store).total == num
