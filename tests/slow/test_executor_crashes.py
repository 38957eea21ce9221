"""The asynchronous optimizer while its workers and its process are killed repeatedly."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from botorch_calib.asynchronous import PebbleExecutor
from botorch_calib.ledger import FeedbackLedger
from tests.asynchronous.objectives import die_by_chance, dies, is_alive, runs, wait_until
from tests.asynchronous.runs import ids, make_optimizer, observed, processes, squares

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NUM_EVALUATIONS = 400

SCRIPT = """
import sys
from pathlib import Path

if __name__ == "__main__":
    from functools import partial

    from botorch_calib.asynchronous import PebbleExecutor
    from botorch_calib.ledger import FeedbackLedger
    from tests.asynchronous.objectives import nap
    from tests.asynchronous.runs import make_optimizer, processes

    folder = Path(sys.argv[1])
    ledger = FeedbackLedger.open(folder / "ledger", 1)
    make = processes(3) if len(ledger) % 2 else partial(PebbleExecutor, 3)
    optimizer = make_optimizer(make, partial(nap, folder), ledger, max_parallel=3)
    print("begin", flush=True)
    optimizer.run(int(sys.argv[2]))
"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [partial(PebbleExecutor, 4), processes(4)])
def test_dying_workers(tmp_path: Path, seed: int, make: Any) -> None:
    """A fifth of the trials kill their worker; no other fails, and with Pebble none runs twice."""
    deadly = [query for query in range(40) if dies(seed, query)]
    assert len(deadly) >= 3
    ledger, objective = FeedbackLedger(1), partial(die_by_chance, tmp_path, seed)
    make_optimizer(make, objective, ledger, max_parallel=4).run(40)
    assert ids(ledger, "failed") == deadly
    assert observed(ledger) == squares(*{*range(40)} - {*deadly})
    most = max(len(runs(tmp_path, query)) for query in range(40))
    assert most == (1 if make.func is PebbleExecutor else 2)


def interrupt(folder: Path, how: int, delay: float, num_values: int) -> None:
    """Start or resume a run, end it after a while, and check that no worker outlives ctrl-C.

    The delay begins when the ledger holds ``num_values`` values.
    """
    process = subprocess.Popen(
        [sys.executable, str(folder / "script.py"), str(folder), str(NUM_EVALUATIONS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "begin\n"
        wait_until(lambda: len(observed(FeedbackLedger.read(folder / "ledger"))) >= num_values)
        time.sleep(delay)
        if how == 0:
            process.kill()
            process.wait(timeout=60)
            return
        os.killpg(process.pid, signal.SIGINT) if how == 1 else process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT, errors
        assert errors.rstrip().endswith("KeyboardInterrupt")
        workers = {
            pid for path in folder.glob("runs-*") for pid in map(int, path.read_text().split())
        }
        assert not any(map(is_alive, workers))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_interrupted_again_and_again(tmp_path: Path) -> None:
    """Whenever a run ends, no known value is lost, and the next run continues from there.

    Every other run is ended after it has recorded a value, however slowly its workers start; the
    others may be ended before their workers have started.
    """
    (tmp_path / "script.py").write_text(SCRIPT, encoding="ascii")
    generator = random.Random(0)
    FeedbackLedger.open(tmp_path / "ledger", 1)
    known: dict[int, float | None] = {}
    for number in range(8):
        delay = generator.uniform(0.0, 2.0)
        interrupt(tmp_path, number % 3, delay, len(known) + 1 if number % 2 else 0)
        ledger = FeedbackLedger.read(tmp_path / "ledger")
        assert observed(ledger).items() >= known.items()
        known = observed(ledger)
        statuses = {trial.status.value for trial in ledger.trials}
        assert statuses <= {"pending", "observed"}
        assert len(ledger) - len(known) <= 3
    assert 0 < len(known) < NUM_EVALUATIONS
