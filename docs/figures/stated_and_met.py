"""How many outcomes fell outside intervals that were stated at 80 %, by fault of the model."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from benchmarks.framework.stored_results import ResultStore, read_entries
from botorch_calib.plotting import COLORS

METHODS = {"bo": "Gaussian process", "locbo": "calibrated"}
FAULTS = {
    "noise": "noise stated too small",
    "lengthscale": "lengthscale too long",
    "student_t": "heavy tails",
    "heteroscedastic": "noise that varies",
    "nonstationary": "not stationary",
}


def missed() -> dict[tuple[str, str], list[float]]:
    """Percentages missed in the last half of the evaluations, by method and fault.

    One for each of four functions, from suite `misspecified`: 30 runs of 40 evaluations.
    """
    _, entries = read_entries(ResultStore().archive_path("misspecified"), "misspecified")
    flags: dict[tuple[str, str], list[str]] = {}
    for key, entry in entries.items():
        covered = entry.kept["extras"]["covered"]
        flags.setdefault((key.method, key.problem), []).append(covered[len(covered) // 2 :])
    shares: dict[tuple[str, str], list[float]] = {}
    for (method, problem), runs in flags.items():
        fault = next(name for name in FAULTS if problem.endswith(name))
        share = 100.0 * np.mean([flag == "0" for run in runs for flag in run])
        shares.setdefault((method, fault), []).append(float(share))
    return shares


def draw() -> Figure:
    """One dot for each problem."""
    shares = missed()
    figure, ax = plt.subplots(figsize=(6.0, 3.1), layout="constrained")
    ink = plt.rcParams["text.color"]
    ax.axvline(20.0, color=ink, linewidth=1.2, linestyle="--")
    ax.text(20.6, -0.62, "stated: 20 %", fontsize=11, va="center")
    for (method, label), color, marker, shift in zip(
        METHODS.items(), (COLORS[5], COLORS[4]), ("s", "o"), (-0.14, 0.14), strict=True
    ):
        for row, fault in enumerate(FAULTS):
            values = shares[method, fault]
            place = np.full(len(values), row + shift)
            drawn = {"ms": 7, "mec": ink, "mew": 0.8, "label": label if row == 0 else None}
            ax.plot(values, place, marker, color=color, **drawn)
    ax.set_yticks(range(len(FAULTS)), FAULTS.values(), fontsize=12)
    ax.set_ylim(len(FAULTS) - 0.5, -0.95)
    ax.set_xlim(0.0, 75.0)
    ax.set_xlabel("outcomes outside their 80 % interval (%)", fontsize=12)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="lower right", frameon=False, fontsize=12)
    return figure
