"""Four processes on one study of a limited outcome in SQLite, killed in the middle."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna_integration")

import optuna
from optuna.trial import TrialState

from botorch_calib.integrations.optuna_delays import DECISION
from tests.slow.optuna_worker import LEVEL, NAME, NUM_INITIAL, sampler

NUM_TRIALS = NUM_INITIAL + 60


def started(storage: str, first_seed: int) -> list[subprocess.Popen[bytes]]:
    return [
        subprocess.Popen(
            [
                sys.executable,
                *("-m", "tests.slow.optuna_worker", storage, f"{first_seed + worker}"),
                f"{NUM_TRIALS}",
            ]
        )
        for worker in range(4)
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_violations_stay_within_the_bound(tmp_path: Path) -> None:
    """The decisions of killed processes are in the books of all later processes."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    study: Any = optuna.create_study(
        study_name=NAME, storage=storage, direction="maximize", sampler=sampler(0)
    )
    workers = started(storage.url, 1)
    try:
        while len(study.get_trials(deepcopy=False)) < NUM_INITIAL + 30:
            assert all(worker.poll() is None for worker in workers)
            time.sleep(0.2)
        for worker in workers:
            worker.kill()
            worker.wait()
        decided_before = study.sampler.chance_constraint(study).num_decisions
        workers = started(storage.url, 5)
        assert [worker.wait(timeout=600) for worker in workers] == [0] * 4
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    constraint = study.sampler.chance_constraint(study)
    trials = study.get_trials()
    storage.remove_session()
    storage.engine.dispose()
    certified = [t for t in trials if t.system_attrs.get(DECISION, {}).get("certified")]
    out = [trial for trial in certified if not trial.constraints]
    violated = [trial for trial in certified if trial.constraints.get("loss", 0.0) > 0.0]
    # Each of four killed processes may leave a trial that runs forever.
    assert sum(trial.state is TrialState.RUNNING for trial in trials) <= 4
    assert constraint.num_decisions > decided_before >= 20
    counted = (len(certified), len(violated), len(out))
    assert counted == constraint.account[:3]
    assert len(certified) > 20
    assert len(violated) + len(out) <= (1.0 - LEVEL) * len(certified) + 10.0 + LEVEL
