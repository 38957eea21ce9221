"""Files of ledgers: their contents, damage, and several processes."""

from __future__ import annotations

import json
import math
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import DamagedLedgerError, LedgerError
from botorch_calib.ledger import FeedbackLedger, storage
from tests.ledger.writers import ROOT

PAGE = 4096


def fill(ledger: FeedbackLedger, num: int = 60) -> None:
    """Trials of every state, enough for several pages of a file."""
    rng = random.Random(0)
    for _ in range(num):
        trial_id = ledger.submit([rng.random() for _ in range(ledger.dim)])
        fate = rng.random()
        if fate < 0.5:
            ledger.observe(trial_id, rng.gauss(0, 1))
        elif fate < 0.6:
            ledger.fail(trial_id, "because " * rng.randrange(1, 99))
        elif fate < 0.7:
            ledger.abandon(trial_id)


@pytest.fixture(scope="module")
def some_bytes(tmp_path_factory) -> bytes:
    """The file of a ledger with some trials."""
    path = tmp_path_factory.mktemp("made") / "ledger.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "SYNCHRONOUS", "OFF")
        fill(FeedbackLedger.open(path, 3, censor_value=-1.5, max_wait=7, late="discard"))
    return path.read_bytes()


@pytest.fixture
def path(tmp_path, some_bytes) -> Path:
    """A file of `some_bytes`, to be changed at will."""
    path = tmp_path / "ledger.db"
    path.write_bytes(some_bytes)
    return path


def contents(path: Path) -> tuple[str, list[dict[str, Any]]]:
    ledger = FeedbackLedger.read(path)
    return repr(ledger), ledger.to_records(math.inf)


# ---------------------------------------------------------------- opening


def test_reopening_continues(path) -> None:
    ledger = FeedbackLedger.open(path)
    settings = (ledger.dim, ledger.censor_value, ledger.max_wait, ledger.late, ledger.clock)
    assert settings == (3, -1.5, 7.0, "discard", "iterations")
    assert ledger.path == path and ledger.now() == len(ledger) == 60
    expected = FeedbackLedger(3, censor_value=-1.5, max_wait=7, late="discard")
    fill(expected)
    assert ledger.trials == expected.trials
    assert ledger.submit([1.0, 2.0, 3.0]) == 60
    assert FeedbackLedger.open(str(path), 3, max_wait=7.0, late="discard")[60].x[1] == 2.0


def test_defaults_infinite_wait_and_signed_zeros_are_kept(tmp_path) -> None:
    path = tmp_path / "a folder ? % #" / "ledger é"
    path.parent.mkdir()
    FeedbackLedger.open(path, 1, clock="seconds", censor_value=-0.0).submit([1.0], time=-0.0)
    ledger = FeedbackLedger.open(path, censor_value=0.0)
    settings = (ledger.dim, ledger.censor_value, ledger.max_wait, ledger.late, ledger.clock)
    assert settings == (1, 0.0, math.inf, "use", "seconds")
    assert ledger.trials == FeedbackLedger.read(path).trials
    names = sorted(entry.name for entry in path.parent.iterdir())
    assert names == ["ledger é", "ledger é.lock"]


def test_contradicting_and_invalid_settings_change_nothing(path) -> None:
    before, new = path.read_bytes(), path.with_name("new.db")
    given: dict[str, Any] = {"dim": 2, "censor_value": 0.0, "max_wait": math.inf}
    given |= {"late": "use", "clock": "seconds"}
    for name, value in given.items():
        with pytest.raises(InputDataError, match=f"`{name}` is .* in the ledger .*ledger.db"):
            FeedbackLedger.open(path, **{name: value})
    for target in (path, new):
        with pytest.raises(InputDataError, match="`max_wait`"):
            FeedbackLedger.open(target, 3, max_wait=-1)
    assert path.read_bytes() == before and not new.exists()


def test_an_empty_file_is_a_new_ledger(tmp_path) -> None:
    path = tmp_path / "ledger.db"
    with pytest.raises(InputDataError, match="no file"):
        FeedbackLedger.read(path)
    with pytest.raises(InputDataError, match="`dim` is needed"):
        FeedbackLedger.open(path)
    for wrong in (tmp_path, tmp_path / "missing" / "ledger.db"):
        with pytest.raises(InputDataError, match="`path`"):
            FeedbackLedger.open(wrong, 2)
    assert not path.exists()
    path.touch()
    for use in (FeedbackLedger.open, FeedbackLedger.read):
        with pytest.raises(InputDataError, match="is empty"):
            use(path)
    assert path.stat().st_size == 0
    FeedbackLedger.open(path, 2).submit([1.0, 2.0])
    assert len(FeedbackLedger.open(path)) == 1


