"""Against which distribution of a context each ambiguity set protects a decision."""

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from botorch_calib import (
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)
from botorch_calib.plotting import COLORS

SETS = {
    "WassersteinBall, radius 0.1": WassersteinBall(0.1),
    "TotalVariationBall, radius 0.3": TotalVariationBall(0.3),
    "KLBall, radius 0.3": KLBall(0.3),
    "ChiSquaredBall, radius 0.5": ChiSquaredBall(0.5),
    "ConditionalValueAtRisk, worst 30 %": ConditionalValueAtRisk(0.3),
    "WorstCase": WorstCase(),
}


def draw() -> Figure:
    """Reference and worst-case weights for an outcome that falls towards both ends."""
    c = torch.linspace(0.0, 1.0, 15, dtype=torch.double)
    weights = torch.exp(-0.5 * ((c - 0.45) / 0.18).square())
    contexts = ContextDistribution.discrete(c.unsqueeze(-1), weights / weights.sum())
    values = 1.0 - 4.0 * (c - 0.4).square()
    ink = plt.rcParams["text.color"]
    figure, panels = plt.subplots(
        2, 3, figsize=(10.5, 4.8), layout="constrained", sharex=True, sharey=True
    )
    for ax, (name, ambiguity) in zip(panels.flat, SETS.items(), strict=True):
        worst = ambiguity.worst_case_weights(values, contexts)
        ax.bar(c, contexts.weights, width=0.05, color=COLORS[5], alpha=0.55, label="stated")
        ax.bar(c, worst, width=0.022, color=COLORS[1], label="worst case")
        outcome = ax.twinx()
        outcome.plot(c, values, color=ink, lw=1.0, ls="--", label="outcome")
        outcome.set_axis_off()
        ax.set_title(name, fontsize=11)
        ax.set_ylim(0.0, 0.5)
        ax.spines[["top", "right"]].set_visible(False)
        handles = ax.get_legend_handles_labels()[0] + outcome.get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=12)
    figure.supxlabel("context", fontsize=13)
    figure.supylabel("probability", fontsize=13)
    return figure
