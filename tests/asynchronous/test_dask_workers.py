"""The asynchronous optimizer on a Dask cluster of two worker processes."""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from botorch_calib.asynchronous import dask_workers, evaluation_loop
from botorch_calib.asynchronous.dask_workers import DaskWorkers
from botorch_calib.exceptions import EvaluationError, EvaluationWarning
from botorch_calib.ledger import FeedbackLedger
from tests.asynchronous.objectives import (
    break_inside,
    die_once,
    loaded_heavy_modules,
    noted_square,
    runs,
    square,
    wait_for_go,
    wait_for_run,
    wait_until,
)
from tests.asynchronous.runs import count_up, ids, make_optimizer, observed

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
        # A cluster that is closed while it restarts a worker fails.
        client.wait_for_workers(2)


def test_workers_are_light(client: Any) -> None:
    ledger = FeedbackLedger(1)
    pool = client.get_executor()
    summary = make_optimizer(pool, loaded_heavy_modules, ledger, max_parallel=2).run(6)
    assert observed(ledger) == dict.fromkeys(range(6), 0.0)
    assert summary.num_pending == 0
    assert pool.submit(abs, -3).result() == 3  # it is still open


def test_same_query_is_evaluated_again(client: Any, tmp_path: Path) -> None:
    """Dask takes functions to be pure, which an objective with noise is not."""
    ledger = FeedbackLedger(1)
    objective = functools.partial(noted_square, tmp_path)
    make_optimizer(
        client.get_executor(), objective, ledger, lambda ledger: torch.ones(1), max_parallel=2
    ).run(4)
    assert len(runs(tmp_path, 1)) == 4


def test_worker_killed_mid_run(client: Any, tmp_path: Path) -> None:
    """Dask runs what was lost again, without a word, but nothing that had been finished."""

    def kill() -> None:
        wait_for_run(tmp_path, 3)
        os.kill(wait_for_run(tmp_path, 2), signal.SIGKILL)
        wait_until(lambda: len(runs(tmp_path, 2)) == 2)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    ledger = FeedbackLedger.open(tmp_path / "ledger", 1)
    objective = functools.partial(wait_for_go, tmp_path)
    make_optimizer(client.get_executor(), objective, ledger, max_parallel=2).run(7)
    killer.join()
    assert observed(ledger) == {i: float(i * i) for i in range(7)}
    assert len(set(runs(tmp_path, 2))) == 2
    assert [len(runs(tmp_path, query)) for query in (0, 1, 3)] == [1, 1, 1]


