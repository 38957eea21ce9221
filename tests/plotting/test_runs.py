"""Regret curves show the mean and the standard error of the runs, bars when trials ran."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_calib import FeedbackLedger
from botorch_calib.plotting import plot_regret, plot_reliability, plot_timeline
from tests.plotting.figures import assert_beside_data, band, labels


def test_regret_shows_mean_and_standard_error():
    values = np.array([[4.0, 2.0, 1.0], [6.0, 4.0, 1.0], [5.0, 0.0, 1.0]])
    ax = plot_regret({"a": values, "b": torch.ones(1, 3, requires_grad=True)})
    first, second = ax.get_lines()
    np.testing.assert_allclose(first.get_xydata(), [[0, 5], [1, 2], [2, 1]])
    np.testing.assert_allclose(second.get_ydata(), np.ones(3))
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()
    assert len(ax.collections) == 1, "one run has no standard error"
    x, low, high = band(ax.collections[0])
    error = np.array([1.0, 2.0, 0.0]) / math.sqrt(3)
    np.testing.assert_allclose(x, [0, 1, 2])
    np.testing.assert_allclose(low, [5, 2, 1] - error)
    np.testing.assert_allclose(high, [5, 2, 1] + error)
    assert labels(ax) == ["a (3 runs)", "b (1 run)"]
    assert "standard error" in ax.get_legend().get_title().get_text()
    assert_beside_data(ax)


def test_given_axes_are_used():
    _, ax = plt.subplots()
    before = plt.get_fignums()
    assert plot_regret({"a": [[1.0, 2.0]]}, ax=ax) is ax
    assert plot_reliability([0.5], {"a": [0.4]}, 10, ax=ax) is ax
    assert plt.get_fignums() == before


@pytest.mark.parametrize("bad", [[1.0, 2.0], np.zeros((0, 3)), np.zeros((2, 3, 1))])
def test_regret_rejects_other_shapes_and_draws_nothing(bad):
    with pytest.raises(BotorchTensorDimensionError, match="curves\\['b'\\].*seeds x T"):
        plot_regret({"a": [[1.0]], "b": bad})
    assert not plt.get_fignums()


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


def test_bars_of_hundreds_of_trials_are_visible():
    ledger = FeedbackLedger(1)
    for _ in range(700):
        ledger.tell(ledger.submit([0.0], time=0.0), 1.0, time=10.0)
    ax = plot_timeline(ledger.trials_at(10.0))
    ax.figure.canvas.draw()
    middle, _ = map(round, ax.transData.transform([5.0, 0.0]))
    last, first = (round(ax.transData.transform([5.0, trial])[1]) for trial in (699, 0))
    pixels = np.asarray(ax.figure.canvas.buffer_rgba())[::-1][last + 2 : first - 2, middle, 0]
    assert len(pixels) > 100
    assert pixels.max() < 150, "red is 0 in the bars and 255 in the gaps, a fifth of the height"


def test_no_trials_is_an_error():
    with pytest.raises(InputDataError, match="trials"):
        plot_timeline([])
    with pytest.raises(InputDataError, match="trials"):
        plot_timeline(FeedbackLedger(1))
