"""A worker on a study of a limited outcome, whose noise the models understate by a factor of 10.

``python -m tests.slow.optuna_worker STORAGE SEED NUM_TRIALS`` runs until the study has NUM_TRIALS.
"""

from __future__ import annotations

import sys
import time
import warnings

import optuna
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from optuna.study import MaxTrialsCallback
from torch import Tensor

from botorch_calib.integrations.optuna_decisions import ChanceConstrainedSampler

NAME, LEVEL, NOISE = "limited", 0.9, 0.1
# With 2 parameters, 8 complete trials for each.
NUM_INITIAL = 16


def understated(X: Tensor, Y: Tensor) -> SingleTaskGP:
    noise = torch.full_like(Y, NOISE**2 / 10.0)
    return SingleTaskGP(X, Y, noise, outcome_transform=Standardize(1))


def objective(trial: optuna.Trial) -> float:
    """The sum of the inputs, whose limit is 1 up to noise, after some time."""
    total = trial.suggest_float("x", 0.0, 1.0) + trial.suggest_float("y", 0.0, 1.0)
    generator = torch.Generator().manual_seed(trial.number)
    noise, seconds = torch.randn(1, generator=generator).item(), 0.1 * (trial.number % 4)
    time.sleep(seconds)
    trial.set_constraint("loss", total - 1.0 + NOISE * noise)
    return total


def sampler(seed: int) -> ChanceConstrainedSampler:
    return ChanceConstrainedSampler(
        LEVEL,
        fit=understated,
        num_restarts=2,
        raw_samples=64,
        n_startup_trials=NUM_INITIAL,
        seed=seed,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage, seed, num_trials = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    study = optuna.load_study(study_name=NAME, storage=storage, sampler=sampler(seed))
    study.optimize(objective, callbacks=[MaxTrialsCallback(num_trials, states=None)])
