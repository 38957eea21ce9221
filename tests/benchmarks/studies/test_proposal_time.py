"""The comparison of proposal times runs, and both sides really choose."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("optuna")

from benchmarks.studies import proposal_time
from botorch_calib import DelayAwareProposer


def test_both_sides_propose(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Proposer(DelayAwareProposer):
        def __call__(self, ledger: Any) -> Any:
            asked.append(len(ledger))
            return super().__call__(ledger)

    monkeypatch.setattr(proposal_time, "DelayAwareProposer", Proposer)
    seconds = proposal_time.times(16, 2)
    assert asked == [16, 17]
    assert {name: len(each) for name, each in seconds.items()} == {
        "DelayAwareProposer": 2,
        "Optuna's GPSampler": 2,
    }
    assert all(each > 0.0 for times in seconds.values() for each in times)


def test_report() -> None:
    text = proposal_time.report({"one": [9.0, 1.0, 2.0, 4.0]})
    assert text.splitlines()[-1] == "| one | 9.00 | 2.00 | 4.00 |"
