"""Runs out of memory have no measurement: the value of reporting that they exceeded the limit.

Runs with two parameters are limited to a memory of 24, which is measured with a standard deviation
of 0.6. A run that needs more is lost, with a reward of 0. After 12 random runs (in Optuna, 12 runs
that were not lost) there are 60 decisions at a level of 0.9, with refits; the bare loop has 512
choices. A lost run reports nothing, or that its memory was ``beyond`` 24, or its memory. Rewards
are relative to the best choice whose memory is at least 0.8 below the limit.

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
TOLD = "nothing", "beyond", "its memory"
CELLS = [{"loop": loop, "told": told} for loop in ("bare", "Optuna") for told in TOLD]
COLUMNS = ("out of memory", "certified", "reward of the best")
Round = tuple[bool, bool, float]  # certified, lost, objective


def memory(X: Tensor) -> Tensor:
    return 8.0 + 30.0 * X[:, 0] ** 2 * (0.4 + X[:, 1]) + 3.0 * torch.sin(5.0 * X[:, 1])


def objective(X: Tensor) -> Tensor:
    return X[:, 0] + 0.6 * X[:, 1] + 0.2 * torch.sin(9.0 * X[:, 0])


def points(num: int, seed: int) -> Tensor:
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    return draw_sobol_samples(bounds, n=num, q=1, seed=seed).squeeze(1)


def fitted(X: Tensor, Y: Tensor) -> Any:
    gp = SingleTaskGP(X, Y)
    return fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp)).model


def measured(X: Tensor, generator: torch.Generator) -> Tensor:
    noise = NOISE * torch.randn(len(X), 1, dtype=torch.double, generator=generator)
    return noise + memory(X).unsqueeze(-1)


def bare(told: str, seed: int) -> list[Round]:
    generator = torch.Generator().manual_seed(seed)
    X, choices = points(NUM_INITIAL, seed), points(512, 99)
    Y, constraint, rounds = measured(X, generator), None, list[Round]()
    for _ in range(ROUNDS):
        if told == "beyond":
            bounds = Y.clamp_max(LIMIT)
            gp = constraint.model if constraint else fitted(X, bounds)
            gp = fitted(X, stand_ins(gp, X, bounds, Y > LIMIT))
        else:
            known = (Y <= LIMIT).squeeze(-1) | (told == "its memory")
            gp = fitted(X[known], Y[known])
        constraint = constraint.with_model(gp) if constraint else ChanceConstraint(gp, LIMIT)
        certified = constraint.certified(choices.unsqueeze(1))
        score = torch.where(certified, objective(choices), -torch.inf)
        score = score if certified.any() else constraint.optimism(choices.unsqueeze(1))
        x = choices[score.argmax()].unsqueeze(0)
        (row,), y = constraint.decide(x), measured(x, generator)
        if told == "beyond":
            constraint.observe(x, y.clamp_max(LIMIT), condition=False, beyond=y > LIMIT)
        elif told == "its memory" or y <= LIMIT:
            constraint.observe(x, y, condition=False)
        rounds.append((row["certified"], bool(y > LIMIT), float(objective(x))))
        X, Y = torch.cat([X, x]), torch.cat([Y, y])
    return rounds


def in_optuna(told: str, seed: int) -> list[Round]:
    generator = torch.Generator().manual_seed(seed)

    def train(trial: optuna.Trial) -> float:
        x = torch.tensor([[trial.suggest_float(n, 0.0, 1.0) for n in "ab"]], dtype=torch.double)
        value, used = float(objective(x)), float(measured(x, generator))
        trial.set_user_attr("objective", value)
        if used > LIMIT and told == "beyond":
            trial.set_user_attr("beyond", {"memory": 1})
            trial.set_constraint("memory", 0.0)
        elif used <= LIMIT or told == "its memory":
            trial.set_constraint("memory", used - LIMIT)
        if used > LIMIT:
            raise optuna.TrialPruned
        return value

    sampler = ChanceConstrainedSampler(level=0.9, n_startup_trials=NUM_INITIAL, seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    rounds: list[Round] = []
    while len(rounds) < ROUNDS:
        study.optimize(train, n_trials=1)
        rounds = [
            (t.system_attrs[DECISION]["certified"], t.value is None, t.user_attrs["objective"])
            for t in study.trials
            if t.system_attrs[DECISION]
        ]
    return rounds


def run(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounds = (bare if cell["loop"] == "bare" else in_optuna)(cell["told"], seed)
    certified, lost, values = map(np.array, zip(*rounds, strict=True))
    choices = points(512, 99)
    best = objective(choices)[memory(choices) < LIMIT - 0.8].max().item()
    numbers = lost.sum(), certified.sum(), (values * ~lost).mean() / best
    return dict(zip(COLUMNS, map(float, numbers), strict=True))


def report(runs: list[dict[str, Any]]) -> str:
    rows = []
    for cell in CELLS:
        own = [each for each in runs if cell.items() <= each.items()]
        lost, certified, reward = (np.mean([each[name] for each in own]) for name in COLUMNS)
        rows.append([*cell.values(), f"{lost:.1f}", f"{certified:.1f}", f"{reward:.2f}"])
    lines = ["# Runs out of memory", "", f"Reproduce with `{COMMAND}`.", ""]
    lines += [f"Means over {len({each['seed'] for each in runs})} seeds of {ROUNDS} rounds.", ""]
    return "\n".join([*lines, *table(["loop", "told", *COLUMNS], rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    return run_study(COMMAND, __doc__, SEEDS, CELLS, run, report, argv)


if __name__ == "__main__":
    sys.exit(main())
