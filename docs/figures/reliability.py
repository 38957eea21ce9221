"""Stated against observed coverage of a Gaussian process whose noise is stated too small."""

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from matplotlib.figure import Figure

from botorch_calib import CalibratedModel, QuantileRecalibrator, calibration_report
from botorch_calib.diagnostics import CalibrationReport
from botorch_calib.plotting import plot_reliability


def report() -> CalibrationReport:
    """A report on 150 observations whose noise has three times the stated deviation."""
    torch.manual_seed(0)
    X = torch.rand(150, 1, dtype=torch.double)
    Y = torch.sin(9.0 * X) + 0.3 * torch.randn_like(X)
    gp = SingleTaskGP(
        X,
        Y,
        torch.full_like(Y, 0.1**2),
        input_transform=Normalize(1),
        outcome_transform=Standardize(1),
    )
    gp.covar_module.lengthscale = 0.2
    model = CalibratedModel.from_history(gp, QuantileRecalibrator(), num_initial=10)
    return calibration_report(model, num_initial=10)


def draw() -> Figure:
    """Both curves, with the band that holds a calibrated one as a whole."""
    return plot_reliability(report()).figure
