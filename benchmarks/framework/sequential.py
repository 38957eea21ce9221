"""What a benchmark is: a problem, a method, a seed and the result of running them.

``replicate`` is a pure function of the three, wall times aside. Everything is maximised.
All methods of one seed see the same initial points and the same noise stream, so that
differences between methods can be tested in pairs.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np
import torch
from botorch.models.model import Model
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.framework.config import config_hash, describe
from benchmarks.framework.surrogates import Refitted, Surrogate

# Numbers of the random streams. Never renumber: published results depend on them.
OBSERVE, PROPOSE, SOBOL = 0, 1, 2

PACKAGES = ("torch", "botorch", "gpytorch", "botorch_calib", "numpy", "scipy")


def stream_seed(seed: int, stream: int, step: int = 0) -> int:
    """A seed for one step of one random stream of a replicate, independent of the others."""
    return int(np.random.SeedSequence([seed, stream, step]).generate_state(1)[0])


@dataclass(frozen=True)
class Oracle:
    """The objective, maximised. Both functions map ``n x d`` to ``n x 1``.

    ``observe`` adds noise from torch's global random state; ``truth`` has no noise. The
    ``optimal_value`` is that of the truth where it depends on the seed, in place of the
    problem's.
    """

    observe: Callable[[Tensor], Tensor]
    truth: Callable[[Tensor], Tensor]
    optimal_value: float | None = None


@dataclass(frozen=True)
class Problem:
    """A problem to be maximised.

    Args:
        name: Names the result folder.
        build: Maps a seed to the objective; most problems ignore the seed.
        bounds: ``(lower, upper)`` per coordinate.
        optimal_value: The maximum of the noise-free objective (NaN if it depends on the seed).
        initial_design: Maps ``(num_initial, seed)`` to ``num_initial x d`` points.
        num_initial: The number of initial points.
        num_evaluations: The number of evaluations after the initial ones.
        surrogate: Makes the Gaussian process that methods are given, right or wrong.
    """

    name: str
    build: Callable[[int], Oracle]
    bounds: tuple[tuple[float, float], ...]
    optimal_value: float
    initial_design: Callable[[int, int], Tensor]
    num_initial: int
    num_evaluations: int
    surrogate: Surrogate = Refitted()

    def bounds_tensor(self) -> Tensor:
        """The box as ``2 x d``."""
        return torch.tensor(self.bounds, dtype=torch.double).T.contiguous()


class Strategy(Protocol):
    """One method at work on one problem with one seed."""

    def fit(self, X: Tensor, Y: Tensor) -> Model | None:
        """Fit a model to ``n x d`` points and ``n x 1`` outcomes; ``None`` if there is none."""

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        """The next point, ``1 x d``."""

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        """Numbers to record of the outcome ``y`` (``1 x 1``) at ``x`` (``1 x d``).

        ``model`` is the one that proposed ``x``, which has not seen ``y``.
        """


@dataclass(frozen=True)
class Method:
    """A method: ``build(problem, seed)`` makes its strategy."""

    name: str
    build: Callable[[Problem, int], Strategy]


@dataclass(frozen=True)
class Result:
    """One replicate. Points are in order of evaluation, the initial ones first.

    Traces have ``num_evaluations + 1`` entries, the first after the initial design. An
    inference trace holds the index of the point that would be reported: the one with the
    largest observed outcome, or with the largest posterior mean (``None`` without a model).
    Regret is the optimal value minus the noise-free value there.
    """

    problem: str
    method: str
    seed: int
    num_initial: int
    X: list[list[float]]
    y: list[float]
    f: list[float]
    inference_by_outcome: list[int]
    inference_by_mean: list[int] | None
    regret_by_outcome: list[float]
    regret_by_mean: list[float] | None
    fit_seconds: list[float]
    acquisition_seconds: list[float]
    extras: dict[str, list[float | None]]
    config: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The result as one JSON object."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read ``to_json`` back; raises ``ValueError`` for anything else."""
        data = json.loads(text)
        names = {f.name for f in fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            raise ValueError("Not a benchmark result: its fields are not those of `Result`.")
        return cls(**data)

    @property
    def config_hash(self) -> str:
        """Hash of the configuration that was run."""
        return config_hash(self.config)


class Named(Protocol):
    """A problem or a method, of whatever kind: its name and what `describe` makes of it count."""

    @property
    def name(self) -> str:
        """Names it within a suite, and its folder."""


def replicate_config(problem: Named, method: Named) -> dict[str, Any]:
    """The configuration of a replicate, as JSON."""
    return {"problem": describe(problem), "method": describe(method)}


def installed_versions() -> dict[str, str]:
    """Versions of python and of the packages that decide the numbers."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def replicate(problem: Problem, method: Method, seed: int) -> Result:
    """Run ``method`` on ``problem``: deterministic in ``seed``, wall times aside."""
    run = _Replicate(problem, method, seed)
    for step in range(problem.num_evaluations):
        run.evaluate_next(step)
    return run.result()


class _Replicate:
    """The state of one replicate between evaluations."""

    def __init__(self, problem: Problem, method: Method, seed: int) -> None:
        self.problem, self.method, self.seed = problem, method, seed
        self.oracle = problem.build(seed)
        self.strategy = method.build(problem, seed)
        self.X = problem.initial_design(problem.num_initial, seed)
        expected = (problem.num_initial, len(problem.bounds))
        if self.X.shape != expected:
            raise ValueError(f"The design has shape {tuple(self.X.shape)}, not {expected}.")
        self.Y = self._observe(self.X, step=0)
        self.by_mean: list[int] | None = []
        self.fit_seconds: list[float] = []
        self.acquisition_seconds: list[float] = []
        self.extras: dict[str, list[float | None]] = {}

    def evaluate_next(self, step: int) -> None:
        """Fit, propose and evaluate one point."""
        with manual_seed(stream_seed(self.seed, PROPOSE, step)):
            start = time.perf_counter()
            model = self.strategy.fit(self.X, self.Y)
            fitted = time.perf_counter()
            x = self.strategy.propose(model, self.X, self.Y)
            done = time.perf_counter()
        self.fit_seconds.append(fitted - start)
        self.acquisition_seconds.append(done - fitted)
        self._infer_by_mean(model)
        y = self._observe(x, step=step + 1)
        for name, value in self.strategy.extras(model, x, y).items():
            # JSON has no infinities, and an unbounded interval is a legitimate record.
            self.extras.setdefault(name, []).append(value if math.isfinite(value) else None)
        self.X, self.Y = torch.cat([self.X, x]), torch.cat([self.Y, y])

    def result(self) -> Result:
        """Report the run; one last fit gives the inference after the last outcome."""
        with manual_seed(stream_seed(self.seed, PROPOSE, self.problem.num_evaluations)):
            self._infer_by_mean(self.strategy.fit(self.X, self.Y))
        f = self.oracle.truth(self.X).squeeze(-1).tolist()
        y = self.Y.squeeze(-1).tolist()
        by_outcome = incumbents(y, self.problem.num_initial)
        return Result(
            problem=self.problem.name,
            method=self.method.name,
            seed=self.seed,
            num_initial=self.problem.num_initial,
            X=self.X.tolist(),
            y=y,
            f=f,
            inference_by_outcome=by_outcome,
            inference_by_mean=self.by_mean,
            regret_by_outcome=self._regret(f, by_outcome),
            regret_by_mean=None if self.by_mean is None else self._regret(f, self.by_mean),
            fit_seconds=self.fit_seconds,
            acquisition_seconds=self.acquisition_seconds,
            extras=self.extras,
            config=replicate_config(self.problem, self.method),
            versions=installed_versions(),
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
    """Index of the largest outcome so far, from the end of the initial design onwards."""
    return [int(np.argmax(y[:n])) for n in range(num_initial, len(y) + 1)]
