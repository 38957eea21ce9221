"""Trials in Ax: initial ones, and certified ones with the quantiles that were stated of them."""

import logging
import math
import random
from typing import Any

from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.utils.common.logger import set_ax_logger_levels
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from botorch_calib.integrations.ax_cards import CertifiedTrials
from botorch_calib.integrations.ax_decisions import chance_constrained_generation_strategy
from botorch_calib.plotting import COLORS

LIMIT, NUM = 2.0, 22


def run() -> tuple[list[float], Any]:
    """The heat of all trials, and the card of the certified ones."""
    set_ax_logger_levels(logging.ERROR)
    random.seed(0)
    client = Client(random_seed=0)
    client.configure_experiment(
        [RangeParameterConfig("power", bounds=(0, 1), parameter_type="float")]
    )
    client.configure_optimization("output", outcome_constraints=[f"heat <= {LIMIT}"])
    client.set_generation_strategy(chance_constrained_generation_strategy(client))
    heats = []
    while len(heats) < NUM:
        for trial, parameters in client.get_next_trials(max_trials=1).items():
            power = float(parameters["power"])
            heats.append(math.exp(power) + random.gauss(0, 0.1))
            client.complete_trial(trial, {"output": 2 + power, "heat": heats[-1]})
    card: Any = client.compute_analyses([CertifiedTrials()], display=False)[0]
    return heats, card.df


def draw() -> Figure:
    """Heat and quantile of each trial, beside the limit."""
    heats, table = run()
    figure, axes = plt.subplots(figsize=(9.0, 3.6), layout="constrained")
    first = int(table["trial_index"].min())
    axes.axhline(LIMIT, color=plt.rcParams["text.color"], ls="--", label="limit")
    axes.scatter(range(first), heats[:first], color="0.5", label="initial trials")
    axes.scatter(table["trial_index"], table["heat"], color=COLORS[0], label="certified trials")
    axes.step(
        table["trial_index"],
        table["heat: upper quantile"],
        where="mid",
        color=COLORS[1],
        label="stated 90 % quantile",
    )
    axes.set_xlabel("trial", fontsize=13)
    axes.set_ylabel("heat", fontsize=13)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=11, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
