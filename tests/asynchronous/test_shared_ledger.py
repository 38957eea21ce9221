"""Several optimizers on one ledger, in threads and in processes that are killed."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from botorch_calib.asynchronous import AsynchronousOptimizer, RunSummary
from botorch_calib.asynchronous.worker_pools import WorkerPool
from botorch_calib.asynchronous.worker_processes import ProcessSupply
from botorch_calib.ledger import FeedbackLedger, presence, storage_on_disk
from botorch_calib.ledger.presence import Presence
from tests.asynchronous.objectives import noted_square, runs, square, wait_for_run, wait_until
from tests.asynchronous.runs import Gates, Inline, Threads, count_up, ids, make_optimizer, observed

ROOT = Path(__file__).parents[2]


def slow_count_up(ledger: FeedbackLedger) -> Tensor:
    """As `count_up`, with time for others to come between."""
    x = count_up(ledger)
    time.sleep(random.uniform(0.0, 0.02))
    return x


def napping_square(x: np.ndarray, longest: float = 0.05) -> float:
    time.sleep(random.uniform(0.0, longest))
    return square(x)


def check_each_query_knew_the_others(ledger: FeedbackLedger, goal: int) -> None:
    """`count_up` makes equal queries if two are chosen without knowledge of each other."""
    assert [trial.x.item() for trial in ledger.trials] == list(range(goal))
    assert ids(ledger, "observed") == list(range(goal))


@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize("resume", ["rerun", "keep"])
def test_threads_share_a_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool, resume: str
) -> None:
    """No query is made twice by a race, and none more than the goal."""
    monkeypatch.setattr(storage_on_disk, "SYNCHRONOUS", "OFF")
    memory = FeedbackLedger(1)

    def run(_: int) -> RunSummary:
        ledger = FeedbackLedger.open(tmp_path / "ledger", 1) if on_disk else memory
        with ThreadPoolExecutor(2) as pool:
            optimizer = make_optimizer(
                pool, napping_square, ledger, slow_count_up, max_parallel=2, resume=resume
            )
            return optimizer.run(24)

    with ThreadPoolExecutor(4) as pool:
        summaries = list(pool.map(run, range(4)))
    check_each_query_knew_the_others(
        FeedbackLedger.open(tmp_path / "ledger") if on_disk else memory, 24
    )
    assert all(summary.num_observed == 24 for summary in summaries)


SCRIPT = """
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from botorch_calib.ledger import FeedbackLedger
from tests.asynchronous.objectives import wait_for_go
from tests.asynchronous.runs import make_optimizer
from tests.asynchronous.test_shared_ledger import napping_square, slow_count_up

folder, what, goal, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
objective = {
    "nap": napping_square,
    "long nap": partial(napping_square, longest=1.0),
    "wait": partial(wait_for_go, folder),
}[what]
ledger = FeedbackLedger.open(folder / "ledger", 1)
with ThreadPoolExecutor(workers) as pool:
    make_optimizer(pool, objective, ledger, slow_count_up, workers).run(goal)
"""


@contextmanager
def start(folder: Path, what: str, goal: int, workers: int) -> Iterator[subprocess.Popen[str]]:
    """An optimizer in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), what, str(goal), str(workers)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_processes_share_a_ledger(tmp_path: Path) -> None:
    with start(tmp_path, "nap", 30, 3) as first, start(tmp_path, "nap", 30, 3) as second:
        for process in (first, second):
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    check_each_query_knew_the_others(FeedbackLedger.open(tmp_path / "ledger"), 30)


def test_trials_of_a_process_that_dies_are_run_by_others(tmp_path: Path) -> None:
    """They are left alone as long as it lives."""
    with start(tmp_path, "wait", 8, 4) as process:
        for query in (2, 3, 4, 5):
            wait_for_run(tmp_path, query)
        ledger = FeedbackLedger.open(tmp_path / "ledger")
        objective = functools.partial(noted_square, tmp_path)
        with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(1) as own:
            optimizer = make_optimizer(pool, objective, ledger, max_parallel=2)
            run = own.submit(optimizer.run, 8)
            wait_until(lambda: ids(ledger, "observed") == [0, 1, 6, 7])
            time.sleep(1.5)  # longer than the loop takes to look
            assert ids(ledger, "pending") == [2, 3, 4, 5] and not run.done()
            assert [len(runs(tmp_path, query)) for query in range(8)] == [1] * 8
            process.send_signal(signal.SIGKILL)
            assert run.result(60).num_observed == len(ledger) == 8
    assert [len(runs(tmp_path, query)) for query in range(8)] == [1, 1, 2, 2, 2, 2, 1, 1]
    assert observed(ledger) == {i: float(i * i) for i in range(8)}


