"""Asking and telling by name, amendments, imported data, and the direction of optimization."""

from __future__ import annotations

import itertools
import math
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_calib.ledger import EarlierValue, FeedbackLedger


def count_up(ledger: FeedbackLedger) -> list[float]:
    return [float(len(ledger))] * ledger.dim


class TestAskAndTell:
    def test_in_turn(self, make) -> None:
        ledger = make(propose=count_up)
        for i in range(3):
            trial = ledger.ask()
            assert (trial.id, trial.x.tolist(), trial.status) == (i, [i, i], "pending")
            ledger.tell(trial.id, 0.5 * i)
        assert [trial.y for trial in ledger.trials] == [0.0, 0.5, 1.0]
        assert [trial.observed_at for trial in ledger.trials] == [1.0, 2.0, 3.0]
        assert ledger.ask(lambda ledger: [7.0, 8.0]).x.tolist() == [7.0, 8.0]

    def test_nothing_to_ask(self) -> None:
        ledger = FeedbackLedger(2)
        with pytest.raises(InputDataError, match="`propose` is needed"):
            ledger.ask()
        three: Any = 3
        for use in (lambda: FeedbackLedger(2, propose=three), lambda: ledger.ask(three)):
            with pytest.raises(InputDataError, match="`propose` must be callable"):
                use()

    def test_no_turn_is_left_over_after_an_error(self) -> None:
        ledger = FeedbackLedger(2)
        bad = {InputDataError: [math.nan, 0.0], BotorchTensorDimensionError: [0.0]}
        for error, answer in bad.items():
            with pytest.raises(error, match=r"`propose\(ledger\)`"):
                ledger.ask(Mock(return_value=answer))
        with pytest.raises(ZeroDivisionError):
            ledger.ask(lambda ledger: 1 / 0)
        assert len(ledger) == 0 and ledger.ask(count_up).id == 0

    def test_many_ask_at_the_same_time(self, make) -> None:
        """Each query is chosen with knowledge of all others."""
        ledger, barrier = make(), threading.Barrier(4)

        def ask(_: int) -> list[float]:
            barrier.wait(60)
            return [ledger.ask(count_up).x[0].item() for _ in range(5)]

        with ThreadPoolExecutor(4) as pool:
            answers = sorted(itertools.chain(*pool.map(ask, range(4))))
        assert answers == list(range(20))

    def test_a_query_of_somebody_else_comes_between(self, make) -> None:
        def propose(ledger: FeedbackLedger) -> list[float]:
            x = count_up(ledger)
            if len(ledger) == 0:
                ledger.submit([5.0, 5.0])
            return x

        assert make().ask(propose).x.tolist() == [1.0, 1.0]

    def test_a_value_that_is_told_during_a_choice_belongs_to_the_next(self, make) -> None:
        ledger = make()
        ledger.submit([0.0, 0.0])

        def propose(ledger: FeedbackLedger) -> list[float]:
            ledger.tell(0, 1.0)
            assert ledger[0].y == 1.0  # it is not hidden meanwhile
            return count_up(ledger)

        ledger.ask(propose)
        assert ledger[0].observed_at == 2.0 and ledger.trials_at(1)[0].y is None


def test_variances_are_in_the_order_of_values(make) -> None:
    ledger = make()
    for _ in range(4):
        ledger.submit([0.0, 0.0])
    ledger.tell(2, 1.0, yvar=0.25)
    ledger.submit([0.0, 0.0])
    ledger.tell(0, 2.0)
    ledger.tell(1, 3.0, torch.tensor([[0.5]]))
    ledger.fail(3)
    Y, Yvar = ledger.to_observations()[1], ledger.noise_variances()
    assert Y.squeeze(-1).tolist() == [1.0, 2.0, 3.0]
    assert Yvar.shape == Y.shape and Yvar.dtype == torch.double
    assert Yvar[[0, 2], 0].tolist() == [0.25, 0.5] and Yvar[1].isnan().all()
    assert [trial.yvar for trial in ledger.trials] == [None, 0.5, 0.25, None, None]
    assert ledger.noise_variances(now=4).tolist() == [[0.25]]


