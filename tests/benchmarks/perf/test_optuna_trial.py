"""The measurement of a trial in Optuna times what it claims to time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("optuna_integration")

from optuna.trial import TrialState

from benchmarks.perf.measure import COMPARISONS, Workload
from benchmarks.perf.optuna_trial import NUM_TRIALS, started_study, trial_of
from botorch_calib.integrations import optuna_decisions, optuna_delays


def test_they_are_registered() -> None:
    assert sum("GPSampler's trial in Optuna" in name for name in COMPARISONS) == 3


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")
def test_a_trial_is_chosen_by_models_of_all(constrained: bool) -> None:
    sampler: Any = partial(
        optuna_decisions.ChanceConstrainedSampler
        if constrained
        else optuna_delays.DelayAwareSampler,
        seed=0,
        n_startup_trials=NUM_TRIALS,
        num_restarts=1,
        raw_samples=16,
    )
    work = Workload(torch.device("cpu"), 30)
    study, running = started_study(work, sampler(), constrained, running=3)
    trial_of(study, running, constrained)(0)
    trials = study.get_trials()
    states = [trial.state for trial in trials]
    assert states == [TrialState.COMPLETE] * (NUM_TRIALS + 1) + [TrialState.RUNNING] * 3
    assert all(len(trial.constraints) == int(constrained) for trial in trials[: NUM_TRIALS + 1])
    asked = trials[-1]
    assert optuna_delays.PARAMETERS in asked.system_attrs
    assert bool(asked.system_attrs.get(optuna_decisions.DECISION)) is constrained
