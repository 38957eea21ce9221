"""Reports of plain GPyTorch processes, and of arrays, against those of equal BoTorch models."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models import SingleTaskGP

from botorch_calib import calibration_report
from botorch_calib.diagnostics import report_from_moments, report_from_pits
from botorch_calib.exceptions import CalibrationWarning
from tests.gps import DOUBLE


class PlainProcess(gpytorch.models.ExactGP):
    """As users of GPyTorch alone write it."""

    def __init__(self, X, Y, twin):
        super().__init__(X, Y.squeeze(-1), gpytorch.likelihoods.GaussianLikelihood())
        self.mean, self.kernel = twin.mean_module, twin.covar_module
        self.double()
        self.likelihood.noise = twin.likelihood.noise.detach()

    def forward(self, X):
        return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))


def make_pair():
    torch.manual_seed(3)
    X = torch.rand(30, 2, **DOUBLE)
    Y = torch.sin(5 * X).sum(-1, keepdim=True) + 0.3 * torch.randn(30, 1, **DOUBLE)
    Y = (Y - Y.mean()) / Y.std()
    gp = SingleTaskGP(X, Y, outcome_transform=None)
    gp.likelihood.noise = 0.05
    return gp, PlainProcess(X, Y, gp)


def held_out():
    torch.manual_seed(4)
    X = torch.rand(25, 2, **DOUBLE)
    return X, torch.sin(5 * X).sum(-1, keepdim=True) + 0.3 * torch.randn(25, 1, **DOUBLE)


def assert_same(report, expected, name):
    assert list(report.forecasts) == [name]
    for field in ("calibration_error", "coverage", "mean_width", "mean_deviation", "mean_crps"):
        assert getattr(report.base, field) == pytest.approx(getattr(expected.base, field), rel=1e-8)
    torch.testing.assert_close(report.base.pits, expected.base.pits)
    str(report)


@pytest.mark.parametrize("kind", ["prequential", "loo"])
def test_report_of_a_plain_process_on_its_training_data(kind):
    gp, plain = make_pair()
    expected = calibration_report(gp, residuals=kind)
    assert_same(calibration_report(plain, residuals=kind), expected, "Gaussian process")


def test_report_of_a_plain_process_on_held_out_data():
    gp, plain = make_pair()
    expected = calibration_report(gp, *held_out())
    assert_same(calibration_report(plain, *held_out()), expected, "Gaussian process")


@pytest.mark.parametrize("container", [np.asarray, list])
def test_report_from_moments_is_that_of_the_model_that_predicted_them(container):
    gp, _ = make_pair()
    X, Y = held_out()
    posterior = gp.posterior(X.unsqueeze(1), observation_noise=True)
    parts = (posterior.mean, posterior.variance.sqrt(), Y)
    vectors = [container(part.detach().reshape(-1).numpy()) for part in parts]
    expected = calibration_report(gp, X, Y)
    report = report_from_moments(*vectors, X=container(X.tolist()))
    assert_same(report, expected, "stated")
    assert [r.count for r in report.base.regions] == [r.count for r in expected.base.regions]
    assert "Coverage by region" in str(report)
    assert "Coverage by region" not in str(report_from_moments(*vectors))


def test_report_from_pits_knows_shares_and_no_widths():
    gp, _ = make_pair()
    expected = calibration_report(gp, *held_out())
    report = report_from_pits(expected.base.pits.numpy())
    assert report.base.coverage == expected.base.coverage
    assert torch.equal(report.base.frequencies, expected.base.frequencies)
    assert report.base.mean_width is None and report.base.mean_crps is None
    assert "width" not in str(report) and "CRPS" not in str(report)
    assert report.to_dict()["base"]["mean_width"] is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: report_from_pits([0.2, 1.2]), InputDataError, "pits"),
        (lambda: report_from_pits([[0.2]]), BotorchTensorDimensionError, "pits"),
        (lambda: report_from_pits([]), BotorchTensorDimensionError, "pits"),
        (lambda: report_from_pits([0.5] * 9, X=[[0.0]]), BotorchTensorDimensionError, "`X`.*9"),
        (lambda: report_from_pits([0.5] * 9, alpha=1.0), InputDataError, "alpha"),
        (lambda: report_from_pits([0.5] * 9, levels=["a"]), InputDataError, "levels"),  # type: ignore[list-item]
        (lambda: report_from_moments([0.0], [0.0], [1.0]), InputDataError, "deviation"),
        (lambda: report_from_moments([0.0] * 2, [1.0], [1.0]), BotorchTensorDimensionError, "2,"),
    ],
)
def test_malformed_arrays_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_few_numbers_warn():
    with pytest.warns(CalibrationWarning, match="1 in 5"):
        report_from_pits([0.5, 0.4])
