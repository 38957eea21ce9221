"""Batches of arms in Ax beside a control: its load changes, the ratio to it keeps a limit."""

import logging

import numpy as np
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.utils.common.logger import set_ax_logger_levels
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from botorch_calib.integrations.ax_cards import CertifiedTrials
from botorch_calib.integrations.ax_decisions import chance_constrained_generation_strategy
from botorch_calib.plotting import COLORS

LIMIT, ARMS, BATCHES, SEM = 1.05, 4, 8, 0.01


def run() -> tuple[np.ndarray, np.ndarray]:
    """The latency of control and arms, batch by batch, and which arms are certified."""
    set_ax_logger_levels(logging.ERROR)
    rng = np.random.default_rng(0)
    client = Client(random_seed=0)
    client.configure_experiment([RangeParameterConfig("depth", (0, 1), "float")])
    client.configure_optimization("clicks", outcome_constraints=[f"latency <= {LIMIT}"])
    strategy = chance_constrained_generation_strategy(client, budget=10.0 + 0.9 * ARMS)
    client.set_generation_strategy(strategy)
    latency, trials = np.full((2, BATCHES, ARMS + 1), np.nan)
    for i in range(BATCHES):
        load = 100.0 + 25.0 * np.sin(2.0 * i)  # differs from batch to batch
        latency[i, 0] = load
        for j, (trial, x) in enumerate(client.get_next_trials(max_trials=ARMS).items(), start=1):
            ratio = 1.0 + 0.1 * float(x["depth"]) ** 2 + SEM * rng.standard_normal()
            latency[i, j] = load * ratio
            clicks = 1.0 + 0.2 * float(x["depth"]) + SEM * rng.standard_normal()
            client.complete_trial(trial, {"clicks": (clicks, SEM), "latency": (ratio, SEM)})
            trials[i, j] = trial
    (card,) = client.compute_analyses([CertifiedTrials()], display=False)
    return latency, np.isin(trials[:, 1:], card.df["trial_index"])


def draw() -> Figure:
    """Milliseconds on the left, ratios on the right."""
    latency, certified = run()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
    batch = np.arange(1, BATCHES + 1)
    left.step(batch, latency[:, 0], where="mid", color=plt.rcParams["text.color"], label="control")
    right.axhline(LIMIT, color=plt.rcParams["text.color"], ls="--", label="limit")
    at = np.repeat(batch[:, None], ARMS, axis=1) + 0.12 * (np.arange(ARMS) - (ARMS - 1) / 2)
    for axes, values in ((left, latency[:, 1:]), (right, latency[:, 1:] / latency[:, :1])):
        for chosen, color, label in (
            (~certified, "0.5", "first arms"),
            (certified, COLORS[0], "certified arms"),
        ):
            axes.scatter(at[chosen], values[chosen], s=22, color=color, label=label)
        axes.set_xlabel("batch", fontsize=13)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_title("latency in ms", fontsize=13, loc="left")
    right.set_title("latency, ratio to the control", fontsize=13, loc="left")
    handles = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
    handles |= dict(zip(*reversed(right.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False
    )
    return figure
