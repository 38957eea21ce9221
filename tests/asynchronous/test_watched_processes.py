"""Worker processes of the optimizer's own: ``workers=...``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from botorch.exceptions.errors import InputDataError
from pebble.pool.process import WorkerManager
from torch import Tensor

from botorch_calib.asynchronous import (
    DelayAwareProposer,
    EvaluationLimits,
    SearchSettings,
    watched_processes,
)
from botorch_calib.asynchronous.evaluation_loop import termination_as_exit
from botorch_calib.exceptions import EvaluationError
from botorch_calib.ledger import FeedbackLedger
from tests.asynchronous.objectives import (
    die_alone,
    die_often,
    die_with_lock,
    exit_once,
    hang_alone,
    hang_at_the_top,
    is_alive,
    is_unlocked,
    leave_programs_behind,
    leave_thread_behind,
    loaded_heavy_modules,
    noted_square,
    runs,
    send_badly,
    square,
    wait_for_run,
    wait_until,
)
from tests.asynchronous.runs import Quiet, count_up, ids, observed
from tests.asynchronous.test_process_pools import leaves_nothing_behind, squares
from tests.long_grids import mostly_slow

ROOT = Path(__file__).parents[2]

__all__ = ["leaves_nothing_behind"]  # a fixture


def optimizer(objective: Any, ledger: FeedbackLedger, workers: int = 2, **limits: Any) -> Quiet:
    return Quiet(
        objective=objective,
        ledger=ledger,
        propose=count_up,
        workers=workers,
        limits=EvaluationLimits(**limits),
    )


def test_evaluates_in_light_processes() -> None:
    ledger = FeedbackLedger(1)
    optimizer(loaded_heavy_modules, ledger).run(5)
    assert observed(ledger) == dict.fromkeys(range(5), 0.0)


def test_a_process_for_each_evaluation(tmp_path: Path) -> None:
    ledger = FeedbackLedger(1)
    optimizer(partial(noted_square, tmp_path), ledger, evaluations_per_process=1).run(3)
    assert observed(ledger) == squares(*range(3))
    assert len({pid for query in range(3) for pid in runs(tmp_path, query)}) == 3


def test_a_crash_costs_nobody_else(tmp_path: Path) -> None:
    """The deadly trial is tried twice, and its neighbour runs through."""
    ledger = FeedbackLedger(1)
    optimizer(partial(die_alone, tmp_path, 0, 1), ledger).run(3)
    assert ids(ledger, "failed") == [0]
    assert "its worker died" in ledger.trials[0].note
    assert observed(ledger) == squares(1, 2)
    assert [len(runs(tmp_path, query)) for query in range(3)] == [2, 1, 1]


def test_many_crashes(tmp_path: Path) -> None:
    """Only what crashed is run again: 16 trials, 2 of them bad, take 16 + 2 starts."""
    ledger = FeedbackLedger(1)
    optimizer(partial(die_often, tmp_path, 7), ledger, workers=3).run(16)
    assert ids(ledger, "failed") == [6, 13]
    assert sum(len(runs(tmp_path, query)) for query in range(16)) == 16 + 2


@pytest.mark.parametrize(("code", "by_libc"), [(0, False), (3, True)])
def test_an_exit_is_a_crash(tmp_path: Path, code: int, by_libc: bool) -> None:
    """Also a successful one, as of a STOP in Fortran."""
    ledger = FeedbackLedger(1)
    optimizer(partial(exit_once, tmp_path, code, by_libc), ledger, max_retries=0).run(3)
    assert ids(ledger, "failed") == [1] and observed(ledger) == squares(0, 2)
    assert ledger[1].note == f"its worker died: exit code {code} (it was run once)"


def test_what_cannot_be_sent_is_a_failure(tmp_path: Path) -> None:
    """Neither the process nor a second run is lost."""
    ledger = FeedbackLedger(1)
    optimizer(partial(send_badly, tmp_path), ledger, workers=1).run(6)
    assert ids(ledger, "failed") == [1, 2, 3, 4] and observed(ledger) == squares(0, 5)
    assert not any("worker" in trial.note for trial in ledger)
    processes = [pid for query in range(6) for pid in runs(tmp_path, query)]
    assert len(processes) == 6 and len(set(processes)) == 1


def test_an_idle_process_that_dies(tmp_path: Path) -> None:
    """It is killed while the next query is chosen, and nothing is lost."""

    def propose(ledger: FeedbackLedger) -> Tensor:
        if len(ledger) == 2:
            os.kill(runs(tmp_path, 1)[0], signal.SIGKILL)
            wait_until(lambda: not is_alive(runs(tmp_path, 1)[0]))
        return count_up(ledger)

    ledger = FeedbackLedger(1)
    Quiet(objective=partial(noted_square, tmp_path), ledger=ledger, propose=propose, workers=1).run(
        4
    )
    assert observed(ledger) == squares(0, 1, 2, 3)
    assert len({pid for query in range(4) for pid in runs(tmp_path, query)}) == 2


def test_processes_that_are_killed_with_their_lock(tmp_path: Path) -> None:
    """Nobody else waits for the lock, or for the rest of half a message."""
    ledger = FeedbackLedger(1)
    begin = time.monotonic()
    optimizer(partial(die_with_lock, tmp_path), ledger, workers=1).run(4)
    assert observed(ledger) == squares(0, 1, 2, 3)
    assert [len(runs(tmp_path, query)) for query in range(4)] == [1, 2, 2, 1]
    assert time.monotonic() - begin < 20.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_pebble_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation that it was to report counts as lost, instead of running for ever."""

    def receive(self: Any, timeout: float) -> Any:
        message = original(self, timeout)
        if hasattr(message, "result") and runs(tmp_path, 1) and not ended:
            ended.append(None)
            raise SystemExit  # ends a thread without a word
        return message

    original, ended = WorkerManager.receive, list[None]()
    monkeypatch.setattr(WorkerManager, "receive", receive)
    ledger = FeedbackLedger(1)
    optimizer(partial(noted_square, tmp_path), ledger, workers=1).run(3)
    assert observed(ledger) == squares(0, 1, 2)
    assert [len(runs(tmp_path, query)) for query in range(3)] == [1, 2, 1]


