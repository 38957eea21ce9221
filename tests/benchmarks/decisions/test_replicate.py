"""The loop: the data of a method, its choices, and the records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.decisions.methods import GaussianQuantile, budgeted, fixed_width
from benchmarks.decisions.replicate import CHOICES, DecisionReplicate, Limited, replicate
from benchmarks.decisions.tasks import DecisionTask, Search, cube, task
from benchmarks.framework.replicate import stream_seed
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.surrogates import Surrogate
from botorch_calib import ChanceConstraint
from tests.benchmarks.made_up_results import without_times

SMALL = replace(task("ackley", "right"), num_rounds=4, search=Search(num_global=64, num_local=32))
METHODS = {method.name: method for method in budgeted()}


@dataclass(frozen=True)
class Watching:
    """States ``factor`` times the Gaussian quantile, and records its data."""

    name: str = "watching"
    factor: float = 1.0
    seen: list[tuple[list[float], float]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def surrogate(self, given: Surrogate) -> Surrogate:
        return given

    def start(self, outcome: Limited) -> WatchingCertifier:
        return WatchingCertifier(self, outcome)


@dataclass(frozen=True)
class WatchingCertifier:
    method: Watching
    outcome: Limited

    def constraint(self, gp: SingleTaskGP, time: float = 1.0) -> ChanceConstraint:
        self.method.sizes.append(len(gp.train_targets))
        return fixed_width(gp, self.outcome, self.method.factor)

    def observe(self, constraint: ChanceConstraint, x: Tensor, y: Tensor) -> None:
        self.method.seen.append((x.squeeze(0).tolist(), y.item()))


def run(task: DecisionTask, method: object, seed: int = 0) -> Result:
    with without_expected_warnings():
        return replicate(task, method, seed)  # type: ignore[arg-type]


def test_what_is_recorded() -> None:
    method = Watching()
    result = run(SMALL, method)
    outcome, extras = SMALL.outcome, result.extras
    assert result.num_initial == 10
    assert np.shape(result.X) == (14, 2)
    # The method has all outcomes before each choice and after the last one, and observes the
    # outcome of each of its rounds.
    assert method.sizes == [10, 11, 12, 13, 14]
    assert [x for x, _ in method.seen] == result.X[10:]
    assert [y for _, y in method.seen] == extras["outcome"]
    X = torch.tensor(result.X, dtype=torch.double)
    assert result.f == pytest.approx(SMALL.objective(X).squeeze(-1).tolist())
    assert 0.01 < np.std(np.subtract(result.y, result.f)) < 0.3
    for i, x in enumerate(X[10:]):
        observed = extras["outcome"][i]
        assert observed is not None
        assert extras["violated"][i] == float(observed > outcome.limit)
        probability = outcome.violation_probability(x.unsqueeze(0), (i + 1) / 4).item()
        assert extras["probability"][i] == pytest.approx(probability)
        quantile = extras["quantile"][i]
        assert quantile is not None
        assert extras["certified"][i] == float(quantile <= outcome.limit)
    best = SMALL.objective(SMALL.best_safe_point()).item()
    assert extras["best_value"] == [pytest.approx(best)]
    assert len(result.fit_seconds) == len(result.acquisition_seconds) == 4


def test_the_choice_is_no_worse_than_any_certified_point_of_the_first_step() -> None:
    """All points are evaluated one by one, with BoTorch only."""
    started = DecisionReplicate(SMALL, GaussianQuantile("plain"), 3)
    with without_expected_warnings():
        model = started.fit(0)
        chosen = started.propose(model)
        constrained = model.constraint.model
        assert isinstance(constrained, SingleTaskGP)

    def value(x: Tensor) -> float:
        with torch.no_grad():
            limited = constrained.posterior(x, observation_noise=True)
            objective = model.objective.posterior(x)
            quantile = limited.mean + 1.2815515655446004 * limited.variance.sqrt()
            reached = objective.mean + 2.0 * objective.variance.sqrt()
        return reached.item() if quantile.item() < SMALL.outcome.limit else -torch.inf

    spread = torch.cat([cube(2, 64, stream_seed(3, CHOICES, 0)), started.X]).unsqueeze(-2)
    values = [value(x) for x in spread]
    assert -torch.inf in values
    # The second step, around the best point, never finds a worse point; here it finds a better one.
    assert value(chosen) > max(values) > -torch.inf


def test_replicates_are_reproducible_and_share_their_circumstances() -> None:
    plain, again = (run(SMALL, METHODS["plain"], seed=5) for _ in range(2))
    assert without_times(again) == without_times(plain)
    other = run(SMALL, METHODS["plain_300"], seed=5)
    assert other.X[:10] == plain.X[:10]
    assert other.y[:10] == plain.y[:10]
    assert other.X[10] != plain.X[10]
    # The noise of a round does not depend on the point.
    for a, b in ((plain, other), (other, plain)):
        noise = np.subtract(a.y, a.f)[10:]
        assert noise == pytest.approx(np.subtract(b.y, b.f)[10:])
    assert DecisionReplicate(SMALL, METHODS["plain"], 6).X.tolist() != plain.X[:10]
