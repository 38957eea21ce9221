"""Runs that run out of memory give no number: what is it worth to say that they used more?

A memory of 24 limits runs with two parameters. It is measured with a standard deviation of 0.6, and
a run that needs more is lost. After 12 random runs (in Optuna 12 that were not lost) 60 are decided
about at a level of 0.9, with refits. Either a lost run leaves nothing behind, or it states that its
memory was ``beyond`` 24. The reward of a lost run is 0, and the best one has a margin of 0.8.

    python -m benchmarks.studies.out_of_memory
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.framework.markdown import table
from benchmarks.studies.command_line import run_study
from botorch_calib import ChanceConstraint
from botorch_calib.integrations.optuna_decisions import DECISION, ChanceConstrainedSampler
from botorch_calib.models import stand_ins

LIMIT, NOISE, ROUNDS, NUM_INITIAL = 24.0, 0.6, 60, 12
SEEDS = range(11000, 11006)
COMMAND = "python -m benchmarks.studies.out_of_memory"
CELLS = [{"loop": loop, "told": told} for loop in ("bare", "Optuna") for told in ("no", "beyond")]
COLUMNS = ("out of memory", "certified", "certified and out of memory", "reward of the best")


def memory(X: Tensor) -> Tensor:
    a, b = X.unbind(dim=-1)
    return 8.0 + 30.0 * a.square() * (0.4 + b) + 3.0 * torch.sin(5.0 * b)


def objective(X: Tensor) -> Tensor:
    a, b = X.unbind(dim=-1)
    return a + 0.6 * b + 0.2 * torch.sin(9.0 * a)


def points(num: int, seed: int) -> Tensor:
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    return draw_sobol_samples(bounds, n=num, q=1, seed=seed).squeeze(1)


def fitted(X: Tensor, Y: Tensor) -> SingleTaskGP:
    gp = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


class Measured:
    """Measurements of the memory, by a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, X: Tensor) -> Tensor:
        noise = torch.randn(len(X), 1, dtype=torch.double, generator=self.generator)
        return memory(X).unsqueeze(-1) + NOISE * noise


def bare(told: str, seed: int) -> list[tuple[bool, bool, float]]:
    """For each round whether it was certified, whether it was lost, and its objective."""
    X, choices, measure = points(NUM_INITIAL, seed), points(512, 99), Measured(seed)
    Y, rounds = measure(X), []
    constraint: Any = None
    for number in range(ROUNDS + 1):
        lost = Y > LIMIT
        if told == "beyond":
            bounds = Y.clamp_max(LIMIT)
            gp = fitted(X, bounds) if constraint is None else constraint.model
            gp = fitted(X, stand_ins(gp, X, bounds, lost))
        else:
            gp = fitted(X[~lost.squeeze(-1)], Y[~lost].unsqueeze(-1))
        if number == ROUNDS:
            return rounds
        constraint = ChanceConstraint(gp, LIMIT) if number == 0 else constraint.with_model(gp)
        with torch.no_grad():
            margin, hope = constraint.margin(choices.unsqueeze(1)), constraint.optimism
            reached = torch.where(margin >= 0.0, objective(choices), -torch.inf)
            best = reached if (margin >= 0.0).any() else hope(choices.unsqueeze(1))
        x = choices[best.argmax()].unsqueeze(0)
        (row,), y = constraint.decide(x), measure(x)
        if told == "beyond" or y <= LIMIT:
            constraint.observe(x, y.clamp_max(LIMIT), condition=False, beyond=y > LIMIT)
        rounds.append((row["certified"], bool(y > LIMIT), float(objective(x))))
        X, Y = torch.cat([X, x]), torch.cat([Y, y])
    raise AssertionError


def in_optuna(told: str, seed: int) -> list[tuple[bool, bool, float]]:
    """The same of the trials that were decided about."""
    measure = Measured(seed)

    def train(trial: optuna.Trial) -> float:
        parameters = [trial.suggest_float(name, 0.0, 1.0) for name in ("a", "b")]
        x = torch.tensor([parameters], dtype=torch.double)
        trial.set_user_attr("objective", float(objective(x)))
        used = float(measure(x))
        if used > LIMIT:
            if told == "beyond":
                trial.set_user_attr("beyond", {"memory": 1})
                trial.set_constraint("memory", 0.0)
            raise optuna.TrialPruned
        trial.set_constraint("memory", used - LIMIT)
        return float(objective(x))

    sampler = ChanceConstrainedSampler(level=0.9, n_startup_trials=NUM_INITIAL, seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    rows: list[tuple[bool, bool, float]] = []
    while len(rows) < ROUNDS:
        study.optimize(train, n_trials=1)
        rows = [
            (t.system_attrs[DECISION]["certified"], t.value is None, t.user_attrs["objective"])
            for t in study.trials
            if t.system_attrs[DECISION]
        ]
    return rows


def run(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounds = (bare if cell["loop"] == "bare" else in_optuna)(cell["told"], seed)
    certified, lost, values = map(np.array, zip(*rounds, strict=True))
    choices = points(512, 99)
    best = float(objective(choices)[memory(choices) < LIMIT - 0.8].max())
    counts = lost.sum(), certified.sum(), (certified & lost).sum()
    reward = float((values * ~lost).mean()) / best
    return dict(zip(COLUMNS, [*map(int, counts), reward], strict=True))


def report(runs: list[dict[str, Any]]) -> str:
    rows = []
    for cell in CELLS:
        own = [each for each in runs if cell.items() <= each.items()]
        means = [np.mean([each[name] for each in own]) for name in COLUMNS]
        rows.append([*cell.values(), *(f"{mean:.1f}" for mean in means[:3]), f"{means[3]:.2f}"])
    lines = ["# Runs out of memory", "", f"Reproduce with `{COMMAND}`.", ""]
    num = len({each["seed"] for each in runs})
    lines += [f"Means over {num} seeds of {ROUNDS} rounds that were decided about.", ""]
    return "\n".join([*lines, *table(["loop", "told", *COLUMNS], rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    return run_study(COMMAND, __doc__, SEEDS, CELLS, run, report, argv)


if __name__ == "__main__":
    sys.exit(main())
