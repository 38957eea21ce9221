"""Settings that Xopt tries under a limit: at random, and then certified ones."""

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from xopt import VOCS, Evaluator, Xopt

from botorch_calib.integrations.xopt import ChanceConstrainedGenerator
from botorch_calib.plotting import COLORS

LIMIT, NUM_INITIAL, NUM = 1.0, 16, 24


def run() -> tuple[Xopt, np.ndarray]:
    """The run, and the margin to the limit on a grid."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    def beam(inputs: dict[str, float]) -> dict[str, float]:
        a, b = inputs["a"], inputs["b"]
        return {"current": a + 0.5 * b, "loss": a + b**2 + 0.05 * rng.standard_normal()}

    vocs = VOCS(
        variables={"a": [0.0, 1.0], "b": [0.0, 1.0]},
        objectives={"current": "MAXIMIZE"},
        constraints={"loss": ["LESS_THAN", LIMIT]},
    )
    X = Xopt(generator=ChanceConstrainedGenerator(vocs=vocs), evaluator=Evaluator(function=beam))
    X.random_evaluate(NUM_INITIAL, seed=0)
    for _ in range(NUM):
        X.step()
    constraint = X.generator.chance_constraint()
    ticks = torch.linspace(0.0, 1.0, 61, dtype=torch.double)
    grid = torch.cartesian_prod(ticks, ticks).unsqueeze(-2)
    with torch.no_grad():
        margins = constraint.margin(grid).reshape(61, 61).T.numpy()
    return X, margins


def draw() -> Figure:
    """The plane of both settings."""
    X, margins = run()
    ticks, ink = np.linspace(0.0, 1.0, 61), plt.rcParams["text.color"]
    a, b, loss = (X.data[name].to_numpy() for name in ("a", "b", "loss"))
    figure, axes = plt.subplots(figsize=(8.6, 4.6), layout="constrained")
    axes.contourf(ticks, ticks, margins, levels=[0.0, 1e6], colors=[COLORS[0]], alpha=0.18)
    axes.plot(LIMIT - ticks**2, ticks, color=ink, ls="--", label="the limit, without noise")
    axes.scatter(a[:NUM_INITIAL], b[:NUM_INITIAL], color="0.5", label="at random")
    a, b, within = a[NUM_INITIAL:], b[NUM_INITIAL:], loss[NUM_INITIAL:] <= LIMIT
    axes.scatter(a[within], b[within], color=COLORS[0], label="certified, and within")
    axes.scatter(a[~within], b[~within], color=COLORS[1], marker="X", label="certified, and beyond")
    axes.fill([], [], color=COLORS[0], alpha=0.18, label="certified in the end")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_xlabel("a", fontsize=13)
    axes.set_ylabel("b", fontsize=13)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=11, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
