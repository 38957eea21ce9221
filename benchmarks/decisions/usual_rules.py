"""Rules of other packages for a limit on a noisy outcome.

* ``mean_limit``: constrained expected improvement with the limit on the *noise-free* outcome, as in
  Ax and Optuna. All rounds count as certified.
* ``safe_ucb``: SafeOpt's rule. A point is certified if the upper confidence bound of the noise-free
  outcome, two standard deviations above its mean, is within the limit. As for all methods, the
  choice maximises the upper confidence bound of the objective.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import (
    LogConstrainedExpectedImprovement,
    LogProbabilityOfFeasibility,
)
from botorch.models import ModelListGP, SingleTaskGP
from torch import Tensor

from benchmarks.decisions.replicate import Certifier, DecisionMethod, Limited, Round, Unlearning
from botorch_calib import ChanceConstraint


@dataclass(frozen=True)
class NoiseFreeBound(DecisionMethod):
    """A limit on the noise-free outcome's mean plus a number of its standard deviations.

    Args:
        name: The name, unique within a suite.
        deviations: Number of standard deviations.
    """

    deviations: float

    def start(self, outcome: Limited) -> Certifier:
        return Unlearning(lambda gp, time: BoundConstraint(gp, outcome, self.deviations))


@dataclass(frozen=True)
class MeanLimit(NoiseFreeBound):
    """A `NoiseFreeBound` with choices by constrained expected improvement.

    It recommends the best point whose mean outcome is within the limit.
    """

    deviations: float = 0.0

    def acquisition(self, model: Round, X: Tensor, limit: float) -> AcquisitionFunction:
        """Constrained expected improvement; feasibility, until a point is feasible in the mean."""
        outcome = model.constraint.model
        pair = ModelListGP(model.objective, outcome)
        with torch.no_grad():
            feasible = outcome.posterior(X).mean.squeeze(-1) <= limit
            best = model.objective.posterior(X).mean.squeeze(-1)[feasible]
        if not len(best):
            return LogProbabilityOfFeasibility(pair, {1: (None, limit)})
        return LogConstrainedExpectedImprovement(pair, best.max(), 0, {1: (None, limit)})


class BoundConstraint(ChanceConstraint):
    """A constraint by an upper bound of the noise-free outcome.

    Args:
        model: The model of the outcome.
        outcome: The outcome.
        deviations: Number of standard deviations above the mean.
    """

    def __init__(self, model: SingleTaskGP, outcome: Limited, deviations: float) -> None:
        settings: dict[str, Any] = {"width": 1.0, "budget": math.inf, "rows": ()}
        super().__init__(model, outcome.limit, level=outcome.level, **settings)
        self.limit, self.deviations = outcome.limit, deviations

    def margins(self, X: Tensor, confidence: float | None = None) -> list[Tensor]:
        """The distance of the bound at single points, ``... x 1 x d``, below the limit."""
        posterior = self.model.posterior(X)
        bound = posterior.mean + self.deviations * posterior.variance.sqrt()
        return [self.limit - bound.squeeze(-1).squeeze(-1)]

    optimism = ChanceConstraint.margin
