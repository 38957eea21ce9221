"""Files of ledgers: what they keep, how they fare with damage, and with several processes."""

from __future__ import annotations

import math
import os
import platform
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
from botorch_calib.ledger import FeedbackLedger, file_storage
from botorch_calib.ledger.__main__ import main
from botorch_calib.ledger.writer_lock import WriterLock
from tests.ledger.running import ROOT, run_writers


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
        patch.setattr(file_storage, "SYNCHRONOUS", "OFF")
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


def test_defaults_and_infinite_wait_are_kept(tmp_path) -> None:
    path = tmp_path / "a folder ? % #" / "ledger é"
    path.parent.mkdir()
    FeedbackLedger.open(path, 1, clock="seconds")
    ledger = FeedbackLedger.open(path)
    settings = (ledger.dim, ledger.censor_value, ledger.max_wait, ledger.late, ledger.clock)
    assert settings == (1, None, math.inf, "use", "seconds")
    names = sorted(entry.name for entry in path.parent.iterdir())
    assert names == ["ledger é", "ledger é.lock"]


def test_signed_zeros_in_settings(tmp_path) -> None:
    path = tmp_path / "ledger.db"
    FeedbackLedger.open(path, 1, censor_value=-0.0, max_wait=-0.0).submit([1.0], time=-0.0)
    assert FeedbackLedger.open(path, censor_value=0.0).trials == FeedbackLedger.open(path).trials


def test_contradicting_settings(path) -> None:
    before = path.read_bytes()
    given: dict[str, Any] = {"dim": 2, "censor_value": 0.0, "max_wait": math.inf}
    given |= {"late": "use", "clock": "seconds"}
    for name, value in given.items():
        with pytest.raises(InputDataError, match=f"`{name}` is .* in the ledger .*ledger.db"):
            FeedbackLedger.open(path, **{name: value})
    assert path.read_bytes() == before


def test_invalid_settings_make_no_file(path) -> None:
    for target, exists in ((path, True), (path.with_name("new.db"), False)):
        with pytest.raises(InputDataError, match="`max_wait`"):
            FeedbackLedger.open(target, 3, max_wait=-1)
        assert target.exists() == exists


def test_an_empty_file_is_a_new_ledger(tmp_path) -> None:
    path = tmp_path / "ledger.db"
    with pytest.raises(InputDataError, match="`dim` is needed"):
        FeedbackLedger.open(path)
    assert not path.exists()
    path.touch()
    with pytest.raises(InputDataError, match="`dim` is needed.* is empty"):
        FeedbackLedger.open(path)
    assert path.stat().st_size == 0
    FeedbackLedger.open(path, 2).submit([1.0, 2.0])
    assert len(FeedbackLedger.open(path)) == 1


def test_paths_that_cannot_be_files(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "ledger.db"):
        with pytest.raises(InputDataError, match="`path`"):
            FeedbackLedger.open(path, 2)


