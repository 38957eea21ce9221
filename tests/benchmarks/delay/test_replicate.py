"""The loop under delays, and its traces by hand."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from benchmarks.delay.replicate import Traces, replicate
from botorch_calib.test_functions.delayed import FixedDelay, PoissonDelay
from tests.benchmarks.delay.toys import GRID, STARTED, Scripted, discrete, hat, toy


def test_traces_by_hand() -> None:
    task = toy(FixedDelay(2.0), num_rounds=3, num_initial=1, max_wait=2)
    # The optimum, 0.3, is queried in round 0, and its value is known in round 2.
    y, f = [0.5, 0.9, 0.7, 0.8], [0.5, 1.0, 0.6, 0.8]
    traces = Traces(task, y, f, 1.0, [0, 2, 1, 3])
    assert traces.arrivals == [0.0, 2.0, 2.0, math.inf]
    assert traces.best_by_outcome() == [0, 0, 1, 1]
    extras = traces.extras()
    assert extras["delay"] == [2.0, 1.0, 3.0]
    assert extras["arrival"] == [2.0, 2.0, None]
    assert extras["best_arrived"] == [0.5, 0.5, 0.9, 0.9]
    assert extras["simple_regret"] == pytest.approx([0.5, 0.5, 0.0, 0.0])
    assert extras["cumulative_regret"] == pytest.approx([0.0, 0.0, 0.4, 0.4])
    assert extras["cumulative_regret_all"] == pytest.approx([0.0, 0.0, 0.4, 0.6])


def test_replicate_by_hand() -> None:
    task = toy(FixedDelay(2.0), num_rounds=4)
    result = replicate(task, Scripted(path=(3, 5, 0, 10)), seed=0)
    initial = result.X[:2]
    assert all(x in GRID.tolist() for x in initial) and initial[0] != initial[1]
    assert result.X[2:] == GRID[[3, 5, 0, 10]].tolist()
    assert result.f == result.y == pytest.approx(hat(torch.tensor(result.X)).tolist())
    start = min(1.0 - value for value in result.f[:2])
    assert result.extras["simple_regret"] == pytest.approx([start, start, 0.0, 0.0, 0.0])
    # Regrets are 0, 0.2, 0.3 and 0.7, and the last two arrive after the end.
    assert result.extras["cumulative_regret"] == pytest.approx([0.0, 0.0, 0.0, 0.2, 0.5])
    assert result.extras["cumulative_regret_all"] == pytest.approx([0.0, 0.0, 0.2, 0.5, 1.2])
    assert result.inference_by_outcome[2:] == [2, 2, 2]
    assert result.regret_by_outcome == pytest.approx([start, start, 0.0, 0.0, 0.0])
    assert len(result.fit_seconds) == len(result.acquisition_seconds) == 4


@pytest.mark.parametrize("delay", [PoissonDelay(3.0), FixedDelay(3.0), FixedDelay(0.0)])
def test_a_strategy_sees_what_the_traces_say_has_arrived(delay) -> None:
    task = toy(delay, partial(discrete, noise_std=0.1), num_rounds=30)
    result = replicate(task, Scripted(), seed=5)
    strategy = STARTED[-1]
    n = task.num_initial
    waits = [int(wait or 0) for wait in result.extras["delay"]]
    late = sum(wait > task.max_wait for wait in waits)
    assert late > 0 or isinstance(delay, FixedDelay)
    for step in range(task.num_rounds):
        # The paper's condition: d <= min(m, t - s).
        known = [s for s in range(step) if waits[s] <= min(task.max_wait, step - s)]
        values = sorted([*result.y[:n], *(result.y[n + s] for s in known)])
        assert strategy.seen[step][1].squeeze(-1).sort().values.tolist() == pytest.approx(values)
        waited = [s for s in range(step) if s not in known and step - s <= task.max_wait]
        assert strategy.pending[step].tolist() == [result.X[n + s] for s in waited]
        best = max(values)
        assert result.extras["best_arrived"][step] == pytest.approx(best)