def test_a_timeout_costs_nobody_else(tmp_path: Path) -> None:
    """What runs beside the late one goes on while that is killed, and is not run again."""
    ledger = FeedbackLedger(1)
    optimizer(partial(hang_alone, tmp_path), ledger, timeout=3.0).run(4)
    assert ids(ledger, "failed") == [0]
    assert observed(ledger) == squares(1, 2, 3)
    assert [len(runs(tmp_path, query)) for query in range(4)] == [1, 1, 1, 1]


def test_start_up_is_not_part_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process takes longer to start than an evaluation may take."""
    slow = tmp_path / "slow.py"
    run_startup = f"runpy.run_path({watched_processes.STARTUP!r}, None, '__main__')"
    slow.write_text(f"import runpy, time\ntime.sleep(1.5)\n{run_startup}\n", encoding="ascii")
    monkeypatch.setattr(watched_processes, "STARTUP", str(slow))
    ledger = FeedbackLedger(1)
    optimizer(square, ledger, timeout=1.0).run(2)
    assert observed(ledger) == squares(0, 1)


def test_workers_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial is blamed for it."""
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError\n", encoding="ascii")
    monkeypatch.setattr(watched_processes, "STARTUP", str(broken))
    ledger = FeedbackLedger(1)
    with pytest.raises(EvaluationError, match="die by themselves"):
        optimizer(square, ledger).run(2)
    assert set(ids(ledger, "pending")) == set(range(len(ledger)))
    # Also if Pebble has noticed it before it is asked.
    process = watched_processes._Process()
    try:
        wait_until(lambda: not process.is_sound)
        with pytest.raises(EvaluationError, match="die by themselves"):
            process.probe()
    finally:
        process.close(0.0)


# What is asked depends on when values arrive, and with it whether a line search fails somewhere, of
# the acquisition function or of a fit; BoTorch warns of it and starts again.
@pytest.mark.filterwarnings("ignore:Optimization failed in `gen_candidates_scipy`")
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
@pytest.mark.slow  # what it is made of is tested apart: time-outs here, and failures to go around
@pytest.mark.parametrize("strategy", ["ucb", "hallucinate"])
def test_a_region_that_hangs_costs_few_timeouts(strategy: str) -> None:
    """The best value is in the region, and whoever asks there sleeps for ten minutes.

    As long as no time-out is known, nothing is: each of four workers may be asked in the region.
    Then the search goes around it, and its edge costs a time-out now and then: of the first 25
    queries at most six, and of 40 at most ten.
    """
    ledger = FeedbackLedger(2, censor_value=-2.0)
    known = []  # whether a time-out was known when a query was chosen
    propose = DelayAwareProposer([[0, 0], [1, 1]], strategy, search=SearchSettings(2, 32))

    def note(ledger: FeedbackLedger) -> Tensor:
        point = propose(ledger)
        known.append(bool(ids(ledger, "failed")))
        return point

    Quiet(
        objective=hang_at_the_top,
        ledger=ledger,
        propose=note,
        workers=4,
        limits=EvaluationLimits(timeout=1.0),
    ).run(40)
    late = ids(ledger, "failed")
    assert late and all("timed out" in ledger[trial].note for trial in late)
    assert sum(not known[trial] for trial in late) <= 4
    assert sum(known[trial] for trial in late if trial < 25) <= 6
    assert sum(known[trial] for trial in late) <= 10
    best = ledger.best()
    assert best is not None and best.y is not None
    assert best.y > 0.84 - 0.15  # the greatest value outside of the region is 0.84


