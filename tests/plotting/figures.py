"""How figures are read, and small models to draw."""

from __future__ import annotations

from functools import cache

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize

from botorch_calib import CalibratedModel, OnlineConformal, calibration_report

Z80 = 1.2815515655446004


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


@cache
def make_report(num=40, seed=0, calibrated=True, **kwargs):
    """A report on an overconfident Gaussian process of one input."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 1, dtype=torch.double, generator=generator)
    Y = torch.randn(num, 1, dtype=torch.double, generator=generator)
    gp = SingleTaskGP(X, Y, outcome_transform=Standardize(1))
    gp.likelihood.noise = 0.1
    model = CalibratedModel(gp, OnlineConformal(0.2, step_size=0.1)) if calibrated else gp
    return calibration_report(model, **kwargs)
