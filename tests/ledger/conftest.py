"""Ledgers in memory and in files."""

import itertools
from typing import Any

import pytest

from botorch_calib.ledger import FeedbackLedger, file_storage


@pytest.fixture(params=["memory", "file"])
def make(request, tmp_path, monkeypatch):
    """A function that makes ledgers; none of these tests needs files that outlast power."""
    monkeypatch.setattr(file_storage, "SYNCHRONOUS", "OFF")
    numbers = itertools.count()

    def make_ledger(dim: int = 2, **settings: Any) -> FeedbackLedger:
        if request.param == "memory":
            return FeedbackLedger(dim, **settings)
        return FeedbackLedger.open(tmp_path / f"{next(numbers)}.db", dim, **settings)

    return make_ledger
