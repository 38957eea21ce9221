"""Regret curves show the mean and the standard error of the runs."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError

from botorch_calib.plotting import plot_regret, plot_reliability
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


def test_regret_on_a_log_scale_draws_bands_that_reach_zero():
    ax = plot_regret({"a": [[1.0, 0.0], [1.0, 3.0]]}, log_scale=True)
    assert ax.get_yscale() == "log"
    ax.figure.canvas.draw()


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
