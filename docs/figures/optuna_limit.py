"""Memory of the trials of two samplers in Optuna under one limit."""

import warnings

import numpy as np
import optuna
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from optuna.samplers import BaseSampler, GPSampler

from botorch_calib.exceptions import NotCertifiedWarning
from botorch_calib.integrations.optuna_decisions import ChanceConstrainedSampler
from botorch_calib.plotting import COLORS

NUM_INITIAL, NUM = 10, 30


def run() -> dict[str, list[float]]:
    """What each trial needed beyond the limit, by sampler."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {
        "ChanceConstrainedSampler, level 0.9": ChanceConstrainedSampler(
            level=0.9, n_startup_trials=NUM_INITIAL, seed=0
        ),
        "GPSampler": GPSampler(n_startup_trials=NUM_INITIAL, seed=0),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCertifiedWarning)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return {name: excess(sampler) for name, sampler in samplers.items()}


def excess(sampler: BaseSampler) -> list[float]:
    """What each trial of a study needs beyond the limit: with noise, and more for a larger size."""
    rng = np.random.default_rng(0)

    def train(trial: optuna.Trial) -> float:
        size = trial.suggest_float("size", 0.0, 1.0)
        trial.set_constraint("memory", size - 0.7 + 0.05 * rng.standard_normal())
        return (size - 0.9) ** 2

    study = optuna.create_study(sampler=sampler)
    study.optimize(train, n_trials=NUM)
    return [trial.constraints["memory"] for trial in study.trials]


def draw() -> Figure:
    """A row for each sampler, trials beyond the limit in another colour."""
    found = run()
    figure, rows = plt.subplots(
        len(found), 1, figsize=(9.0, 4.8), layout="constrained", sharex=True, sharey=True
    )
    for axes, (name, memory) in zip(rows, found.items(), strict=True):
        values, trials = np.array(memory), np.arange(NUM)
        initial, above = trials < NUM_INITIAL, values > 0.0
        axes.axhline(0.0, color=plt.rcParams["text.color"], ls="--", lw=1.2, label="limit")
        axes.scatter(trials[initial], values[initial], color="0.5", label="at random")
        for chosen, color, label in (
            (~initial & ~above, COLORS[0], "within the limit"),
            (~initial & above, COLORS[1], "beyond it"),
        ):
            axes.scatter(trials[chosen], values[chosen], color=color, label=label)
        count = int((~initial & above).sum())
        axes.set_title(f"{name}: {count} of {NUM - NUM_INITIAL} beyond", fontsize=13, loc="left")
        axes.set_ylabel("memory, from the limit", fontsize=12)
        axes.set_ylim(-0.45, 0.35)
        axes.spines[["top", "right"]].set_visible(False)
    rows[-1].set_xlabel("trial", fontsize=13)
    rows[0].legend(frameon=False, fontsize=11, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
