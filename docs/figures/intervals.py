"""Intervals of a Gaussian process with one noise level, before and after calibration."""

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib.figure import Figure
from torch import Tensor

from botorch_calib import CalibratedModel, LocalizedConformal
from botorch_calib.plotting import plot_intervals


def calibrated() -> tuple[CalibratedModel, Tensor, Tensor]:
    """A model of 200 observations whose noise grows with the input, and these."""
    torch.manual_seed(0)
    X = torch.rand(200, 1, dtype=torch.double)
    Y = torch.sin(6.0 * X) + (0.05 + 0.6 * X.square()) * torch.randn_like(X)
    gp = SingleTaskGP(X, Y, input_transform=Normalize(1), outcome_transform=Standardize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return CalibratedModel.from_history(gp, LocalizedConformal(alpha=0.2)), X, Y


def draw() -> Figure:
    """Both 80 % intervals, and the observations."""
    model, X, Y = calibrated()
    grid = torch.linspace(0.0, 1.0, 201, dtype=torch.double).unsqueeze(-1)
    return plot_intervals(model, grid, X, Y, torch.sin(6.0 * grid)).figure
