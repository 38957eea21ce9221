"""Ordinary sequential optimization: a problem, a method, and the replicate that runs them.

All objectives are maximised, and each outcome is known before the next choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from botorch.models.model import Model
from botorch.test_functions.base import BaseTestProblem
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from torch import Tensor

from benchmarks.framework.replicate import OBSERVE, Record, Replicate, stream_seed
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.surrogates import Refitted, Surrogate

# Lower and upper bound of each coordinate.
Bounds = tuple[tuple[float, float], ...]

# Number of points of the box at which intervals for the objective are checked.
NUM_SPACE = 512


@dataclass(frozen=True)
class Oracle:
    """The objective, to be maximised. Both functions map ``n x d`` to ``n x 1``.

    ``observe`` adds noise from torch's global random state; ``truth`` has no noise. If the maximum
    of ``truth`` depends on the seed, it is ``optimal_value``, and the problem's value is not used.
    """

    observe: Callable[[Tensor], Tensor]
    truth: Callable[[Tensor], Tensor]
    optimal_value: float | None = None


@dataclass(frozen=True)
class Problem:
    """A problem to be maximised.

    Args:
        name: The name, unique within a suite.
        build: Maps a seed to the objective; most problems ignore the seed.
        bounds: The box.
        optimal_value: The maximum of the noise-free objective (NaN if it depends on the seed).
        initial_design: Maps ``(num_initial, seed)`` to ``num_initial x d`` points.
        num_initial: The number of initial points.
        num_evaluations: The number of evaluations after the initial ones.
        surrogate: Makes the Gaussian process of the methods, which may be misspecified on purpose.
    """

    name: str
    build: Callable[[int], Oracle]
    bounds: Bounds
    optimal_value: float
    initial_design: Callable[[int, int], Tensor]
    num_initial: int
    num_evaluations: int
    surrogate: Surrogate = Refitted()

    def bounds_tensor(self) -> Tensor:
        """The box as ``2 x d``."""
        return box(self.bounds)


class Strategy(Protocol):
    """A method that runs on one problem with one seed."""

    def fit(self, X: Tensor, Y: Tensor) -> Model | None:
        """Return a model of ``n x d`` points and ``n x 1`` outcomes; ``None``: no model."""

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        """The next point, ``1 x d``."""

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        """Numbers to record about the outcome ``y`` (``1 x 1``) at ``x`` (``1 x d``).

        ``model`` is the model that proposed ``x``, so that its data do not include ``y``.
        """

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> Tensor | None:
        """Whether the model's intervals contain the noise-free objective ``f`` at ``n x d`` points.

        Args:
            model: The model of all outcomes.
            X: Points, ``n x d``.
            f: Values of the objective at these points, ``n x 1``.

        Returns:
            ``n`` flags; ``None`` if the method has no intervals of the objective.
        """


@dataclass(frozen=True)
class Method:
    """A method: ``build(problem, seed)`` makes its strategy."""

    name: str
    build: Callable[[Problem, int], Strategy]


def replicate(problem: Problem, method: Method, seed: int) -> Result:
    """Run ``method`` on ``problem``; the result is deterministic, except for wall times."""
    return SequentialReplicate(problem, method, seed).run()


class SequentialReplicate(Replicate[Problem, Method, Model | None]):
    """A replicate in which each outcome is known before the next choice."""

    def __init__(self, problem: Problem, method: Method, seed: int) -> None:
        super().__init__(problem, method, seed, problem.num_evaluations)
        self.oracle = problem.build(seed)
        self.strategy = method.build(problem, seed)
        self.X = problem.initial_design(problem.num_initial, seed)
        expected = (problem.num_initial, len(problem.bounds))
        if self.X.shape != expected:
            raise ValueError(f"The design has shape {tuple(self.X.shape)}, not {expected}.")
        self.Y = self._observe(self.X, step=0)
        self.by_mean: list[int] | None = []
        self.extras: dict[str, list[float | None]] = {}

    def fit(self, step: int) -> Model | None:
        return self.strategy.fit(self.X, self.Y)

    def propose(self, model: Model | None) -> Tensor:
        return self.strategy.propose(model, self.X, self.Y)

    def evaluate(self, x: Tensor, model: Model | None, step: int) -> None:
        self._infer_by_mean(model)
        y = self._observe(x, step=step + 1)
        for name, value in self.strategy.extras(model, x, y).items():
            # JSON has no infinities, and an unbounded interval is a legitimate record.
            self.extras.setdefault(name, []).append(value if math.isfinite(value) else None)
        self.X, self.Y = torch.cat([self.X, x]), torch.cat([self.Y, y])

    def record(self) -> Record:
        with self.choosing(self.num_steps):
            model = self.fit(self.num_steps)
            self._infer_by_mean(model)
        self.judge(model)
        f = self.oracle.truth(self.X).squeeze(-1).tolist()
        y = self.Y.squeeze(-1).tolist()
        by_outcome = incumbents(y, self.problem.num_initial)
        return Record(
            num_initial=self.problem.num_initial,
            X=self.X.tolist(),
            y=y,
            f=f,
            inference_by_outcome=by_outcome,
            inference_by_mean=self.by_mean,
            regret_by_outcome=self._regret(f, by_outcome),
            regret_by_mean=None if self.by_mean is None else self._regret(f, self.by_mean),
            extras=self.extras,
        )

    def _observe(self, X: Tensor, step: int) -> Tensor:
        with manual_seed(stream_seed(self.seed, OBSERVE, step)):
            Y = self.oracle.observe(X)
        if Y.shape != (X.shape[0], 1) or not torch.isfinite(Y).all():
            raise ValueError(f"The problem returned {Y!r} for {X!r}.")
        return Y

    def _infer_by_mean(self, model: Model | None) -> None:
        if model is None or self.by_mean is None:
            self.by_mean = None
            return
        self.by_mean.append(int(posterior_mean(model, self.X).argmax()))

    def judge(self, model: Model | None) -> None:
        """Record whether the final model's intervals contain the noise-free objective.

        There is a flag for each evaluated point, and for the box the fraction of many points.
        """
        visited, space = (
            self.strategy.objective_covered(model, X, self.oracle.truth(X))
            for X in (self.X, self.space())
        )
        if visited is not None and space is not None:
            self.extras["objective_covered"] = visited.double().tolist()
            self.extras["objective_covered_in_box"] = [space.double().mean().item()]

    def space(self) -> Tensor:
        """The points of the box at which intervals are checked, ``NUM_SPACE x d``."""
        return sobol_design(NUM_SPACE, 0, bounds=self.problem.bounds)

    def _regret(self, f: list[float], inference: list[int]) -> list[float]:
        optimum = self.oracle.optimal_value
        optimum = self.problem.optimal_value if optimum is None else optimum
        return [optimum - f[index] for index in inference]


def posterior_mean(model: Model, X: Tensor) -> Tensor:
    """The posterior mean of the objective at ``n x d`` points, ``n x 1``."""
    with torch.no_grad():
        # BoTorch's `Posterior` does not declare a mean, though every posterior here has one.
        mean: Tensor = model.posterior(X).mean  # type: ignore[attr-defined]
    return mean


def incumbents(y: list[float], num_initial: int) -> list[int]:
    """Indices of the largest outcome after the initial design and after each later outcome."""
    return [int(np.argmax(y[:n])) for n in range(num_initial, len(y) + 1)]


def botorch_oracle(seed: int, *, cls: Callable[..., BaseTestProblem], **options: Any) -> Oracle:
    """The oracle of a BoTorch test function, which does not depend on the seed."""
    function = cls(**options)
    if function.is_minimization_problem:
        raise ValueError(f"{cls.__name__} is minimised as configured; pass `negate=True`.")

    def observe(X: Tensor) -> Tensor:
        return function(X).unsqueeze(-1)

    def truth(X: Tensor) -> Tensor:
        return function(X, noise=False).unsqueeze(-1)

    return Oracle(observe, truth)


def sobol_design(n: int, seed: int, *, bounds: Bounds) -> Tensor:
    """``n x d`` scrambled Sobol points."""
    return draw_sobol_samples(box(bounds), n=n, q=1, seed=seed).squeeze(-2)


def box(bounds: Bounds) -> Tensor:
    """The box as ``2 x d``."""
    return torch.tensor(bounds, dtype=torch.double).T.contiguous()


def bounds_of(function: BaseTestProblem) -> Bounds:
    """The box of a BoTorch test function."""
    return tuple((lower, upper) for lower, upper in torch.as_tensor(function.bounds).T.tolist())
