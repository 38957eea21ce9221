"""The intervals drawn are those that the models state."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_calib import CalibratedModel, LocalizedConformal
from botorch_calib.calibration import NoCalibration
from botorch_calib.plotting import plot_intervals
from tests.plotting.figures import Z80, assert_beside_data, band, labels, make_gp


def test_intervals_of_both_models_are_drawn():
    gp, X, Y, _ = make_gp(1)
    model = CalibratedModel.from_history(
        gp, LocalizedConformal(0.2, lengthscale=0.3, step_size=0.2), num_initial=3
    )
    grid = torch.linspace(-2, 3, 31, dtype=torch.double).unsqueeze(-1)
    ax = plot_intervals(model, grid, X, Y, truth=grid.sin())
    with torch.no_grad():
        base = gp.posterior(grid, observation_noise=True)
        deviation, mean = base.variance.sqrt().squeeze(-1), base.mean.squeeze(-1)
        width = model.calibrator.half_width(model.transform_inputs(grid)).squeeze(-1)
    assert width.max() - width.min() > 0.1, "the case would not tell the intervals apart"
    scatter, fill = ax.collections
    np.testing.assert_allclose(scatter.get_offsets(), torch.cat([X, Y], dim=-1))
    x, low, high = band(fill)
    np.testing.assert_allclose(x, grid.squeeze(-1))
    np.testing.assert_allclose(low, mean - width * deviation, rtol=1e-7)
    np.testing.assert_allclose(high, mean + width * deviation, rtol=1e-7)
    below, above, truth = ax.get_lines()
    np.testing.assert_allclose(below.get_ydata(), mean - Z80 * deviation, rtol=1e-7)
    np.testing.assert_allclose(above.get_ydata(), mean + Z80 * deviation, rtol=1e-7)
    np.testing.assert_allclose(truth.get_ydata(), grid.sin().squeeze(-1))
    assert len(labels(ax)) == 4
    assert_beside_data(ax)


def test_intervals_have_the_level_asked_for():
    gp, X, Y, _ = make_gp(1)
    model = CalibratedModel(gp, NoCalibration())
    grid = torch.linspace(-2, 3, 5, dtype=torch.double).unsqueeze(-1)
    ax = plot_intervals(model, grid, X, Y, level=0.95)
    _, low, _ = band(ax.collections[1])
    with torch.no_grad():
        base = gp.posterior(grid, observation_noise=True)
        expected = (base.mean - 1.959963984540054 * base.variance.sqrt()).squeeze(-1)
    np.testing.assert_allclose(low, expected, rtol=1e-7)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), expected, rtol=1e-7)
    assert all("95%" in label for label in labels(ax) if "interval" in label)


def test_intervals_reject_bad_input():
    gp, X, Y, _ = make_gp(1)
    model, grid = CalibratedModel(gp, NoCalibration()), torch.zeros(4, 1, dtype=torch.double)
    with pytest.raises(BotorchTensorDimensionError, match="X_grid"):
        plot_intervals(model, grid.T, X, Y)
    with pytest.raises(BotorchTensorDimensionError, match="`Y`"):
        plot_intervals(model, grid, X, Y.squeeze(-1))
    with pytest.raises(BotorchTensorDimensionError, match="truth"):
        plot_intervals(model, grid, X, Y, truth=torch.zeros(4))
    with pytest.raises(InputDataError, match="level"):
        plot_intervals(model, grid, X, Y, level=1.0)
    assert not plt.get_fignums()


def test_intervals_of_the_base_model_can_be_left_out():
    gp, X, Y, _ = make_gp(1)
    grid = torch.linspace(-2, 3, 5, dtype=torch.double).unsqueeze(-1)
    ax = plot_intervals(CalibratedModel(gp, NoCalibration()), grid, X, Y, base=False)
    assert not ax.get_lines()
    assert labels(ax) == ["observations", "calibrated, 80% interval"]
