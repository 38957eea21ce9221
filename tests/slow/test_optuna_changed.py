"""Books of a limited outcome in Optuna: kills, workers and a changed range, three times."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from botorch_calib.integrations.optuna_delays import DECISION
from tests.slow.optuna_changed_worker import LEVEL, NAME, NUM_INITIAL, sampler, storage_in
from tests.slow.plausible_violations import most_violations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]

SEEDS, NUM_TRIALS, NUM_WORKERS = range(3), 60, 2


def workers(file: Path, seed: int, num: int, high: float) -> list[subprocess.Popen[bytes]]:
    module = "tests.slow.optuna_changed_worker"
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, f"{file}", f"{10 * seed + i}", f"{num}", f"{high}"]
        )
        for i in range(NUM_WORKERS)
    ]


def killed(running: list[subprocess.Popen[bytes]]) -> None:
    for each in running:
        each.kill()
        each.wait()


def counted(study: Any) -> tuple[int, int, int]:
    """Numbers of certified, violating and pending trials, from Optuna's own table only."""
    certified = [t for t in study.trials if t.system_attrs.get(DECISION, {}).get("certified")]
    run = [t for t in certified if t.params or t.state is TrialState.RUNNING]
    violated = sum(trial.constraints.get("heat", 0.0) > 0.0 for trial in run)
    return len(run), violated, sum(not trial.constraints for trial in run)


def test_books_are_kept_through_kills_and_another_range(tmp_path: Path) -> None:
    total = {"certified": 0, "violated": 0}
    for seed in SEEDS:
        file = tmp_path / f"{seed}.log"
        study: Any = optuna.create_study(
            study_name=NAME, storage=storage_in(f"{file}"), direction="maximize", sampler=sampler(9)
        )
        # Killed at a random trial after the first decisions, while an evaluation runs.
        at = random.Random(seed).randrange(NUM_INITIAL + 8, NUM_INITIAL + 20)
        running = workers(file, seed, NUM_TRIALS, 1.0)
        try:
            while not (
                len(study.get_trials(deepcopy=False)) >= at
                and any(
                    trial.params and not trial.constraints
                    for trial in study.get_trials(states=(TrialState.RUNNING,))
                )
            ):
                assert all(each.poll() is None for each in running)
                time.sleep(0.05)
            killed(running)
            before = counted(study)
            assert study.sampler.chance_constraint(study).account[:3] == before
            open_ones = study.sampler.outstanding(study)
            assert len(open_ones) == before[2] <= NUM_WORKERS
            running = workers(file, seed, NUM_TRIALS, 0.8)
            assert [each.wait(timeout=600) for each in running] == [0] * NUM_WORKERS
        finally:
            killed(running)
        num, violated, out = counted(study)
        constraint = study.sampler.chance_constraint(study)
        assert constraint.account[:3] == (num, violated, out)
        assert violated + out <= (1.0 - LEVEL) * num + 10.0 + LEVEL
        assert out == len(open_ones) and study.sampler.outstanding(study) == open_ones
        late = study.trials[-10:]
        assert all(trial.system_attrs[DECISION] for trial in late)
        assert all(trial.params["x"] <= 0.8 for trial in late)
        # The outcomes of killed trials are unknown; these trials did not run to the end.
        study.sampler.withdraw(study, open_ones)
        assert study.sampler.chance_constraint(study).account[:3] == (num - out, violated, 0)
        total["certified"] += num - out
        total["violated"] += violated
    num = total["certified"]
    assert num > 80
    print(f"violated: {total['violated']} of {num}")
    assert total["violated"] <= most_violations(num)
