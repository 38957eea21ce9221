"""Runs resume, report changed configurations, survive failures and use their back ends."""

from __future__ import annotations

import builtins
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework import runner
from benchmarks.framework.results import Result
from benchmarks.framework.runner import (
    Failure,
    StaleResultsError,
    Summary,
    Task,
    run_suite,
    run_task,
)
from benchmarks.framework.sequential import Method, Strategy
from benchmarks.framework.stored_results import ResultStore
from benchmarks.framework.strategies import RandomStrategy
from benchmarks.framework.suite import Suite
from benchmarks.suites import by_name, get_suite


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path)


def run(suite: Suite, store: ResultStore, **options) -> Summary:
    return run_suite(suite, store, progress=False, **options)


def longer(suite: Suite) -> Suite:
    problems = tuple(replace(p, num_evaluations=p.num_evaluations + 1) for p in suite.problems)
    return replace(suite, problems=problems)


def files(store: ResultStore) -> dict[str, str]:
    return {path.name: path.read_text() for path in store.root.rglob("*.json")}


class FailsOnSeedOne(RandomStrategy):
    def propose(self, model: object, X: Tensor, Y: Tensor) -> Tensor:
        if self.seed == 1:
            raise RuntimeError("seed one fails")
        return super().propose(None, X, Y)


class RecordsThreads(RandomStrategy):
    def extras(self, model: object, x: Tensor, y: Tensor) -> dict[str, float]:
        return {"threads": torch.get_num_threads()}


def suite_of(strategy: type[Strategy]) -> Suite:
    return replace(SMOKE, methods=(Method("method", strategy),), baseline="method")


def test_finished_replicates_are_skipped(store) -> None:
    assert run(SMOKE, store, seeds=[0]) == Summary(finished=1)
    before = files(store)
    assert run(SMOKE, store, seeds=[0, 1]) == Summary(finished=1, skipped=1)
    assert run(SMOKE, store) == Summary(skipped=2)
    after = files(store)
    assert sorted(after) == ["seed_0000.json", "seed_0001.json"]
    assert after["seed_0000.json"] == before["seed_0000.json"]


def test_a_changed_configuration_is_an_error(store) -> None:
    run(SMOKE, store)
    before = files(store)
    with pytest.raises(StaleResultsError, match="2 result files .*configuration"):
        run(longer(SMOKE), store)
    assert files(store) == before


def test_overwrite_runs_what_changed_and_only_that(store) -> None:
    run(SMOKE, store, seeds=[0])
    run(longer(SMOKE), store, seeds=[1])
    assert run(longer(SMOKE), store, overwrite=True) == Summary(finished=1, skipped=1)
    assert run(longer(SMOKE), store) == Summary(skipped=2)


def test_an_unreadable_file_is_an_error_unless_overwritten(store) -> None:
    run(SMOKE, store, seeds=[0])
    (path,) = store.root.rglob("*.json")
    path.write_text("{")
    with pytest.raises(StaleResultsError, match="unreadable"):
        run(SMOKE, store)
    assert run(SMOKE, store, overwrite=True) == Summary(finished=2)


def test_a_failure_does_not_lose_the_others(store) -> None:
    summary = run(suite_of(FailsOnSeedOne), store, seeds=[0, 1, 2])
    assert (summary.finished, summary.skipped) == (2, 0)
    (failure,) = summary.failures
    assert failure.task == "small_noisy_ackley/method/seed 1"
    assert "seed one fails" in failure.error
    assert sorted(files(store)) == ["seed_0000.json", "seed_0002.json"]


def test_an_interrupted_run_keeps_what_was_written_and_resumes(store, monkeypatch) -> None:
    write = ResultStore.write
    written: list[int] = []

    def interrupted_write(self: ResultStore, suite: str, result: Result) -> Path:
        if written:
            raise KeyboardInterrupt
        written.append(result.seed)
        return write(self, suite, result)

    with monkeypatch.context() as patch:
        patch.setattr(ResultStore, "write", interrupted_write)
        with pytest.raises(KeyboardInterrupt):
            run(SMOKE, store, seeds=[0, 1, 2])
    assert len(files(store)) == 1
    assert run(SMOKE, store, seeds=[0, 1, 2]) == Summary(finished=2, skipped=1)


def test_tasks_run_on_one_thread_and_restore_the_setting() -> None:
    suite = suite_of(RecordsThreads)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        result = run_task(Task(suite.problems[0], suite.methods[0], 0))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert not isinstance(result, Failure)
    assert set(result.extras["threads"]) == {1}


@pytest.mark.parametrize(
    ("text", "fails"), [("Optimization failed in a line search", False), ("overflow", True)]
)
def test_tasks_hide_expected_warnings_alone(text: str, fails: bool) -> None:
    def warn(problem: Any, method: Any, seed: int) -> Any:
        warnings.warn(text, RuntimeWarning, stacklevel=1)
        return seed

    # Warnings are errors here.
    outcome = run_task(Task(SMOKE.problems[0], SMOKE.methods[0], 3, warn))
    assert isinstance(outcome, Failure) == fails


def test_an_indescribable_configuration_fails_before_anything_runs(store) -> None:
    suite = replace(SMOKE, methods=(Method("x", lambda p, s: RandomStrategy(p, s)),), baseline="x")
    with pytest.raises(TypeError, match="no importable name"):
        run(suite, store)
    assert files(store) == {}


def test_unknown_back_ends_and_stray_addresses_are_refused(store) -> None:
    with pytest.raises(ValueError, match="Unknown back end"):
        run(SMOKE, store, backend="threads")
    with pytest.raises(ValueError, match="dask"):
        run(SMOKE, store, scheduler="tcp://localhost:1")


def test_a_missing_dask_says_what_to_install(store, monkeypatch) -> None:
    real_import = builtins.__import__

    def no_dask(name: str, *args, **kwargs):
        if name.startswith("dask"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_dask)
    with pytest.raises(ImportError, match="pip install"), runner.dask_client(1, None):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("backend", runner.BACKENDS)
def test_back_ends_agree_with_a_run_in_process(store, tmp_path_factory, backend) -> None:
    other = ResultStore(tmp_path_factory.mktemp("other"))
    run(SMOKE, store)
    assert run(SMOKE, other, jobs=2, backend=backend) == Summary(finished=2)
    problem, method = SMOKE.problems[0], SMOKE.methods[0]
    one, two = (s.load("smoke", problem, method)[0] for s in (store, other))
    assert [(r.X, r.y, r.seed) for r in one] == [(r.X, r.y, r.seed) for r in two]


def test_registry_refuses_duplicates_and_unknown_names() -> None:
    with pytest.raises(ValueError, match="two suites named 'smoke'"):
        by_name([SMOKE, SMOKE])
    with pytest.raises(KeyError, match="smoke"):
        get_suite("no such suite")


def test_a_suite_needs_its_baseline_and_unique_names() -> None:
    with pytest.raises(ValueError, match="baseline"):
        replace(SMOKE, baseline="bo")
    with pytest.raises(ValueError, match="unique"):
        replace(SMOKE, problems=SMOKE.problems * 2)
