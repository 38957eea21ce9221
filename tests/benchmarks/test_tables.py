"""Committed tables agree exactly with their committed archives."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.framework import plots
from benchmarks.framework.protocol import configuration_hash
from benchmarks.framework.report import TABLES_DIR
from benchmarks.framework.stored_results import ARCHIVE_SUFFIX, ARCHIVES_DIR
from benchmarks.suites import SUITES
from tests.documentation import DOCS, IN_CHECKOUT
from tests.long_grids import mostly_slow

# Archives without a table belong to suites that are not complete.
OF_SUITES = [path for path in sorted(TABLES_DIR.glob("*.md")) if path.stem in SUITES]


def is_present(table: Path) -> bool:
    """Whether a table has the present configuration of its suite, like the archive."""
    stated = re.search(r"configuration `(\w+)`", table.read_text(encoding="utf-8"))
    return stated is None or stated[1] == configuration_hash(SUITES[table.stem])


TABLES = [
    path
    for path in OF_SUITES
    if is_present(path) and (ARCHIVES_DIR / f"{path.stem}{ARCHIVE_SUFFIX}").exists()
]

# A suite on calibration, on delays and on robustness, with small archives.
QUICK = {"delay_workers", "misspecified", "robust_shift"}


def test_archives_are_of_suites() -> None:
    files = [path for path in ARCHIVES_DIR.rglob("*") if path.is_file()]
    assert all(path.parent in (ARCHIVES_DIR, ARCHIVES_DIR / "unreported") for path in files)
    names = {path.name.removesuffix(ARCHIVE_SUFFIX) for path in files}
    assert names <= SUITES.keys()
    tables = {path.stem for path in TABLES}
    assert "misspecified" in tables
    assert "robust_shift" in tables or not IN_CHECKOUT


def test_a_table_of_an_earlier_configuration_names_the_commit_that_gives_it() -> None:
    earlier = [table for table in OF_SUITES if not is_present(table)]
    pages = [DOCS / "results" / table.name for table in earlier]
    unnamed = [
        page.name
        for page in pages
        if not re.search(r"in commit `\w{8}`", page.read_text(encoding="utf-8"))
    ]
    assert not unnamed


@pytest.mark.parametrize(
    "table",
    mostly_slow(TABLES, [path for path in TABLES if path.stem in QUICK]),
    ids=[path.stem for path in TABLES],
)
def test_a_table_is_what_its_archive_says(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Figures are made but not drawn, since drawing takes most of the time.
    monkeypatch.setattr(plots, "save", lambda *args: None)
    text = table.read_text(encoding="utf-8")
    # The table states the command with its options.
    command = re.search(r"then `python -m benchmarks (report [^`]+)`", text)
    assert command is not None
    folders = [f"--{kind}={tmp_path / kind}" for kind in ("results", "tables", "figures")]
    assert main([*shlex.split(command[1]), *folders]) == 0
    assert (tmp_path / "tables" / table.name).read_text(encoding="utf-8") == text
