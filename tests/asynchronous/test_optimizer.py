"""The asynchronous optimizer on threads and on executors that evaluate at once."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning
from torch import Tensor

from botorch_calib.asynchronous import AsynchronousOptimizer, optimizer
from botorch_calib.exceptions import EvaluationError, LedgerError
from botorch_calib.ledger import DecidedQuery, FeedbackLedger, Trial
from tests.asynchronous.objectives import square
from tests.asynchronous.runs import Gates, Inline, Threads, count_up, ids, make_optimizer, observed


class TestOrder:
    """Which value is written down when, with evaluations that end on command."""

    def run(
        self, max_parallel: int, num_evaluations: int, schedule: dict[int, list[int]], **kwargs: Any
    ) -> tuple[FeedbackLedger, list[dict[str, list[int]]]]:
        """Run with trials that end while a certain query is chosen; the rest end at last.

        Returns the ledger and, for each choice, the trials pending and observed at its start.
        """
        gates, ledger, views = Gates(), FeedbackLedger(1, **kwargs), []

        def propose(ledger: FeedbackLedger) -> Tensor:
            number = len(ledger)
            views.append({status: ids(ledger, status) for status in ("pending", "observed")})
            gates.open(*schedule.get(number, []))
            for trial in schedule.get(number, []):
                pool.futures[trial].result()
            if number == num_evaluations - 1:
                gates.open(*range(num_evaluations))
            return count_up(ledger)

        with Threads(max_parallel) as pool:
            make_optimizer(pool, gates, ledger, propose, max_parallel).run(num_evaluations)
        assert observed(ledger) == {i: -float(i) for i in range(num_evaluations)}
        return ledger, views

    def test_one_query_for_each_free_slot(self) -> None:
        schedule = {2: [0], 3: [2], 4: [3], 5: [1], 6: [5], 7: [4]}
        ledger, views = self.run(3, 9, {**schedule, 8: [7]})
        # The values 0, 2, 3, 1, ... arrive while queries 2, 3, 4, ... are chosen.
        arrivals = [0, 2, 3, 1, 5, 4, 7]
        for number, view in enumerate(views):
            arrived = sorted(arrivals[: max(number - 2, 0)])
            assert view["observed"] == arrived
            assert view["pending"] == [i for i in range(number) if i not in arrived]
        for number, trial in enumerate(arrivals):
            # The value was not available to the choice of query number + 2, but to the next.
            assert ledger[trial].observed_at == number + 3


class TestRecording:
    def test_a_value_that_cannot_be_written_stops_the_run(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        ledger = FeedbackLedger(1)
        monkeypatch.setattr(ledger, "tell", Mock(side_effect=LedgerError("the disk is full")))
        with ThreadPoolExecutor(1) as pool, pytest.raises(LedgerError, match="disk is full"):
            make_optimizer(pool, lambda x: 0.25 - square(x), ledger).run(1)
        assert ids(ledger, "pending") == [0]
        (record,) = caplog.records  # the value is not lost with the run
        assert "Record the value of trial 0 by hand, {'y': 0.25}" in record.getMessage()


class TestGoal:
    def test_never_starts_more_than_needed(self) -> None:
        def objective(x: np.ndarray) -> float:
            if x[0] % 2:
                raise ValueError(f"no value at {x[0]:g}")
            return square(x)

        ledger, pool = FeedbackLedger(1, maximize=False), Inline()
        summary = make_optimizer(pool, objective, ledger, max_parallel=7).run(6)
        assert summary == (ledger[0], 3, 3, 0)
        assert ids(ledger, "observed") == [0, 2, 4] and ids(ledger, "failed") == [1, 3, 5]
        assert pool.num_calls == len(ledger) == 6
        assert ledger[3].note == "ValueError: no value at 3"

    def test_values_that_come_too_late_count(self) -> None:
        # Each value arrives one iteration after its query, which is later than none.
        ledger = FeedbackLedger(1, max_wait=0.0, late="discard")
        with pytest.warns(InputDataWarning, match="`max_wait` .0.*is recorded, but not used"):
            summary = make_optimizer(Inline(), square, ledger).run(4)
        assert summary.best is None and summary.num_observed == 4
        assert ids(ledger, "expired") == [0, 1, 2, 3]

    @pytest.mark.parametrize(("num_pending", "goal", "rerun"), [(2, 6, 2), (3, 4, 2), (2, 2, 0)])
    def test_resume(self, num_pending: int, goal: int, rerun: int) -> None:
        ledger = FeedbackLedger(1)
        for number in range(2 + num_pending):
            ledger.submit(torch.tensor([number], dtype=torch.double))
        ledger.observe(1, 1.0)
        ledger.fail(2)
        calls: list[float] = []

        def objective(x: np.ndarray) -> float:
            calls.append(x[0])
            return square(x)

        make_optimizer(Inline(), objective, ledger).run(goal)
        assert calls[:rerun] == [0, 3, 4][:rerun]
        assert calls[rerun:] == list(range(2 + num_pending, goal))
        assert len(ids(ledger, "pending")) == num_pending - rerun
        assert len(ids(ledger, "observed") + ids(ledger, "failed")) == goal

    @pytest.mark.parametrize("in_a_file", [False, True])
    def test_one_run_at_a_time(self, tmp_path: Path, in_a_file: bool) -> None:
        """A second run would repeat the evaluations of the first."""

        def propose(ledger: FeedbackLedger) -> Tensor:
            with pytest.raises(LedgerError, match="Another run in this process"):
                second.run(1)
            return count_up(ledger)

        ledger = same = FeedbackLedger(1)
        if in_a_file:
            ledger, same = (FeedbackLedger.open(tmp_path / "ledger.db", 1) for _ in range(2))
        second = make_optimizer(Inline(), square, same)
        make_optimizer(Inline(), square, ledger, propose).run(1)
        assert len(ledger) == 1
        second.run(2)
        assert observed(ledger) == {0: 0.0, 1: 1.0}

    def test_trial_that_is_no_longer_waited_for_is_not_rerun(self) -> None:
        ledger = FeedbackLedger(1, max_wait=2.0)
        for _ in range(3):
            ledger.submit(count_up(ledger))
        make_optimizer(Inline(), square, ledger).run(3)
        assert ids(ledger, "expired") == [0]
        assert ids(ledger, "observed") == [1, 2, 3]

    def test_trial_that_someone_else_resolves(self, caplog: pytest.LogCaptureFixture) -> None:
        def objective(x: np.ndarray) -> float:
            if x[0] == 1:
                ledger.fail(1, "given up")
            if x[0] == 2:
                ledger.observe(2, 7.0)
                raise ValueError
            return square(x)

        ledger = FeedbackLedger(1)
        make_optimizer(Inline(), objective, ledger).run(4)
        assert observed(ledger) == {0: 0.0, 2: 7.0, 3: 9.0}
        assert ledger[1].note == "given up"
        assert caplog.text.count("was not needed") == 1

    def test_trial_that_is_told_by_hand_before_its_turn(self) -> None:
        def objective(x: np.ndarray) -> float:
            if x[0] == 0:
                ledger.tell(1, 5.0)
            return square(x)

        ledger = FeedbackLedger(1)
        for _ in range(3):
            ledger.submit(count_up(ledger))
        make_optimizer(pool := Inline(), objective, ledger).run(4)
        assert observed(ledger) == {0: 0.0, 1: 5.0, 2: 4.0, 3: 9.0} and pool.num_calls == 3


class Unshowable(Exception):
    """An exception that fails when it is shown, as some libraries raise by mistake."""

    def __repr__(self) -> str:
        raise ZeroDivisionError

    __str__ = __repr__


class TestObjective:
    def test_gets_an_array_of_its_own(self) -> None:
        def objective(x: np.ndarray) -> float:
            assert x.dtype == np.float64 and x.shape == (2,) and x.flags.writeable
            x[:] = 9.0
            return 1.0

        def propose(ledger: FeedbackLedger) -> Tensor:
            return torch.tensor([[0.25, 0.5]], requires_grad=True)

        ledger = FeedbackLedger(2)
        make_optimizer(Inline(), objective, ledger, propose).run(2)
        assert len(observed(ledger)) == 2
        assert ledger[1].x.tolist() == [0.25, 0.5]

    @pytest.mark.parametrize(
        ("value", "note"),
        [
            (math.nan, "finite"),
            ("2" * 100_000, "finite number"),
            (1j, "finite number"),
            (torch.zeros(2), "finite number"),
            (np.ma.masked, "finite number"),
            (Unshowable(), "finite number"),
            ({"outcomes": [1.0]}, "missing 1 required positional argument: 'y'"),
            ({"y": 1.0, "outcome": 1.0}, "unexpected keyword argument 'outcome'"),
            ({"y": "2"}, "finite number"),
            (torch.ones((), device="meta"), "cannot be called on meta tensors"),
        ],
    )
    def test_no_value(self, value: Any, note: str, caplog: pytest.LogCaptureFixture) -> None:
        ledger = FeedbackLedger(1)
        make_optimizer(Inline(), lambda x: value, ledger).run(1)
        assert ids(ledger, "failed") == [0] and note in ledger[0].note
        record = next(record for record in caplog.records if "Trial 0 failed" in record.message)
        assert record.levelname == "WARNING" and note in record.message
        assert len(ledger[0].note) < 200

    @pytest.mark.parametrize(
        ("error", "note"),
        [
            (Unshowable, "Unshowable: its message cannot be read"),
            (SystemExit(3), "SystemExit: 3"),
            (LedgerError("of its own"), "LedgerError: of its own"),
        ],
    )
    def test_any_exception_is_a_failure(self, error: Any, note: str) -> None:
        ledger = FeedbackLedger(1)
        make_optimizer(Inline(), Mock(side_effect=error), ledger).run(1)
        assert ids(ledger, "failed") == [0] and ledger[0].note == note

    def test_what_comes_beside_a_value(self) -> None:
        """By name, for the ledger."""
        ledger, told = FeedbackLedger(1), {"y": 2, "yvar": 0.5, "context": [3.0]}
        make_optimizer(Inline(), lambda x: told, ledger).run(1)
        assert (ledger[0].y, ledger[0].yvar) == (2.0, 0.5)
        assert ledger.contexts().tolist() == [[3.0]]

    def test_a_value_for_a_later_time(self) -> None:
        """It is hidden until then, yet its evaluation counts."""
        ledger, propose = FeedbackLedger(1), Mock(side_effect=[[0.0], [1.0], [2.0]])
        make_optimizer(Inline(), lambda x: {"y": 1, "time": 9}, ledger, propose).run(3)
        assert ids(ledger, "pending") == [0, 1, 2] and observed(ledger) == {}
        assert ledger.to_observations(now=9)[1].tolist() == [[1.0]] * 3

    def test_outcomes_of_decisions(self) -> None:
        """Others than those decided about fail the trial, and the run goes on."""
        row = {"point": [0.5], "outcomes": {"cost": None, "time": None}}
        several: list[dict[str, float | None]] = [{"cost": 0.1}, {"cost": 0.1, "time": None}]
        returned = iter([{"y": 7.0 + i, "outcomes": each} for i, each in enumerate(several)])
        query = DecidedQuery(torch.tensor([[0.5]]), row)
        ledger = FeedbackLedger(1)
        make_optimizer(Inline(), lambda x: next(returned), ledger, lambda ledger: query).run(2)
        assert "`outcomes` must have one entry for each of ['cost', 'time']" in ledger[0].note
        assert [each["outcomes"] for each in ledger.decisions()] == [row["outcomes"], several[1]]
        assert observed(ledger) == {1: 8.0}


class TestCallbacks:
    def test_they_are_told_of_every_end(self) -> None:
        def objective(x: np.ndarray) -> float:
            if x[0] == 1:
                raise ValueError("no")
            return square(x)

        ledger, told = FeedbackLedger(1), []
        first = Mock(
            side_effect=lambda ledger, trial: told.append((trial.id, trial.status, trial.y))
        )
        second = Mock(return_value=1)  # only True itself ends a run
        make_optimizer(Inline(), objective, ledger, callbacks=[first, second]).run(3)
        assert told == [(0, "observed", 0.0), (1, "failed", None), (2, "observed", 4.0)]
        assert [call.args for call in second.call_args_list] == [(ledger, each) for each in ledger]

    def test_an_error_costs_no_evaluation(self, caplog: pytest.LogCaptureFixture) -> None:
        ledger, other = FeedbackLedger(1), Mock(return_value=None)
        bad = Mock(side_effect=[Unshowable(), ZeroDivisionError("again"), None])
        make_optimizer(Inline(), square, ledger, callbacks=[bad, other]).run(3)
        assert caplog.text.count("A callback failed") == 2
        assert len(observed(ledger)) == bad.call_count == other.call_count == 3

    @pytest.mark.parametrize("true", [np.True_, torch.tensor(True), np.array([True])])
    def test_true_of_numpy_and_torch(self, true: Any) -> None:
        ledger = FeedbackLedger(1)
        make_optimizer(Inline(), square, ledger, callbacks=[lambda *_: true]).run(3)
        assert len(ledger) == 1

    def test_one_that_returns_true_ends_the_run(self) -> None:
        """Running evaluations are awaited, and reported to the callback."""
        gates, ledger, told = Gates(), FeedbackLedger(1), []

        def stop(ledger: FeedbackLedger, trial: Trial) -> bool:
            assert threading.current_thread() is threading.main_thread()
            told.append(trial.id)
            gates.open(0, 1)
            return trial.id == 2

        gates.open(2)
        with Threads(3) as pool:
            make_optimizer(pool, gates, ledger, max_parallel=3, callbacks=[stop]).run(99)
        assert sorted(told) == ids(ledger, "observed") == [0, 1, 2] and told[0] == 2
        assert len(ledger) == 3


class TestTimeBudget:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """The loop's monotonic clock, set by hand."""
        clock = SimpleNamespace(now=100.0)
        clock.monotonic = lambda: clock.now
        monkeypatch.setattr(optimizer, "time", clock)
        return clock

    @pytest.mark.parametrize("num_evaluations", [None, 50])
    def test_nothing_starts_after_it(self, clock: SimpleNamespace, num_evaluations: Any) -> None:
        def objective(x: np.ndarray) -> float:
            clock.now += 1.0
            return square(x)

        ledger = FeedbackLedger(1)
        run = make_optimizer(Inline(), objective, ledger).run
        run(num_evaluations, seconds=3.5)
        assert len(observed(ledger)) == len(ledger) == 4
        # A budget counts from its run, and the goal counts as always.
        run(6, seconds=100.0)
        assert len(observed(ledger)) == 6

    def test_bar_without_a_goal(self, capsys: pytest.CaptureFixture[str]) -> None:
        loop = make_optimizer(Inline(), square, FeedbackLedger(1), callbacks=[lambda *_: True])
        loop.run(progress=True, seconds=1000.0)
        assert "1it" in capsys.readouterr().err.split("\r")[-1]

    def test_arguments(self) -> None:
        loop = make_optimizer(Inline(), square, FeedbackLedger(1))
        with pytest.raises(InputDataError, match="`seconds`"):
            loop.run(3, seconds=math.inf)
        with pytest.raises(InputDataError, match="`num_evaluations`, `seconds` or both"):
            loop.run()
        with pytest.raises(InputDataError, match="`num_evaluations`"):
            loop.run(0)


