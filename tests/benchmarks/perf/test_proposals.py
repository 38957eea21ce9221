"""Comparisons of proposals run, on ledgers of the stated sizes, and fit nothing while timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.perf import proposals
from benchmarks.perf.measure import COMPARISONS

NAMES = [name for name in COMPARISONS if name.startswith("proposal between fits")]


def test_all_are_registered() -> None:
    assert len(NAMES) == len(proposals.MANY_VALUES) + len(proposals.MANY_PENDING) + 1


def test_a_call_records_a_value_and_proposes_without_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []
    ledgers: list[Any] = []
    real_fit, real_ledger = proposals.set_gp, proposals.FeedbackLedger

    def fit(X: Any, Y: Any, bounds: Any) -> Any:
        fits.append(len(Y))
        return real_fit(X, Y, bounds)

    def make(*args: Any, **kwargs: Any) -> Any:
        ledgers.append(real_ledger(*args, **kwargs))
        return ledgers[-1]

    monkeypatch.setattr(proposals, "set_gp", fit)
    monkeypatch.setattr(proposals, "FeedbackLedger", make)
    call = proposals.proposals(20, 3)
    (ledger,) = ledgers
    assert len(ledger.to_observations()[0]) == 20 and len(ledger.pending()) == 3
    points: list[Any] = [call(repetition) for repetition in range(2)]
    assert fits == [20]
    assert len(ledger.to_observations()[0]) == 22 and len(ledger.pending()) == 3
    assert torch.equal(ledger[23].x, points[0])


def test_failures_came_before_what_is_pending() -> None:
    """As many as are told, and they bend the search unless they are ignored."""
    ignored = replace(proposals.STRATEGY, failures="ignore")
    calls = [proposals.proposals(20, 3, num_failed=40)]
    calls += [proposals.proposals(20, 3, num_failed=40, strategy=ignored)]
    points: list[Any] = [call(0) for call in calls]
    assert not torch.equal(*points)