def test_links_and_a_working_folder_that_changes(path, monkeypatch) -> None:
    """Under two names, there would be two journals."""
    link = path.with_name("link.db")
    link.symlink_to(path)
    monkeypatch.chdir(path.parent)
    ledger = FeedbackLedger.open("link.db")
    monkeypatch.chdir("/")
    ledger.submit([1.0, 1.0, 1.0])
    assert ledger.path == path and len(FeedbackLedger.open(path)) == 61


# ---------------------------------------------------------------- one process at a time

TASKS = ("kill,12,0", "fork,12", "cut,10,0", "contend,2,3", "orphan")


@pytest.fixture(scope="module")
def another_process(tmp_path_factory) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Another process, and its results for `TASKS`; it imports the package once for both."""
    folder, tasks = tmp_path_factory.mktemp("tasks"), TASKS if hasattr(os, "fork") else ()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ledger.writers", str(folder), *tasks],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str], line: str = "go on") -> str:
    """The answer of the process: ``open`` to a ledger's path, then a trial's id to each line."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_others_are_told_who_writes_and_can_read(path, another_process) -> None:
    with FeedbackLedger.open(path) as closed:
        whole = contents(path)
    process, _ = another_process
    assert told(process, str(path)) == "open"
    message = f"held by process {process.pid} .*FeedbackLedger.read.*DelayAwareSampler"
    for _ in range(2):
        with pytest.raises(LedgerError, match=message):
            FeedbackLedger.open(path)
    assert contents(path) == whole and len(closed.trials) == 60
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"ledger.db is closed"):
            closed.submit([0.0, 0.0, 0.0])
    assert closed.snapshot().trials == closed.trials
    assert told(process) == "60"  # nothing of that has disturbed it
    assert len(FeedbackLedger.read(path)) == 61
    # Without the lock's file there may be two writers, but neither overwrites the other's changes.
    path.with_name("ledger.db.lock").unlink()
    with FeedbackLedger.open(path) as second:
        assert told(process) == "61"
        with pytest.raises(LedgerError, match="Another program has changed"):
            second.submit([0.0, 0.0, 0.0])
        assert second.submit([0.0, 0.0, 0.0]) == 62 and second[61].x[0] == 0.1
    process.kill()
    process.wait()
    assert FeedbackLedger.open(path).submit([0.0, 0.0, 0.0]) == 63


def is_free(path: Path) -> bool:
    try:
        storage._writer_lock(path).close()
    except LedgerError:
        return False
    return True


def test_leaving_a_ledger_lets_others_write(path, monkeypatch) -> None:
    monkeypatch.setattr(storage, "WRITER_TIMEOUT", 0.01)
    with FeedbackLedger.open(path) as ledger:
        assert not is_free(path)
    assert is_free(path)
    ledger = FeedbackLedger.open(path)
    del ledger
    assert is_free(path)
    with pytest.raises(InputDataError) as error:
        FeedbackLedger.open(path, dim=2)
    assert is_free(path)  # the error is no user of the file
    del error


def test_two_ledgers_of_one_process_are_one(path) -> None:
    first, second = FeedbackLedger.open(path), FeedbackLedger.open(str(path), 3)
    trial_id = first.submit([0.1, 0.2, 0.3])
    second.observe(trial_id, 5.0)
    assert first[trial_id].y == 5.0 and first.trials == second.trials
    first.close()
    third = FeedbackLedger.open(path)
    assert third.submit([0.1, 0.2, 0.3]) == 61 and len(second) == 61
    with pytest.raises(LedgerError, match="is closed"):
        second.submit([0.1, 0.2, 0.3])


def test_locks_that_cannot_be_taken(path, monkeypatch) -> None:
    """Nor would there be an answer on a file system without locks."""
    monkeypatch.setattr(storage, "WRITER_TIMEOUT", 0.01)
    lock = path.with_name("ledger.db.lock")
    database = sqlite3.connect(lock, isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerError, match="an unreadable id .database is locked"):
        FeedbackLedger.open(path)
    database.close()
    FeedbackLedger.open(path).close()
    # No other process has the ledger in these cases, and the error does not say so.
    original = storage._connection
    with monkeypatch.context() as patch:  # as in a folder of another user
        patch.setattr(storage, "_connection", lambda *_: original(f"{lock.as_uri()}?mode=ro", 0.0))
        with pytest.raises(LedgerError, match="cannot be used: its lock .* readonly database"):
            FeedbackLedger.open(path)
    lock.write_bytes(b"text" * 1000)
    with pytest.raises(LedgerError, match="cannot be used: its lock .* not a database"):
        FeedbackLedger.open(path)
    lock.unlink()
    lock.mkdir()
    with pytest.raises(LedgerError, match="cannot be used: its lock .*unable to open"):
        FeedbackLedger.open(path)
    assert len(FeedbackLedger.read(path)) == 60


