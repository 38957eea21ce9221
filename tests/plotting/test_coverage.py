"""Coverage over time is the running and the sliding mean of what was covered."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from botorch_calib.plotting import plot_coverage_over_time
from tests.plotting.figures import assert_beside_data, band, labels, make_report


def test_running_and_sliding_coverage():
    report = make_report(alpha=0.3)
    ax = plot_coverage_over_time(report, window=7)
    curves = {line.get_label(): line for line in ax.get_lines()}
    assert set(curves["target, 0.7"].get_ydata()) == {0.7}
    for name, scores in report.forecasts.items():
        covered = scores.covered.numpy()
        so_far, latest = curves[f"{name}, so far"], curves[f"{name}, last 7"]
        expected = [covered[: t + 1].mean() for t in range(40)]
        np.testing.assert_array_equal(so_far.get_xdata(), np.arange(1, 41))
        np.testing.assert_allclose(so_far.get_ydata(), expected)
        expected = [covered[t - 6 : t + 1].mean() for t in range(6, 40)]
        np.testing.assert_array_equal(latest.get_xdata(), np.arange(7, 41))
        np.testing.assert_allclose(latest.get_ydata(), expected)
    assert len(labels(ax)) == 6
    assert_beside_data(ax)


def test_band_is_that_of_binomial_counts():
    ax = plot_coverage_over_time(make_report(), confidence=0.9)
    x, low, high = band(ax.collections[0])
    np.testing.assert_array_equal(x, np.arange(1, 41))
    for end, q in ((low, 0.05), (high, 0.95)):
        counts = np.round(end * x)
        np.testing.assert_allclose(end, counts / x)
        assert (binom.cdf(counts, x, 0.8) >= q).all()
        assert (binom.cdf(counts - 1, x, 0.8) < q).all()
