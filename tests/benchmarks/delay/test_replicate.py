"""The loop under delays, and its traces by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.delay.methods import sdf
from benchmarks.delay.objectives import DelayedObjective
from benchmarks.delay.replicate import Domain, Traces, replicate
from benchmarks.framework.results import Result
from botorch_calib.test_functions.delayed import FixedDelay, PoissonDelay
from tests.benchmarks.delay.toys import (
    CONTEXTUAL,
    GRID,
    STARTED,
    ContinuousHat,
    Scripted,
    contextual,
    continuous,
    discrete,
    hat,
    objective,
    toy,
    without_times,
)


def test_traces_by_hand() -> None:
    task = toy(FixedDelay(2.0), num_rounds=3, num_initial=1, max_wait=2)
    # The optimum 0.3 is queried in round 0 and known for the choice of round 2.
    y, f = [0.5, 0.9, 0.7, 0.8], [0.5, 1.0, 0.6, 0.8]
    traces = Traces(task, y, f, [1.0] * 4, [0, 2, 1, 3])
    assert traces.arrivals == [0.0, 2.0, 2.0, math.inf]
    assert traces.best_by_outcome() == [0, 0, 1, 1]
    extras = traces.extras()
    assert extras["delay"] == [2.0, 1.0, 3.0]
    assert extras["arrival"] == [2.0, 2.0, None]
    assert extras["optimum"] == [1.0, 1.0, 1.0]
    assert extras["best_arrived"] == [0.5, 0.5, 0.9, 0.9]
    assert extras["simple_regret"] == pytest.approx([0.5, 0.5, 0.0, 0.0])
    assert extras["cumulative_regret"] == pytest.approx([0.0, 0.0, 0.4, 0.4])
    assert extras["cumulative_regret_all"] == pytest.approx([0.0, 0.0, 0.4, 0.6])


def test_a_value_without_delay_is_known_one_round_later() -> None:
    task = toy(FixedDelay(0.0), num_rounds=2, num_initial=1)
    assert Traces(task, [0.0] * 3, [0.0] * 3, [1.0] * 3, [0, 0, 0]).arrivals == [0.0, 1.0, 2.0]


def test_replicate_by_hand() -> None:
    task = toy(FixedDelay(2.0), num_rounds=4)
    result = replicate(task, Scripted(path=(3, 5, 0, 10)), seed=0)
    initial = result.X[:2]
    assert initial == Domain.of(task.objective, discrete(0)).initial_points(2, 0).tolist()
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
        # Written out from the paper's condition: d <= min(m, t - s).
        known = [s for s in range(step) if waits[s] <= min(task.max_wait, step - s)]
        values = sorted([*result.y[:n], *(result.y[n + s] for s in known)])
        assert strategy.seen[step][1].squeeze(-1).sort().values.tolist() == pytest.approx(values)
        waited = [s for s in range(step) if s not in known and step - s <= task.max_wait]
        assert strategy.pending[step].tolist() == [result.X[n + s] for s in waited]
        best = max(values)
        assert result.extras["best_arrived"][step] == pytest.approx(best)


def test_replicate_is_deterministic_and_leaves_the_random_state_alone() -> None:
    task = toy(PoissonDelay(2.0), partial(discrete, noise_std=0.1))
    method = sdf("ts_sdf", "ts")
    before = torch.random.get_rng_state()
    first = replicate(task, method, 3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    assert without_times(replicate(task, method, 3)) == without_times(first)
    other = replicate(task, method, 4)
    assert other.X != first.X
    assert other.extras["delay"] != first.extras["delay"]


def test_methods_of_one_seed_share_initial_points_noise_and_delays() -> None:
    task = toy(PoissonDelay(2.0), partial(discrete, noise_std=0.1))
    one, two = (replicate(task, Scripted(path=path), 3) for path in [(0,) * 6, (5,) * 6])
    assert one.X[:2] == two.X[:2]
    assert one.extras["delay"] == two.extras["delay"]
    noise = [np.subtract(result.y, result.f) for result in (one, two)]
    assert noise[0] == pytest.approx(noise[1])
    assert abs(noise[0]).min() > 0
    other = replicate(task, Scripted(path=(0,) * 6), 4)
    assert other.extras["delay"] != one.extras["delay"]
    assert np.subtract(other.y, other.f) != pytest.approx(noise[0])


def test_contexts_come_in_order_and_each_has_its_optimum() -> None:
    result = replicate(CONTEXTUAL, Scripted(path=(0, 1, 2, 0, 1, 2)), seed=0)
    strategy = STARTED[-1]
    assert [choices[:, -1].unique().tolist() for choices in strategy.choices] == [[0.0]] * 3 + [
        [1.0]
    ] * 3
    assert [x[-1] for x in result.X[:2]] == [0.0, 0.0]
    assert result.X[2:] == contextual(0).choices.tolist()
    assert result.extras["optimum"] == [0.2] * 3 + [0.9] * 3
    assert result.extras["cumulative_regret_all"] == pytest.approx(
        [0.0, 0.2, 0.3, 0.3, 0.3, 0.7, 1.6]
    )
    assert result.extras["cumulative_regret"] == pytest.approx([0, 0, 0.2, 0.3, 0.3, 0.3, 0.7])
    assert "simple_regret" not in result.extras
    assert result.regret_by_outcome == result.inference_by_outcome == []


def test_results_survive_json() -> None:
    for task in (toy(PoissonDelay(4.0)), CONTEXTUAL):
        result = replicate(task, Scripted(), seed=0)
        assert Result.from_json(result.to_json()) == result


def test_the_box_of_a_contextual_task_has_the_range_of_its_contexts() -> None:
    domain = Domain.of(CONTEXTUAL.objective, contextual(0))
    assert domain.bounds.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert domain.contexts == (0.0, 1.0)


def test_initial_points_of_a_box_are_random_within_it() -> None:
    spec = DelayedObjective("box", continuous, ((-4.0, -2.0), (10.0, 20.0)), 0.0)
    points = Domain.of(spec, ContinuousHat()).initial_points(200, seed=1)
    assert points.shape == (200, 2)
    lower, upper = torch.tensor([-4.0, 10.0]), torch.tensor([-2.0, 20.0])
    assert ((points >= lower) & (points <= upper)).all()
    # Means of 200 uniform variables: 4 standard errors are 4 / sqrt(12 * 200) of the width.
    middle = (points.mean(dim=0) - lower) / (upper - lower)
    assert (middle - 0.5).abs().max() < 4 / math.sqrt(12 * 200)


def test_bad_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="6 rounds, its contexts 8"):
        replace(CONTEXTUAL, objective=objective(contextual, num_contexts=2, rounds_per_context=4))
    three = objective(contextual, num_contexts=3, rounds_per_context=2)
    with pytest.raises(ValueError, match="2 contexts"):
        replicate(replace(CONTEXTUAL, objective=three), Scripted(), 0)
    with pytest.raises(ValueError, match="discrete"):
        Domain.of(three, ContinuousHat())
    with pytest.raises(ValueError, match="counted in rounds"):
        replicate(toy(FixedDelay(1.5)), Scripted(), 0)
