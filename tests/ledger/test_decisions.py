"""Rows of decisions in a ledger, and their outcomes."""

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


def decided(x: float, certified: bool = True, names: tuple[str, ...] = ("y",)) -> dict[str, Any]:
    """A row as `ChanceConstraint.decide` returns it."""
    return {
        "point": [x],
        "level": 0.9,
        "certified": certified,
        "limits": {name: [None, 1.0] for name in names},
        "quantiles": {name: [None, 0.1 + 0.2] for name in names},
        "outcomes": dict.fromkeys(names),
    }


def outcomes(ledger: FeedbackLedger, now: float | None = None) -> list[list[Any]]:
    return [[*row["outcomes"].values()] for row in ledger.decisions(now)]


def test_a_row_stays_with_its_query(make) -> None:
    """Queries without a row are left out, and given rows are not modified."""
    ledger, given = make(1), decided(1.0)
    ledger.add([[0.0]], [5.0])
    first = ledger.submit([1.0], decision=given)
    second = ledger.ask(lambda _: DecidedQuery([2.0], {**decided(2.0, False), "after": 3})).id
    ledger.ask(lambda _: [3.0])
    assert ledger.decisions() == [given, {**decided(2.0, False), "after": 3}]
    ledger.tell(second, 7.0)
    assert outcomes(ledger) == [[None], [7.0]] and ledger.decisions()[0] == given
    ledger.tell(first, -0.0, outcomes={"y": 0.1 + 0.7})
    assert outcomes(ledger) == [[0.1 + 0.7], [7.0]] and given == decided(1.0)


def test_outcomes_of_late_failed_and_abandoned_trials(make) -> None:
    """A late one counts in the account, whether or not the ledger uses it."""
    ledger = make(1, max_wait=2, late="discard")
    for x in range(4):
        ledger.submit([float(x)], decision=decided(float(x)))
    ledger.fail(0, "broken")
    ledger.abandon(1)
    assert outcomes(ledger) == [[None]] * 4
    ledger.submit([4.0])
    for late in (1, 2):
        with pytest.warns(InputDataWarning, match="has arrived after"):
            ledger.tell(late, 10.0 + late)
    states = [trial.status for trial in ledger.trials]
    assert states == ["failed", "expired", "expired", "pending", "pending"]
    assert outcomes(ledger) == [[None], [11.0], [12.0], [None]]


def test_amendments_and_views_of_the_past(make) -> None:
    ledger = make(1, clock="seconds")
    ledger.submit([1.0], time=0.0, decision=decided(1.0, names=("a", "b")))
    ledger.submit([2.0], time=0.0, decision=decided(2.0))
    ledger.tell(0, 5.0, time=1.0, outcomes={"b": None, "a": 1.0})
    ledger.tell(1, 6.0, time=1.0)
    ledger.amend(0, 5.5, time=2.0)
    ledger.amend(0, 5.5, time=3.0, outcomes={"a": 1.5, "b": 2.5})
    ledger.amend(1, 6.5, time=3.0)
    for now, *expected in [
        (0.5, [None, None], [None]),
        (1.0, [1.0, None], [6.0]),
        (2.5, [1.0, None], [6.0]),
        (3.0, [1.5, 2.5], [6.5]),
    ]:
        assert outcomes(ledger, now) == expected
    assert len({*ledger.trials}) == 2  # which can be hashed


def test_files_keep_them(tmp_path) -> None:
    path = tmp_path / "ledger.db"
    with FeedbackLedger.open(path, 1) as ledger:
        ledger.submit([1.0], decision=decided(1.0, names=("a", "b")))
        ledger.tell(0, 1 / 3, outcomes={"a": math.pi, "b": None})
        ledger.amend(0, 2 / 3, outcomes={"a": math.pi, "b": math.nextafter(1.0, 2.0)})
        held = [ledger.decisions(now) for now in (0.0, 1.0, None)]
    again = FeedbackLedger.read(path)
    assert [again.decisions(now) for now in (0.0, 1.0, None)] == held
    assert again.trials == ledger.trials and again.snapshot().decisions() == held[2]


def test_a_decision_may_be_in_single_precision_or_leave_out_contexts() -> None:
    ledger = FeedbackLedger(2)
    x = torch.tensor([0.1, 1 / 3], dtype=torch.double)
    kept = [x.float().tolist(), [0.1], [1 / 3]]
    for point in kept:
        ledger.submit(x, decision={**decided(0.0), "point": point})
    assert [row["point"] for row in ledger.decisions()] == kept
    for point in ([0.2], [1 / 3, 0.1], [0.1, 0.1]):
        with pytest.raises(InputDataError, match="`decision` is about the point"):
            ledger.submit(x, decision={**decided(0.0), "point": point})


def test_outcomes_in_single_precision_are_as_written() -> None:
    """As a constraint judges them: 0.8 meets a limit of 0.8, and the next number does not."""
    ledger = FeedbackLedger(1)
    for _ in range(5):
        ledger.submit([1.0], decision=decided(1.0))
    tie = torch.tensor(0.8)
    values = [tie, tie.numpy(), np.float32(0.8), torch.nextafter(tie, tie + 1), 0.8]
    for trial, y in enumerate(values):
        ledger.tell(trial, y, outcomes={"y": y})
    assert [y == 0.8 for (y,) in outcomes(ledger)] == [True, True, True, False, True]
    came = zip(outcomes(ledger), values, strict=True)
    assert all(torch.tensor(y) == told for (y,), told in came)


def test_bad_arguments_are_named() -> None:
    ledger = FeedbackLedger(1)
    some = {"point": [1.0], "level": 0.9}
    huge = decided(1.0) | {"point": [10**400]}
    several: list[Any] = [5, True, torch.ones(2), [{}], "text", huge, [decided(1.0)], some]
    for bad in several:
        with pytest.raises(InputDataError, match="`decision` must be a row"):
            ledger.submit([1.0], decision=bad)
    for point in ([2.0], [1.0, 0.5], []):
        other = decided(1.0) | {"point": point}
        with pytest.raises(InputDataError, match="`decision` is about the point .*query is"):
            ledger.submit([1.0], decision=other)
        with pytest.raises(InputDataError, match="`decision` is about the point"):
            ledger.ask(partial(lambda other, _: DecidedQuery([1.0], other), other))
    assert not len(ledger)
    ledger.submit([1.0], decision=decided(1.0, names=("a", "b")))
    ledger.submit([1.0])
    for few in (None, {}, {"a": 1.0}, {"a": 1.0, "b": 2.0, "c": 3.0}):
        with pytest.raises(
            InputDataError, match="each of .'a', 'b'. in the decision about trial 0"
        ):
            ledger.tell(0, 1.0, outcomes=few)
    with pytest.raises(InputDataError, match=r"each of \[\] in the decision about trial 1"):
        ledger.tell(1, 1.0, outcomes={"y": 1.0})
    with pytest.raises(InputDataError, match="`outcomes.'b'.` must be a finite number"):
        ledger.tell(0, 1.0, outcomes={"a": 1.0, "b": math.nan})
    with pytest.raises(InputDataError, match="`outcomes` must be a dictionary"):
        ledger.tell(0, 1.0, outcomes=[1.0, 2.0])  # type: ignore[arg-type]
    assert [trial.status for trial in ledger.trials] == ["pending", "pending"]
