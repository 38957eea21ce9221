"""The asynchronous optimizer on process pools whose workers, or itself, are killed."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from botorch_calib.asynchronous import timeouts_and_retries, worker_pools
from botorch_calib.asynchronous.worker_pools import WorkerPool
from botorch_calib.exceptions import EvaluationError
from botorch_calib.ledger import FeedbackLedger
from tests.asynchronous.objectives import (
    die_always,
    die_once,
    hang,
    interrupt,
    is_alive,
    loaded_heavy_modules,
    noted_square,
    raise_stubborn,
    runs,
    square,
    wait_for_run,
    wait_until,
)
from tests.asynchronous.runs import (
    count_up,
    ids,
    make_optimizer,
    make_processes,
    observed,
    processes,
)
from tests.timeouts import threads_of_tests

ROOT = Path(__file__).parents[2]


def squares(*queries: int) -> dict[int, float]:
    return {query: float(query**2) for query in queries}


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """No test may leave a process or a thread."""
    threads = threads_of_tests()
    yield
    assert multiprocessing.active_children() == []
    assert threads_of_tests() <= threads


def test_workers_are_light() -> None:
    """Neither torch nor this package is imported in workers, and all of them end with the run."""
    ledger = FeedbackLedger(1)
    make_optimizer(processes(2), loaded_heavy_modules, ledger, max_parallel=2).run(4)
    assert observed(ledger) == dict.fromkeys(range(4), 0.0)


def make_stillborn(context: str = "spawn") -> ProcessPoolExecutor:
    """A process pool whose workers die before they do anything."""
    return ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context(context), initializer=os._exit, initargs=(1,)
    )


def test_workers_that_die_by_themselves_cost_no_trial() -> None:
    ledger = FeedbackLedger(1)
    with pytest.raises(EvaluationError, match="die by themselves"):
        make_optimizer(make_stillborn, np.sum, ledger).run(3)
    assert ids(ledger, "failed") == [] and ids(ledger, "pending") == [0]
    # With workers that start, the run continues.
    make_optimizer(processes(1), np.sum, ledger).run(3)
    assert observed(ledger) == {0: 0.0, 1: 1.0, 2: 2.0}


class TestWorkerDeath:
    def test_once(self, tmp_path: Path) -> None:
        ledger = FeedbackLedger(1)
        objective = functools.partial(die_once, tmp_path, 2)
        summary = make_optimizer(processes(2), objective, ledger, max_parallel=2).run(6)
        assert observed(ledger) == squares(*range(6)) and summary.num_failed == 0
        assert len(runs(tmp_path, 2)) == 2

    @pytest.mark.parametrize("max_retries", [1, 2])
    def test_every_time(
        self, tmp_path: Path, max_retries: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Only the trial that is to blame fails, though another one dies with it."""
        ledger = FeedbackLedger(1)
        objective = functools.partial(die_always, tmp_path, 1, 2)
        make_optimizer(
            processes(3), objective, ledger, max_parallel=3, max_retries=max_retries
        ).run(6)
        assert observed(ledger) == squares(0, 2, 3, 4, 5)
        assert f"(it was run {max_retries + 1} times)" in ledger[1].note
        assert len(runs(tmp_path, 1)) == max_retries + 1
        assert len(runs(tmp_path, 2)) == 2
        assert "Trial 2 runs again: its worker died" in caplog.text

    def test_never_run_again(self, tmp_path: Path) -> None:
        ledger = FeedbackLedger(1)
        objective = functools.partial(die_once, tmp_path, 1)
        make_optimizer(processes(1), objective, ledger, max_retries=0).run(3)
        assert observed(ledger) == squares(0, 2)
        assert "it was run once" in ledger[1].note

    def test_executor_that_cannot_be_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger"
        ledger = FeedbackLedger.open(path, 1)
        objective = functools.partial(die_once, tmp_path, 2)
        with make_processes(2) as pool:
            optimizer = make_optimizer(pool, objective, ledger, max_parallel=2)
            with pytest.raises(EvaluationError, match="pass a function that makes one") as caught:
                optimizer.run(6)
        assert "terminated abruptly" in str(caught.value.__cause__)
        reopened = FeedbackLedger.open(path)
        assert 2 in ids(reopened, "pending") and not ids(reopened, "failed")
        make_optimizer(processes(2), objective, reopened, max_parallel=2).run(6)
        assert observed(ledger) == squares(*range(6))

    def test_idle_worker(self, tmp_path: Path) -> None:
        """A pool may break while nothing runs in it."""
        made: list[Any] = []

        def make() -> Executor:
            made.append(make_processes(1))
            return made[-1]

        def propose(ledger: FeedbackLedger) -> Tensor:
            if len(ledger) == 2:
                (worker,) = made[-1]._processes.values()
                manager = made[-1]._executor_manager_thread
                worker.kill()
                manager.join()
            return count_up(ledger)

        ledger = FeedbackLedger(1)
        objective = functools.partial(noted_square, tmp_path)
        make_optimizer(make, objective, ledger, propose).run(4)
        assert observed(ledger) == squares(0, 1, 2, 3) and len(made) == 2
        assert [len(runs(tmp_path, query)) for query in range(4)] == [1, 1, 1, 1]

    def test_result_that_breaks_the_pool(self) -> None:
        ledger = FeedbackLedger(1)
        make_optimizer(processes(2), raise_stubborn, ledger, max_parallel=2).run(4)
        assert observed(ledger) == squares(0, 2, 3)
        assert "missing 1 required positional argument: 'second')" in ledger[1].note

    def test_killed_while_it_sends_a_result(self, tmp_path: Path) -> None:
        executor = make_processes(1)
        pool = WorkerPool(executor, owned=True)
        future = pool.submit(functools.partial(hang, tmp_path, 0, -1), np.array([0.0]))
        wait_for_run(tmp_path, 0)
        # Half a result: the length that a worker sends ahead, without the 100 bytes themselves.
        results: Any = executor._result_queue
        os.write(results._writer.fileno(), struct.pack("!i", 100))
        killer = threading.Thread(target=pool.kill, daemon=True)
        killer.start()
        killer.join(30)
        assert not killer.is_alive()
        assert isinstance(future.exception(timeout=0), BrokenExecutor)

    def test_private_pool_has_one_process(self, tmp_path: Path) -> None:
        pool = WorkerPool(make_processes(3), owned=True)
        pool.confine()
        objective = functools.partial(noted_square, tmp_path)
        futures = [pool.submit(objective, np.array([float(query)])) for query in range(6)]
        assert [future.result() for future in futures] == list(squares(*range(6)).values())
        pool.close(wait=True)
        assert len({pid for query in range(6) for pid in runs(tmp_path, query)}) == 1


