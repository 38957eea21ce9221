"""Suite `delay_workers`: its problems and methods, and its report by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.delay import workers
from benchmarks.delay.replicate import replicate
from benchmarks.delay.workers_report import shares
from benchmarks.framework.replicate_result import Result
from benchmarks.suites import get_suite
from botorch_calib.ledger import FeedbackLedger
from tests.benchmarks.made_up_results import ByProblem, result_with
from tests.long_grids import mostly_slow

SUITE = get_suite("delay_workers")
METHODS = {method.name: method for method in workers.compared()}


@pytest.mark.parametrize("name", mostly_slow(METHODS, {"default", "random"}))
def test_each_method_runs_with_all_workers_busy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replicate depends only on the seed; all other workers are busy at each choice."""
    pending: list[int] = []
    kinds = (workers.ProposalsStrategy, workers.RandomStrategy)
    for kind in kinds:

        def spied(
            self: Any, model: Any, ledger: FeedbackLedger, choices: Any, real: Any = kind.propose
        ) -> Tensor:
            pending.append(len(ledger.pending()))
            return real(self, model, ledger, choices)

        monkeypatch.setattr(kind, "propose", spied)
    task = replace(SUITE.problems[0], delay=workers.FixedDelay(3.0), max_wait=3, num_rounds=4)
    method: Any = METHODS[name]
    if isinstance(method, workers.Proposals):
        method = replace(method, num_restarts=1, raw_samples=8)
    results = [replicate(task, method, seed) for seed in (1000, 1000, 1001)]
    assert pending == 3 * [0, 1, 2, 2]
    assert results[0].X == results[1].X and results[0].X != results[2].X
    assert torch.tensor(results[0].X).min() >= 0.0 and torch.tensor(results[0].X).max() <= 1.0


def fake(problem: str, method: str, seed: int, regret: float) -> Result:
    return result_with(
        problem=problem,
        method=method,
        seed=seed,
        extras={"simple_regret": [9.0, regret]},
    )


def collected() -> ByProblem:
    regrets = {
        "f_10": {"default": (1.0, 2.0), "ucb_hallucinate": (2.0, 2.0), "random": (3.0, 5.0)},
        "f_20": {"default": (0.1, 0.3), "ucb_hallucinate": (0.1, 0.1), "random": (1.0, 1.0)},
    }
    return {
        problem: {
            method: [fake(problem, method, seed, value) for seed, value in enumerate(values)]
            for method, values in by_method.items()
        }
        for problem, by_method in regrets.items()
    }


def test_shares() -> None:
    """Percent of random search's mean, averaged over problems: (25 + 10)/2 and (50 + 30)/2."""
    found = shares(collected(), "default")
    assert found == pytest.approx({0: 17.5, 1: 40.0})
    assert shares(collected(), "ts_hallucinate") == {}
    incomplete = collected()
    del incomplete["f_20"]["default"][1]
    assert shares(incomplete, "default") == pytest.approx({0: 17.5})
    # An average over fewer problems would not be comparable with the others.
    del incomplete["f_20"]["default"]
    assert shares(incomplete, "default") == {}
