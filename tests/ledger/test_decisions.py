"""Records of decisions beside the queries that were decided about, and what came of them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning

from botorch_calib.ledger import DecidedQuery, FeedbackLedger


def record(x: float, certified: bool = True) -> dict[str, Any]:
    return {
        "point": [x],
        "quantiles": [0.1 + 0.2],
        "level": 0.9,
        "certified": certified,
        "outcome": None,
    }


def outcomes(ledger: FeedbackLedger, constraint: int = 0, now: float | None = None) -> list[Any]:
    return [each["outcome"] for each in ledger.decisions(constraint, now)]


def test_a_record_stays_with_its_query(make) -> None:
    """Queries without one are left out; what is given is not changed."""
    ledger, given = make(1), record(1.0)
    ledger.add([[0.0]], [5.0])
    first = ledger.submit([1.0], decisions=given)
    second = ledger.ask(lambda _: DecidedQuery([2.0], [record(2.0, False)])).id
    ledger.ask(lambda _: [3.0])
    assert ledger.decisions() == [given, record(2.0, False)] and ledger.decisions(1) == []
    ledger.tell(second, 7.0)
    assert ledger.decisions() == [given, {**record(2.0, False), "outcome": 7.0}]
    ledger.tell(first, -0.0, outcomes=[0.1 + 0.7])
    assert outcomes(ledger) == [0.1 + 0.7, 7.0] and given == record(1.0)


def test_outcomes_of_late_failed_and_abandoned_trials(make) -> None:
    """A late one counts in the books, whether or not the ledger uses it."""
    ledger = make(1, max_wait=2, late="discard")
    for x in range(4):
        ledger.submit([float(x)], decisions=record(float(x)))
    ledger.fail(0, "broken")
    ledger.abandon(1)
    assert outcomes(ledger) == [None] * 4
    ledger.submit([4.0])
    for late in (1, 2):
        with pytest.warns(InputDataWarning, match="has come after"):
            ledger.tell(late, 10.0 + late)
    states = [trial.status for trial in ledger.trials]
    assert states == ["failed", "expired", "expired", "pending", "pending"]
    assert outcomes(ledger) == [None, 11.0, 12.0, None]


def test_amendments_and_views_of_the_past(make) -> None:
    ledger = make(1, clock="seconds")
    ledger.submit([1.0], time=0.0, decisions=[record(1.0), record(1.0)])
    ledger.submit([2.0], time=0.0, decisions=record(2.0))
    ledger.tell(0, 5.0, time=1.0, outcomes=[1.0, None])
    ledger.tell(1, 6.0, time=1.0)
    ledger.amend(0, 5.5, time=2.0)
    ledger.amend(0, 5.5, time=3.0, outcomes=[1.5, 2.5])
    ledger.amend(1, 6.5, time=3.0)
    for now, first, second in [
        (0.5, [None, None], [None]),
        (1.0, [1.0, 6.0], [None]),
        (2.5, [1.0, 6.0], [None]),
        (3.0, [1.5, 6.5], [2.5]),
    ]:
        assert outcomes(ledger, 0, now) == first and outcomes(ledger, 1, now) == second


def test_files_keep_them(tmp_path) -> None:
    path = tmp_path / "ledger.db"
    with FeedbackLedger.open(path, 1) as ledger:
        ledger.submit([1.0], decisions=[record(1.0), record(1.0)])
        ledger.tell(0, 1 / 3, outcomes=[math.pi, None])
        ledger.amend(0, 2 / 3, outcomes=[math.pi, math.nextafter(1.0, 2.0)])
        held = [ledger.decisions(i, now) for i in (0, 1) for now in (0.0, 1.0, None)]
    again = FeedbackLedger.read(path)
    assert [again.decisions(i, now) for i in (0, 1) for now in (0.0, 1.0, None)] == held
    assert again.trials == ledger.trials and again.snapshot().decisions() == held[2]


def test_a_decision_may_be_in_single_precision_or_leave_out_contexts() -> None:
    ledger = FeedbackLedger(2)
    x = torch.tensor([0.1, 1 / 3], dtype=torch.double)
    kept = [x.float().tolist(), [0.1], [1 / 3]]
    for point in kept:
        ledger.submit(x, decisions={**record(0.0), "point": point})
    assert [each["point"] for each in ledger.decisions()] == kept
    for point in ([0.2], [1 / 3, 0.1], [0.1, 0.1]):
        with pytest.raises(InputDataError, match="`decisions` are about the point"):
            ledger.submit(x, decisions={**record(0.0), "point": point})


def test_outcomes_in_single_precision_are_as_written() -> None:
    """As a constraint judges them: 0.8 meets a limit of 0.8, and the next number does not."""
    ledger = FeedbackLedger(1)
    for _ in range(5):
        ledger.submit([1.0], decisions=record(1.0))
    tie = torch.tensor(0.8)
    values = [tie, tie.numpy(), np.float32(0.8), torch.nextafter(tie, tie + 1), 0.8]
    for trial, y in enumerate(values):
        ledger.tell(trial, y, outcomes=[y])
    assert [y == 0.8 for y in outcomes(ledger)] == [True, True, True, False, True]
    assert all(torch.tensor(y) == told for y, told in zip(outcomes(ledger), values, strict=True))


def test_bad_arguments_are_named() -> None:
    ledger = FeedbackLedger(1)
    some = {"point": [1.0], "level": 0.9}
    huge = record(1.0) | {"point": [10**400]}
    several: list[Any] = [5, True, torch.ones(2), [{}], "text", huge, [record(1.0), 3], some]
    for bad in several:
        with pytest.raises(InputDataError, match="`decisions` must be records"):
            ledger.submit([1.0], decisions=bad)
    long, short = record(1.0) | {"point": [1.0, 0.5]}, record(1.0) | {"point": []}
    for other in ([record(2.0)], [record(1.0), record(1.1)], long, short):
        with pytest.raises(InputDataError, match="`decisions` are about the point .*query is"):
            ledger.submit([1.0], decisions=other)
        with pytest.raises(InputDataError, match="`decisions` are about the point"):
            ledger.ask(partial(lambda other, _: DecidedQuery([1.0], other), other))
    assert not len(ledger)
    ledger.submit([1.0], decisions=[record(1.0), record(1.0)])
    ledger.submit([1.0])
    for few in (None, [1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(InputDataError, match="one for each of the 2 decisions about trial 0"):
            ledger.tell(0, 1.0, outcomes=few)
    with pytest.raises(InputDataError, match="each of the 0 decisions about trial 1"):
        ledger.tell(1, 1.0, outcomes=[1.0])
    with pytest.raises(InputDataError, match="`outcomes` must be a finite number"):
        ledger.tell(0, 1.0, outcomes=[1.0, math.nan])
    assert [trial.status for trial in ledger.trials] == ["pending", "pending"]
