"""Ledgers in memory and in files."""

import itertools
from typing import Any

import pytest

from botorch_calib.ledger import FeedbackLedger, storage


@pytest.fixture(autouse=True)
def without_waiting_for_disks(monkeypatch) -> None:
    """None of these tests needs files that outlast power."""
    monkeypatch.setattr(storage, "SYNCHRONOUS", "OFF")


@pytest.fixture(params=["memory", "file"])
def make(request, tmp_path):
    """A function that makes ledgers."""
    numbers = itertools.count()

    def make_ledger(dim: int = 2, **settings: Any) -> FeedbackLedger:
        if request.param == "memory":
            return FeedbackLedger(dim, **settings)
        return FeedbackLedger.open(tmp_path / f"{next(numbers)}.db", dim, **settings)

    return make_ledger
