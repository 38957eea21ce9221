"""``python -m botorch_calib.ledger``, and what it salvages from damaged files."""

from __future__ import annotations

import csv
import io
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from botorch_calib.exceptions import DamagedLedgerError
from botorch_calib.ledger import FeedbackLedger, storage_on_disk
from botorch_calib.ledger.__main__ import main
from botorch_calib.ledger.salvage import salvage

ROOT = Path(__file__).parents[2]
PAGE = 4096


@pytest.fixture(autouse=True)
def without_waiting_for_disks(monkeypatch) -> None:
    monkeypatch.setattr(storage_on_disk, "SYNCHRONOUS", "OFF")


@pytest.fixture
def path(tmp_path) -> Path:
    """A ledger with trials of all kinds, over many pages."""
    rng, path = random.Random(0), tmp_path / "ledger.db"
    ledger = FeedbackLedger.open(path, 3, censor_value=-9.0, maximize=False, max_wait=500)
    ledger.add([[rng.random() for _ in range(3)] for _ in range(150)], [rng.gauss(0, 1)] * 150)
    for i in range(150, 160):
        ledger.submit([float(i), 0.5, -1.0])
        if i % 2:
            ledger.tell(i, i / 7, yvar=0.25)
    ledger.amend(151, 3.0)
    ledger.fail(150, "power \N{SNOWMAN} cut " * 2000)  # in overflow pages
    return path


def run(*words: object) -> int:
    return main([str(word) for word in words])


class TestCommands:
    def test_status(self, path, capsys) -> None:
        assert run("status", path) == 0
        lines = capsys.readouterr().out.splitlines()
        best = FeedbackLedger.open(path).best()
        assert best is not None
        assert lines[0] == "160 trials: 4 pending, 155 observed, 1 failed"
        assert lines[1] == f"least value {best.y!r}: trial {best.id}, x = {best.x.tolist()}"
        assert lines[2:] == [
            f"pending: trial {i}, x = [{float(i)}, 0.5, -1.0]" for i in (152, 154, 156, 158)
        ]

    def test_status_of_an_empty_ledger(self, tmp_path, capsys) -> None:
        FeedbackLedger.open(tmp_path / "ledger.db", 1)
        assert run("status", tmp_path / "ledger.db") == 0
        assert capsys.readouterr().out == "0 trials\n"

    def test_tell_and_amend(self, path, capsys) -> None:
        assert run("tell", path, 152, "-1.5", "--yvar", "0.5") == 0
        assert run("amend", path, 152, 2) == 0
        trial = FeedbackLedger.open(path)[152]
        assert (trial.y, trial.yvar, trial.earlier[0].y) == (2.0, 0.5, -1.5)
        told, amended = capsys.readouterr().out.splitlines()
        assert told == "trial 152, x = [152.0, 0.5, -1.0]: y = -1.5"
        assert amended == "trial 152, x = [152.0, 0.5, -1.0]: y = 2.0, in the place of -1.5"

    def test_without_an_output(self, path, monkeypatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", None)  # what Python makes of `>&-`
            for words in [("status", path), ("tell", path, 152, 1.5), ("salvage", path)]:
                assert run(*words) == 0
        assert FeedbackLedger.open(path)[152].y == 1.5

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
    def test_output_that_is_full(self, path, capsys, monkeypatch) -> None:
        with monkeypatch.context() as patch, open("/dev/full", "w") as full:
            patch.setattr(sys, "stdout", full)
            assert run("tell", path, 152, 1.5) == 1
        assert "error: done, but what it returns is lost" in capsys.readouterr().err
        assert FeedbackLedger.open(path)[152].y == 1.5

    def test_output_of_few_characters(self, path, monkeypatch) -> None:
        """As that to a file on some systems: what it cannot express is escaped."""
        written = io.BytesIO()
        output = io.TextIOWrapper(written, encoding="ascii")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", output)
            assert run("salvage", path) == 0
        assert written.getvalue().count(b"power \\u2603 cut") == 2000

    def test_negative_numbers_of_all_kinds(self, path) -> None:
        assert run("tell", path, 152, "-1e-3") == 0
        assert run("tell", path, 154, "-.5E+2", "--yvar", "1e-6") == 0
        ledger = FeedbackLedger.open(path)
        assert (ledger[152].y, ledger[154].y, ledger[154].yvar) == (-1e-3, -50.0, 1e-6)

    def test_errors_are_one_line(self, path, capsys) -> None:
        """SQLite's quote the statement that is damaged, which has several."""
        data = path.read_bytes()
        assert data.count(b"    failed_at REAL") == 1
        path.write_bytes(data.replace(b"    failed_at REAL", b"    failed\xffat REAL"))
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
            (("tell", "FILE", 152, "nan"), "`y`"),
            (("tell", "FILE", 152, 1, "--yvar", "-1"), "`yvar` is a variance"),
            (("amend", "FILE", 152, 1.0), "has none yet"),
            (("tell", "FILE-", 152, 1.0), "no file"),
            (("status", "FILE-"), "no file"),
            (("salvage", "FILE-"), "`path`"),
            (("salvage", "FILE", "--into", "FILE"), "exists already"),
        ],
    )
    def test_errors_change_nothing(self, path, capsys, words, message) -> None:
        before = path.read_bytes()
        assert run(*(str(word).replace("FILE", str(path)) for word in words)) == 1
        captured = capsys.readouterr()
        assert captured.err.startswith("error: ") and message in captured.err
        assert captured.out == "" and path.read_bytes() == before
        assert [entry.name for entry in path.parent.iterdir()] == ["ledger.db"]

    def test_files_that_cannot_be_read(self, path, capsys, monkeypatch) -> None:
        def refuse(path: Path) -> bool:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "is_file", refuse)
        for command in ("status", "salvage"):
            assert run(command, path) == 1
            assert capsys.readouterr().err.startswith("error: [Errno 13]")

    def test_as_a_program(self, path) -> None:
        with program("tell", path, "152", "1.5") as process:
            _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert FeedbackLedger.open(path)[152].y == 1.5

    @pytest.mark.parametrize("command", ["status", "salvage"])
    def test_output_that_nobody_reads(self, path, command) -> None:
        """As that of a command before ``| head``."""
        with program(command, path) as process:
            assert process.stdout is not None
            process.stdout.close()
            process.wait()
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read() and process.returncode == 1