class TestTimeouts:
    def test_worker_is_killed_and_others_run_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Trials 1 and 3 run for ever, but 3 would return if it were run again."""
        now = 0.0

        def propose(ledger: FeedbackLedger) -> Tensor:
            nonlocal now
            number = len(ledger)
            # A trial is seen to run, at the latest, after the choice that waits for it.
            if number in (2, 4):
                wait_for_run(tmp_path, number - 1)
            now = 52.5 if number >= 5 else float(number)
            return count_up(ledger)

        ledger = FeedbackLedger(1)
        clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
        monkeypatch.setattr(timeouts_and_retries, "time", clock)
        objective = functools.partial(hang, tmp_path, 1, 3)
        make_optimizer(
            processes(3), objective, ledger, propose, max_parallel=3, timeout=50.0, max_retries=0
        ).run(7)
        assert ledger[1].note == "timed out after 50 seconds"
        assert observed(ledger) == squares(0, 2, 3, 4, 5, 6)
        assert len(runs(tmp_path, 1)) == 1 and len(runs(tmp_path, 3)) == 2
        assert not any(map(is_alive, runs(tmp_path, 1) + runs(tmp_path, 3)))
        assert "runs again" not in caplog.text

    def test_time_in_the_queue_does_not_count(self, tmp_path: Path) -> None:
        """Process pools call what is in their queue running."""
        pool = WorkerPool(make_processes(1), owned=True)
        objective = functools.partial(hang, tmp_path, 0, -1)
        first, second = (pool.submit(objective, np.array([i])) for i in (0.0, 1.0))
        wait_for_run(tmp_path, 0)
        wait_until(second.running)
        started = [pool.has_started(future) for future in (first, second)]
        pool.kill()
        assert started == [True, False]


def test_interrupt_in_a_worker() -> None:
    ledger = FeedbackLedger(1)
    optimizer = make_optimizer(processes(1), interrupt, ledger)
    with pytest.raises(KeyboardInterrupt):
        optimizer.run(4)
    assert observed(ledger) == squares(0) and ids(ledger, "pending") == [1]


# A run whose first two trials finish, and whose others wait until they may.
SCRIPT = """
import sys
from pathlib import Path