class TestErrors:
    def test_many_failures_in_a_row(self) -> None:
        def objective(x: np.ndarray) -> float:
            if x[0] not in (1, 3):
                raise ValueError(f"bad {x[0]:g}")
            return 1.0

        ledger, pool = FeedbackLedger(1), Inline()
        optimizer = make_optimizer(pool, objective, ledger, max_consecutive_failures=2)
        with pytest.raises(EvaluationError, match="2 trials in a row.*trial 5.*bad 5") as caught:
            optimizer.run(20)
        assert isinstance(caught.value, RuntimeError)
        assert isinstance(caught.value.__cause__, ValueError)
        assert ids(ledger, "failed") == [0, 2, 4, 5]
        assert not pool.is_shut_down  # it is the caller's

    def test_error_of_propose(self) -> None:
        def propose(ledger: FeedbackLedger) -> Tensor:
            if len(ledger) == 2:
                gates.open(1)
                pool.futures[1].result()
                raise ZeroDivisionError
            return count_up(ledger)

        gates, ledger, pool = Gates(), FeedbackLedger(1), Threads(2)
        with pytest.raises(ZeroDivisionError):
            make_optimizer(lambda: pool, gates, ledger, propose, max_parallel=3).run(5)
        assert ids(ledger, "pending") == [0]
        assert ids(ledger, "observed") == [1]
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(square)
        gates.open(0)
        pool.futures[0].result()
        # The ledger is as good as before.
        make_optimizer(Inline(), square, ledger).run(5)
        assert len(observed(ledger)) == 5

    def test_executor_that_is_broken(self) -> None:
        """After the first evaluations it takes no more; it is replaced if possible."""

        class Breaking(Inline):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
                if self.num_calls == 2:
                    raise OSError("handle is closed")  # such as of the pool's pipes
                return super().submit(fn, *args, **kwargs)

        ledger, pool = FeedbackLedger(1), Breaking()
        with pytest.raises(EvaluationError, match="is lost .OSError: handle is closed"):
            make_optimizer(pool, square, ledger).run(5)
        assert ids(ledger, "pending") == [2] and not pool.is_shut_down
        make_optimizer(Breaking, square, ledger).run(5)
        assert len(observed(ledger)) == 5
        with pytest.raises(EvaluationError, match="Workers cannot evaluate.*handle is closed"):
            make_optimizer(lambda: pool, square, ledger).run(6)
        assert pool.is_shut_down

    def test_executor_that_loses_calls_as_it_breaks(self) -> None:
        """It is shut down at once, which ends its lost calls."""

        class Losing(Inline):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
                if self.num_calls == 2:
                    raise BrokenExecutor
                future = super().submit(fn, *args, **kwargs)
                if self.num_calls:
                    calls.append(future := Future())
                if self.num_calls == 2:
                    future.set_exception(BrokenExecutor())
                return future

            def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
                calls[0].set_exception(BrokenExecutor())

        calls: list[Future[Any]] = []
        ledger, executors = FeedbackLedger(1), iter([Losing(), Inline()])
        make_optimizer(lambda: next(executors), square, ledger, max_parallel=2).run(3)
        assert observed(ledger) == {0: 0.0, 1: 1.0, 2: 4.0}

    def test_objective_with_a_broken_executor_of_its_own(self) -> None:
        """It fails, though it looks like the optimizer's."""
        ledger = FeedbackLedger(1)
        with ThreadPoolExecutor(1) as pool:
            make_optimizer(pool, Mock(side_effect=BrokenExecutor("inner")), ledger).run(1)
        assert ledger[0].note == "BrokenExecutor: inner"

    def test_evaluations_that_are_cancelled(self) -> None:
        """As by Dask after the loss of its cluster: no trial fails, with any kind of executor."""

        class Cancelling(Inline):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
                future = super().submit(fn, *args, **kwargs)
                if self.num_calls:
                    future = Future()
                    future.cancel()
                    future.set_running_or_notify_cancel()
                return future

        for executor in (Cancelling, Cancelling()):
            ledger = FeedbackLedger(1)
            with pytest.raises(EvaluationError, match="has cancelled its evaluations"):
                make_optimizer(executor, square, ledger).run(1)
            assert ids(ledger, "pending") == [0]

    def test_factory_that_makes_none(self) -> None:
        with pytest.raises(InputDataError, match=r"`executor\(\)` must be an Executor, got list"):
            make_optimizer(lambda: [], square, FeedbackLedger(1)).run(1)  # type: ignore[arg-type, return-value]

    @pytest.mark.parametrize(
        "bad",
        [
            {"executor": 3},
            {"objective": 3},
            {"propose": None},
            {"ledger": []},
            {"max_parallel": 0},
            {"max_consecutive_failures": 0},
            {"callbacks": print},
            {"callbacks": [print, None]},
        ],
    )
    def test_arguments(self, bad: dict[str, Any]) -> None:
        arguments = {
            "executor": Inline(),
            "objective": square,
            "ledger": FeedbackLedger(1),
            "propose": count_up,
            "max_parallel": 1,
        }
        with pytest.raises(InputDataError, match=f"`{next(iter(bad))}`"):
            AsynchronousOptimizer(**{**arguments, **bad})


