"""Bars start and end where the trials did."""

import pytest
from botorch.exceptions.errors import InputDataError

from botorch_calib import FeedbackLedger
from botorch_calib.plotting import plot_timeline
from tests.plotting.figures import assert_beside_data, labels


@pytest.fixture
def ledger():
    ledger = FeedbackLedger(1, max_wait=5.0, clock="seconds")
    for time in (0.0, 1.0, 2.0, 8.0):
        ledger.submit([time], time=time)
    first, second, third, _ = (trial.id for trial in ledger.trials_at(8.0))
    ledger.observe(first, 1.0, time=3.5)
    ledger.fail(second, "no reason", time=4.0)
    assert third != first
    return ledger


def test_bars_last_from_submission_to_arrival_or_to_now(ledger):
    trials = ledger.trials_at(9.0)
    ax = plot_timeline(trials, now=9.0)
    bars = {round(bar.get_y() + 0.4): (bar.get_x(), bar.get_width()) for bar in ax.patches}
    expected = [(0.0, 3.5), (1.0, 8.0), (2.0, 7.0), (8.0, 1.0)]
    assert bars == {trial.id: span for trial, span in zip(trials, expected, strict=True)}
    names = {"observed (1)", "failed (1)", "expired (1)", "pending (1)"}
    assert {text for text in labels(ax) if "(" in text} == names
    assert_beside_data(ax)


def test_no_trials_is_an_error():
    with pytest.raises(InputDataError, match="trials"):
        plot_timeline([])
