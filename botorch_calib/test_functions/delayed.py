r"""Test problems whose values arrive with delays, on a simulated clock.

As in [Verma2022]_, section 2, the value of an evaluation started at time ``s`` with delay ``d`` is
available at time ``t``, in iterations or seconds, if and only if ``s + d <= t``.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.exceptions import InputDataError, UnsupportedError
from botorch.test_functions.base import BaseTestProblem, MultiObjectiveTestProblem
from torch import Tensor

from botorch_calib._validation import (
    check_count,
    check_inputs,
    check_instance,
    check_nonnegative,
    check_number,
)


class DelayDistribution(ABC):
    """A distribution of delays, which may depend on the point that is evaluated."""

    @abstractmethod
    def sample(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a delay for each of the points ``n x d``; return ``n`` doubles >= 0 on the CPU."""


@dataclass(frozen=True)
class FixedDelay(DelayDistribution):
    """The same ``delay`` for every evaluation.

    Example:
        >>> draw_delay(FixedDelay(5.0), torch.rand(2), seed=0, ticket=0)
        5.0
    """

    delay: float

    def __post_init__(self) -> None:
        check_nonnegative("delay", self.delay)

    def sample(self, X: Tensor, generator: torch.Generator) -> Tensor:
        return torch.full((len(X),), float(self.delay), dtype=torch.double)


@dataclass(frozen=True)
class PoissonDelay(DelayDistribution):
    """Delays with a Poisson distribution, in iterations, with expectation ``mean``.

    Example:
        >>> delay = draw_delay(PoissonDelay(10.0), torch.rand(2), seed=0, ticket=0)
    """

    mean: float

    def __post_init__(self) -> None:
        check_nonnegative("mean", self.mean)

    def sample(self, X: Tensor, generator: torch.Generator) -> Tensor:
        rates = torch.full((len(X),), float(self.mean), dtype=torch.double)
        return torch.poisson(rates, generator=generator)


def draw_delay(delay: DelayDistribution, x: Tensor, seed: int, ticket: int) -> float:
    """Draw the delay of evaluation number ``ticket`` at ``x``.

    The random numbers depend only on ``(seed, ticket)``. So comparisons are paired: unless delays
    depend on the point, the k-th evaluations of two methods with the same seed have the same delay.

    Args:
        delay: The distribution of delays.
        x: The point, of length ``d`` or ``1 x d``.
        seed: Seed of the run, at least 0.
        ticket: Number of the evaluation in the run, from 0. `DelayedProblem.start` returns it.
    """
    stream = np.random.SeedSequence([seed, ticket]).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(stream[0]))
    drawn = delay.sample(x.reshape(1, -1), generator)
    if drawn.numel() != 1 or not 0.0 <= drawn.item() < math.inf:
        raise InputDataError(f"`delay` drew {drawn!r}, not one finite number of at least 0.")
    return float(drawn.item())


class Arrival(NamedTuple):
    """A value that has arrived, the ticket of its evaluation, and the time of its arrival."""

    ticket: int
    y: float
    time: float


class DelayedProblem(BaseTestProblem):
    r"""A test problem whose values arrive after a random delay on a simulated clock.

    The wrapped ``problem`` must have a single objective. A call of the delayed problem evaluates
    the wrapped problem without delay, and missing attributes are looked up in the wrapped problem.
    `start` starts evaluations, and `arrivals` returns the values that have arrived. Callers pass
    the time as ``now``, which must not decrease. `draw_delay` draws the delays from the
    distribution ``delay``, with a ``seed`` of at least 0.

    Attributes:
        now: The latest time passed by a caller; minus infinity at first.

    Example:
        >>> problem = DelayedProblem(Ackley(dim=2, negate=True), PoissonDelay(10.0), seed=0)
        >>> for iteration in range(30):
        ...     for arrival in problem.arrivals(iteration):
        ...         y = arrival.y
        ...     ticket = problem.start(torch.rand(2), now=iteration)
    """

    def __init__(self, problem: BaseTestProblem, delay: DelayDistribution, seed: int = 0) -> None:
        check_instance("problem", problem, BaseTestProblem)
        if isinstance(problem, MultiObjectiveTestProblem):
            raise UnsupportedError("`problem` must have a single objective.")
        check_instance("delay", delay, DelayDistribution)
        check_count("seed", seed, least=0)
        bounds = problem.get_buffer("bounds")
        self.dim = problem.dim
        self._bounds = [(lower, upper) for lower, upper in bounds.T.tolist()]
        self.continuous_inds = problem.continuous_inds
        self.discrete_inds = problem.discrete_inds
        self.categorical_inds = problem.categorical_inds
        super().__init__(noise_std=problem.noise_std, negate=problem.negate, dtype=bounds.dtype)
        self.problem = problem
        self.delay = delay
        self.seed = seed
        self.now = -math.inf
        self._num_started = 0
        self._waiting: list[tuple[float, int, float]] = []  # a heap of (time, ticket, y)

    def __getattr__(self, name: str) -> Any:
        """Look up missing attributes in the wrapped problem."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "problem" or name.startswith("__"):  # not set yet, or a special method
                raise
            return getattr(self.problem, name)

    @property
    def is_minimization_problem(self) -> bool:
        """Whether the wrapped problem is to be minimised, given its ``negate``."""
        return self.problem.is_minimization_problem

    def forward(self, X: Tensor, noise: bool = True) -> Tensor:
        """Evaluate the wrapped problem at once: ``batch_shape x d -> batch_shape``."""
        return self.problem(X, noise=noise)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self.problem.evaluate_true(X)

    @property
    def num_pending(self) -> int:
        """Number of values that `arrivals` has not returned yet."""
        return len(self._waiting)

    @property
    def next_arrival_time(self) -> float:
        """Time of the next arrival; infinity if no value is pending."""
        return self._waiting[0][0] if self._waiting else math.inf

    def start(self, X: Tensor, now: float) -> list[int]:
        """Start evaluations at time ``now``, and return their tickets, numbered from 0.

        Args:
            X: Points ``n x d``, or a single point of length ``d``.
            now: The current time, at least the time of every earlier call.
        """
        X = check_inputs("X", X.unsqueeze(0) if X.dim() == 1 else X, self.dim)
        time = self._checked_time(now)
        tickets = list(range(self._num_started, self._num_started + len(X)))
        values = self.problem(X).detach().tolist()
        rows = zip(X.detach(), tickets, strict=True)
        delays = [draw_delay(self.delay, x, self.seed, ticket) for x, ticket in rows]
        for ticket, value, wait in zip(tickets, values, delays, strict=True):
            heapq.heappush(self._waiting, (time + wait, ticket, value))
        self._num_started += len(X)
        self.now = time
        return tickets

    def arrivals(self, now: float) -> list[Arrival]:
        """Return the values that have arrived by time ``now`` and were not returned before.

        Arrivals are in order of time; simultaneous arrivals are in order of their tickets.
        ``InputDataError`` is raised if ``now`` is less than in an earlier call.
        """
        self.now = self._checked_time(now)
        arrived = []
        while self.next_arrival_time <= self.now:
            time, ticket, y = heapq.heappop(self._waiting)
            arrived.append(Arrival(ticket, y, time))
        return arrived

    def _checked_time(self, now: float) -> float:
        time = check_number("now", now)
        if time < self.now:
            raise InputDataError(f"`now` is {now}, but the clock already shows {self.now}.")
        return time
