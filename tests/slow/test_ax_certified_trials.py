"""Sixty certified trials in Ax, killed and restarted, keep their bound; the books are right."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ax")

from ax.api.client import Client
from ax.api.configs import StorageConfig
from ax.storage.sqa_store.db import init_engine_and_session_factory

from botorch_calib.decisions.budget import Budget
from botorch_calib.integrations import ax_decisions
from tests.integrations.test_ax import quiet

__all__ = ["quiet"]  # a fixture

ROOT = Path(__file__).parents[2]
LIMIT, NUM = 1.0, 60

# Three workers; the noise that is stated is a third of what there is. It goes on from what is
# stored, with nothing imported but what the guide says, and is killed in the middle of a round.
SCRIPT = """
    import logging, math, os, sys, warnings
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig, StorageConfig
    from ax.api.utils.structs import GenerationStrategyDispatchStruct
    from botorch_calib.integrations.ax_decisions import chance_constrained_generation_strategy

    kind, folder, until = sys.argv[1], sys.argv[2], int(sys.argv[3])
    path, storage = os.path.join(folder, "client.json"), None
    if kind == "sql":
        from ax.storage.sqa_store.db import (
            create_all_tables, get_engine, init_engine_and_session_factory
        )
        storage = StorageConfig(url=f"sqlite:///{folder}/ax.db")
        init_engine_and_session_factory(url=storage.url)
        create_all_tables(get_engine())

    def evaluate(trial, p):
        generator = torch.Generator().manual_seed(trial)
        noise = 0.15 * float(torch.randn((), generator=generator))
        loss = p["a"] ** 2 + p["b"] + 0.2 * math.sin(6 * p["a"])
        return {"gain": (p["a"] + 2 * p["b"], 0.01), "loss": (loss + noise, 0.05)}

    if os.path.exists(path if kind == "json" else os.path.join(folder, "started")):
        if kind == "json":
            client = Client.load_from_json_file(path)
        else:
            client = Client.load_from_database("run", storage)
    else:
        open(os.path.join(folder, "started"), "w").close()
        client = Client(random_seed=0, storage_config=storage)
        client.configure_experiment(
            [RangeParameterConfig(n, bounds=(0, 1), parameter_type="float") for n in "ab"],
            name="run",
        )
        client.configure_optimization("gain", outcome_constraints=["loss <= 1"])
        client.set_generation_strategy(
            chance_constrained_generation_strategy(
                client,
                struct=GenerationStrategyDispatchStruct(
                    method="custom", initialization_budget=10, initialization_random_seed=0
                ),
            )
        )

    def save():
        if kind == "json":
            client.save_to_json_file(path + ".new")
            os.replace(path + ".new", path)

    trials = client._experiment.trials
    running = [i for i, t in trials.items() if t.status.is_running]
    while True:
        for trial in running:  # late: after the next ones were asked for
            if trial % 17 == 16:
                client.mark_trial_abandoned(trial)
            elif trial % 17 == 8:
                client.mark_trial_failed(trial)
            else:
                client.complete_trial(trial, evaluate(trial, trials[trial].arm.parameters))
        save()
        if len(trials) >= until:
            break
        running = list(client.get_next_trials(max_trials=3))
        save()
        if len(trials) >= 30 and until == 30:
            os._exit(9)  # three are running
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TypeDecorator")  # SQLAlchemy says so of Ax's tables
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["json", "sql"])
def test_sixty_trials(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    for until, code in ((30, 9), (NUM + 10, 0)):
        done = subprocess.run(
            [sys.executable, str(script), kind, str(tmp_path), str(until)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=1700,
        )
        assert done.returncode == code, done.stderr
    if kind == "json":
        client = Client.load_from_json_file(str(tmp_path / "client.json"))
    else:
        url = f"sqlite:///{tmp_path}/ax.db"
        # Another test of this process may have opened a database of its own.
        init_engine_and_session_factory(url=url, force_init=True)
        client = Client.load_from_database("run", StorageConfig(url=url))
    T, V, out = counted(client)
    assert T > 40 and V + out <= Budget(0.9).bound(T)
    spec = ax_decisions.certifying_spec(client._generation_strategy)
    found = ax_decisions.fitted_adapter(spec, client._experiment).account()
    assert found.account[:3] == (T, V, out)
    # Four abandoned ones at most are out for good.
    assert out == sum(t.status.is_abandoned for t in client._experiment.trials.values()) > 0


def counted(client: Client) -> tuple[int, int, int]:
    """Certified trials, violations and those without a value, from what is stored alone."""
    data = client._experiment.lookup_data().df
    values = dict(
        data[data["metric_name"] == "loss"][["trial_index", "mean"]].itertuples(index=False)
    )
    T = V = out = 0
    trials: Any = client._experiment.trials
    for index, trial in trials.items():
        for stored in (trial.generator_run.candidate_metadata_by_arm_signature or {}).values():
            found = stored.get("chance_constraints")
            if found and found["certified"] and not trial.status.is_failed:
                y = values.get(index)
                T, V, out = T + 1, V + (y is not None and y > LIMIT), out + (y is None)
    return T, V, out
