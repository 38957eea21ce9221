"""The table of both rules follows from the archives."""

from __future__ import annotations

from pathlib import Path

from benchmarks.framework.report import TABLES_DIR
from benchmarks.studies.decisions_violations import Run, by_round, main, row


def test_a_row_adds_up_over_pairs() -> None:
    new, old = Run(1.0, 8.0, 10, 2.0, True), Run(2.0, 10.0, 10, 1.5, False)
    other = Run(2.0, 12.0, 20, 1.0, True)
    cells = row("case", "budget", [(new, old), (other, old)])
    assert cells[:7] == ["case", "budget", "2", "15.0", "20.0", "67", "100"]
    assert (
        cells[7:9] == ["1.50", "1.50"]
        and cells[9].startswith("+0.00 (")
        and cells[10:] == ["2", "0"]
    )


def test_shares_by_round_are_pooled_over_runs() -> None:
    runs = [Run(0.0, 0.0, 0, 0.0, True, counts) for counts in (((1, 4), (0, 0)), ((2, 8), (0, 0)))]
    assert by_round("suite", "budget", runs) == ["suite", "budget", "25.0 of 12", "– of 0"]


def test_the_committed_table_is_that_of_the_archives(tmp_path: Path) -> None:
    assert main(["--tables", str(tmp_path)]) == 0
    name = "decisions_violations.md"
    assert (tmp_path / name).read_text() == (TABLES_DIR / name).read_text()
