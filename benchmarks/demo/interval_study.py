"""Coverage of prediction intervals in one dimension under heteroscedastic noise.

A Gaussian process has one noise level, so its intervals are too wide where the noise is small and
too narrow where it is large. One calibrated threshold for all inputs (``kappa = 0``) can only
correct the average coverage; localized thresholds (``kappa = 2``) can follow the noise. Nothing is
optimized: inputs are uniformly random.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.demo.common import align, show
from botorch_calib import CalibratedModel, LocalizedConformal
from botorch_calib.plotting import (
    COLORS,
    LABEL_SIZE,
    LEGEND_SIZE,
    TICK_SIZE,
    plot_intervals,
    prediction_interval,
)
from botorch_calib.test_functions import IntervalStudy1d

LEVEL = 0.8
NUM_OBSERVATIONS = 300
KAPPAS = (0.0, 2.0)
# Ranges of |x| in which coverage is reported.
REGIONS = ((0.0, 1.0), (1.0, 4.0), (4.0, 5.0))

PROBLEM = IntervalStudy1d()


def observations(seed: int, n: int = NUM_OBSERVATIONS) -> tuple[Tensor, Tensor]:
    """Uniformly random inputs, ``n x 1``, and their noisy outcomes, ``n x 1``."""
    low, high = PROBLEM.bounds
    with manual_seed(seed):
        X = low + (high - low) * torch.rand(n, 1, dtype=torch.double)
        return X, PROBLEM(X).unsqueeze(-1)


def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """A Gaussian process with one noise level."""
    gp = SingleTaskGP(
        X, Y, input_transform=Normalize(1, bounds=PROBLEM.bounds), outcome_transform=Standardize(1)
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


def calibrated(gp: SingleTaskGP, kappa: float) -> CalibratedModel:
    """The process, calibrated on its history.

    The steps decrease, since the history is long and its noise does not drift; with large steps
    the thresholds would never settle.
    """
    calibrator = LocalizedConformal(
        alpha=1.0 - LEVEL, lengthscale=0.2, scale=kappa, step_size=0.03, step_decay=0.3
    )
    return CalibratedModel.from_history(gp, calibrator, num_initial=5)


def grid(num_points: int = 401) -> Tensor:
    """Evenly spaced inputs, ``num_points x 1``."""
    low, high = PROBLEM.bounds.flatten().tolist()
    return torch.linspace(low, high, num_points, dtype=torch.double).unsqueeze(-1)


def true_coverage(model: Model, X: Tensor) -> Tensor:
    """Probability that the interval at each input contains a new observation, ``n x 1``."""
    low, high = prediction_interval(model, X, LEVEL)
    mean = PROBLEM(X, noise=False).unsqueeze(-1)
    deviation = PROBLEM.noise_variance(X).sqrt().unsqueeze(-1)
    ndtr = torch.special.ndtr
    return ndtr((high - mean) / deviation) - ndtr((low - mean) / deviation)


def coverage_study(seeds: Sequence[int]) -> np.ndarray:
    """Mean coverage, indexed by data set, model (GP, then each kappa) and region."""
    X = grid()
    distance = X.abs().squeeze(-1)
    masks = [(low <= distance) & (distance <= high) for low, high in REGIONS]
    table = []
    for seed in tqdm(seeds, desc="interval study"):
        gp = fit(*observations(seed))
        models: list[Model] = [gp, *(calibrated(gp, kappa) for kappa in KAPPAS)]
        coverages = [true_coverage(model, X) for model in models]
        table.append([[c[mask].mean().item() for mask in masks] for c in coverages])
    return np.array(table)


def coverage_report(coverage: np.ndarray) -> str:
    """Coverage by model and region, mean and standard error over data sets."""
    names = ["Gaussian process", *(f"calibrated, kappa = {kappa:g}" for kappa in KAPPAS)]
    regions = [f"{low:g} <= |x| <= {high:g}" for low, high in REGIONS]
    rows = [["coverage of 80 % intervals", *regions]]
    for index, name in enumerate(names):
        cells = (show(values.tolist(), percent=True) for values in coverage[:, index].T)
        rows.append([name, *cells])
    note = f"Mean ± standard error over {len(coverage)} data sets of {NUM_OBSERVATIONS} points."
    return "\n".join([*align(rows), "", note])


def intervals_figure(seed: int = 0) -> Figure:
    """Intervals (above) and their half-widths (below), with one and with localized thresholds."""
    X, Y = observations(seed)
    gp, points = fit(X, Y), grid()
    figure = plt.figure(figsize=(12.5, 8.0), layout="constrained")
    panels = figure.subplots(2, len(KAPPAS), sharex=True, sharey="row", height_ratios=(3, 2))
    truth = PROBLEM(points, noise=False).unsqueeze(-1)
    for column, (kappa, note) in enumerate(
        zip(KAPPAS, ("one threshold", "localized"), strict=True)
    ):
        model = calibrated(gp, kappa)
        above, below = panels[:, column]
        plot_intervals(model, points, X, Y, truth, level=LEVEL, ax=above)
        draw_half_widths(model, points, below)
        above.set_title(f"$\\kappa$ = {kappa:g}: {note}", fontsize=LABEL_SIZE + 1)
        above.set_xlabel("")
    panels[1, 0].set_ylim(bottom=0.0)
    share_legends(figure, panels)
    return figure


def draw_half_widths(model: CalibratedModel, X: Tensor, ax: Axes) -> None:
    """Draw half-widths of the intervals, and the half-widths for exact coverage."""
    needed = PROBLEM.noise_variance(X).sqrt() * torch.special.ndtri(torch.tensor((1 + LEVEL) / 2))
    label = "half-width that holds 80 % around the truth"
    ax.plot(X, needed, color=COLORS[2], linestyle="-.", linewidth=2, label=label)
    for base, color, style in ((model, COLORS[1], "-"), (model.model, COLORS[0], "--")):
        low, high = prediction_interval(base, X, LEVEL)
        ax.plot(X, (high - low) / 2, color=color, linestyle=style, linewidth=2)
    ax.set_xlabel("input x", fontsize=LABEL_SIZE)
    ax.set_ylabel("half-width (units of y)", fontsize=LABEL_SIZE)
    ax.tick_params(labelsize=TICK_SIZE)
    ax.spines[["top", "right"]].set_visible(False)


def share_legends(figure: Figure, panels: np.ndarray) -> None:
    """One legend below all panels."""
    handles = [*panels[0, 0].get_legend_handles_labels()[0], panels[1, 0].get_lines()[0]]
    for panel in panels.flat:
        if (legend := panel.get_legend()) is not None:
            legend.remove()
        panel.label_outer()
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=LEGEND_SIZE
    )
