"""The asynchronous optimizer on the caller's process pools, which break when a worker dies."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from botorch_calib.asynchronous import evaluation_loop
from botorch_calib.asynchronous.callers_executors import CallersExecutors
from botorch_calib.exceptions import EvaluationError, EvaluationWarning
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
    def test_every_time(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Only the trial that is to blame fails, though another one dies with it."""
        ledger = FeedbackLedger(1)
        objective = functools.partial(die_always, tmp_path, 1, 2)
        make_optimizer(processes(3), objective, ledger, max_parallel=3).run(6)
        assert observed(ledger) == squares(0, 2, 3, 4, 5)
        assert "(it was run 2 times)" in ledger[1].note
        assert len(runs(tmp_path, 1)) == len(runs(tmp_path, 2)) == 2
        assert "Trial 2 runs again: its worker died" in caplog.text

    def test_executor_that_cannot_be_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger"
        ledger = FeedbackLedger.open(path, 1)
        objective = functools.partial(die_once, tmp_path, 2)
        with make_processes(2) as pool:
            optimizer = make_optimizer(pool, objective, ledger, max_parallel=2)
            with pytest.raises(EvaluationError, match="give a number of `workers`") as caught:
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

    def test_while_it_starts_a_process(self) -> None:
        """A pool that is just breaking closes the pipes that it needs."""

        class ClosedPipes(Executor):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
                raise OSError("handle is closed")

        made: list[Executor] = []

        def make() -> Executor:
            made.append(make_processes(1) if made else ClosedPipes())
            return made[-1]

        ledger = FeedbackLedger(1)
        make_optimizer(make, square, ledger).run(2)
        assert observed(ledger) == squares(0, 1) and len(made) == 2


class TestTimeouts:
    def test_late_process_is_killed_at_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Until then it keeps its worker, and the others go on."""
        now = 0.0

        def propose(ledger: FeedbackLedger) -> Tensor:
            nonlocal now
            if len(ledger) == 3:
                wait_for_run(tmp_path, 1)
                now = 60.0
            return count_up(ledger)

        clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
        monkeypatch.setattr(evaluation_loop, "time", clock)
        ledger = FeedbackLedger(1)
        objective = functools.partial(hang, tmp_path, 1, -1)
        with pytest.warns(EvaluationWarning, match="processes of `workers` can be ended"):
            make_optimizer(
                processes(2), objective, ledger, propose, max_parallel=2, timeout=50.0
            ).run(5)
        assert ledger[1].note == "timed out after 50 seconds"
        assert observed(ledger) == squares(0, 2, 3, 4)
        assert [len(runs(tmp_path, query)) for query in range(5)] == [1] * 5

    def test_time_in_the_queue_does_not_count(self, tmp_path: Path) -> None:
        """Process pools call what is in their queue running."""
        objective = functools.partial(hang, tmp_path, 0, -1)
        workers = CallersExecutors(make_processes(1), processes(1), objective)
        first, second = (workers.submit(np.array([i]), alone=False) for i in (0.0, 1.0))
        wait_for_run(tmp_path, 0)
        wait_until(second.running)
        started = [workers.has_started(future) for future in (first, second)]
        workers.close(kill=True)
        assert started == [True, False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is nothing to fork with")
@pytest.mark.filterwarnings("ignore:os.fork")  # by JAX, if a test before this one imported it
def test_forks_are_warned_of() -> None:
    """They may hang without a word."""
    ledger = FeedbackLedger(1)
    make = functools.partial(ProcessPoolExecutor, 1, mp_context=multiprocessing.get_context("fork"))
    with pytest.warns(EvaluationWarning, match=r"`workers` instead.*get_context\('spawn'\)"):
        make_optimizer(make, square, ledger).run(2)
    assert observed(ledger) == squares(0, 1)


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


def test_ctrl_c(tmp_path: Path) -> None:
    """In a process group of its own, as of a terminal; then the run is resumed here."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="ascii")
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for query in (2, 3, 4):
            wait_for_run(tmp_path, query)
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
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    ledger = FeedbackLedger.open(tmp_path / "ledger")
    assert observed(ledger) == squares(0, 1)
    assert ids(ledger, "pending") == [2, 3, 4] and len(ledger) == 5
    submitted = [trial.submitted_at for trial in ledger.trials]
    (tmp_path / "go").touch()
    objective = functools.partial(noted_square, tmp_path)
    make_optimizer(processes(3), objective, ledger, max_parallel=3).run(8)
    assert observed(ledger) == squares(*range(8))
    assert [trial.submitted_at for trial in ledger.trials][:5] == submitted
    assert [len(runs(tmp_path, query)) for query in range(8)] == [1, 1, 2, 2, 2, 1, 1, 1]
