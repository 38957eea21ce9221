"""What a loop that keeps changes really gains, by how it decides to keep one."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from botorch_calib.decisions import ConfirmationTest
from botorch_calib.plotting import COLORS

RUNS, LOOPS, PATIENCE = 400, 60, 2


def loop(seed: int, confirms: bool) -> tuple[np.ndarray, np.ndarray]:
    """True and believed score after each run of the benchmark, whose noise has deviation 1.

    A change is worth 0.5 at random, and costs 0.2 on average. Both versions run once in a pair.
    """
    rng = np.random.default_rng(seed)
    true, believed = np.zeros(RUNS), np.zeros(RUNS)
    now = claimed = 0.0
    i = 0
    while i < RUNS:
        change, gains = rng.normal(-0.2, 0.5), []
        test = ConfirmationTest(level=0.5, confidence=0.95)
        while not test.confirmed and test.num_violations < PATIENCE:
            gains.append(change + np.sqrt(2.0) * rng.standard_normal())
            true[i : i + 2], believed[i : i + 2] = now, claimed
            i += 2
            if i >= RUNS or not confirms:
                break
            test.observe(gains[-1] <= 0.0)
        if test.confirmed or (not confirms and gains[-1] > 0.0):
            now, claimed = now + change, claimed + float(np.mean(gains))
    return true, believed


def draw() -> Figure:
    """Means over loops, and the middle 80 % of them."""
    figure, panels = plt.subplots(1, 2, figsize=(9.0, 3.8), layout="constrained")
    for color, confirms, name in (
        (COLORS[1], False, "kept if better once"),
        (COLORS[0], True, "kept if confirmed"),
    ):
        loops = np.array([loop(seed, confirms) for seed in range(LOOPS)])
        for axes, curves in zip(panels, (loops[:, 1], loops[:, 0]), strict=True):
            low, high = np.quantile(curves, (0.1, 0.9), axis=0)
            axes.fill_between(range(RUNS), low, high, color=color, alpha=0.2, lw=0)
            axes.plot(curves.mean(axis=0), color=color, lw=2.2, label=name)
    for axes, title in zip(panels, ("measured gain", "true gain"), strict=True):
        axes.axhline(0.0, color=plt.rcParams["text.color"], lw=0.8)
        axes.set_title(title, fontsize=13, loc="left")
        axes.set_xlabel("runs of the benchmark", fontsize=13)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("score, in deviations of the noise", fontsize=12)
    panels[0].legend(frameon=False, fontsize=12, loc="upper left")
    return figure
