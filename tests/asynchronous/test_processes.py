"""The asynchronous optimizer on processes: Pebble's, and pools that break when one dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from tqdm import TMonitor

from botorch_calib.asynchronous import PebbleExecutor
from botorch_calib.exceptions import EvaluationError
from botorch_calib.ledger import FeedbackLedger
from tests.asynchronous.objectives import (
    die,
    hang,
    interrupt,
    is_alive,
    leave,
    loaded_heavy_modules,
    noted_square,
    runs,
    send_badly,
    square,
    start_program,
    wait_for_run,
    wait_until,
)
from tests.asynchronous.runs import count_up, ids, make_optimizer, observed, processes, squares
from tests.long_grids import mostly_slow
from tests.timeouts import threads_of_tests

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """No test may leave a process or a thread, but for tqdm's monitor."""
    threads = threads_of_tests()
    yield
    wait_until(lambda: not multiprocessing.active_children())
    wait_until(lambda: not {t for t in threads_of_tests() - threads if not isinstance(t, TMonitor)})


def is_at_end(reader: int) -> bool:
    """Whether no process can write into a pipe any more."""
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False


class LatePool(ProcessPoolExecutor):
    """A pool to which its second, slow worker is added only after the pool has broken."""

    def _spawn_process(self) -> None:
        pool: Any = self
        first = dict(pool._processes)
        super()._spawn_process()  # type: ignore[misc]
        if first:
            pid, process = pool._processes.popitem()
            for _ in range(100):
                time.sleep(0.0 if pool._broken else 0.01)
            pool._processes[pid] = process


@pytest.mark.parametrize("make", [processes(2), partial(PebbleExecutor, 2)])
def test_workers_are_light(make: Any) -> None:
    """Workers import neither torch nor this package, and end with the run."""
    ledger = FeedbackLedger(1)
    make_optimizer(make, loaded_heavy_modules, ledger, max_parallel=2).run(4)
    assert observed(ledger) == dict.fromkeys(range(4), 0.0)


@pytest.mark.parametrize("kind", [processes, partial(partial, PebbleExecutor)])
def test_workers_that_cannot_evaluate_cost_no_trial(kind: Any) -> None:
    """They do not start, or the objective cannot be sent to them."""
    ledger = FeedbackLedger(1)
    with pytest.raises(EvaluationError, match="Workers cannot evaluate.*BrokenProcessPool"):
        make_optimizer(kind(1, initializer=os._exit, initargs=(1,)), square, ledger).run(3)
    with pytest.raises(EvaluationError, match="import it: define it at the top level"):
        make_optimizer(kind(1), lambda x: 0.0, ledger).run(3)
    assert len(ledger) == 0