def test_the_working_folder_may_change(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = FeedbackLedger.open("ledger.db", 1)
    monkeypatch.chdir("/")
    ledger.submit([1.0])
    assert len(FeedbackLedger.open(tmp_path / "ledger.db")) == 1


def test_a_link_is_the_same_ledger(path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    # Under two names, there would be two journals.
    assert FeedbackLedger.open(link).path == path


# ---------------------------------------------------------------- one process at a time

# Opens a ledger, says so, and writes to it, holds it or dies, as it is told.
SCRIPT = """
import sys

from botorch_calib.ledger import FeedbackLedger

ledger = FeedbackLedger.open(sys.argv[1])
print("open", flush=True)
for line in sys.stdin:
    print(ledger.submit([0.1, 0.2, 0.3]), flush=True)
"""


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened a ledger, and submits a query for each line that it is sent."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_others_are_told_who_writes_and_can_read(path, capsys) -> None:
    with FeedbackLedger.open(path) as closed:
        whole = contents(path)
    with another_process(path) as process:
        message = f"pid {process.pid} on {platform.node()}.*FeedbackLedger.read.*DelayAwareSampler"
        for _ in range(2):
            with pytest.raises(LedgerError, match=message):
                FeedbackLedger.open(path)
        assert contents(path) == whole and len(closed.trials) == 60
        with pytest.raises(LedgerError, match=r"ledger.db is closed"):
            closed.submit([0.0, 0.0, 0.0])
        assert main(["tell", str(path), "3", "1.5"]) == 1  # as by the command line
        assert f"is open in another process (pid {process.pid} on " in capsys.readouterr().err
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "60\n"  # nothing of that has disturbed it
        assert len(FeedbackLedger.read(path)) == 61
        process.kill()
        process.wait()
        assert FeedbackLedger.open(path).submit([0.0, 0.0, 0.0]) == 61


def test_leaving_a_ledger_lets_others_write(path) -> None:
    with FeedbackLedger.open(path) as ledger:
        with pytest.raises(LedgerError, match="is open in another process"):
            WriterLock(path)
    WriterLock(path).release()
    ledger = FeedbackLedger.open(path)
    del ledger
    WriterLock(path).release()
    with pytest.raises(InputDataError) as error:
        FeedbackLedger.open(path, dim=2)
    WriterLock(path).release()  # the error is no user of the file
    with FeedbackLedger.open(path):  # nor does it lend what it holds
        with pytest.raises(LedgerError, match="is open in another process"):
            WriterLock(path)
    del error


def test_two_ledgers_of_one_process_are_one(path) -> None:
    first, second = FeedbackLedger.open(path), FeedbackLedger.open(str(path), 3)
    trial_id = first.submit([0.1, 0.2, 0.3])
    second.observe(trial_id, 5.0)
    assert first[trial_id].y == 5.0 and first.trials == second.trials
    with pytest.raises(InputDataError, match="`dim` is 3"):
        FeedbackLedger.open(path, dim=2)
    assert first.submit([0.1, 0.2, 0.3]) == 61
    first.close()
    third = FeedbackLedger.open(path)
    assert third.submit([0.1, 0.2, 0.3]) == 62 and len(second) == 62
    with pytest.raises(LedgerError, match="is closed"):
        second.submit([0.1, 0.2, 0.3])


def test_a_lock_that_cannot_be_taken(path) -> None:
    path.with_name("ledger.db.lock").write_bytes(b"text" * 1000)
    with pytest.raises(LedgerError, match="ledger.db.lock of the ledger cannot be taken"):
        FeedbackLedger.open(path)
    assert len(FeedbackLedger.read(path)) == 60


def test_a_lock_that_nobody_can_read(path) -> None:
    """Nor would there be an answer on a file system without locks."""
    lock = sqlite3.connect(path.with_name("ledger.db.lock"), isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerError, match="another process, or its file system has no locks"):
        FeedbackLedger.open(path)
    lock.close()
    FeedbackLedger.open(path).close()


def test_reading_makes_no_file(tmp_path) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    for file, message in ((tmp_path / "ledger.db", "no file"), (empty, "is empty")):
        with pytest.raises(InputDataError, match=message):
            FeedbackLedger.read(file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["empty.db"]


# ---------------------------------------------------------------- changes by others


def test_a_copy_that_was_put_back_is_read_anew(path) -> None:
    ledger = FeedbackLedger.open(path)
    backup, before = path.read_bytes(), ledger.to_records()
    fill(ledger, 5)
    path.write_bytes(backup)
    with pytest.raises(LedgerError, match="Something else has changed .*ledger.db"):
        ledger.submit([0.0, 0.0, 0.0])
    assert ledger.to_records() == before and len(ledger) == 60
    assert ledger.submit([0.0, 0.0, 0.0]) == 60


def test_another_ledger_in_its_place(path) -> None:
    ledger = FeedbackLedger.open(path)
    path.unlink()
    FeedbackLedger.open(path, 3).close()
    with pytest.raises(LedgerError, match="is closed"):
        ledger.submit([0.0, 0.0, 0.0])
    assert len(ledger) == 60 and len(FeedbackLedger.read(path)) == 0


def test_another_ledger_put_in_its_place(path) -> None:
    FeedbackLedger.open(path.with_name("other.db"), 3).close()
    ledger = FeedbackLedger.open(path)
    path.with_name("other.db").replace(path)
    for message in ("Something else has", "Another ledger has taken the place of .*ledger.db"):
        with pytest.raises(LedgerError, match=message):
            ledger.submit([0.0, 0.0, 0.0])
    assert len(FeedbackLedger.open(path)) == 0


def test_a_deleted_file_is_not_made_again(path) -> None:
    ledger = FeedbackLedger.open(path)
    path.unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match="ledger.db cannot be used"):
            ledger.submit([0.0, 0.0, 0.0])
    assert not path.exists()


def test_a_reader_that_never_ends(path, monkeypatch) -> None:
    monkeypatch.setattr(file_storage, "BUSY_TIMEOUT", 0.01)
    ledger, before = FeedbackLedger.open(path), contents(path)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="ledger.db cannot be used: database is locked"):
        ledger.submit([0.0, 0.0, 0.0])
    assert ledger.to_records(math.inf) == before[1]
    reader.close()
    assert ledger.submit([0.0, 0.0, 0.0]) == 60


@pytest.mark.parametrize("strike", ["before", "after"])
def test_ctrl_c_around_the_commit(path, monkeypatch, strike) -> None:
    """What is known is what is in the file, and the next change is possible."""
    ledger, original = FeedbackLedger.open(path), file_storage._transaction

    @contextmanager
    def interrupted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with original(*args, **kwargs) as database:
            yield database
            if strike == "before":
                raise KeyboardInterrupt
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(file_storage, "_transaction", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.submit([0.0, 0.0, 0.0])
    assert len(ledger) == 60 + (strike == "after")
    assert contents(path)[1] == ledger.to_records(math.inf)
    ledger.submit([0.0, 0.0, 0.0])


# ---------------------------------------------------------------- damage


def assert_refused(path: Path, message: str = "") -> None:
    """Opening is a clear error and leaves the file alone, with and without settings."""
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


@pytest.mark.parametrize("share", [0.002, 0.01, 0.34, 0.999])
def test_truncated_files(path, share) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert_refused(path)


@pytest.mark.parametrize("size", [2, 100, 512, 20_000])
def test_files_of_something_else(tmp_path, size) -> None:
    path = tmp_path / "ledger.db"
    for data in (bytes(size), (b"text\n" * size)[:size], random.Random(size).randbytes(size)):
        path.write_bytes(data)
        assert_refused(path, "not a ledger|damaged")


@pytest.mark.parametrize("page", range(6))
def test_overwritten_pages(path, page) -> None:
    whole, size = path.read_bytes(), 4096
    assert len(whole) == 6 * size
    for new in (bytes(size), random.Random(page).randbytes(size)):
        path.write_bytes(whole[: page * size] + new + whole[(page + 1) * size :])
        assert_refused(path)


def test_damage_that_only_later_changes_would_meet(path) -> None:
    """The numbers are all there, but the list of a page's free parts leads astray."""
    data = bytearray(path.read_bytes())
    pages = [page for page in range(4096, len(data), 4096) if data[page] == 13]  # with rows
    data[pages[-1] + 1 : pages[-1] + 3] = b"\x0f\xf8"
    path.write_bytes(data)
    assert_refused(path)


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def test_single_numbers_that_were_changed(path) -> None:
    """SQLite cannot tell that these are wrong."""
    ledger = FeedbackLedger.read(path)
    x = ledger[30].x.numpy().astype("<f8").tobytes()
    whole = path.read_bytes()
    replace_bytes(path, x, bytes([x[0] ^ 1]) + x[1:])
    assert_refused(path, "|trial 30 is damaged")
    path.write_bytes(whole)
    y = next(trial.y for trial in ledger.trials if trial.y is not None)
    exact = repr(y).encode()
    replace_bytes(path, exact, exact[:-1] + bytes([exact[-1] ^ 1]))
    assert_refused(path, "")
    path.write_bytes(whole)
    replace_bytes(path, b"discard", b"Discard")
    assert_refused(path, "damaged")


def rewrite(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM trials WHERE id = 59",
        "DELETE FROM trials",
        "INSERT INTO trials SELECT 60, x, record, checksum FROM trials WHERE id = 5",
        "UPDATE trials SET id = -1 WHERE id = 0",
        "UPDATE trials SET record = replace(record, 'because', 'Because')",
        "UPDATE trials SET x = 5 WHERE id = 7",
        "UPDATE trials SET record = NULL WHERE id = 7",
        "UPDATE ledger SET record = replace(record, '60', '59')",
        "UPDATE ledger SET record = 3",
        "DELETE FROM ledger",
        "INSERT INTO ledger SELECT * FROM ledger",
        "DROP TABLE trials",
        "ALTER TABLE trials ADD COLUMN more",
        "CREATE TABLE more (id)",
        "PRAGMA user_version = 0",
    ],
)
def test_changes_by_other_programs(path, statement) -> None:
    rewrite(path, statement)
    assert_refused(path)


def test_other_formats(path) -> None:
    for version in (5, 7):
        rewrite(path, f"PRAGMA user_version = {version}")
        assert_refused(path, f"has format {version}; this version of botorch_calib reads format 6")


def test_databases_of_others(tmp_path) -> None:
    for name, statement in {
        "table": "CREATE TABLE ledger (id)",
        "application": "PRAGMA application_id = 5",
        "version": "PRAGMA user_version = 6",
    }.items():
        path = tmp_path / f"{name}.db"
        rewrite(path, statement)
        assert_refused(path, "is not a ledger")


@pytest.mark.parametrize("seed", range(2))
def test_damage_is_found_or_harmless(path, tmp_path, seed) -> None:
    """Bytes overwritten anywhere: an error, or the very same ledger (some bytes are unused)."""
    rng, whole, expected = random.Random(seed), path.read_bytes(), contents(path)
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        start, width = rng.randrange(len(data)), rng.choice([1, 1, 4, 16, 100, 1000])
        mask = rng.randbytes(width)
        for i in range(start, min(start + width, len(data))):
            data[i] ^= mask[i - start]
        path.write_bytes(data)
        try:
            assert contents(path) == expected
        except DamagedLedgerError:
            refused += 1
    assert 15 < refused < 60


@pytest.mark.parametrize("data", [b"nonsense" * 2000, b""])
def test_damage_while_a_ledger_is_open(path, data) -> None:
    """Nothing is recorded into it, and what is known can be saved."""
    ledger = FeedbackLedger.open(path)
    known = ledger.snapshot()
    path.write_bytes(data)
    with pytest.raises(DamagedLedgerError, match="ledger.db"):
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
def test_processes_that_are_killed_or_fork(tmp_path) -> None:
    """The short form of ``tests/slow/test_ledger_crashes.py``; what is checked stands there."""
    tasks = ("kill,12,0", "fork,12", "cut,10,0", "contend,2,3", "orphan")
    tallies = run_writers(tmp_path, *tasks)
    assert tallies[tasks[0]]["acknowledged"] > 0
    assert tallies[tasks[1]]["forks"] == 12
    assert tallies[tasks[2]] == {"rounds": 10, "interrupted": 10}
    assert tallies[tasks[3]] == {"rounds": 2, "lost": 4}
    assert tallies[tasks[4]] == {"trials": 3}