def frame_of(thread: int) -> str:
    """The function that a thread is in."""
    return sys._current_frames()[thread].f_code.co_name


class TestInterrupt:
    def test_signal_while_waiting(self) -> None:
        main = threading.get_ident()
        assert main == threading.main_thread().ident

        def objective(x: np.ndarray) -> float:
            if x[0] == 2:
                while len(pool.futures) < 4 or frame_of(main) != "_advance":
                    time.sleep(0.001)
                signal.pthread_kill(main, signal.SIGINT)
            return gates(x) if x[0] else 5.0

        gates, ledger, pool = Gates(), FeedbackLedger(1), Threads(2)
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            # Trial 3 never gets a thread: its future is cancelled.
            make_optimizer(pool, objective, ledger, max_parallel=3).run(9)
        assert time.monotonic() - begin < 10
        assert ids(ledger, "observed") == [0] and ids(ledger, "pending") == [1, 2, 3]
        assert [future.cancelled() for future in pool.futures] == [False, False, False, True]
        gates.open(1, 2)
        pool.shutdown()
        assert ids(ledger, "pending") == [3]  # threads cannot be ended, and values are not lost


class TestProgress:
    @pytest.mark.parametrize(("maximize", "best"), [(True, "best=36"), (False, "best=0")])
    def test_bar(self, capsys: pytest.CaptureFixture[str], maximize: bool, best: str) -> None:
        ledger = FeedbackLedger(1, maximize=maximize)
        make_optimizer(Inline(), square, ledger).run(2)
        assert capsys.readouterr() == ("", "")
        make_optimizer(Inline(), square, ledger).run(7, progress=True)
        captured = capsys.readouterr()
        drawn = captured.err.split("\r")
        assert captured.out == "" and "2/7" in drawn[1] and "7/7" in drawn[-1]
        assert best in drawn[-1] and "running=0" in drawn[-1]

    def test_bar_is_closed_after_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        def propose(ledger: FeedbackLedger) -> Tensor:
            raise ZeroDivisionError

        optimizer = make_optimizer(Inline(), square, FeedbackLedger(1), propose)
        with pytest.raises(ZeroDivisionError) as caught:
            optimizer.run(1, progress=True)
        # The traceback has a reference to the bar, so the bar is not closed by its deletion.
        assert caught.tb is not None and capsys.readouterr().err.endswith("\n")
