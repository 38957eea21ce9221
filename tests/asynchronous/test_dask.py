"""The asynchronous optimizer on a Dask cluster of two worker processes."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_calib.exceptions import EvaluationError
from botorch_calib.ledger import FeedbackLedger
from tests.asynchronous.objectives import (
    loaded_heavy_modules,
    noted_square,
    runs,
    wait_for_go,
    wait_for_run,
    wait_until,
)
from tests.asynchronous.runs import ids, make_optimizer, observed, squares
from tests.documentation import DOCS

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client
        # A cluster that is closed while it restarts a worker fails.
        client.wait_for_workers(2)


def test_workers_are_light(client: Any) -> None:
    ledger, pool = FeedbackLedger(1), client.get_executor(pure=False)
    make_optimizer(pool, loaded_heavy_modules, ledger, max_parallel=2).run(6)
    assert observed(ledger) == dict.fromkeys(range(6), 0.0)
    assert pool.submit(abs, -3).result() == 3  # it is still open


def test_same_query_is_evaluated_again(client: Any, tmp_path: Path) -> None:
    """Unless Dask takes the objective to be pure, which one with noise is not."""
    pool, objective = client.get_executor(pure=False), partial(noted_square, tmp_path)
    make_optimizer(
        pool, objective, FeedbackLedger(1), lambda ledger: torch.ones(1), max_parallel=2
    ).run(4)
    assert len(runs(tmp_path, 1)) == 4


def test_worker_killed_mid_run(client: Any, tmp_path: Path) -> None:
    """Dask silently repeats lost evaluations, but no finished evaluation."""

    def kill() -> None:
        wait_for_run(tmp_path, 3)
        os.kill(wait_for_run(tmp_path, 2), signal.SIGKILL)
        wait_until(lambda: len(runs(tmp_path, 2)) == 2)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    ledger, pool = FeedbackLedger(1), client.get_executor(pure=False)
    make_optimizer(pool, partial(wait_for_go, tmp_path), ledger, max_parallel=2).run(7)
    killer.join()
    assert observed(ledger) == squares(*range(7))
    assert len(set(runs(tmp_path, 2))) == 2
    assert [len(runs(tmp_path, query)) for query in (0, 1, 3)] == [1, 1, 1]


def run_until_it_fails(client: Any, folder: Path, accident: Any, is_given: bool) -> None:
    """Run, cause an accident once queries 2 and 3 are running, and check the ledger."""

    def destroy() -> None:
        wait_for_run(folder, 2)
        wait_for_run(folder, 3)
        accident()

    destroyer = threading.Thread(target=destroy)
    destroyer.start()
    ledger = FeedbackLedger.open(folder / "ledger", 1)
    make, objective = partial(client.get_executor, pure=False), partial(wait_for_go, folder)
    pool = make() if is_given else make
    with pytest.raises(EvaluationError, match="stay pending"):
        make_optimizer(pool, objective, ledger, max_parallel=2).run(20)
    destroyer.join()
    again = FeedbackLedger.read(folder / "ledger")
    assert observed(again) == squares(0, 1) and ids(again, "pending") == [2, 3]
    with pytest.raises(EvaluationError, match="Client is closed"):
        make_optimizer(pool, objective, ledger, max_parallel=2).run(20)


@pytest.mark.parametrize("is_given", [True, False])
def test_client_that_is_closed(client: Any, tmp_path: Path, is_given: bool) -> None:
    """Dask cannot even shut down the executors of a client that is closed."""
    client.wait_for_workers(2)
    second = distributed.Client(client.cluster, set_as_default=False)
    run_until_it_fails(second, tmp_path, second.close, is_given)
    (tmp_path / "go").touch()


@pytest.mark.slow  # `make docs` runs it
@pytest.mark.filterwarnings("ignore:Port 8787 is already in use")
def test_the_guides_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "guides" / "delays.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```\{code-block\} python\n([^`]*LocalCluster[^`]*)```", page)
    exec(block, {"__name__": "__main__"})
    assert len(FeedbackLedger.read("dask.ledger").to_observations()[0]) == 10
