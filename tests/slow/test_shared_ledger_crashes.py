"""Several optimizers on one ledger while their processes are killed again and again."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest

from botorch_calib.ledger import FeedbackLedger
from tests.asynchronous.test_shared_ledger import check_each_query_knew_the_others, start

pytestmark = pytest.mark.slow

GOAL = 80


def working(ledger: FeedbackLedger) -> set[int]:
    """Processes that evaluate a trial."""
    table, owners = ledger._storage.stock()
    return {owners[name].pid for name in table.owners().values() if name in owners}


@pytest.mark.parametrize("seed", range(2))
def test_killed_optimizers_leave_nothing_undone(tmp_path: Path, seed: int) -> None:
    """Whoever is left does what they have left, and nobody does anything twice or too much."""
    generator, num_kills = random.Random(seed), 0
    ledger = FeedbackLedger.open(tmp_path / "ledger", 1)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(start(tmp_path, "long nap", GOAL, 2)) for _ in range(3)]
        while len(ledger) < GOAL - 10:
            time.sleep(generator.uniform(0.0, 2.0))
            pids = working(ledger)
            victims = [i for i, process in enumerate(processes) if process.pid in pids]
            if victims:
                victim = generator.choice(victims)
                processes[victim].kill()
                processes[victim].wait()
                num_kills += 1
                processes[victim] = stack.enter_context(start(tmp_path, "long nap", GOAL, 2))
        for process in processes:
            _, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors
    assert num_kills >= 5
    check_each_query_knew_the_others(ledger, GOAL)
    assert [trial.y for trial in ledger.trials] == [float(i * i) for i in range(GOAL)]
