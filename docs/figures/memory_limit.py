"""Sizes of a network that a sampler in Optuna tries under a limit on memory."""

import warnings

import numpy as np
import optuna
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from botorch_calib.exceptions import NotCertifiedWarning
from botorch_calib.integrations.optuna_decisions import ChanceConstrainedSampler
from botorch_calib.plotting import COLORS

LIMIT, NUM_INITIAL, NUM = 24.0, 12, 44


def memory(depth: float, width: float) -> float:
    """Gigabytes, without noise."""
    return 4.0 + 0.05 * depth * width


def run() -> tuple[list[optuna.trial.FrozenTrial], np.ndarray]:
    """Trials, of which some run out of memory, and which of them are certified."""
    rng = np.random.default_rng(0)

    def train(trial: optuna.Trial) -> float:
        depth = trial.suggest_float("depth", 2.0, 20.0)
        width = trial.suggest_float("width", 4.0, 40.0)
        used = memory(depth, width) + 0.5 * rng.standard_normal()
        if used > LIMIT:
            trial.set_user_attr("beyond", {"memory": 1})
            trial.set_constraint("memory", 0.0)
            raise optuna.TrialPruned
        trial.set_constraint("memory", used - LIMIT)
        return width / 60.0 - ((depth - 15.0) / 10.0) ** 2

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCertifiedWarning)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = ChanceConstrainedSampler(level=0.9, n_startup_trials=NUM_INITIAL, seed=0)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.optimize(train, n_trials=NUM)
        rows = sampler.chance_constraint(study).decisions
    first = [False] * (NUM - len(rows))
    return study.trials, np.array(first + [row["certified"] for row in rows])


def draw() -> Figure:
    """The plane of depth and width, with the sizes that fit."""
    trials, certified = run()
    depth, width = (np.array([t.params[name] for t in trials]) for name in ("depth", "width"))
    fits = np.array([t.state == optuna.trial.TrialState.COMPLETE for t in trials])
    figure, axes = plt.subplots(figsize=(8.6, 4.2), layout="constrained")
    ticks = np.linspace(2.0, 20.0, 200)
    border = (LIMIT - memory(0.0, 0.0)) / (0.05 * ticks)
    axes.plot(ticks, border, color=plt.rcParams["text.color"], ls="--", label="24 GB")
    for chosen, color, label in (
        (~certified, "0.5", "first trials"),
        (certified, COLORS[0], "certified"),
    ):
        axes.scatter(depth[chosen & fits], width[chosen & fits], color=color, label=label)
        lost = chosen & ~fits
        axes.scatter(
            depth[lost], width[lost], color=color, marker="X", s=60, label=f"{label}, did not fit"
        )
    axes.set(xlim=(1.5, 20.5), ylim=(3, 41))
    axes.set_xlabel("depth", fontsize=13)
    axes.set_ylabel("width", fontsize=13)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=11, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
