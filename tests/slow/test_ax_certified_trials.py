"""Sixty certified trials in Ax, killed and restarted, keep their bound; the books are right."""

from __future__ import annotations

import os
import random
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
from tests.slow.plausible_violations import most_violations

__all__ = ["quiet"]  # a fixture

ROOT = Path(__file__).parents[2]
LIMIT, NUM = 1.0, 84

# Mixed parameters and two or three workers. With the database, the stated noise is a third of the
# true noise. The script continues from stored trials and imports only the modules that the guide
# names. The first process is killed during an evaluation; the second one first changes a range.
SCRIPT = """
    import logging, math, os, signal, sys, warnings
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig, StorageConfig
    from ax.api.utils.structs import GenerationStrategyDispatchStruct
    from ax.core.parameter import ParameterType, RangeParameter
    from botorch_calib.integrations.ax_decisions import (
        chance_constrained_generation_strategy, withdraw
    )

    kind, folder, seed, num, killed_at = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    path, storage = os.path.join(folder, "client.json"), None
    if kind == "sql":
        from ax.storage.sqa_store.db import (
            create_all_tables, get_engine, init_engine_and_session_factory
        )
        storage = StorageConfig(url=f"sqlite:///{folder}/ax.db")
        init_engine_and_session_factory(url=storage.url)
        create_all_tables(get_engine())

    def evaluate(trial, p):
        if trial == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        generator = torch.Generator().manual_seed(1000 * seed + trial)
        noise = 0.1 * float(torch.randn((), generator=generator))
        is_last = p["c"] == "w"
        loss = p["a"] ** 2 + p["b"] / 10 + 0.2 * math.sin(6 * p["a"]) + 0.1 * is_last
        gain, loss = p["a"] + 2 * p["b"] / 10 + 0.3 * is_last, loss + noise
        if kind == "json":
            return {"gain": gain, "loss": loss}
        return {"gain": (gain, 0.01), "loss": (loss, 0.033)}

    if killed_at < 0:
        if kind == "json":
            client = Client.load_from_json_file(path)
        else:
            client = Client.load_from_database("run", storage)
        wider = RangeParameter("a", ParameterType.FLOAT, 0.1, 1.2)
        client._experiment.search_space.update_parameter(wider)
        client._save_experiment_to_db_if_possible(experiment=client._experiment)
    else:
        client = Client(random_seed=seed, storage_config=storage)
        client.configure_experiment(
            [
                RangeParameterConfig("a", bounds=(0, 1), parameter_type="float"),
                RangeParameterConfig("b", bounds=(0, 10), parameter_type="int"),
                ChoiceParameterConfig("c", ["u", "v", "w"], "str", is_ordered=False),
            ],
            name="run",
        )
        client.configure_optimization("gain", outcome_constraints=["loss <= 1"])
        client.set_generation_strategy(
            chance_constrained_generation_strategy(
                client,
                struct=GenerationStrategyDispatchStruct(
                    method="custom", initialization_budget=24, initialization_random_seed=seed
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
            if trial >= 24 and trial % 17 in (8, 16):
                client.mark_trial_abandoned(trial)
                if trial % 17 == 8:
                    withdraw(client, trial)
            elif trial % 17 == 12:
                client.mark_trial_failed(trial)
            else:
                client.complete_trial(trial, evaluate(trial, trials[trial].arm.parameters))
            save()
        if len(trials) >= num:
            break
        running = list(client.get_next_trials(max_trials=2 + seed % 2))
        save()
"""


def certified_of(trial: Any) -> bool | None:
    """Whether the stored row certifies a trial; None without a row."""
    for stored in (trial.generator_run.candidate_metadata_by_arm_signature or {}).values():
        if "chance_constraints" in stored:
            return bool(stored["chance_constraints"]["certified"])
    return None


def loaded(kind: str, folder: Path) -> Client:
    if kind == "json":
        return Client.load_from_json_file(str(folder / "client.json"))
    url = f"sqlite:///{folder}/ax.db"
    # Another test in this process may have opened another database.
    init_engine_and_session_factory(url=url, force_init=True)
    return Client.load_from_database("run", StorageConfig(url=url))


def counted(client: Client) -> tuple[int, int, int]:
    """Numbers of certified and violating trials, and of trials without a value, by Ax's table."""
    table = client.summarize().set_index("trial_index")
    certified = [i for i, trial in client._experiment.trials.items() if certified_of(trial)]
    own = table.loc[certified]
    own = own[~((own["trial_status"] == "FAILED") & own["loss"].isna())]
    return len(own), int((own["loss"] > LIMIT).sum()), int(own["loss"].isna().sum())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TypeDecorator")  # SQLAlchemy's warning about Ax's tables
@pytest.mark.filterwarnings("ignore:`sort_values` is not specified")  # also Ax's
@pytest.mark.timeout(3600)
def test_sixty_trials(tmp_path: Path) -> None:
    violated = observed = 0
    for seed, kind in enumerate(("json", "sql", "json")):
        folder = tmp_path / str(seed)
        folder.mkdir()
        script = folder / "run.py"
        script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
        killed_at = random.Random(seed).choice(
            [i for i in range(30, 60) if i % 17 not in (8, 12, 16)]
        )
        for kill, code in ((killed_at, -9), (-1, 0)):
            arguments = [kind, str(folder), str(seed), str(NUM), str(kill)]
            done = subprocess.run(
                [sys.executable, str(script), *arguments],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=1700,
            )
            assert done.returncode == code, done.stderr
        client = loaded(kind, folder)
        trials = client._experiment.trials
        T, V, out = counted(client)
        assert T > 40 and V + out <= Budget(0.9).bound(T)
        spec = ax_decisions.certifying_spec(client._generation_strategy)
        config = ax_decisions.absolute_config(spec, client._experiment)
        settings = spec.generator_kwargs["acquisition_options"]
        found = ax_decisions.account_of(client._experiment, settings, config)
        assert found.account[:3] == (T, V, out)
        assert all(certified_of(trials[i]) is not None for i in range(killed_at, len(trials)))
        abandoned = [trial for trial in trials.values() if trial.status.is_abandoned]
        assert out == sum(bool(certified_of(trial)) for trial in abandoned) > 0
        # Trials after the change are in the new range.
        arms = [trial.arms[0] for i, trial in trials.items() if i > killed_at + 2]
        later: list[Any] = [arm.parameters["a"] for arm in arms]
        assert all(0.1 <= a <= 1.2 for a in later)
        assert ax_decisions.last_safe(client) is not None
        violated, observed = violated + V, observed + T - out
    print(f"violated: {violated} of {observed}")
    assert violated <= most_violations(observed)
