"""The loop that all suites share: one method runs on one problem with one seed.

A replicate is a pure function of these three, except for wall times. With the same seed, all
methods get the same initial points and the same noise, so that paired tests can compare them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.framework.replicate_result import (
    Named,
    Result,
    installed_versions,
    replicate_config,
)

# Numbers of the random streams. Never change them: published results depend on them. Suites have
# further streams: 3 in `wellspecified` and `delay.objectives`, from 10 on in `delay`, from 20 on in
# `robust`, from 30 on in `decisions`, from 40 on in `claims`. Two suites may share a number.
OBSERVE, PROPOSE, SOBOL = 0, 1, 2

P = TypeVar("P", bound=Named)
M = TypeVar("M", bound=Named)
F = TypeVar("F")  # what a method fits: a model, or nothing


def stream_seed(seed: int, stream: int, step: int = 0) -> int:
    """A seed for one step of one random stream of a replicate, independent of the others."""
    return int(np.random.SeedSequence([seed, stream, step]).generate_state(1)[0])


@dataclass(frozen=True)
class Record:
    """The fields of a `Result` that depend on the kind of replicate."""

    num_initial: int
    X: list[list[float]]
    y: list[float]
    f: list[float]
    extras: dict[str, list[float | None]]
    inference_by_outcome: list[int] = field(default_factory=list)
    inference_by_mean: list[int] | None = None
    regret_by_outcome: list[float] = field(default_factory=list)
    regret_by_mean: list[float] | None = None


class Replicate(ABC, Generic[P, M, F]):
    """The state of one replicate between steps.

    Subclasses define which data a method gets, how its choice is evaluated and what is recorded.
    Their constructors make the initial evaluations.

    Args:
        problem: The problem.
        method: The method.
        seed: The seed.
        num_steps: The number of choices that the method makes.
    """

    def __init__(self, problem: P, method: M, seed: int, num_steps: int) -> None:
        self.problem, self.method, self.seed, self.num_steps = problem, method, seed, num_steps

    def run(self) -> Result:
        """Run all steps and return the result."""
        fit_seconds: list[float] = []
        acquisition_seconds: list[float] = []
        for step in range(self.num_steps):
            self.prepare(step)
            with self.choosing(step):
                start = time.perf_counter()
                model = self.fit(step)
                fitted = time.perf_counter()
                x = self.propose(model)
                done = time.perf_counter()
            fit_seconds.append(fitted - start)
            acquisition_seconds.append(done - fitted)
            self.evaluate(x, model, step)
        return Result(
            problem=self.problem.name,
            method=self.method.name,
            seed=self.seed,
            **vars(self.record()),
            fit_seconds=fit_seconds,
            acquisition_seconds=acquisition_seconds,
            config=replicate_config(self.problem, self.method),
            versions=installed_versions(),
        )

    def choosing(self, step: int) -> AbstractContextManager[None]:
        """A context manager that seeds torch for a step's fit and choice, then restores its state.

        Each step has its own seed, so that the random numbers of a step do not depend on how many
        numbers the method has drawn before.
        """
        return manual_seed(stream_seed(self.seed, PROPOSE, step))

    def prepare(self, step: int) -> None:  # noqa: B027 - most kinds have nothing to prepare
        """Prepare a choice. This is not timed and draws no random numbers."""

    @abstractmethod
    def fit(self, step: int) -> F:
        """The method's model for this step's choice."""

    @abstractmethod
    def propose(self, model: F) -> Tensor:
        """The method's choice."""

    @abstractmethod
    def evaluate(self, x: Tensor, model: F, step: int) -> None:
        """Evaluate the choice ``x``, made with ``model``, and add its outcome to the data."""

    @abstractmethod
    def record(self) -> Record:
        """The record of the replicate, after the last step."""