def test_nan_is_an_unknown_variance(make) -> None:
    """As it is for models, and in the result of ``noise_variances``, which thus can be added."""
    old = FeedbackLedger(2)
    old.add([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [1.0, 2.0, 3.0], [0.1, math.nan, 0.3])
    ledger = make()
    ledger.add(*old.to_observations(), old.noise_variances())
    assert [trial.yvar for trial in ledger] == [0.1, None, 0.3]
    ledger.amend(0, 1.5, yvar=math.nan)
    trial_id = ledger.submit([0.0, 0.0])
    ledger.tell(trial_id, 4.0, torch.tensor([math.nan]))
    assert [trial.yvar for trial in ledger] == [None, None, 0.3, None]
    assert ledger[0].earlier[0].yvar == 0.1
    with pytest.raises(InputDataError, match="`Yvar` contains infinite values"):
        ledger.add([[1.0, 2.0]], [1.0], [math.inf])


class TestAmendments:
    def test_what_stood_before_is_kept(self, make) -> None:
        ledger = make(clock="seconds", censor_value=0.0)
        ledger.submit([1.0, 1.0], time=0.0)
        ledger.submit([2.0, 2.0], time=0.0)
        ledger.tell(0, 10.0, 0.5, time=1.0)
        ledger.tell(1, 5.0, time=2.0)
        ledger.amend(0, 1.0, time=3.0)
        ledger.amend(0, 2.0, 0.25, time=4.0)
        trial = ledger[0]
        assert (trial.y, trial.yvar, trial.observed_at) == (2.0, 0.25, 1.0)
        assert trial.earlier == (EarlierValue(10.0, 0.5, 3.0), EarlierValue(1.0, 0.5, 4.0))
        # Views of an earlier time equal the views at that time.
        for now, y, yvar in [(1.0, 10.0, 0.5), (2.9, 10.0, 0.5), (3.0, 1.0, 0.5), (4.0, 2.0, 0.25)]:
            assert ledger.to_observations(now)[1][0].item() == y
            assert ledger.noise_variances(now)[0].item() == yvar
            assert ledger.training_data(now)[1][0].item() == y
            assert ledger.trials_at(now)[0].y == ledger.to_records(now)[0]["y"] == y
            assert len(ledger.trials_at(now)[0].earlier) == (now >= 3.0) + (now >= 4.0)
        assert ledger.best(now=2.5) == ledger.trials_at(2.5)[0]
        best = ledger.best()
        assert best is not None and best.id == 1
        read = ledger.snapshot() if ledger.path is None else FeedbackLedger.read(ledger.path)
        for other in (read, pickle.loads(pickle.dumps(ledger.snapshot()))):
            assert other.trials == ledger.trials and len(other[0].earlier) == 2


@pytest.mark.parametrize("clock", ["iterations", "seconds"])
@pytest.mark.parametrize("late", ["use", "discard"])
def test_data_from_before(clock, late) -> None:
    """Their values are available at once, and not late."""
    ledger = FeedbackLedger(2, clock=clock, late=late, max_wait=1)
    ledger.submit([9.0, 9.0])
    X = torch.arange(12, dtype=torch.float32).reshape(6, 2)
    assert ledger.add(X, X[:, :1], 0.1 * X[:, 1:]) == [1, 2, 3, 4, 5, 6]
    assert ledger.to_observations()[0].tolist() == X.tolist()
    assert ledger.to_observations()[1].tolist() == X[:, :1].tolist()
    assert ledger.noise_variances().tolist() == (0.1 * X[:, 1:]).double().tolist()
    assert ledger.add([[1, 2], [3, 4]], np.array([5, 6]), time=1.0) == [7, 8]
    assert ledger.add(np.zeros((0, 2)), []) == []
    assert (ledger[8].y, ledger[8].submitted_at, ledger[8].observed_at) == (6.0, 1.0, 1.0)


class TestDirection:
    def test_it_is_said_once(self, make) -> None:
        ledger = make(maximize=False)
        for i in range(3):
            ledger.add([[i, i]], [i])
        assert ledger.maximize is False
        assert ledger.best() == ledger.best(maximize=False) == ledger[0]
        for use in (
            lambda: ledger.best(maximize=True),
            lambda: ledger.declare(True),
            lambda: ledger.checked_maximize(True),
        ):
            with pytest.raises(InputDataError, match="`maximize` is False in the ledger"):
                use()
        ledger.declare(False)
        assert ledger.snapshot().maximize is False

    def test_nobody_has_said_so(self, make) -> None:
        ledger = make()
        ledger.add([[0, 0], [1, 1]], [0, 1])
        assert ledger.maximize is True
        assert ledger.best() == ledger[1] and ledger.best(maximize=False) == ledger[0]
        ledger.declare(False)
        assert ledger.maximize is False and ledger.best() == ledger[0]

    def test_files_keep_it(self, tmp_path) -> None:
        path = tmp_path / "ledger.db"
        first = FeedbackLedger.open(path, 1)
        first.declare(False)
        assert FeedbackLedger.open(path, maximize=False).maximize is False
        with pytest.raises(InputDataError, match="`maximize` is False in the ledger .*ledger.db"):
            FeedbackLedger.open(path, maximize=True)
        other = path.with_name("other.db")
        FeedbackLedger.open(other, 1)
        assert FeedbackLedger.open(other, maximize=False).maximize is False
        assert FeedbackLedger.open(other).maximize is False


def test_records_and_their_table(make) -> None:
    ledger = make()
    ledger.submit([0.5, 1.5])
    ledger.add([[1, 2]], [3], [0.1])
    ledger.submit([0.0, 0.0])
    ledger.fail(2, "lost")
    frame, records = ledger.to_dataframe(), ledger.to_records()
    assert records[1] == {
        **{"id": 1, "x_0": 1.0, "x_1": 2.0, "y": 3.0, "yvar": 0.1},
        **{"submitted_at": 1.0, "observed_at": 1.0, "status": "observed", "note": ""},
    }
    plain = (int, float, str, type(None))
    assert all(type(value) in plain for row in records for value in row.values())
    assert all(list(row) == list(frame.columns) for row in records) and len(frame) == 3
    assert frame["y"].dtype == frame["yvar"].dtype == np.float64
    assert frame["y"].isna().tolist() == [True, False, True] and frame["y"][1] == 3.0
    assert frame["status"].tolist() == ["pending", "observed", "failed"]
    assert frame["note"].tolist() == ["", "", "lost"]
    one = ledger.to_dataframe(now=1)
    assert len(one) == 1 and (one["observed_at"] - one["submitted_at"]).dtype == np.float64
    empty = make(dim=1).to_dataframe()
    assert len(empty) == 0 and list(empty.columns)[:2] == ["id", "x_0"]
    assert empty["x_0"].dtype == empty["submitted_at"].dtype == np.float64
