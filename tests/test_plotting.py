"""The figures show the numbers they are given; without matplotlib the error says what to do."""

from __future__ import annotations

import math
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from scipy.stats import binom

from botorch_calib import CalibratedModel, LocalizedConformal, OnlineConformal, plotting
from botorch_calib.calibration import Calibrator
from botorch_calib.plotting import (
    plot_intervals,
    plot_regret,
    plot_reliability,
    plot_threshold_map,
)
from botorch_calib.predictive import PiecewisePredictive

Z80 = 1.2815515655446004


@pytest.fixture(autouse=True)
def _agg():
    with matplotlib.rc_context():
        matplotlib.use("Agg", force=True)
        yield
        plt.close("all")


class Uncorrected(Calibrator):
    """States the normal law and learns nothing."""

    def predictive(self, X):
        return PiecewisePredictive.gaussian((*X.shape[:-1], 1), dtype=X.dtype)

    def update(self, X, z):
        pass

    @property
    def num_updates(self):
        return 0


def make_gp(d, n=12, low=-2.0, high=3.0):
    torch.manual_seed(d)
    X = low + (high - low) * torch.rand(n, d, dtype=torch.double)
    Y = X.sin().sum(-1, keepdim=True) + 0.3 * torch.randn(n, 1, dtype=torch.double)
    bounds = torch.tensor([[low] * d, [high] * d], dtype=torch.double)
    gp = SingleTaskGP(
        X, Y, input_transform=Normalize(d, bounds=bounds), outcome_transform=Standardize(1)
    )
    return gp.eval(), X, Y, bounds


def band(collection):
    """Abscissas, lower and upper ends of a ``fill_between``."""
    vertices = collection.get_paths()[0].vertices[:-1]
    half = len(vertices) // 2
    lower, upper = vertices[1:half], vertices[half + 1 :][::-1]
    return lower[:, 0], lower[:, 1], upper[:, 1]


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def assert_beside_data(ax):
    """The legend covers no part of the axes."""
    ax.figure.canvas.draw()
    legend, area = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert legend.x0 >= area.x1 - 1 or legend.y0 >= area.y1 - 1
    figure = ax.figure.bbox
    assert legend.x1 <= figure.x1 + 1 and legend.y1 <= figure.y1 + 1


# ------------------------------------------------------------ regret


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


# ------------------------------------------------------------ reliability


def test_reliability_shows_frequencies_diagonal_and_binomial_band():
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
    # The band's ends are the 5 % and 95 % quantiles of a binomial count.
    for end, q in ((low, 0.05), (high, 0.95)):
        counts = np.round(end[at] * 40)
        np.testing.assert_allclose(end[at], counts / 40)
        assert (binom.cdf(counts, 40, inside) >= q).all()
        assert (binom.cdf(counts - 1, 40, inside) < q).all()
    assert "n = 40" in labels(ax)[0] and "90%" in labels(ax)[0]
    assert ax.get_xlabel() == "stated coverage" and ax.get_ylabel() == "observed coverage"
    assert_beside_data(ax)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 1.0], {"a": [0.5, 0.5]}, 10), "levels"),
        (([0.5], {"a": [7]}, 10), "observed.*counts"),
        (([0.5], {"a": [math.nan]}, 10), "observed"),
        (([0.5], {"a": [0.5, 0.6]}, 10), "observed"),
        (([0.5], {"a": [0.5]}, 0), "num_observations"),
        (([0.5], {"a": [0.5]}, 10, 1.0), "confidence"),
    ],
)
def test_reliability_rejects_bad_input(arguments, message):
    with pytest.raises((InputDataError, BotorchTensorDimensionError), match=message):
        plot_reliability(*arguments)
    assert not plt.get_fignums()


# ------------------------------------------------------------ intervals


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
    model = CalibratedModel(gp, Uncorrected())
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
    model, grid = CalibratedModel(gp, Uncorrected()), torch.zeros(4, 1, dtype=torch.double)
    with pytest.raises(BotorchTensorDimensionError, match="X_grid"):
        plot_intervals(model, grid.T, X, Y)
    with pytest.raises(BotorchTensorDimensionError, match="`Y`"):
        plot_intervals(model, grid, X, Y.squeeze(-1))
    with pytest.raises(BotorchTensorDimensionError, match="truth"):
        plot_intervals(model, grid, X, Y, truth=torch.zeros(4))
    with pytest.raises(InputDataError, match="level"):
        plot_intervals(model, grid, X, Y, level=1.0)
    assert not plt.get_fignums()


# ------------------------------------------------------------ threshold map


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


# ------------------------------------------------------------ matplotlib


def test_missing_matplotlib_is_explained(monkeypatch):
    for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install botorch_calib\\[plot\\]"):
        plotting.plot_regret({"a": [[1.0]]})


def test_the_package_and_the_module_do_not_import_matplotlib():
    code = "import sys, botorch_calib.plotting; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