SCRIPT = """
import sys
from functools import partial
from pathlib import Path

from tests.asynchronous.objectives import sleep_long

if __name__ == "__main__":
    from botorch_calib.ledger import FeedbackLedger
    from tests.asynchronous.test_watched_processes import optimizer

    folder = Path(sys.argv[1])
    ledger = FeedbackLedger.open(folder / "ledger", 1)
    optimizer(partial(sleep_long, folder), ledger, workers=3).run(4)
"""


@pytest.mark.parametrize(
    ("number", "whole_group"),
    mostly_slow(
        product([signal.SIGTERM, signal.SIGKILL], [False, True]),
        {(signal.SIGTERM, True), (signal.SIGKILL, False)},
    ),
)
def test_workers_end_with_their_parent(
    tmp_path: Path, number: signal.Signals, whole_group: bool
) -> None:
    """Neither a worker nor what it has started holds the pipe, and no value is lost."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="ascii")
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,  # it ends when nobody can write to it any more
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        workers = [wait_for_run(tmp_path, query) for query in range(1, 4)]
        assert all(map(is_alive, workers))
        os.killpg(process.pid, number) if whole_group else process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == (143 if number == signal.SIGTERM else -number)
        wait_until(lambda: not any(map(is_alive, workers)))
        ledger = FeedbackLedger.read(tmp_path / "ledger")
        assert observed(ledger) == squares(0) and ids(ledger, "pending") == [1, 2, 3]
    finally:
        process.kill()
        process.communicate()


def test_programs_end_with_the_worker_that_started_them(tmp_path: Path) -> None:
    """One is killed after a time-out, and another one has crashed."""
    ledger = FeedbackLedger(1)
    optimizer(
        partial(leave_programs_behind, tmp_path), ledger, workers=3, timeout=2.0, max_retries=0
    ).run(4)
    assert observed(ledger) == squares(2, 3) and ids(ledger, "failed") == [0, 1]
    for query in (0, 1):
        wait_until(partial(is_unlocked, tmp_path / f"locked-{query}"))


def test_processes_that_do_not_end_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run neither waits for them for ever nor leaves them behind."""
    monkeypatch.setattr(watched_processes, "EXIT_SECONDS", 0.5)
    objective, ledger = partial(leave_thread_behind, tmp_path), FeedbackLedger(1)
    optimizer(objective, ledger, evaluations_per_process=1).run(3)
    assert observed(ledger) == squares(*range(3))
    assert not any(is_alive(pid) for query in range(3) for pid in runs(tmp_path, query))


def test_termination_is_handled_only_where_nobody_else_does() -> None:
    """The program's own handler stays, and the default one comes back."""
    with termination_as_exit():
        assert callable(signal.getsignal(signal.SIGTERM))
        with pytest.raises(SystemExit, match="143"):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with termination_as_exit():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_enter_and_leave).result()


def _enter_and_leave() -> None:
    with termination_as_exit():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`executor` or a number of `workers`"),
        ({"executor": ThreadPoolExecutor, "workers": 2}, "`executor` or a number of `workers`"),
        ({"workers": 0}, "`workers`"),
        ({"workers": 2.5}, "`workers`"),
        ({"executor": ThreadPoolExecutor}, "`max_parallel` is needed"),
        (
            {
                "executor": ThreadPoolExecutor,
                "max_parallel": 2,
                "limits": EvaluationLimits(evaluations_per_process=1),
            },
            "`limits.evaluations_per_process`",
        ),
        ({"workers": 2, "objective": None}, "`objective` must be callable"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    given = {
        "objective": square,
        "ledger": FeedbackLedger(1),
        "propose": count_up,
        **arguments,
    }
    with pytest.raises(InputDataError, match=message):
        Quiet(**given)


def test_objective_that_cannot_be_sent() -> None:
    ledger = FeedbackLedger(1)
    with pytest.raises(InputDataError, match="`objective` must be picklable"):
        optimizer(lambda x: 0.0, ledger).run(1)
    assert len(ledger) == 0


class TestObjectivesThatCannotBeImported:
    """Their trials would all fail, and stay failed in the ledger."""

    @pytest.fixture
    def main(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """A main module without a file, as in a notebook."""
        module = ModuleType("__main__")
        exec("def objective(x):\n    return float(x[0] ** 2)", module.__dict__)
        monkeypatch.setitem(sys.modules, "__main__", module)
        return module

    def test_in_a_notebook(self, main: Any) -> None:
        ledger = FeedbackLedger(1)
        with pytest.raises(InputDataError, match="into a file of its own"):
            optimizer(partial(main.objective), ledger).run(1)
        assert len(ledger) == 0

    def test_of_a_module_in_a_notebook(self, main: Any) -> None:
        ledger = FeedbackLedger(1)
        optimizer(square, ledger).run(2)
        assert observed(ledger) == squares(0, 1)

    def test_on_the_standard_input(self, main: Any) -> None:
        """Processes import the main module, whatever the objective."""
        main.__file__ = "<stdin>"
        with pytest.raises(InputDataError, match="program itself has to be a file"):
            optimizer(square, FeedbackLedger(1)).run(1)
