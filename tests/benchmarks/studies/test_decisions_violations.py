"""The table of both rules follows from the archives."""

from __future__ import annotations

from pathlib import Path

from benchmarks.framework.report import TABLES_DIR
from benchmarks.studies.decisions_violations import Run, by_round, main, row


def test_a_row_adds_up_over_pairs() -> None:
    def run(violations: int, certified: int, rounds: int, reward: float, is_safe: bool) -> Run:
        first, second = ([float(t < n) for t in range(rounds)] for n in (certified, violations))
        return Run(first, second, reward, is_safe)

    new, old = run(1, 8, 10, 2.0, True), run(2, 10, 10, 1.5, False)
    other = run(2, 12, 20, 1.0, True)
    cells = row("case", "budget", [(new, old), (other, old)])
    assert cells[:7] == ["case", "budget", "2", "15.0", "20.0", "67", "100"]
    assert (
        cells[7:9] == ["1.50", "1.50"]
        and cells[9].startswith("+0.00 (")
        and cells[10:] == ["2", "0"]
    )


def test_shares_by_round_are_pooled_over_runs() -> None:
    certified = [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    late = [0.0] * 13 + [1.0]
    runs = [Run(certified, late, 0.0, True), Run(certified[:12], certified[:12], 0.0, True)]
    cells = ["50.0 of 12", "100.0 of 1", "– of 0", "– of 0", "– of 0"]
    assert by_round("suite", "budget", runs) == ["suite", "budget", *cells]


def test_the_committed_table_is_that_of_the_archives(tmp_path: Path) -> None:
    assert main(["--tables", str(tmp_path)]) == 0
    name = "decisions_violations.md"
    assert (tmp_path / name).read_text() == (TABLES_DIR / name).read_text()
