"""Contexts of values: records, views of earlier times, and files."""

from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch.testing import assert_close

from botorch_calib.ledger import FeedbackLedger

NAN = float("nan")


def test_contexts_stay_beside_their_values(make) -> None:
    """In order of arrival; NaN where none was told."""
    ledger = make(1, clock="seconds")
    assert ledger.contexts().shape == (0, 0)
    ledger.add([[0.0], [1.0]], [5.0, 6.0], time=0.0)
    assert ledger.contexts().shape == (2, 0)
    ledger.add([[2.0]], [7.0], time=1.0, contexts=[[0.1, 0.2]])
    for _ in range(3):
        ledger.submit([3.0], time=2.0)
    third = torch.tensor([[0.1 + 0.2, 1e-300]], dtype=torch.double)
    ledger.tell(5, 8.0, time=3.0, context=third)
    ledger.tell(3, 9.0, time=4.0, context=(-1, 2))
    unknown = [NAN, NAN]
    expected = torch.tensor([unknown, unknown, [0.1, 0.2], [0.1 + 0.2, 1e-300], [-1.0, 2.0]])
    for each in (ledger, ledger.snapshot(), ledger.path and FeedbackLedger.read(ledger.path)):
        if each is not None:
            assert_close(each.contexts(), expected.double(), equal_nan=True)
            told = [(0.1, 0.2), (-1.0, 2.0), None, (0.1 + 0.2, 1e-300)]
            assert [trial.context for trial in each][2:] == told
    assert ledger.contexts(now=3.5).shape == (4, 2)


def test_an_amendment_keeps_the_context_or_replaces_it(make) -> None:
    ledger = make(1, clock="seconds")
    ledger.submit([0.0], time=0.0)
    ledger.tell(0, 1.0, time=1.0, context=[0.5])
    ledger.amend(0, 2.0, time=2.0)
    ledger.amend(0, 3.0, time=3.0, context=[0.7])
    assert [ledger.contexts(now).tolist() for now in (1.0, 2.0, 3.0)] == [[[0.5]], [[0.5]], [[0.7]]]
    assert [ledger.trials_at(now)[0].context for now in (0.5, 2.5, 3.5)] == [None, (0.5,), (0.7,)]
    assert [value.context for value in ledger[0].earlier] == [(0.5,), (0.5,)]


def test_bad_contexts_are_named() -> None:
    ledger = FeedbackLedger(1)
    ledger.submit([0.0])
    for bad in ([NAN], ["a"], object()):
        with pytest.raises(InputDataError, match="`context`"):
            ledger.tell(0, 1.0, context=bad)
    for bad in (1.0, [[1.0], [2.0]]):
        with pytest.raises(BotorchTensorDimensionError, match="`context` must have shape"):
            ledger.tell(0, 1.0, context=bad)
    for X in ([[1.0], [2.0]], [[1.0]]):
        with pytest.raises(BotorchTensorDimensionError, match="`contexts` must have shape"):
            ledger.add(X, [1.0] * len(X), contexts=[1.0, 2.0])
    ledger.tell(0, 1.0, context=[1.0, 2.0])
    ledger.submit([0.0])
    message = "must have the same number of elements in all trials, got 2 in trial 0 and 1 in trial"
    with pytest.raises(BotorchTensorDimensionError, match=f"{message} 1"):
        ledger.tell(1, 1.0, context=[1.0])
    with pytest.raises(BotorchTensorDimensionError, match=f"{message} 2"):
        ledger.add([[1.0]], [1.0], contexts=[[1.0]])
    assert len(ledger) == 2 and ledger[1].y is None


def test_wrong_lengths_are_amended_or_taken_back(make) -> None:
    ledger = make(1)
    ledger.submit([0.0], time=0.0)
    ledger.tell(0, 1.0, time=0.5, context=[1.0, 2.0])
    ledger.amend(0, 1.0, time=2.0, context=[3.0])
    ledger.add([[1.0]], [2.0], time=1.0, contexts=[[4.0]])
    assert ledger.contexts().tolist() == [[3.0], [4.0]]
    # At earlier times the context was unknown.
    assert_close(ledger.contexts(now=1.5), torch.tensor([[NAN], [4.0]]).double(), equal_nan=True)
    with pytest.raises(BotorchTensorDimensionError, match="got 2 in trial 0 and 1 in trial 1"):
        ledger.amend(0, 1.0, context=[1.0, 2.0])
    ledger.amend(0, 1.0, context=[])
    assert ledger[0].context is None and ledger.contexts().shape == (2, 1)
    ledger.amend(1, 2.0, context=[2.0, 5.0])
    ledger.amend(0, 1.0, context=[1.0, 4.0])
    assert ledger.contexts().tolist() == [[1.0, 4.0], [2.0, 5.0]]
    copy = ledger.snapshot()
    assert [value.context for value in copy[0].earlier] == [(1.0, 2.0), (3.0,), None]
