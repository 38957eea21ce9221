"""Figures show the intervals and margins of models and constraints at the right places."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.transforms import ChainedOutcomeTransform, Log, Normalize, Standardize

from botorch_calib import CalibratedModel, ChanceConstraint, LocalizedConformal
from botorch_calib.calibration import NoCalibration
from botorch_calib.models import NoisyEnsemble
from botorch_calib.plotting import (
    plot_certified_region,
    plot_intervals,
    plot_threshold_map,
    prediction_interval,
)
from botorch_calib.plotting.models import interval_half_width
from tests.gps import make_multitask
from tests.models.ensembles import Lines
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
    rare = plot_intervals(model, grid, X, Y, level=0.999)
    assert all("99.9%" in label for label in labels(rare) if "interval" in label)


def test_intervals_of_a_plain_process_beside_a_function():
    gp, X, Y, _ = make_gp(1)
    grid = torch.linspace(-2, 3, 5, dtype=torch.double).unsqueeze(-1)
    ax = plot_intervals(gp, grid, X, Y, truth=torch.sin)
    calibrated = plot_intervals(CalibratedModel(gp, NoCalibration()), grid, X, Y, torch.sin(grid))
    for own, other in zip(ax.get_lines(), calibrated.get_lines(), strict=True):
        np.testing.assert_allclose(own.get_ydata(), other.get_ydata())
    assert len(ax.collections) == 1 and len(labels(ax)) == 3  # nothing calibrated is drawn


def test_maps_over_bounds_that_are_lists():
    gp, _, _, bounds = make_gp(2)
    model, constraint = CalibratedModel(gp, NoCalibration()), ChanceConstraint(gp, upper=0.5)
    for plot, stated in ((plot_threshold_map, model), (plot_certified_region, constraint)):
        drawn = [plot(stated, each).collections[0] for each in (bounds, bounds.tolist())]
        np.testing.assert_array_equal(*(mesh.get_array() for mesh in drawn))


@pytest.mark.parametrize("unit", [1e-6, 1e7])
def test_maps_of_boxes_in_small_or_large_units_show_whole_numbers(unit):
    """The legend above would cover a common factor of the ticks of the second input."""
    gp, X, Y, bounds = make_gp(2)
    gp = SingleTaskGP(unit * X, Y, input_transform=Normalize(2, bounds=unit * bounds)).eval()
    ax = plot_threshold_map(CalibratedModel(gp, NoCalibration()), unit * bounds, unit * X)
    ax.figure.canvas.draw()
    for axis in (ax.xaxis, ax.yaxis):
        assert not axis.get_offset_text().get_text()
        texts = [tick.get_text().replace("\N{MINUS SIGN}", "-") for tick in axis.get_ticklabels()]
        shown = [*map(float, texts)]
        np.testing.assert_allclose(shown, axis.get_ticklocs(), rtol=1e-9, atol=1e-9 * unit)


def test_maps_name_bad_arguments():
    gp, _, _, bounds = make_gp(2)
    model = CalibratedModel(gp, NoCalibration())
    for bad, error in ((bounds.flip(0), InputDataError), ([0.0, 1.0], BotorchTensorDimensionError)):
        with pytest.raises(error, match="`bounds`"):
            plot_threshold_map(model, bad)
    with pytest.raises(InputDataError, match="`model.calibrator` must be a Calibrator"):
        plot_threshold_map(gp, bounds)
    assert not plt.get_fignums()


def test_intervals_of_a_model_of_logarithms():
    X = torch.linspace(0, 1, 9, dtype=torch.double).unsqueeze(-1)
    Y = (9 * X).sin()
    scaled = ChainedOutcomeTransform(log=Log(), standardize=Standardize(1))
    gp = SingleTaskGP(X, Y.exp(), outcome_transform=scaled)
    logs = SingleTaskGP(X, Y, outcome_transform=Standardize(1)).eval()
    grid = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
    low, high = prediction_interval(logs, grid, 0.8)
    for model in (gp, CalibratedModel(gp, NoCalibration())):
        below, above = plot_intervals(model, grid, X, Y.exp()).get_lines()
        np.testing.assert_allclose(below.get_ydata(), low.exp().squeeze(-1), rtol=1e-6)
        np.testing.assert_allclose(above.get_ydata(), high.exp().squeeze(-1), rtol=1e-6)


def test_intervals_of_an_ensemble_are_those_of_its_mixture():
    X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
    forest = NoisyEnsemble(Lines(), noise_variance=0.25)
    model = CalibratedModel(forest, NoCalibration(), denoise=False)
    for line, level in zip(plot_intervals(model, X, X, X).get_lines(), (0.1, 0.9), strict=True):
        ends = torch.from_numpy(line.get_ydata()).unsqueeze(-1)
        shares = torch.special.ndtr((ends - X * forest.model.slopes) / 0.5).mean(dim=-1)
        np.testing.assert_allclose(shares, level, rtol=1e-6)


def test_intervals_reject_bad_input():
    gp, X, Y, _ = make_gp(1)
    model, grid = CalibratedModel(gp, NoCalibration()), torch.zeros(4, 1, dtype=torch.double)
    with pytest.raises(BotorchTensorDimensionError, match="X_grid"):
        plot_intervals(model, grid.T, X, Y)
    with pytest.raises(BotorchTensorDimensionError, match="`Y`"):
        plot_intervals(model, grid, X, Y.squeeze(-1))
    with pytest.raises(InputDataError, match="`Y`"):
        plot_intervals(model, grid, X, Y.tolist())
    with pytest.raises(UnsupportedError, match="`model`"):
        plot_intervals(None, grid, X, Y)
    with pytest.raises(BotorchTensorDimensionError, match="truth"):
        plot_intervals(model, grid, X, Y, truth=torch.zeros(4))
    with pytest.raises(InputDataError, match="level"):
        plot_intervals(model, grid, X, Y, level=1.0)
    assert not plt.get_fignums()


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


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_half_widths_of_a_model_of_several_tasks():
    model = CalibratedModel.from_history(make_multitask(), LocalizedConformal(0.2))
    X = torch.rand(4, 2, dtype=torch.double)
    whole = torch.cat([X, torch.zeros(4, 1).to(X)], dim=-1)
    widths = interval_half_width(model, X, level=0.8)
    assert torch.equal(widths, interval_half_width(model, whole, level=0.8))
    assert torch.allclose(widths, model.calibrator.half_width(whole).squeeze(-1))


def test_maps_are_images_within_vector_graphics(tmp_path):
    """The triangles of a map took 65 MB of a page."""
    gp, _, _, bounds = make_gp(2)
    ax = plot_threshold_map(CalibratedModel(gp, NoCalibration()), bounds)
    ax.figure.savefig(tmp_path / "map.svg")
    assert (tmp_path / "map.svg").stat().st_size < 1e6


def test_threshold_map_without_evidence_is_the_models_own_width():
    gp, _, _, bounds = make_gp(2)
    ax = plot_threshold_map(CalibratedModel(gp, NoCalibration()), bounds, level=0.95)
    values = np.asarray(ax.collections[0].get_array())
    np.testing.assert_allclose(values, 1.959963984540054, rtol=1e-7)
    assert labels(ax) == ["1.96, the Gaussian process's own"]


def test_certified_region_shows_margins_queries_and_violations():
    gp, X, _, bounds = make_gp(2)
    constraint = ChanceConstraint.from_history(gp, upper=0.5)
    violated = torch.arange(len(X)) < 2
    ax = plot_certified_region(constraint, bounds, X, violated)
    mesh = ax.collections[0]
    points = torch.tensor(np.asarray(mesh.get_coordinates()).reshape(-1, 1, 2))
    values = np.asarray(mesh.get_array()).reshape(-1)
    np.testing.assert_allclose(values, constraint.margin(points).detach(), rtol=1e-6, atol=1e-9)
    by_label = {c.get_label(): c for c in ax.collections}
    np.testing.assert_allclose(by_label["violations"].get_offsets(), X[:2])
    np.testing.assert_allclose(by_label["within limits"].get_offsets(), X[2:])
    assert_beside_data(ax)


@pytest.mark.parametrize(("upper", "extent"), [(1e6, "everything"), (-1e6, "nothing")])
def test_certified_region_says_where_there_is_no_border(upper, extent):
    gp, _, _, bounds = make_gp(2)
    models, limits = {"a": gp, "b": gp}, {"a": (None, upper), "b": (None, upper)}
    several = ChanceConstraint.from_history(models, limits=limits)
    ax = plot_certified_region(several, bounds)
    assert any(extent in text for text in ax.get_legend_handles_labels()[1])


def test_certified_region_names_bad_arguments():
    gp, X, _, bounds = make_gp(2)
    constraint = ChanceConstraint.from_history(gp, upper=0.5)
    with pytest.raises(InputDataError, match="`constraint`"):
        plot_certified_region([constraint], bounds)
    with pytest.raises(InputDataError, match="`X`"):
        plot_certified_region(constraint, bounds, violated=torch.zeros(2, dtype=torch.bool))
    with pytest.raises(BotorchTensorDimensionError, match="`violated`"):
        plot_certified_region(constraint, bounds, X, torch.zeros(1, dtype=torch.bool))
