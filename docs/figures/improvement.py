"""Expected improvement before and after calibration, where the stated noise is too small."""

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from botorch_calib import CalibratedModel, LocalizedConformal, LogCalibratedExpectedImprovement
from botorch_calib.plotting import COLORS, plot_intervals


def calibrated() -> tuple[CalibratedModel, Tensor, Tensor]:
    """A model of 40 observations that is told a fifth of the noise deviation, and these."""
    torch.manual_seed(3)
    X = torch.rand(40, 1, dtype=torch.double)
    Y = torch.sin(7.0 * X) * (1.0 - 0.5 * X) + 0.25 * torch.randn_like(X)
    gp = SingleTaskGP(
        X, Y, torch.full_like(Y, 0.05**2), input_transform=Normalize(1),
        outcome_transform=Standardize(1),
    )  # fmt: skip
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return CalibratedModel.from_history(gp, LocalizedConformal(alpha=0.2)), X, Y


def draw() -> Figure:
    """Intervals above, expected improvement below, each with its best point."""
    model, X, Y = calibrated()
    grid = torch.linspace(0.0, 1.0, 401, dtype=torch.double).unsqueeze(-1)
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10.5, 5.6), layout="constrained", sharex=True, height_ratios=(1.5, 1.0)
    )
    plot_intervals(model, grid, X, Y, ax=above)
    above.set_xlabel("")
    best_f = model.model.posterior(X).mean.max().item()
    for name, acqf, color, style in (
        ("LogExpectedImprovement", LogExpectedImprovement(model.model, best_f), COLORS[0], "--"),
        (
            "LogCalibratedExpectedImprovement",
            LogCalibratedExpectedImprovement(model, best_f),
            COLORS[1],
            "-",
        ),
    ):
        with torch.no_grad():
            value = acqf(grid.unsqueeze(-2)).exp()
        below.plot(grid.squeeze(-1), value, color=color, ls=style, lw=2.0, label=name)
        best = value.argmax()
        below.plot(grid[best], value[best], "o", color=color, ms=8)
    below.set_xlabel("input x", fontsize=13)
    below.set_ylabel("expected\nimprovement", fontsize=13)
    below.set_ylim(bottom=0.0)
    below.spines[["top", "right"]].set_visible(False)
    below.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=12)
    return figure
