"""Figures of diagnostics show the numbers of reports, alarms and likelihoods of the noise."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models import SingleTaskGP
from scipy.stats import binom

from botorch_calib import noise_diagnosis
from botorch_calib.diagnostics import CalibrationAlarm
from botorch_calib.plotting import (
    plot_calibration_alarm,
    plot_coverage_over_time,
    plot_noise_likelihood,
    plot_pit_histogram,
    plot_reliability,
)
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


@pytest.mark.parametrize(
    ("plot", "name"),
    [
        (plot_pit_histogram, "report"),
        (plot_coverage_over_time, "report"),
        (plot_calibration_alarm, "alarm"),
        (plot_noise_likelihood, "diagnosis"),
    ],
)
def test_models_in_place_of_their_diagnostics_are_named(plot, name):
    with pytest.raises(InputDataError, match=f"`{name}` must be a.*got SingleTaskGP"):
        plot(make_gp())
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


def test_the_wealth_and_the_round_of_the_alarm() -> None:
    alarm = CalibrationAlarm(0.1)
    ax = plot_calibration_alarm(alarm)
    assert np.asarray(ax.get_lines()[0].get_ydata()).tolist() == [1.0]
    for u in [0.5, *[0.01, 0.99] * 8]:
        alarm.observe(torch.tensor([u]))
    ax = plot_calibration_alarm(alarm)
    curve, line, mark = ax.get_lines()
    assert np.asarray(curve.get_ydata()).tolist() == [1.0, *alarm.history]
    assert set(np.asarray(line.get_ydata()).tolist()) == {10.0}
    first = int(np.asarray(mark.get_xdata())[0])
    assert alarm.history[first - 1] >= 10 > max(alarm.history[: first - 1])
    assert str(alarm.finding) in labels(ax) and "alarm, 10" in labels(ax)


def make_diagnosis(noise, stated, level=0.95):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 1, dtype=torch.double, generator=generator)
    Y = (6 * X).sin() + noise * torch.randn(40, 1, dtype=torch.double, generator=generator)
    gp = SingleTaskGP(X, Y, train_Yvar=torch.ones_like(Y))
    gp.likelihood.noise_covar.noise = torch.full((40,), stated**2, dtype=torch.double)
    gp.covar_module.lengthscale = 0.3
    return noise_diagnosis(gp, level)


def test_likelihood_and_interval():
    diagnosis = make_diagnosis(0.3, 0.05, level=0.9)
    ax = plot_noise_likelihood(diagnosis)
    curve, stated = ax.get_lines()
    np.testing.assert_allclose(curve.get_xdata(), diagnosis.deviations)
    np.testing.assert_allclose(curve.get_ydata(), diagnosis.log_likelihoods)
    assert set(stated.get_xdata()) == {diagnosis.stated}
    (span,) = ax.patches
    box = span.get_bbox()
    assert (box.x0, box.x1) == pytest.approx(diagnosis.interval)
    assert labels(ax) == ["90 % interval", "likelihood", "stated"]
    left, right = ax.get_xlim()
    assert ax.get_xscale() == "log"
    assert left < diagnosis.stated and diagnosis.interval[1] < right
    assert_beside_data(ax)


def test_noise_stated_as_zero_is_not_marked():
    ax = plot_noise_likelihood(make_diagnosis(0.3, 0.0))
    assert labels(ax) == ["95 % interval", "likelihood"]
    assert len(ax.get_lines()) == 1