def test_trials_of_a_run_that_ends_early_are_run_by_others() -> None:
    """Here within one process, which lives on."""
    ledger, gates = FeedbackLedger(1), Gates()

    def propose(ledger: FeedbackLedger) -> Tensor:
        if len(ledger) == 2:
            raise ZeroDivisionError
        return count_up(ledger)

    with Threads(2) as pool:
        with pytest.raises(ZeroDivisionError):
            make_optimizer(pool, gates, ledger, propose, max_parallel=3).run(4)
        assert make_optimizer(Inline(), square, ledger).run(4).num_observed == 4
        gates.open(0, 1)
    assert observed(ledger) == {0: 0.0, 1: 1.0, 2: 4.0, 3: 9.0}


def test_a_query_submitted_by_hand_makes_the_choice_invalid() -> None:
    """It is chosen again with knowledge of the other."""
    ledger, seen = FeedbackLedger(1), []

    def propose(ledger: FeedbackLedger) -> Tensor:
        seen.append(len(ledger))
        x = count_up(ledger)
        if len(seen) == 2:
            ledger.submit([77.0])
        return x

    make_optimizer(Inline(), square, ledger, propose).run(3)
    assert seen == [0, 1, 2, 3]
    assert [trial.x.item() for trial in ledger.trials] == [0.0, 77.0, 2.0, 3.0]
    assert ids(ledger, "pending") == [1]  # it is somebody else's


def test_a_choice_that_hangs_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for it for a while. When it returns after all, it is made again."""
    monkeypatch.setattr(presence, "TURN_SECONDS", 0.2)
    ledger, hangs, goes_on = FeedbackLedger(1), threading.Event(), threading.Event()
    seen: list[int] = []

    def propose(ledger: FeedbackLedger) -> Tensor:
        x = count_up(ledger)
        seen.append(len(ledger))
        if len(seen) == 1:
            hangs.set()
            assert goes_on.wait(60)
        return x

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(make_optimizer(Inline(), square, ledger, propose).run, 5)
        assert hangs.wait(60)
        assert make_optimizer(Inline(), square, ledger).run(3).num_observed == 3
        goes_on.set()
        assert run.result(60).num_observed == 5
    assert seen == [0, 3, 4]
    check_each_query_knew_the_others(ledger, 5)


def test_a_run_that_was_taken_for_dead_goes_on() -> None:
    """Its trial is run by another one, and its own value is not needed any more."""
    ledger, gates = FeedbackLedger(1), Gates()
    with Threads(2) as pool, ThreadPoolExecutor(1) as own:
        run = own.submit(make_optimizer(pool, gates, ledger).run, 3)
        wait_until(lambda: len(pool.futures) == 1)
        with ledger._storage.transaction() as change:
            change.owners.clear()
        assert make_optimizer(Inline(), square, ledger).run(1).num_observed == 1
        gates.open(0, 1, 2)
        assert run.result(60).num_observed == 3
    assert observed(ledger) == {0: 0.0, 1: -1.0, 2: -2.0}


def test_waiting_for_a_turn_starts_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is ready for the next trial stays ready."""
    make, made, ledger = ProcessSupply._make, [], FeedbackLedger(1)

    def count(self: ProcessSupply) -> WorkerPool:
        made.append(make(self))
        return made[-1]

    monkeypatch.setattr(ProcessSupply, "_make", count)
    optimizer = AsynchronousOptimizer(objective=square, ledger=ledger, propose=count_up, workers=1)
    with Presence(ledger._storage) as other, ThreadPoolExecutor(1) as own:
        assert other.take_turn()
        run = own.submit(optimizer.run, 2, progress=False)
        wait_until(lambda: made)
        time.sleep(0.5)  # many times as long as between two looks
        assert len(made) == 1 and len(ledger) == 0
        other.pass_turn()
        assert run.result(60).num_observed == 2
    assert len(made) == 1
