"""Runs `tests.ledger.writers` as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_writers(folder: Path, *tasks: str) -> dict[str, dict[str, int]]:
    """Do tasks such as ``"kill,10,1,0"``: with real synchronisation, and away from any threads.

    Returns:
        For each task what it counted; a task that finds a fault fails the test.
    """
    command = [sys.executable, "-m", "tests.ledger.writers", str(folder), *tasks]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    tallies: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    for task, tally in tallies.items():
        print(f"\n{task}: {tally}", end="")
    return tallies