class TestPebble:
    def test_a_crash_costs_nobody_else(self, tmp_path: Path) -> None:
        ledger, make = FeedbackLedger(1), partial(PebbleExecutor, 2)
        make_optimizer(make, partial(die, tmp_path), ledger, max_parallel=2).run(4)
        assert ids(ledger, "failed") == [1]
        assert ledger[1].note == "ProcessExpired: exit code -9"
        assert observed(ledger) == squares(0, 2, 3)
        assert [len(runs(tmp_path, query)) for query in range(4)] == [1, 1, 1, 1]

    @pytest.mark.parametrize(("code", "by_libc"), [(0, False), (3, True)])
    def test_an_exit_is_a_crash(self, tmp_path: Path, code: int, by_libc: bool) -> None:
        """Also an exit without an error, as after a STOP in Fortran."""
        ledger, make = FeedbackLedger(1), partial(PebbleExecutor, 1)
        make_optimizer(make, partial(leave, tmp_path, code, by_libc), ledger).run(3)
        assert ids(ledger, "failed") == [1] and observed(ledger) == squares(0, 2)
        assert ledger[1].note == f"ProcessExpired: exit code {code}"

    def test_a_time_limit(self, tmp_path: Path) -> None:
        """Other evaluations continue while the late one is killed, and are not repeated."""
        ledger, make = FeedbackLedger(1), partial(PebbleExecutor, 2, timeout=3.0)
        make_optimizer(make, partial(hang, tmp_path), ledger, max_parallel=2).run(4)
        assert ids(ledger, "failed") == [0] and ledger[0].note.startswith("TimeoutError")
        assert observed(ledger) == squares(1, 2, 3)
        assert [len(runs(tmp_path, query)) for query in range(4)] == [1, 1, 1, 1]

    def test_an_idle_process_that_dies(self, tmp_path: Path) -> None:
        """It is killed while the next query is chosen, and nothing is lost."""

        def propose(ledger: FeedbackLedger) -> Tensor:
            if len(ledger) == 2:
                os.kill(runs(tmp_path, 1)[0], signal.SIGKILL)
                wait_until(lambda: not is_alive(runs(tmp_path, 1)[0]))
            return count_up(ledger)

        ledger, objective = FeedbackLedger(1), partial(noted_square, tmp_path)
        make_optimizer(partial(PebbleExecutor, 1), objective, ledger, propose).run(4)
        assert observed(ledger) == squares(0, 1, 2, 3)

    def test_a_process_for_each_evaluation(self, tmp_path: Path) -> None:
        ledger, objective = FeedbackLedger(1), partial(noted_square, tmp_path)
        make = partial(PebbleExecutor, 2, max_tasks=1)
        make_optimizer(make, objective, ledger, max_parallel=2).run(4)
        assert observed(ledger) == squares(0, 1, 2, 3)
        assert len({pid for query in range(4) for pid in runs(tmp_path, query)}) == 4

    @pytest.mark.parametrize("options", [{}, {"max_tasks": 1}])
    def test_programs_end_with_their_process(self, tmp_path: Path, options: Any) -> None:
        """Also if it has been killed, and if they ignore a request to end."""
        pipe, ledger = tmp_path / "pipe", FeedbackLedger(1)
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        make, objective = partial(PebbleExecutor, 2, **options), partial(start_program, pipe)
        make_optimizer(make, objective, ledger).run(3)
        assert observed(ledger) == squares(0, 2) and ids(ledger, "failed") == [1]
        wait_until(lambda: is_at_end(reader))
        os.close(reader)

    def test_an_executor_that_is_shut_down(self) -> None:
        executor = PebbleExecutor(1)
        assert executor.submit(abs, -2).result() == 2
        executor.shutdown()
        with pytest.raises(EvaluationError, match="Workers cannot evaluate.*not active"):
            make_optimizer(executor, square, FeedbackLedger(1)).run(1)

    def test_a_call_that_a_breaking_pool_has_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pebble does not end calls that are scheduled between the error and its consequences."""
        executor = PebbleExecutor(1)
        monkeypatch.setattr(executor._pool, "schedule", lambda *args: Future())
        future = executor.submit(abs, -2)
        executor.shutdown(wait=False)
        assert isinstance(future.exception(timeout=0), BrokenExecutor)


class TestPoolsThatBreak:
    def test_who_is_to_blame(self, tmp_path: Path) -> None:
        """Only the trial that breaks the pool again fails, and each one runs twice at most."""
        ledger = FeedbackLedger(1)
        make_optimizer(processes(3), partial(die, tmp_path), ledger, max_parallel=3).run(6)
        assert observed(ledger) == squares(0, 2, 3, 4, 5)
        assert ledger[1].note.startswith("BrokenProcessPool")
        assert len(runs(tmp_path, 1)) == len(runs(tmp_path, 2)) == 2
        assert max(len(runs(tmp_path, query)) for query in range(6)) == 2

    def test_a_worker_that_starts_as_the_pool_breaks(self, tmp_path: Path) -> None:
        """Python 3.11 does not end it, and the script would wait for it forever."""
        ledger, make = FeedbackLedger(1), partial(LatePool, 2, mp_context=get_context("spawn"))
        make_optimizer(make, partial(send_badly, tmp_path), ledger, max_parallel=2).run(6)
        assert ids(ledger, "failed") == [1, 2, 3] and observed(ledger) == squares(0, 4, 5)

    @pytest.mark.parametrize("make", [processes(3), partial(PebbleExecutor, 3)])
    def test_what_cannot_be_sent(self, tmp_path: Path, make: Any) -> None:
        """Results that cannot be unpickled break pools, Pebble's too."""
        ledger = FeedbackLedger(1)
        make_optimizer(make, partial(send_badly, tmp_path), ledger, max_parallel=3).run(6)
        assert ids(ledger, "failed") == [1, 2, 3] and observed(ledger) == squares(0, 4, 5)

    def test_executor_that_is_given(self, tmp_path: Path) -> None:
        """It cannot be replaced: the run ends, and a new run continues."""
        path = tmp_path / "ledger"
        ledger, objective = FeedbackLedger.open(path, 1), partial(die, tmp_path)
        with processes(2)() as pool:
            with pytest.raises(EvaluationError, match="is lost .* cannot be replaced") as caught:
                make_optimizer(pool, objective, ledger, max_parallel=2).run(6)
        assert "terminated abruptly" in str(caught.value.__cause__)
        again = FeedbackLedger.open(path)
        assert {1, 2} <= {*ids(again, "pending")} and not ids(again, "failed")
        make_optimizer(processes(2), partial(noted_square, tmp_path), again, max_parallel=2).run(6)
        assert observed(ledger) == squares(*range(6))


