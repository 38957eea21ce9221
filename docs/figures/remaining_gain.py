"""What is left to gain, as a model states it, beside what really is, over a run."""

import torch
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from botorch_calib import CalibratedModel, LocalizedConformal, LogCalibratedExpectedImprovement
from botorch_calib.decisions import remaining_gain
from botorch_calib.plotting import COLORS

BOUNDS = torch.tensor([[0.0], [1.0]], dtype=torch.double)
NOISE = 0.02
EVERY = 4


def objective(X: Tensor) -> Tensor:
    """A function with several local maxima."""
    return torch.sin(25.0 * X) * (0.3 + X) + 0.5 * torch.cos(5.0 * X)


def run() -> tuple[list[int], list[float], list[float]]:
    """Numbers of evaluations, bounds, and true regrets of the recommended point."""
    torch.manual_seed(3)
    grid = torch.linspace(0.0, 1.0, 1001, dtype=torch.double).unsqueeze(-1)
    best = objective(grid).max()
    X = torch.rand(4, 1, dtype=torch.double)
    Y = objective(X) + NOISE * torch.randn_like(X)
    counts, bounds, regrets = [], [], []
    for step in range(25):
        with validate_input_scaling(False):  # the objective is of order one as it is
            gp = SingleTaskGP(X, Y, torch.full_like(Y, NOISE**2), outcome_transform=None)
        gp.covar_module.lengthscale = 0.08
        model = CalibratedModel.from_history(gp, LocalizedConformal(alpha=0.2))
        if step % EVERY == 0:
            gain = remaining_gain(model, BOUNDS, num_paths=64)
            counts.append(len(X))
            bounds.append(gain.bound(0.05))
            regrets.append((best - objective(gain.candidate)).clamp_min(1e-5).item())
        acqf = LogCalibratedExpectedImprovement(model, best_f=model.posterior(X).mean.max())
        with torch.no_grad():
            x = grid[acqf(grid.unsqueeze(-2)).argmax()].unsqueeze(0)
        X, Y = torch.cat([X, x]), torch.cat([Y, objective(x) + NOISE * torch.randn(1, 1).double()])
    return counts, bounds, regrets


def draw() -> Figure:
    """Both curves, and an ``eps``."""
    counts, bounds, regrets = run()
    figure, ax = plt.subplots(figsize=(7.6, 3.6), layout="constrained")
    ax.semilogy(counts, bounds, "s-", color=COLORS[1], lw=2, label="stated bound, 95 %")
    ax.semilogy(counts, regrets, "o--", color=COLORS[5], lw=2, label="true regret")
    ax.axhline(0.03, color=plt.rcParams["text.color"], ls="--", lw=1.2)
    ax.text(counts[-1], 0.033, "eps", ha="right", fontsize=12)
    ax.set_xlabel("evaluations", fontsize=13)
    ax.set_ylabel("left to gain", fontsize=13)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=12)
    return figure
