"""A worker on a study of mixed parameters under a limit, in a file that remains after its end.

``python -m tests.slow.optuna_changed_worker FILE SEED NUM_TRIALS HIGH`` runs until the study has
NUM_TRIALS trials; the range of ``x`` ends at ``HIGH``.
"""

from __future__ import annotations

import sys
import time
import warnings

import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback

from botorch_calib.integrations.optuna_decisions import ChanceConstrainedSampler

NAME, LEVEL, NUM_INITIAL = "changed", 0.9, 16


def storage_in(file: str) -> JournalStorage:
    return JournalStorage(JournalFileBackend(file))


def sampler(seed: int) -> ChanceConstrainedSampler:
    return ChanceConstrainedSampler(
        LEVEL, num_restarts=2, raw_samples=64, n_startup_trials=NUM_INITIAL, seed=seed
    )


def run(trial: optuna.Trial, seed: int, high: float) -> float:
    """Larger values are better, but the limit excludes them, up to noise."""
    x = trial.suggest_float("x", 0.0, high)
    n = trial.suggest_int("n", 1, 4)
    kind = trial.suggest_categorical("kind", ["u", "v"])
    generator = torch.Generator().manual_seed(1000 * seed + trial.number)
    noise = torch.randn(2, generator=generator).tolist()
    time.sleep(0.1 * (1 + trial.number % 4))
    load = x + 0.2 * n + (0.3 if kind == "u" else 0.0)
    trial.set_constraint("heat", load - 1.2 + 0.08 * noise[0])
    return load + 0.1 * n + 0.02 * noise[1]


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file, (seed, num), high = sys.argv[1], map(int, sys.argv[2:4]), float(sys.argv[4])
    study = optuna.load_study(study_name=NAME, storage=storage_in(file), sampler=sampler(seed))
    study.optimize(
        lambda trial: run(trial, seed // 10, high),
        callbacks=[MaxTrialsCallback(num, states=None)],
    )
