"""Distributions of delays, and the order and completeness of arrivals."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.test_functions.multi_objective import BraninCurrin
from botorch.test_functions.synthetic import Ackley, Branin
from botorch.utils.sampling import manual_seed
from torch import Tensor

from botorch_calib.test_functions import (
    DelayDistribution,
    DelayedProblem,
    FixedDelay,
    HeteroscedasticAckley,
    PoissonDelay,
    draw_delay,
)

NUM = 40_000
MISTYPED: Any = DelayedProblem  # called with arguments of the wrong type
ANYWHERE = torch.zeros(NUM, 2, dtype=torch.double)


class UniformDelay(DelayDistribution):
    """A clock time between 0 and 10."""

    def sample(self, X: Tensor, generator: torch.Generator) -> Tensor:
        return 10.0 * torch.rand(len(X), generator=generator, dtype=torch.double)


def sum_of_squares(X: Tensor) -> Tensor:
    return X.square().sum(dim=-1)


def points(n: int, seed: int = 0) -> Tensor:
    with manual_seed(seed):
        return 4.0 * torch.rand(n, 2, dtype=torch.double) - 2.0


LAWS = [(PoissonDelay(10.0), (10.0, 10.0)), (PoissonDelay(0.3), (0.3, 0.3))]


def check_moments(values: list[float], mean: float, variance: float) -> None:
    """Compare a sample's mean and variance with the distribution's, within five standard errors.

    The error of the variance is estimated from the sample's fourth moment.
    """
    sample = torch.tensor(values, dtype=torch.double)
    assert abs(sample.mean() - mean) < 5 * math.sqrt(variance / len(sample))
    squares = (sample - mean).square()
    assert abs(squares.mean() - variance) < 5 * squares.std() / math.sqrt(len(sample))


@pytest.mark.parametrize(("delay", "moments"), LAWS)
def test_means_and_variances(delay: DelayDistribution, moments: tuple[float, float]) -> None:
    drawn = delay.sample(ANYWHERE, torch.Generator().manual_seed(0))
    assert drawn.shape == (NUM,) and drawn.dtype == torch.double and (drawn >= 0).all()
    check_moments(drawn.tolist(), *moments)


@pytest.mark.parametrize(("delay", "moments"), LAWS)
def test_delays_of_consecutive_tickets_follow_the_distribution(
    delay: DelayDistribution, moments: tuple[float, float]
) -> None:
    # Each ticket has a generator, whose first number must not depend on the ticket.
    drawn = [draw_delay(delay, ANYWHERE[0], 3, ticket) for ticket in range(4000)]
    check_moments(drawn, *moments)
    halves = torch.tensor(drawn, dtype=torch.double).reshape(-1, 2).T
    assert abs(torch.corrcoef(halves)[0, 1]) < 5 / math.sqrt(2000)


@pytest.mark.parametrize(
    ("delay", "expected"), [(FixedDelay(7.0), 7.0), (FixedDelay(0), 0.0), (PoissonDelay(0.0), 0.0)]
)
def test_degenerate_distributions(delay: DelayDistribution, expected: float) -> None:
    drawn = delay.sample(ANYWHERE[:9], torch.Generator().manual_seed(0))
    assert torch.equal(drawn, torch.full((9,), expected, dtype=torch.double))


def test_a_delay_belongs_to_its_seed_and_ticket() -> None:
    delay, x = UniformDelay(), ANYWHERE[0]
    first = draw_delay(delay, x, seed=1, ticket=2)
    assert first == draw_delay(delay, x + 1.0, seed=1, ticket=2)
    assert first == draw_delay(delay, x.unsqueeze(0), seed=1, ticket=2)
    others = [draw_delay(delay, x, seed, ticket) for seed, ticket in ((2, 2), (1, 3), (2, 1))]
    assert len({first, *others}) == 4


# ------------------------------------------------------------ arrivals


def simulate(problem: DelayedProblem, X: Tensor) -> dict[int, tuple[float, float, int]]:
    """One evaluation per iteration: ``(value, time, iteration it was handed out)`` by ticket."""
    seen: dict[int, tuple[float, float, int]] = {}
    for iteration in range(10 * len(X)):
        for ticket, y, time in problem.arrivals(iteration):
            assert ticket not in seen
            seen[ticket] = (y, time, iteration)
        if iteration < len(X):
            assert problem.start(X[iteration], iteration) == [iteration]
    return seen


def test_every_value_arrives_once_when_it_should() -> None:
    problem, X = DelayedProblem(Ackley(dim=2), PoissonDelay(4.0), seed=5), points(30)
    seen = simulate(problem, X)
    assert sorted(seen) == list(range(30)) and problem.num_pending == 0
    values = Ackley(dim=2)(X).tolist()
    for ticket, (y, time, iteration) in seen.items():
        delay = draw_delay(PoissonDelay(4.0), X[ticket], 5, ticket)
        assert y == values[ticket]
        assert time == ticket + delay
        # Without a delay the value is available to the choice of the next iteration.
        assert iteration == max(time, ticket + 1)


def test_arrivals_on_a_clock_come_in_order_and_never_early() -> None:
    problem, X = DelayedProblem(Branin(), UniformDelay()), points(40).abs()
    start_times = [0.37 * i for i in range(40)]
    handed_out: list[tuple[int, float]] = []
    for x, now in zip(X, start_times, strict=True):
        problem.start(x, now)
        early = problem.next_arrival_time
        arrived = problem.arrivals(now + 0.2)
        assert all(now - 0.37 + 0.2 < time <= now + 0.2 for _, _, time in arrived)
        assert (early <= now + 0.2) == bool(arrived)
        handed_out += [(ticket, time) for ticket, _, time in arrived]
    handed_out += [(ticket, time) for ticket, _, time in problem.arrivals(1e9)]
    times = [time for _, time in handed_out]
    assert times == sorted(times)
    assert sorted(ticket for ticket, _ in handed_out) == list(range(40))
    for ticket, time in handed_out:
        delay = draw_delay(problem.delay, X[ticket], 0, ticket)
        assert time == pytest.approx(start_times[ticket] + delay)
    assert problem.arrivals(2e9) == [] and problem.next_arrival_time == math.inf


def test_values_that_arrive_together_come_in_order_of_their_start() -> None:
    problem = DelayedProblem(Ackley(dim=2), FixedDelay(3), seed=0)
    assert problem.start(points(5), now=2) == [0, 1, 2, 3, 4]
    assert problem.arrivals(4.999) == []
    assert [a.ticket for a in problem.arrivals(5)] == [0, 1, 2, 3, 4]
    assert problem.arrivals(5) == []


def test_delays_do_not_depend_on_the_queries_nor_on_their_grouping() -> None:
    def times(X: Tensor, groups: list[int], seed: int) -> list[float]:
        problem = DelayedProblem(Ackley(dim=2), PoissonDelay(10.0), seed=seed)
        for group in X.split(groups):
            problem.start(group, now=0)
        return [a.time for a in sorted(problem.arrivals(1e6))]

    reference = times(points(12), [12], seed=4)
    assert times(points(12, seed=1), [1, 4, 2, 5], seed=4) == reference
    assert times(points(12), [12], seed=5) != reference


# ------------------------------------------------------------ the wrapped problem


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_else_passes_through(negate: bool, dtype: torch.dtype) -> None:
    inner: Any = Branin(noise_std=0.3, negate=negate, dtype=dtype)
    problem, X = DelayedProblem(inner, FixedDelay(1)), points(6).abs().to(dtype)
    assert (problem.dim, problem.optimal_value) == (2, inner.optimal_value)
    assert torch.equal(problem.bounds, inner.bounds) and problem.bounds.dtype == dtype
    assert torch.equal(problem.optimizers, inner.optimizers)
    assert problem.is_minimization_problem is inner.is_minimization_problem is not negate
    assert (problem.noise_std, problem.negate) == (0.3, negate)
    assert torch.equal(problem(X, noise=False), inner(X, noise=False))
    assert torch.equal(problem.evaluate_true(X), inner.evaluate_true(X))
    assert problem(X).dtype == dtype
    with manual_seed(7):
        expected = inner(X)
    with manual_seed(7):
        assert torch.equal(problem(X), expected)
    with manual_seed(7):
        problem.start(X, now=0)
    # The noise was drawn at the start: nothing random is left to the arrival.
    assert [a.y for a in problem.arrivals(1)] == expected.tolist()
    assert not torch.equal(expected, inner(X, noise=False))


def test_maximised_problems_and_attributes_of_their_own() -> None:
    problem = DelayedProblem(HeteroscedasticAckley(), PoissonDelay(2.0))
    X = points(3)
    assert not problem.is_minimization_problem
    assert torch.equal(problem.noise_variance(X), HeteroscedasticAckley().noise_variance(X))
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = problem.no_such_thing


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_copy_goes_on_by_itself(clone) -> None:
    problem = DelayedProblem(Ackley(dim=2), PoissonDelay(5.0), seed=1)
    problem.start(points(4), now=0)
    twin = clone(problem)
    expected = problem.arrivals(50)
    assert len(expected) == 4
    assert twin.arrivals(50) == expected
    assert twin.start(points(1), 50) == problem.start(points(1), 50) == [4]


# ------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (partial(DelayedProblem, BraninCurrin(), FixedDelay(1)), "problem"),
        (partial(FixedDelay, math.inf), "delay"),
        (partial(PoissonDelay, -0.5), "mean"),
        (partial(MISTYPED, Ackley(), 3.0), "delay"),
        (partial(MISTYPED, sum_of_squares, FixedDelay(1)), "problem"),
        (partial(MISTYPED, Ackley(), FixedDelay(1), 0.5), "seed"),
    ],
)
def test_bad_arguments(make, named: str) -> None:
    with pytest.raises((InputDataError, UnsupportedError), match=f"`{named}`"):
        make()


@pytest.mark.parametrize(
    ("X", "now", "error"),
    [
        (torch.zeros(2, 3), 5.0, BotorchTensorDimensionError),
        (torch.zeros(1, 1, 2), 5.0, BotorchTensorDimensionError),
        (torch.tensor([[math.nan, 0.0]]), 5.0, InputDataError),
        (torch.full((1, 2), 1e3), 5.0, ValueError),
        (torch.zeros(1, 2), 3.9, InputDataError),
        (torch.zeros(1, 2), "now", InputDataError),
    ],
)
def test_a_start_that_fails_changes_nothing(X: Tensor, now, error: type[Exception]) -> None:
    problem = DelayedProblem(Ackley(dim=2), FixedDelay(2.0))
    problem.start(points(2), now=4.0)
    with pytest.raises(error):
        problem.start(X, now)
    with pytest.raises(InputDataError, match="`now`"):
        problem.arrivals(3.9)
    assert (problem.now, problem.num_pending, problem.next_arrival_time) == (4.0, 2, 6.0)
    assert problem.start(points(1), now=4.0) == [2]
