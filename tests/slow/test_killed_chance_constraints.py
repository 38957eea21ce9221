"""A loop under a chance constraint is killed, and continues from its ledger."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from botorch_calib import FeedbackLedger
from tests.decisions import ledger_loops as loops

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", loops.KINDS)
def test_a_killed_loop_goes_on_as_if_it_had_not_been(kind: str, tmp_path: Path) -> None:
    """Killed after decisions and after their records: the same decisions, to the last bit."""
    path, memory = tmp_path / "ledger.db", FeedbackLedger(1)
    carried = loops.carry_on(memory, kind, 40)
    for kill_at in (9, 10, 23, -1):
        command = [sys.executable, "-m", "tests.decisions.ledger_loops", str(path), kind]
        done = subprocess.run([*command, str(kill_at)], cwd=ROOT, timeout=300)
        assert done.returncode == (0 if kill_at < 0 else -signal.SIGKILL)
    ledger = FeedbackLedger.read(path)
    assert ledger.trials == memory.trials and ledger.decisions() == carried.decisions