# ---------------------------------------------------------------- changes by others


def test_a_copy_that_was_put_back_is_read_anew(path) -> None:
    ledger = FeedbackLedger.open(path)
    backup, before = path.read_bytes(), ledger.to_records()
    fill(ledger, 5)
    path.write_bytes(backup)
    with pytest.raises(LedgerError, match="Another program has changed .*ledger.db"):
        ledger.submit([0.0, 0.0, 0.0])
    assert ledger.to_records() == before and len(ledger) == 60
    assert ledger.submit([0.0, 0.0, 0.0]) == 60


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_was_deleted_or_replaced(path, is_replaced) -> None:
    """Nothing is recorded where nobody would find it."""
    ledger = FeedbackLedger.open(path)
    if is_replaced:
        FeedbackLedger.open(path.with_name("other.db"), 3).close()
        path.with_name("other.db").replace(path)
    else:
        path.unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match="cannot be used: .* deleted or replaced: open it"):
            ledger.submit([0.0, 0.0, 0.0])
    assert path.exists() == is_replaced and len(ledger) == 60
    anew = FeedbackLedger.open(path, 3)
    assert anew.submit([0.0, 0.0, 0.0]) == 0 and len(anew) == 1
    with pytest.raises(LedgerError, match="is closed"):
        ledger.submit([0.0, 0.0, 0.0])
    assert FeedbackLedger.open(path).trials == anew.trials == FeedbackLedger.read(path).trials


def test_a_reader_that_never_ends(path, monkeypatch) -> None:
    monkeypatch.setattr(storage, "READER_TIMEOUT", 0.01)
    ledger, before = FeedbackLedger.open(path), contents(path)
    reader = sqlite3.connect(path, isolation_level=None)
    for begin in ("BEGIN IMMEDIATE", "BEGIN"):  # at the start of a change, and at its end
        reader.execute(begin)
        reader.execute("SELECT * FROM trials").fetchone()
        with pytest.raises(LedgerError, match="ledger.db cannot be used: database is locked"):
            ledger.submit([0.0, 0.0, 0.0])
        assert ledger.to_records(math.inf) == before[1]
        reader.execute("COMMIT")
    assert ledger.submit([0.0, 0.0, 0.0]) == 60


@pytest.mark.parametrize("strike", ["before", "after"])
def test_ctrl_c_around_the_commit(path, monkeypatch, strike) -> None:
    """The ledger agrees with the file, and accepts the next change."""
    ledger, original = FeedbackLedger.open(path), storage.Storage._transaction

    @contextmanager
    def interrupted(*args: Any) -> Iterator[Any]:
        with original(*args) as database:
            yield database
            if strike == "before":
                raise KeyboardInterrupt
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage.Storage, "_transaction", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.submit([0.0, 0.0, 0.0])
    assert len(ledger) == 60 + (strike == "after")
    assert contents(path)[1] == ledger.to_records(math.inf)
    ledger.submit([0.0, 0.0, 0.0])


# ---------------------------------------------------------------- damage


