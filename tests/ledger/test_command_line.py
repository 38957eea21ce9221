"""``python -m botorch_calib.ledger``, and what it salvages from damaged files."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from botorch_calib.exceptions import DamagedLedgerError
from botorch_calib.ledger import FeedbackLedger, Trial, file_storage
from botorch_calib.ledger.__main__ import main

ROOT = Path(__file__).parents[2]
PAGE = 4096


@pytest.fixture(scope="module")
def some_bytes(tmp_path_factory) -> bytes:
    """The file of a ledger with trials of all kinds, over many pages."""
    rng, path = random.Random(0), tmp_path_factory.mktemp("made") / "ledger.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_storage, "SYNCHRONOUS", "OFF")
        ledger = FeedbackLedger.open(path, 3, censor_value=-9.0, maximize=False, max_wait=500)
        X = [[rng.random() for _ in range(3)] for _ in range(150)]
        ledger.add(X, [rng.gauss(0, 1)] * 150)
        for i in range(150, 160):
            ledger.submit([float(i), 0.5, -1.0])
            if i % 2:
                ledger.tell(i, i / 7, yvar=0.25)
        ledger.amend(151, 3.0)
        ledger.fail(150, "power \N{SNOWMAN} cut " * 2000)  # in overflow pages
        ledger.close()
    return path.read_bytes()


@pytest.fixture
def path(tmp_path, some_bytes) -> Path:
    """A file of `some_bytes`, to be changed at will."""
    path: Path = tmp_path / "ledger.db"
    path.write_bytes(some_bytes)
    return path


def run(*words: object) -> int:
    return main([str(word) for word in words])


class TestCommands:
    def test_status(self, path, capsys) -> None:
        assert run("status", path) == 0
        lines = capsys.readouterr().out.splitlines()
        best = FeedbackLedger.read(path).best()
        assert best is not None
        assert lines[0] == "160 trials: 4 pending, 155 observed, 1 failed"
        assert lines[1] == f"least value {best.y!r}: trial {best.id}, x = {best.x.tolist()}"
        assert lines[2:] == [
            f"pending: trial {i}, x = [{float(i)}, 0.5, -1.0]" for i in (152, 154, 156, 158)
        ]

    def test_status_of_a_ledger_in_which_values_come_too_late(self, tmp_path, capsys) -> None:
        path = tmp_path / "ledger.db"
        with FeedbackLedger.open(path, 1, max_wait=2) as ledger:
            assert run("status", path) == 0 and capsys.readouterr().out == "0 trials\n"
            for i in range(8):
                ledger.submit([float(i)])
                if i % 2:
                    ledger.tell(i, 1.0)
        assert run("status", path) == 0
        lines = capsys.readouterr().out.splitlines()
        # Before the present iteration: of seven that were waited for 1, three have come then.
        assert lines[0] == "8 trials: 1 pending, 4 observed, 3 expired"
        assert lines[2] == "values that come within 2: 43% (95 % interval 10% to 82%)"

    def test_tell_and_amend(self, path, capsys) -> None:
        assert run("tell", path, 152, "-1.5", "--yvar", "0.5") == 0
        assert run("amend", path, 152, 2) == 0
        trial = FeedbackLedger.read(path)[152]
        assert (trial.y, trial.yvar, trial.earlier[0].y) == (2.0, 0.5, -1.5)
        told, amended = capsys.readouterr().out.splitlines()
        assert told == "trial 152, x = [152.0, 0.5, -1.0]: y = -1.5"
        assert amended == "trial 152, x = [152.0, 0.5, -1.0]: y = 2.0, in the place of -1.5"
        assert run("tell", path, 154, "-.5E+2", "--yvar", "1e-6") == 0
        assert run("tell", path, 156, "-1e-3") == 0
        ledger = FeedbackLedger.read(path)
        assert (ledger[154].y, ledger[154].yvar, ledger[156].y) == (-50.0, 1e-6, -1e-3)

    def test_without_an_output(self, path, monkeypatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", None)  # what Python makes of `>&-`
            for words in [("status", path), ("tell", path, 152, 1.5)]:
                assert run(*words) == 0
        assert FeedbackLedger.read(path)[152].y == 1.5

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
    def test_output_that_is_full(self, path, capsys, monkeypatch) -> None:
        with monkeypatch.context() as patch, open("/dev/full", "w") as full:
            patch.setattr(sys, "stdout", full)
            assert run("tell", path, 152, 1.5) == 1
        assert "error: done, but the output is lost" in capsys.readouterr().err
        assert FeedbackLedger.read(path)[152].y == 1.5

    def test_errors_are_one_line(self, path, capsys) -> None:
        """SQLite's quote the statement that is damaged, which has several."""
        data = path.read_bytes()
        assert data.count(b"x BLOB, record") == 1
        path.write_bytes(data.replace(b"x BLOB, record", b"x BLOB\xff record"))
        assert run("status", path) == 1
        captured = capsys.readouterr().err
        assert captured.startswith("error: ") and captured.count("\n") == 1

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("tell", "FILE", 152, "-inf"), "`y`"),
            (("tell", "FILE", 152, 1, "--yvar", "-1e-9"), "`yvar` is a variance"),
            (("tell", "FILE", 151, 1.0), "has a value already"),
            (("tell", "FILE", 999, 1.0), "no trial 999"),
            (("amend", "FILE", 152, 1.0), "has none yet"),
            (("tell", "FILE-", 152, 1.0), "no file"),
            (("status", "FILE-"), "no file"),
            (("salvage", "FILE-", "NEW"), "no file"),
            (("salvage", "FILE", "FILE"), "exists already"),
        ],
    )
    def test_errors_change_nothing(self, path, capsys, words, message) -> None:
        before = path.read_bytes()
        assert run(*(str(word).replace("FILE", str(path)) for word in words)) == 1
        captured = capsys.readouterr()
        assert captured.err.startswith("error: ") and message in captured.err
        assert captured.out == "" and path.read_bytes() == before
        left = {entry.name for entry in path.parent.iterdir()}
        assert left <= {"ledger.db", "ledger.db.lock"}

    def test_files_that_cannot_be_read(self, path, capsys, monkeypatch) -> None:
        def refuse(path: Path) -> bool:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "is_file", refuse)
        for words in (("status", path), ("salvage", path, path)):
            assert run(*words) == 1
            assert capsys.readouterr().err.startswith("error: [Errno 13]")

    def test_output_that_nobody_reads(self, path) -> None:
        """As that of a command before ``| head``."""
        with subprocess.Popen(
            [sys.executable, "-m", "botorch_calib.ledger", "status", path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            process.wait()
            assert "Traceback" not in process.stderr.read() and process.returncode == 1


def salvaged(path: Path, capsys: Any) -> tuple[FeedbackLedger, set[int], str]:
    """What is found of the 160 trials of a file, the ids that are lost, and what is said."""
    new = path.with_name("new.db")
    assert run("salvage", path, new) == 0
    text, ledger = capsys.readouterr().out, FeedbackLedger.read(new)
    new.unlink()
    lost = [line[6:-1].split(", ") for line in text.splitlines() if line.startswith("Lost: ")]
    assert text.startswith(f"{len(ledger)} trials are intact.\n")
    return ledger, {int(word) for words in lost for word in words}, text


def without_ids(trials: Iterable[Trial]) -> list[Trial]:
    return [replace(trial, id=0) for trial in trials]


class TestSalvage:
    def test_intact_files(self, path, capsys) -> None:
        before, whole = path.read_bytes(), FeedbackLedger.read(path)
        ledger, lost, _ = salvaged(path, capsys)
        assert ledger.trials == whole.trials and repr(ledger) == repr(whole) and not lost
        assert path.read_bytes() == before
        new = path.with_name("new.db")
        assert run("salvage", path, new) == 0
        assert FeedbackLedger.open(new, maximize=False).submit([0.0, 0.0, 0.0]) == 160

    @pytest.mark.parametrize("room", [1024, 32768])
    def test_a_full_disk_is_no_end(self, path, capsys, room) -> None:
        """Neither before nor after the new ledger has its settings."""
        resource = pytest.importorskip("resource")
        new, limits = path.with_name("new.db"), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            assert run("salvage", path, new) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "new.db" in capsys.readouterr().err
        assert run("salvage", path, new) == 0
        assert len(FeedbackLedger.read(new)) == 160

    @pytest.mark.parametrize("damage", ["end", "middle", "two"])
    def test_damaged_pages_cost_only_what_stood_there(self, path, capsys, damage) -> None:
        whole, data = FeedbackLedger.read(path), bytearray(path.read_bytes())
        if damage == "end":
            del data[-3 * PAGE - 100 :]
        else:
            leaves = [i for i in range(0, len(data), PAGE) if data[i] == 13 and i > PAGE]
            for start in leaves[1:2] if damage == "middle" else leaves[1::2]:
                data[start : start + PAGE] = random.Random(0).randbytes(PAGE)
        path.write_bytes(data)
        with pytest.raises(DamagedLedgerError):
            FeedbackLedger.read(path)
        ledger, lost, _ = salvaged(path, capsys)
        assert without_ids(ledger) == without_ids(t for t in whole if t.id not in lost)
        assert 0 < len(lost) < 90 and repr(ledger) == repr(whole)

    def test_settings_that_are_lost(self, path, capsys) -> None:
        """They are in the second page."""
        whole = FeedbackLedger.read(path)
        data = bytearray(path.read_bytes())
        data[PAGE : 2 * PAGE] = bytes(PAGE)
        path.write_bytes(data)
        ledger, _, text = salvaged(path, capsys)
        assert "The settings are lost" in text and ledger.dim == 3
        assert [trial.y for trial in ledger] == [trial.y for trial in whole]

    @pytest.mark.parametrize("seed", range(2))
    def test_nothing_wrong_is_ever_salvaged(self, path, capsys, seed) -> None:
        rng, data = random.Random(seed), path.read_bytes()
        whole, num_found = without_ids(FeedbackLedger.read(path).trials), 0
        for _ in range(10):
            damaged = bytearray(data)
            for _ in range(rng.randrange(1, 30)):
                start, width = rng.randrange(len(data)), rng.choice([1, 4, 100, 1000])
                damaged[start : start + width] = rng.randbytes(len(data[start : start + width]))
            path.write_bytes(damaged)
            if run("salvage", path, path.with_name("new.db")) == 1:
                assert "No trial is intact" in capsys.readouterr().err
                continue
            found = without_ids(FeedbackLedger.read(path.with_name("new.db")).trials)
            path.with_name("new.db").unlink()
            num_found += len(found)
            assert [trial for trial in found if trial not in whole] == []
        assert num_found > 0

    def test_files_without_any(self, tmp_path, capsys) -> None:
        path = tmp_path / "ledger.db"
        for data in (b"", b"text\n" * 5000, bytes(5 * PAGE)):
            path.write_bytes(data)
            assert run("salvage", path, tmp_path / "new.db") == 1
            assert "No trial is intact" in capsys.readouterr().err
            assert not (tmp_path / "new.db").exists()

    def test_another_format_is_named(self, path, tmp_path, capsys) -> None:
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("PRAGMA user_version = 4")
            database.execute("ALTER TABLE trials DROP COLUMN record")
        assert run("salvage", path, tmp_path / "new.db") == 1
        assert "whose format is not 6" in capsys.readouterr().err
