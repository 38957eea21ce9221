"""Replicates: determinism, shared noise, traces and regrets by hand, the JSON round trip."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize
from torch import Tensor

from benchmarks.calibration.ackley import small_noisy_ackley
from benchmarks.framework.sequential import Method, Oracle, Problem, replicate
from benchmarks.framework.strategies import RandomStrategy
from tests.benchmarks.made_up_results import without_times


class Scripted:
    """Visits given points, with a GP with fixed hyperparameters as its model."""

    def __init__(self, problem: Problem, seed: int, path: tuple[float, ...], model: bool) -> None:
        self.problem, self.path, self.model = problem, path, model

    def fit(self, X: Tensor, Y: Tensor) -> Model | None:
        scaling = Normalize(1, bounds=self.problem.bounds_tensor())
        return SingleTaskGP(X, Y, input_transform=scaling) if self.model else None

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        return torch.tensor([[self.path[X.shape[0] - self.problem.num_initial]]]).to(X)

    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        return {"outcome": y.item(), "unbounded": float("inf")}

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> Tensor | None:
        return None if model is None else X.flatten() > 0.0


def hat(seed: int, offset: float = 0.0) -> Oracle:
    def truth(X: Tensor) -> Tensor:
        return 1.0 - X.abs()

    def observe(X: Tensor) -> Tensor:
        return truth(X) + offset

    return Oracle(observe, truth)


def two_points(n: int, seed: int) -> Tensor:
    return torch.tensor([[-0.5], [1.0]], dtype=torch.double)


HAT = Problem("hat", hat, ((-1.0, 1.0),), 1.0, two_points, num_initial=2, num_evaluations=3)


def scripted(*path: float, model: bool = False) -> Method:
    return Method("scripted", partial(Scripted, path=path, model=model))


def test_traces_by_hand() -> None:
    result = replicate(HAT, scripted(0.75, 0.25, 0.5), seed=0)
    assert result.X == [[-0.5], [1.0], [0.75], [0.25], [0.5]]
    assert result.y == result.f == [0.5, 0.0, 0.25, 0.75, 0.5]
    assert result.inference_by_outcome == [0, 0, 3, 3]
    assert result.regret_by_outcome == [0.5, 0.5, 0.25, 0.25]
    assert result.inference_by_mean is None
    assert result.regret_by_mean is None
    assert len(result.fit_seconds) == len(result.acquisition_seconds) == 3
    assert result.extras == {"outcome": [0.25, 0.75, 0.5], "unbounded": [None, None, None]}


def test_inference_by_posterior_mean_uses_the_data_so_far() -> None:
    problem = replace(HAT, num_evaluations=2)
    result = replicate(problem, scripted(0.0, 0.9, model=True), seed=0)
    # The mean interpolates in order of the outcomes, so both inferences agree here.
    assert result.inference_by_mean == [0, 2, 2]
    assert result.regret_by_mean == [0.5, 0.0, 0.0]


def test_replicate_is_deterministic_in_the_seed() -> None:
    problem, method = small_noisy_ackley(), Method("random", RandomStrategy)
    first = replicate(problem, method, 3)
    torch.rand(5)  # other uses of the global state do not matter
    assert without_times(replicate(problem, method, 3)) == without_times(first)
    other = replicate(problem, method, 4)
    assert (other.X, other.y) != (first.X, first.y)


def noisy_hat(seed: int) -> Oracle:
    truth = hat(seed).truth
    return Oracle(lambda X: truth(X) + torch.randn(len(X), 1, dtype=X.dtype), truth)


def test_methods_of_one_seed_share_the_initial_data_and_the_noise() -> None:
    problem = replace(HAT, build=noisy_hat)
    one, other = (replicate(problem, scripted(x, x, x), seed=5) for x in (0.0, 0.9))
    assert one.X[:2] == other.X[:2]
    assert one.y[:2] == other.y[:2]
    # The noise of a step does not depend on its point.
    noise = [torch.tensor(result.y) - torch.tensor(result.f) for result in (one, other)]
    torch.testing.assert_close(*noise)
    assert len(noise[0].unique()) == 5