def rewrite(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()


def assert_refused(path: Path, message: str = "") -> None:
    """Opening raises a clear error and does not change the file, with and without settings."""
    before = path.read_bytes()
    for use in (
        FeedbackLedger.open,
        lambda path: FeedbackLedger.open(path, 3),
        FeedbackLedger.read,
    ):
        with pytest.raises(DamagedLedgerError, match=f"{path.name}.*{message}"):
            use(path)
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*-*")), "files were left beside it"


def test_files_that_were_cut_off(path, some_bytes) -> None:
    """At and around the end of every page, and in its middle."""
    for end in range(PAGE, len(some_bytes) + 1, PAGE):
        for cut in (end - PAGE // 2, end - 1, end, end + 1):
            if cut < len(some_bytes):
                path.write_bytes(some_bytes[:cut])
                with pytest.raises(DamagedLedgerError):
                    FeedbackLedger.read(path)
    for cut in (2, 60, 511):
        path.write_bytes(some_bytes[:cut])
        assert_refused(path)


def test_files_of_something_else(tmp_path) -> None:
    """Other data, and databases of other programs."""
    path = tmp_path / "ledger.db"
    for size in (2, 512, 20_000):
        for data in (bytes(size), (b"text\n" * size)[:size], random.Random(size).randbytes(size)):
            path.write_bytes(data)
            assert_refused(path, "not a ledger")
    for statement in (
        "CREATE TABLE trials (id)",
        "PRAGMA application_id = 5",
        "PRAGMA user_version = 7",
    ):
        path.unlink()
        rewrite(path, statement)
        assert_refused(path, "not a ledger")


def test_overwritten_pages(path, some_bytes) -> None:
    for start in range(0, len(some_bytes), PAGE):
        for new in (bytes(PAGE), random.Random(start).randbytes(PAGE)):
            path.write_bytes(some_bytes[:start] + new + some_bytes[start + PAGE :])
            assert_refused(path)


def test_single_numbers_that_were_changed(path, some_bytes) -> None:
    """SQLite cannot detect that these numbers are wrong."""
    x = FeedbackLedger.read(path)[30].x.numpy().astype("<f8").tobytes()
    flipped = bytes([x[0] ^ 1]) + x[1:]
    for old, new in ((x, flipped), (b"discard", b"Discard")):
        assert some_bytes.count(old) == 1
        path.write_bytes(some_bytes.replace(old, new))
        assert_refused(path, "does not agree with its checksum")


STATEMENTS = (
    "DELETE FROM trials WHERE id = 59",
    "DELETE FROM trials WHERE id >= 0",
    "DELETE FROM trials WHERE id = -1",
    "UPDATE trials SET id = 60 WHERE id = 0",
    "UPDATE trials SET x = 5 WHERE id = 7",
    "UPDATE trials SET y = 0.5 WHERE id = 7",
    "UPDATE trials SET note = NULL WHERE id = 7",
    "DROP TABLE trials",
    "ALTER TABLE trials ADD COLUMN more",
    "PRAGMA user_version = 6",
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_changes_by_other_programs(path, statement) -> None:
    rewrite(path, statement)
    assert_refused(path)


@pytest.mark.parametrize("seed", range(2))
def test_damage_is_found_or_harmless(path, some_bytes, seed) -> None:
    """Bits and bytes overwritten anywhere: an error, or the same ledger (some are unused)."""
    rng, expected, refused = random.Random(seed), contents(path), 0
    for i in range(100):
        data, start = bytearray(some_bytes), rng.randrange(len(some_bytes))
        width = rng.choice([1, 4, 16, 100, 1000])
        mask = bytes([1 << i % 8]) if i % 2 else rng.randbytes(width)
        for k, flips in enumerate(mask[: len(data) - start]):
            data[start + k] ^= flips
        path.write_bytes(data)
        try:
            assert contents(path) == expected
        except DamagedLedgerError:
            refused += 1
    assert 30 < refused < 100


@pytest.mark.parametrize("data", [b"nonsense" * 2000, b""])
def test_damage_while_a_ledger_is_open(path, data) -> None:
    """No change is recorded, and a snapshot of the contents can be saved."""
    ledger = FeedbackLedger.open(path)
    known = ledger.snapshot()
    path.write_bytes(data)
    with pytest.raises(LedgerError, match="ledger.db"):
        ledger.submit([0.0, 0.0, 0.0])
    assert len(known) == 60 and path.read_bytes() == data


def test_a_full_disk(path) -> None:
    resource = pytest.importorskip("resource")
    ledger, limits = FeedbackLedger.open(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        with pytest.raises(LedgerError, match="ledger.db cannot be used"):
            for _ in range(200):  # there may be room in the last page
                ledger.submit([0.1, 0.2, 0.3])
        before = ledger.to_records(math.inf)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(path)[1] == before
    assert ledger.submit([0.1, 0.2, 0.3]) == len(before)


# ---------------------------------------------------------------- processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are forked")
def test_processes_that_are_killed_or_fork(another_process) -> None:
    """The short form of ``tests/slow/test_ledger_crashes.py``, which explains the checks."""
    _, tallies = another_process
    assert tallies[TASKS[0]]["acknowledged"] > 0
    assert tallies[TASKS[1]]["forks"] == 12
    assert tallies[TASKS[2]] == {"rounds": 10, "interrupted": 10}
    assert tallies[TASKS[3]] == {"rounds": 2, "lost": 4}
    assert tallies[TASKS[4]] == {"trials": 3}