if __name__ == "__main__":
    from functools import partial

    from botorch_calib.ledger import FeedbackLedger
    from tests.asynchronous.objectives import wait_for_go
    from tests.asynchronous.runs import make_optimizer, processes

    folder = Path(sys.argv[1])
    ledger = FeedbackLedger.open(folder / "ledger", 1)
    objective = partial(wait_for_go, folder)
    pool = processes(3, ignore_interrupts=False)
    make_optimizer(pool, objective, ledger, max_parallel=3).run(8, progress=True)
"""


@contextmanager
def run_script(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run in a process group of its own, as of a terminal, once its trials 2, 3, 4 run."""
    script = folder / "script.py"
    script.write_text(SCRIPT, encoding="ascii")
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for query in (2, 3, 4):
            wait_for_run(folder, query)
        yield process
    finally:
        # Workers of a process that was killed wait for work for ever.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finish(folder: Path) -> None:
    """Resume the run of the script here, and check that it completes the trials by their ids."""
    ledger = FeedbackLedger.open(folder / "ledger")
    assert observed(ledger) == squares(0, 1)
    assert ids(ledger, "pending") == [2, 3, 4] and len(ledger) == 5
    submitted = [trial.submitted_at for trial in ledger.trials]
    (folder / "go").touch()
    make_optimizer(
        processes(3), functools.partial(noted_square, folder), ledger, max_parallel=3
    ).run(8)
    assert observed(ledger) == squares(*range(8))
    assert [trial.submitted_at for trial in ledger.trials][:5] == submitted
    assert [len(runs(folder, query)) for query in range(8)] == [1, 1, 2, 2, 2, 1, 1, 1]


def test_ctrl_c(tmp_path: Path) -> None:
    with run_script(tmp_path) as process:
        workers = {pid for query in range(5) for pid in runs(tmp_path, query)}
        assert len(workers) == 3 and all(map(is_alive, workers))
        begin = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - begin < 10
        assert process.returncode == -signal.SIGINT
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert "2/8" in errors
        assert not any(map(is_alive, workers))
    finish(tmp_path)


def test_kill_of_the_optimizer(tmp_path: Path) -> None:
    with run_script(tmp_path) as process:
        process.kill()
        assert process.wait(timeout=30) == -signal.SIGKILL
    finish(tmp_path)


class ClosedPipes:
    """A process pool that cannot start a process; it may say later that it is broken."""

    def __init__(self, breaks: bool) -> None:
        self._processes: dict[int, Any] = {}
        self._broken: str | bool = False
        self.breaks = breaks

    def submit(self, objective: Any, x: np.ndarray) -> None:
        if self.breaks:
            threading.Timer(0.1, setattr, (self, "_broken", "a worker died")).start()
        raise OSError("handle is closed")


def test_a_pool_that_breaks_while_it_starts_a_process_is_broken() -> None:
    executor: Any = ClosedPipes(breaks=True)
    with pytest.raises(BrokenExecutor, match="handle is closed"):
        WorkerPool(executor, owned=True).submit(square, np.zeros(1))


def test_other_failures_to_start_a_process_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pools, "GRACE", 0.1)
    executor: Any = ClosedPipes(breaks=False)
    with pytest.raises(OSError, match="handle is closed"):
        WorkerPool(executor, owned=True).submit(square, np.zeros(1))
