"""The command line end to end on the smoke suite, and its error messages."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.__main__ import main, restrict
from benchmarks.calibration.suites import WELLSPECIFIED
from benchmarks.framework.runner import parse_seeds


def test_run_then_report(tmp_path: Path, capsys) -> None:
    results = ["--results", str(tmp_path / "results")]
    assert main(["run", "smoke", "--seeds", "0:2", *results]) == 0
    assert "2 run, 0 finished before, 0 failed" in capsys.readouterr().out
    assert main(["run", "smoke", *results]) == 0
    assert "0 run, 2 finished before, 0 failed" in capsys.readouterr().out
    folders = ["--tables", str(tmp_path / "t"), "--figures", str(tmp_path / "f")]
    assert main(["report", "smoke", *results, *folders]) == 0
    assert "| random | 2 |" in capsys.readouterr().out
    assert (tmp_path / "t" / "smoke.md").exists()
    assert (tmp_path / "f" / "smoke.png").exists()


def test_an_archive_is_reported_and_not_run_again(tmp_path: Path, capsys) -> None:
    archives = ["--archives", str(tmp_path / "archives")]
    results = ["--results", str(tmp_path / "results"), *archives]
    assert main(["archive", "smoke", *results]) == 2
    assert "no results" in capsys.readouterr().err
    assert main(["run", "smoke", "--seeds", "0:2", *results]) == 0
    assert main(["archive", "smoke", *results]) == 0
    assert "smoke.jsonl.xz: 2 results, 2 new" in capsys.readouterr().out
    elsewhere = ["--results", str(tmp_path / "none"), *archives]
    assert main(["run", "smoke", "--seeds", "0:2", *elsewhere]) == 0
    assert "0 run, 2 finished before" in capsys.readouterr().out
    folders = ["--tables", str(tmp_path / "t"), "--figures", str(tmp_path / "f")]
    assert main(["report", "smoke", *elsewhere, *folders]) == 0
    assert "| random | 2 |" in capsys.readouterr().out
    (tmp_path / "archives" / "smoke.jsonl.xz").write_bytes(b"damaged")
    for command in (["run"], ["report"], ["archive"]):
        assert main([*command, "smoke", *elsewhere]) == 2
        assert "cannot be read" in capsys.readouterr().err


def test_unknown_names_and_missing_results_are_reported(tmp_path: Path, capsys) -> None:
    assert main(["report", "smoke", "--results", str(tmp_path)]) == 2
    assert "no results" in capsys.readouterr().err
    assert main(["run", "smoke", "--methods", "nope", "--results", str(tmp_path)]) == 2
    assert "nope" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "nope"])


def test_seeds() -> None:
    assert parse_seeds("7") == [7]
    assert parse_seeds("0,3,10:12") == [0, 3, 10, 11]
    for text in ("", "a", "3:3", "1,1", "-1", "0:2:4"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_seeds(text)


def test_restrict() -> None:
    suite = restrict(WELLSPECIFIED, ["matern_2d"], ["ocbo", "locbo"])
    assert [p.name for p in suite.problems] == ["matern_2d"]
    assert [m.name for m in suite.methods] == ["locbo", "ocbo"]
    assert suite.baseline == "locbo"
    assert restrict(WELLSPECIFIED, None, None) == WELLSPECIFIED
