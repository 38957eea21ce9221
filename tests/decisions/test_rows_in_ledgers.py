"""A chance constraint's decisions in a ledger: restarts, several workers, and an optimizer."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from botorch_calib import AsynchronousOptimizer, ChanceConstraint, FeedbackLedger
from botorch_calib.ledger import DecidedQuery, storage
from tests.decisions import ledger_loops as loops
from tests.gps import DOUBLE


@pytest.fixture(autouse=True)
def without_waiting_for_disks(monkeypatch) -> None:
    monkeypatch.setattr(storage, "SYNCHRONOUS", "OFF")


def test_restarted_at_each_step_it_is_the_one_that_was_carried(tmp_path) -> None:
    """To the last bit: pending points, calibrators and contexts, four workers, late outcomes.

    Loops of all kinds are killed in tests/slow/test_killed_chance_constraints.py.
    """
    kind = "pending, calibrated, contexts"
    memory, path, num = FeedbackLedger(1), tmp_path / "ledger.db", 28
    carried = loops.carry_on(memory, kind, num)
    for stop in range(4, num + 1, 8):
        with FeedbackLedger.open(path, 1) as ledger:
            loops.run(ledger, kind, stop)
    ledger = FeedbackLedger.read(path)
    assert ledger.trials == memory.trials
    assert ledger.decisions() == carried.decisions
    model = loops.model_of(ledger, kind)
    settings: dict[str, Any] = {"upper": loops.LIMIT, "budget": 14.0, **loops.KINDS[kind]}
    rebuilt = ChanceConstraint(model, rows=ledger.decisions(), **settings)
    X = loops.CHOICES.unsqueeze(-2)
    carried = carried.with_model(model)
    assert torch.equal(rebuilt.margin(X), carried.margin(X)) and repr(rebuilt) == repr(carried)
    assert rebuilt.budget_left == carried.budget_left
    assert carried.num_certified > 10 and 0 < carried.num_outstanding < carried.num_certified
    assert carried.num_violations > 0


def test_an_optimizer_with_four_workers_keeps_account() -> None:
    """Each proposal is a decision, made of the books so far, and each value is its outcome."""
    ledger, kind = FeedbackLedger(1), "pending"
    loops.begin(ledger, kind)
    rng = random.Random(0)

    def constraint() -> ChanceConstraint:
        model = loops.model_of(ledger, kind)
        return ChanceConstraint(model, upper=loops.LIMIT, budget=14.0, rows=ledger.decisions())

    def propose(_: FeedbackLedger) -> DecidedQuery:
        own = constraint()
        (row,) = own.decide(x := loops.chosen(own, ledger))
        return DecidedQuery(x, row)

    def objective(x: Any) -> float:
        time.sleep(rng.random() / 50)
        return float(x[0]) + rng.gauss(0.0, 0.15)

    with ThreadPoolExecutor(4) as executor:
        optimizer = AsynchronousOptimizer(executor, objective, ledger, propose, max_parallel=4)
        optimizer.run(30, progress=False)
    own = constraint()
    assert own.num_decisions == len(ledger) - 4 >= 26 and own.num_certified > 10
    for row, trial in zip(own.decisions, ledger.trials[4:], strict=True):
        assert row["point"] == trial.x.tolist() and row["outcomes"] == {"y": trial.y}
    values = torch.tensor([t.y for t in ledger.trials[4:] if t.y is not None], **DOUBLE)
    assert own.num_violations <= int((values > loops.LIMIT).sum())
    assert own.num_violations <= own.violation_bound(own.num_certified)
