"""The map shows the half-widths that the calibrator has learned, where they belong."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError

from botorch_calib import CalibratedModel, LocalizedConformal, OnlineConformal
from botorch_calib.plotting import plot_threshold_map
from tests.plotting.figures import Z80, Uncorrected, assert_beside_data, labels, make_gp


def test_threshold_map_shows_half_widths_where_they_belong():
    gp, X, _, bounds = make_gp(2)
    calibrator = LocalizedConformal(0.2, lengthscale=0.2, step_size=0.1)
    model = CalibratedModel(gp, calibrator)
    # One miss in a corner: wider there, and nowhere else. Inputs of the calibrator are scaled.
    calibrator.update(torch.tensor([[1.0, 0.0]], dtype=torch.double), torch.tensor([9.0]))
    ax = plot_threshold_map(model, bounds, X)
    mesh = ax.collections[0]
    points = np.asarray(mesh.get_coordinates()).reshape(-1, 2)
    values = np.asarray(mesh.get_array()).reshape(-1)
    np.testing.assert_allclose(points[values.argmax()], [3.0, -2.0])
    expected = calibrator.half_width((torch.tensor(points) + 2.0) / 5.0).squeeze(-1)
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert mesh.norm.vcenter == pytest.approx(Z80)
    queries = next(c for c in ax.collections if c.get_label() == "queries")
    np.testing.assert_allclose(queries.get_offsets(), X)
    bar = next(other for other in ax.figure.axes if other is not ax)
    assert "predictive standard deviations" in bar.get_ylabel()
    assert_beside_data(ax)


def test_threshold_map_without_evidence_is_the_models_own_width():
    gp, _, _, bounds = make_gp(2)
    ax = plot_threshold_map(CalibratedModel(gp, Uncorrected()), bounds, level=0.95)
    values = np.asarray(ax.collections[0].get_array())
    np.testing.assert_allclose(values, 1.959963984540054, rtol=1e-7)
    assert labels(ax) == ["1.96, the Gaussian process's own"]


def test_threshold_map_takes_its_level_from_the_calibrator():
    gp, _, _, bounds = make_gp(2)
    ax = plot_threshold_map(CalibratedModel(gp, OnlineConformal(0.05)), bounds)
    np.testing.assert_allclose(ax.collections[0].get_array(), 1.959963984540054, rtol=1e-6)


def test_threshold_map_rejects_bad_input():
    gp, X, _, bounds = make_gp(2)
    model = CalibratedModel(gp, Uncorrected())
    with pytest.raises(BotorchTensorDimensionError, match="bounds"):
        plot_threshold_map(model, bounds.flip(0), X)
    with pytest.raises(BotorchTensorDimensionError, match="`X`"):
        plot_threshold_map(model, bounds, X[:, :1])
    assert not plt.get_fignums()
