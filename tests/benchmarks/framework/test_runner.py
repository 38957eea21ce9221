"""Runs resume, report changed configurations, survive failures and run in parallel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.calibration.suites import SMOKE
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
    return ResultStore(tmp_path / "results", tmp_path / "archives")


def run(suite: Suite, store: ResultStore, **options) -> Summary:
    return run_suite(suite, store, progress=False, **options)


def longer(suite: Suite) -> Suite:
    problems = tuple(replace(p, num_evaluations=p.num_evaluations + 1) for p in suite.problems)
    return replace(suite, problems=problems)


def content(store: ResultStore) -> str:
    path = store.path(SMOKE.name)
    return path.read_text() if path.exists() else ""


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


def test_a_changed_configuration_is_an_error(store) -> None:
    run(SMOKE, store)
    before = content(store)
    with pytest.raises(StaleResultsError, match="2 results .*configuration"):
        run(longer(SMOKE), store)
    assert content(store) == before


def test_overwrite_runs_what_changed_and_only_that(store) -> None:
    run(SMOKE, store, seeds=[0])
    run(longer(SMOKE), store, seeds=[1])
    assert run(longer(SMOKE), store, overwrite=True) == Summary(finished=1, skipped=1)
    assert run(longer(SMOKE), store) == Summary(skipped=2)


def test_a_failure_does_not_lose_the_others(store) -> None:
    suite = suite_of(FailsOnSeedOne)
    summary = run(suite, store, seeds=[0, 1, 2])
    assert (summary.finished, summary.skipped) == (2, 0)
    (failure,) = summary.failures
    assert failure.task == "small_noisy_ackley/method/seed 1"
    assert "seed one fails" in failure.error
    assert [key.seed for key in store.entries(suite)] == [0, 2]


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


def test_an_indescribable_configuration_fails_before_anything_runs(store) -> None:
    suite = replace(SMOKE, methods=(Method("x", lambda p, s: RandomStrategy(p, s)),), baseline="x")
    with pytest.raises(TypeError, match="no importable name"):
        run(suite, store)
    assert content(store) == ""


def test_registry_refuses_duplicates_and_unknown_names() -> None:
    with pytest.raises(ValueError, match="two suites named 'smoke'"):
        by_name([SMOKE, SMOKE])
    with pytest.raises(KeyError, match="smoke"):
        get_suite("no such suite")