def test_task_that_dask_gives_up_is_run_again(
    client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as one worker has died of it here; by default it would be the fourth."""
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 0)
    client.wait_for_workers(2)
    ledger = FeedbackLedger(1)
    objective = functools.partial(die_once, tmp_path, 1)
    make_optimizer(client.get_executor, objective, ledger, max_parallel=2).run(4)
    assert observed(ledger) == {i: float(i * i) for i in range(4)}
    assert len(runs(tmp_path, 1)) == 2
    assert "Trial 1 runs again: its worker died: KilledWorker" in caplog.text


def test_executor_that_an_objective_breaks(client: Any) -> None:
    ledger = FeedbackLedger(1)
    make_optimizer(client.get_executor(), break_inside, ledger).run(1)
    assert ledger[0].note == f"{BrokenExecutor.__name__}: inside"


@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_timeout(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """A late call keeps its worker, unless a function makes the executor: then it is killed."""
    now = 0.0

    def propose(ledger: FeedbackLedger) -> Tensor:
        nonlocal now
        if len(ledger) == 4:
            wait_for_run(tmp_path, 2)
            now = 60.0
        if len(ledger) == 8 and not restarts:
            assert ids(ledger, "failed") == [2]
            (tmp_path / "go").touch()
        return count_up(ledger)

    def objective(x: np.ndarray) -> float:
        return wait_for_go(tmp_path, x) if x[0] == 2 else noted_square(tmp_path, x)

    client.wait_for_workers(2)
    monkeypatch.setattr(
        evaluation_loop, "time", SimpleNamespace(monotonic=lambda: now, time=time.time)
    )
    ledger, pool = FeedbackLedger(1), client.get_executor if restarts else client.get_executor()
    with nullcontext() if restarts else pytest.warns(EvaluationWarning):
        make_optimizer(pool, objective, ledger, propose, max_parallel=2, timeout=50.0).run(10)
    assert ledger[2].note == "timed out after 50 seconds" and ledger[2].y is None
    assert sorted(observed(ledger)) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    (late,) = runs(tmp_path, 2)
    if restarts:
        with pytest.raises(ProcessLookupError):
            os.kill(late, 0)
    else:
        assert late not in [runs(tmp_path, query)[0] for query in range(4, 8)]


class SlowScheduler:
    """An executor, and its client, whose scheduler learns late that a task is cancelled."""

    def __init__(self) -> None:
        self._client, self.status, self.keys, self.looks = self, "running", list[str](), 0
        self.restarted: list[str] = []

    def submit(self, objective: Any, x: np.ndarray, key: str) -> Future[Any]:
        self.keys = [key]
        return Future()

    def processing(self) -> dict[str, list[str]]:
        self.looks += 1
        return {"busy": self.keys if self.looks < 4 else [], "idle": []}

    def restart_workers(self, addresses: list[str]) -> None:
        assert self.processing()["busy"] == []  # or Dask would run the task again
        self.restarted = addresses


def test_a_worker_is_restarted_after_its_task_is_cancelled() -> None:
    executor: Any = SlowScheduler()
    workers = DaskWorkers(executor, square, may_restart=True, longest_without_workers=None)
    future = workers.submit(np.zeros(1), alone=False)
    assert workers.end(future)
    assert future.cancelled()
    assert executor.restarted == ["busy"]


def run_until_it_fails(client: Any, folder: Path, accident: Any, **limits: Any) -> None:
    """Run, destroy something once queries 2 and 3 are running, and check what the ledger keeps."""
    ledger = FeedbackLedger.open(folder / "ledger", 1)
    optimizer = make_optimizer(
        client.get_executor(),
        functools.partial(wait_for_go, folder),
        ledger,
        max_parallel=2,
        max_retries=0,
        **limits,
    )

    def destroy() -> None:
        wait_for_run(folder, 2)
        wait_for_run(folder, 3)
        accident()

    destroyer = threading.Thread(target=destroy)
    destroyer.start()
    with pytest.raises(EvaluationError, match="stay pending in the ledger"):
        optimizer.run(20)
    destroyer.join()
    again = FeedbackLedger.read(folder / "ledger")
    assert observed(again) == {0: 0.0, 1: 1.0}
    assert ids(again, "pending") == [2, 3]


def test_client_that_is_closed(client: Any, tmp_path: Path) -> None:
    client.wait_for_workers(2)
    second = distributed.Client(client.cluster, set_as_default=False)
    executor = second.get_executor()
    run_until_it_fails(second, tmp_path, second.close)
    (tmp_path / "go").touch()
    with pytest.raises(EvaluationError, match="Dask client"):
        make_optimizer(executor, square, FeedbackLedger(1)).run(1)


@pytest.mark.parametrize("lost", ["scheduler", "workers"])
def test_cluster_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    monkeypatch.setattr(dask_workers, "CHECK_SECONDS", 0.1)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as own,
    ):
        if lost == "scheduler":
            run_until_it_fails(own, tmp_path, cluster.close)
        else:
            accident = functools.partial(cluster.scale, 0)
            run_until_it_fails(own, tmp_path, accident, longest_without_workers=1.0)


@pytest.mark.slow  # a worker that is killed is tested above; this is another queue's recipe
# The queue of this machine leaves its jobs' pipes to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_cluster_queue(tmp_path: Path) -> None:
    """The guide's recipe, on a queue that runs its jobs here; one of them ends before its time."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    queues = pytest.importorskip("dask_jobqueue.local")
    for number, handler in handlers.items():  # its import sets others
        signal.signal(number, handler)
    objective = functools.partial(wait_for_go, tmp_path)
    ledger = FeedbackLedger.open(tmp_path / "ledger", 1)

    def kill_a_job() -> None:
        os.kill(wait_for_run(tmp_path, 2), signal.SIGKILL)
        (tmp_path / "go").touch()

    with (
        queues.LocalCluster(
            cores=1, memory="1GB", scheduler_options={"dashboard_address": ":0"}
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        cluster.scale(jobs=2)
        client.wait_for_workers(2)
        killer = threading.Thread(target=kill_a_job)
        killer.start()
        make_optimizer(client.get_executor, objective, ledger, max_parallel=2).run(6)
        killer.join()
    assert observed(ledger) == {i: float(i * i) for i in range(6)}
    assert len(runs(tmp_path, 2)) == 2
    gc.collect()  # its warnings belong to this test