def program(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "botorch_calib.ledger", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def records(path: Path, capsys: Any, *words: object) -> dict[int, dict[str, str]]:
    assert run("salvage", path, *words) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    return {int(row["id"]): row for row in rows}


def as_text(ledger: FeedbackLedger) -> dict[int, dict[str, str]]:
    return {
        record["id"]: {k: "" if v is None else str(v) for k, v in record.items()}
        for record in ledger.to_records()
    }


class TestSalvage:
    def test_intact_files(self, path, capsys) -> None:
        before = path.read_bytes()
        assert records(path, capsys) == as_text(FeedbackLedger.open(path))
        assert path.read_bytes() == before

    def test_a_new_ledger_of_it(self, path, capsys) -> None:
        new = path.with_name("new.db")
        records(path, capsys, "--into", new)
        ledger, copy = FeedbackLedger.open(path), FeedbackLedger.open(new)
        assert copy.trials == ledger.trials and copy.maximize is False
        assert copy.submit([0.0, 0.0, 0.0]) == 160

    @pytest.mark.parametrize("room", [1024, 32768])
    def test_a_full_disk_is_no_end(self, path, capsys, room) -> None:
        """Neither before nor after the new ledger has its settings."""
        resource = pytest.importorskip("resource")
        new, limits = path.with_name("new.db"), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            assert run("salvage", path, "--into", new) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "new.db cannot be used" in capsys.readouterr().err
        assert run("salvage", path, "--into", new) == 0
        assert len(FeedbackLedger.open(new)) == 160

    @pytest.mark.parametrize("damage", ["beginning", "end", "middle"])
    def test_damaged_pages_cost_only_what_stood_there(self, path, capsys, damage) -> None:
        whole = as_text(FeedbackLedger.open(path))
        data = bytearray(path.read_bytes())
        if damage == "beginning":
            data[:PAGE] = b"\xff" * PAGE
        elif damage == "end":
            del data[-3 * PAGE - 100 :]
        else:
            start = len(data) // 2 // PAGE * PAGE
            data[start : start + PAGE] = random.Random(0).randbytes(PAGE)
        path.write_bytes(data)
        with pytest.raises(DamagedLedgerError):
            FeedbackLedger.open(path)
        assert run("salvage", path) == 0
        captured = capsys.readouterr()
        found = {int(row["id"]): row for row in csv.DictReader(io.StringIO(captured.out))}
        assert found == {i: row for i, row in whole.items() if i in found}
        assert len(found) > (120 if damage != "beginning" else 159)
        lost = sorted(whole.keys() - found.keys())
        assert f"{len(found)} trials are intact" in captured.err
        assert ("Lost: " + ", ".join(map(str, lost)) in captured.err) == bool(lost)

    def test_settings_that_are_lost(self, path, capsys) -> None:
        """They are in the second page."""
        whole = FeedbackLedger.open(path).snapshot()
        data = bytearray(path.read_bytes())
        data[PAGE : 2 * PAGE] = bytes(PAGE)
        path.write_bytes(data)
        found = salvage(path)
        assert found.header is None and found.settings.dim == 3
        assert [entry.id for entry in found.entries] == list(range(160))
        assert [entry.y for entry in found.entries] == [trial.y for trial in whole]

    @pytest.mark.parametrize("seed", range(3))
    def test_nothing_wrong_is_ever_salvaged(self, path, seed) -> None:
        rng, whole = random.Random(seed), path.read_bytes()
        expected = {entry.id: entry for entry in salvage(path).entries}
        for _ in range(10):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 30)):
                start, width = rng.randrange(len(data)), rng.choice([1, 4, 100, 1000])
                data[start : start + width] = rng.randbytes(len(data[start : start + width]))
            path.write_bytes(data)
            try:
                found = salvage(path)
            except DamagedLedgerError:
                continue
            assert all(entry == expected[entry.id] for entry in found.entries)

    @pytest.mark.parametrize("data", [b"", b"text\n" * 5000, bytes(5 * PAGE)])
    def test_files_without_any(self, tmp_path, capsys, data) -> None:
        path = tmp_path / "ledger.db"
        path.write_bytes(data)
        assert run("salvage", path) == 1
        assert "No trial is intact" in capsys.readouterr().err
