"""From a question to the class that answers it."""

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from botorch_calib.plotting import COLORS

TREE = {
    "Is the model's\nuncertainty true?": {
        "its intervals, quantiles": "calibration_report",
        "the stated noise": "noise_diagnosis",
    },
    "Its intervals\nare wrong": {
        "at one level": "LocalizedConformal",
        "at all levels": "QuantileRecalibrator",
    },
    "A noisy outcome\nhas a limit": {
        "in each trial": "ChanceConstraint",
        "in the final answer only": "LogCalibratedConstrained-\nExpectedImprovement",
    },
    "Evaluations are\nstill running": {
        "run my workers for me": "AsynchronousOptimizer",
        "in my own loop": "CensoredDelayModel",
    },
    "Part of the input is\ndecided after me": {
        "its distribution is known": "RobustUpperConfidence-\nBound, radius 0",
        "or known roughly": "RobustUpperConfidence-\nBound, an ambiguity set",
    },
}
COLUMNS, WIDTHS = (0.0, 3.0, 5.7), (2.2, 2.15, 2.9)


def draw() -> Figure:
    """Questions on the left, what matters in between, classes on the right."""
    num = sum(map(len, TREE.values()))
    figure, ax = plt.subplots(figsize=(8.8, 0.62 * num), layout="constrained")
    row = 0
    for (question, answers), color in zip(TREE.items(), COLORS, strict=False):
        middle = row + (len(answers) - 1) / 2
        _box(ax, 0, middle, question, color)
        for condition, tool in answers.items():
            _line(ax, 0, middle, row, color)
            _line(ax, 1, row, row, color)
            _box(ax, 1, row, condition, color)
            _box(ax, 2, row, tool, color, monospace=True)
            row += 1
    ax.set_xlim(-0.1, COLUMNS[-1] + WIDTHS[-1] + 0.1)
    ax.set_ylim(num - 0.45, -0.55)
    ax.set_axis_off()
    return figure


def _box(ax, column, row, text, color, monospace=False):
    left, width = COLUMNS[column], WIDTHS[column]
    ax.add_patch(
        FancyBboxPatch(
            (left, row - 0.36), width, 0.72, boxstyle="round,pad=0,rounding_size=0.12",
            facecolor="none", edgecolor=color, linewidth=1.6,
        )
    )  # fmt: skip
    family = "monospace" if monospace else None
    ax.text(left + width / 2, row, text, ha="center", va="center", fontsize=11.5, family=family)


def _line(ax, column, start, end, color):
    left = COLUMNS[column] + WIDTHS[column]
    ax.plot((left, COLUMNS[column + 1]), (start, end), color=color, linewidth=1.4)
