"""Frequencies, diagonals, histograms and bands are those of the numbers given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_calib.plotting import plot_pit_histogram, plot_reliability
from botorch_calib.plotting.simultaneous_bands import simultaneous_band, simultaneous_histogram_band
from tests.gps import make_gp
from tests.plotting.figures import assert_beside_data, band, labels, make_report


def test_reliability_shows_frequencies_diagonal_and_simultaneous_band():
    levels, observed = [0.2, 0.5, 0.8], [0.1, 0.45, 0.82]
    ax = plot_reliability(levels, {"gp": observed, "calibrated": torch.tensor(levels)}, 40, 0.9)
    diagonal, first, second = ax.get_lines()
    np.testing.assert_allclose(diagonal.get_xydata(), [[0, 0], [1, 1]])
    np.testing.assert_allclose(first.get_xydata(), np.stack([levels, observed], axis=1))
    np.testing.assert_allclose(second.get_ydata(), levels)
    assert first.get_marker() != second.get_marker()
    x, low, high = band(ax.collections[0])
    inside = np.array([0.2, 0.5, 0.8])
    at = [np.abs(x - p).argmin() for p in inside]
    expected = simultaneous_band(40, inside, 0.9)
    np.testing.assert_allclose((low[at], high[at]), expected)
    assert (x[[0, -1]] == [0, 1]).all() and (low[[0, -1]] == [0, 1]).all()
    assert "n = 40" in labels(ax)[0] and "90%" in labels(ax)[0]
    assert ax.get_xlabel() == "stated coverage" and ax.get_ylabel() == "observed coverage"
    assert_beside_data(ax)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 1.0], {"a": [0.5, 0.5]}, 10), "levels"),
        (([0.5], {"a": [7]}, 10), "observed.*lie in"),
        (([0.5], {"a": [0.5, 0.6]}, 10), "observed"),
        (([0.5], {"a": [0.5]}, 0), "num_observations"),
        ((make_gp(),), "Give a report, such as .*got SingleTaskGP"),
        (([0.5], {"a": [0.5]}, 10, 1.0), "confidence"),
    ],
)
def test_reliability_rejects_bad_input(arguments, message):
    with pytest.raises((InputDataError, BotorchTensorDimensionError), match=message):
        plot_reliability(*arguments)
    assert not plt.get_fignums()


# ------------------------------------------------------------ of a report


@pytest.mark.parametrize("calibrated", [True, False])
def test_reliability_of_a_report_shows_its_frequencies(calibrated: bool):
    report = make_report(calibrated=calibrated, levels=(0.25, 0.5, 0.9))
    ax = plot_reliability(report)
    _, *curves = ax.get_lines()
    shown = [report.base] if report.calibrated is None else [report.base, report.calibrated]
    for curve, scores in zip(curves, shown, strict=True):
        points = torch.stack([report.levels, scores.frequencies], dim=-1)
        np.testing.assert_allclose(np.asarray(curve.get_xydata()), points)
    assert labels(ax)[2:] == ["Gaussian process", "calibrated"][: len(shown)]
    assert "n = 40" in labels(ax)[0]
    assert ax.get_xlabel() == "quantile level"
    assert_beside_data(ax)


def test_pit_histogram_counts_and_its_band_is_simultaneous():
    report = make_report()
    ax = plot_pit_histogram(report, num_bins=5, confidence=0.9)
    outlines = {patch.get_label(): patch for patch in ax.patches if patch.get_label()}
    for name, scores in report.forecasts.items():
        counts = [
            int(((scores.pits >= j / 5) & (scores.pits < (j + 1) / 5)).sum()) for j in range(5)
        ]
        assert sum(counts) == 40
        np.testing.assert_allclose(outlines[name].get_data().values, np.array(counts) / 8)
    box = next(p for label, p in outlines.items() if "90%" in label).get_bbox()
    ends = np.array(simultaneous_histogram_band(40, 5, 0.9))
    np.testing.assert_allclose((box.y0, box.y1), ends * 5)
    assert_beside_data(ax)
