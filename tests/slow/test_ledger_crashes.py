"""Writers of a ledger are killed, open it at the same time, and fork while they write.

`tests.ledger.writers` checks after each round that every acknowledged call is in the file with its
query and value, and at most one more call of each killed writer. Run with ``-s`` for the figures.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ledger.writers import run_writers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are forked"),
]


def test_killed_writers_lose_nothing(tmp_path: Path) -> None:
    """Hundreds of kills, mostly during a change."""
    rounds = 500
    (tally,) = run_writers(tmp_path, f"kill,{rounds},1").values()
    assert tally["rounds"] == rounds
    assert tally["acknowledged"] > rounds / 2
    # Unfinished changes leave a journal, from which the next opening undoes them.
    assert tally["interrupted"] > rounds / 10
    assert tally["unacknowledged"] > 0  # killed between a change and its report


def test_changes_that_are_cut_short_are_undone(tmp_path: Path) -> None:
    """Each writer ends between two pages of a change, or within one."""
    (tally,) = run_writers(tmp_path, "cut,150,2").values()
    assert tally == {"rounds": 150, "interrupted": 150}


def test_one_process_gets_the_ledger(tmp_path: Path) -> None:
    (tally,) = run_writers(tmp_path, "contend,20,4").values()
    assert tally == {"rounds": 20, "lost": 60}


def test_forks_inherit_no_lock(tmp_path: Path) -> None:
    """Without the lock around forks this hangs sooner or later."""
    (tally,) = run_writers(tmp_path, "fork,400").values()
    assert tally["forks"] == 400
