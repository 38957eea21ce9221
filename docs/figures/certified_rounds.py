"""A run under a limit: what is certified in the end, and violations beside the bound."""

import numpy as np
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from botorch_calib import ChanceConstraint, optimize_chance_constrained
from botorch_calib.plotting import COLORS, plot_certified_region

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
ROUNDS = 60


def process(X: Tensor, Y: Tensor, deviation: float) -> SingleTaskGP:
    """A Gaussian process with given hyperparameters, which is told the deviation of the noise."""
    with validate_input_scaling(False):  # the outcome is of order one as it is
        gp = SingleTaskGP(X, Y, torch.full_like(Y, deviation**2), outcome_transform=None)
    gp.covar_module.lengthscale = 0.5
    return gp


def outcome(X: Tensor) -> Tensor:
    """The limited outcome, with noise of deviation 0.2."""
    clean = X.sum(dim=-1, keepdim=True) + 0.2 * torch.sin(8.0 * X[..., :1])
    return clean + 0.2 * torch.randn_like(clean)


def run() -> tuple[ChanceConstraint, Tensor, Tensor]:
    """Rounds with a model that is told a third of the noise deviation."""
    torch.manual_seed(0)
    X = torch.rand(16, 2, dtype=torch.double)
    Y = outcome(X)
    constraint: ChanceConstraint | None = None
    choices = torch.rand(2000, 2, dtype=torch.double)
    for _ in range(ROUNDS):
        gp = process(X, Y, 0.2 / 3.0)
        if constraint is None:
            constraint = ChanceConstraint(gp, upper=1.2, level=0.9)
        else:
            constraint = constraint.with_model(gp)
        gain = process(X, torch.sin(3.0 * X).sum(dim=-1, keepdim=True), 0.01)
        acqf = UpperConfidenceBound(gain, beta=4.0)
        x, _, _ = optimize_chance_constrained(acqf, constraint, None, choices=choices)
        y = outcome(x)
        constraint.observe(x, y, condition=False)
        X, Y = torch.cat([X, x]), torch.cat([Y, y])
    assert constraint is not None
    return constraint.with_model(process(X, Y, 0.2 / 3.0)), X[16:], Y[16:]


def draw() -> Figure:
    """The certified region on the left, the account on the right."""
    constraint, X, Y = run()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.5, 4.4), layout="constrained", width_ratios=(1.25, 1.0)
    )
    plot_certified_region(constraint, BOUNDS, X, constraint.violated(Y), ax=left)
    certified = np.array([row["certified"] for row in constraint.decisions])
    violated = certified & constraint.violated(Y).numpy()
    rounds = np.arange(1, len(certified) + 1)
    bound = [constraint.violation_bound(max(T, 1)) for T in certified.cumsum()]
    right.plot(rounds, bound, color=plt.rcParams["text.color"], ls="--", label="proved bound")
    right.plot(rounds, 0.1 * rounds, color="0.5", lw=1.2, label="stated, 10 %")
    right.step(rounds, violated.cumsum(), color=COLORS[1], lw=2.4, label="violations", where="post")
    right.set_xlabel("round", fontsize=13)
    right.set_ylabel("violations so far", fontsize=13)
    right.spines[["top", "right"]].set_visible(False)
    right.legend(frameon=False, fontsize=12)
    return figure