def test_interrupt_in_a_worker() -> None:
    ledger = FeedbackLedger(1)
    with pytest.raises(KeyboardInterrupt):
        make_optimizer(processes(1), interrupt, ledger).run(4)
    assert observed(ledger) == squares(0) and ids(ledger, "pending") == [1]


# A run whose first two trials finish, and whose others wait until they may.
SCRIPT = """
import sys
from pathlib import Path

if __name__ == "__main__":
    from functools import partial

    from botorch_calib.asynchronous import PebbleExecutor
    from botorch_calib.ledger import FeedbackLedger
    from tests.asynchronous.objectives import wait_for_go
    from tests.asynchronous.runs import make_optimizer, processes

    folder = Path(sys.argv[1])
    ledger = FeedbackLedger.open(folder / "ledger", 1)
    make = {"pool": processes(3), "pebble": partial(PebbleExecutor, 3)}[sys.argv[2]]
    objective = partial(wait_for_go, folder)
    make_optimizer(make, objective, ledger, max_parallel=3).run(8, progress=True)
"""
ENDS = [("pool", signal.SIGINT), ("pebble", signal.SIGINT), ("pebble", signal.SIGKILL)]


@pytest.mark.parametrize(("kind", "number"), mostly_slow(ENDS, ENDS[1:2]))
def test_the_end_of_the_script(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    """The script is killed, or interrupted in a process group as by a terminal, and resumed."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="ascii")
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers = [wait_for_run(tmp_path, query) for query in (2, 3, 4)]
    wait_until(lambda: len(observed(FeedbackLedger.read(tmp_path / "ledger"))) == 2)
    if number == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -number
    assert number == signal.SIGKILL or errors.rstrip().endswith("KeyboardInterrupt")
    wait_until(lambda: not any(map(is_alive, workers)))
    ledger = FeedbackLedger.open(tmp_path / "ledger")
    assert observed(ledger) == squares(0, 1)
    assert ids(ledger, "pending") == [2, 3, 4] and len(ledger) == 5
    submitted = [trial.submitted_at for trial in ledger.trials]
    objective = partial(noted_square, tmp_path)
    make_optimizer(partial(PebbleExecutor, 2), objective, ledger, max_parallel=2).run(8)
    assert observed(ledger) == squares(*range(8))
    assert [trial.submitted_at for trial in ledger.trials][:5] == submitted
    assert [len(runs(tmp_path, query)) for query in range(8)] == [1, 1, 2, 2, 2, 1, 1, 1]


def test_values_come_in_while_a_query_is_chosen(tmp_path: Path) -> None:
    """While the main thread is busy, another process that opens the file finds the values."""
    path = tmp_path / "ledger"
    ledger = FeedbackLedger.open(path, 1, clock="seconds")

    def propose(ledger: FeedbackLedger) -> Tensor:
        if len(ledger) == 2:
            wait_until(lambda: ids(FeedbackLedger.read(path), "observed") == [0, 1])
        return count_up(ledger)

    begin = time.time()
    make_optimizer(partial(PebbleExecutor, 2), square, ledger, propose, max_parallel=3).run(3)
    assert observed(ledger) == squares(0, 1, 2)
    assert all(begin < (ledger[i].observed_at or 0) < ledger[2].submitted_at for i in (0, 1))
