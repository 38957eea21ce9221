"""Methods with knowledge that no user has, as references for other methods.

`Oracle` knows which points are safe. `RightProcess` knows the right hyperparameters, but has to
learn the functions as other methods do. The difference in their rewards is the price of learning.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.decisions.methods import GaussianQuantile
from benchmarks.decisions.replicate import Certifier, DecisionMethod, Limited, Unlearning
from benchmarks.framework.surrogates import Fixed, Refitted, Surrogate
from botorch_calib import ChanceConstraint


@dataclass(frozen=True)
class Oracle(DecisionMethod):
    """Certifies by the true quantile of the outcome at the time of the round.

    Args:
        name: The name, unique within a suite.
    """

    def surrogate(self, given: Surrogate) -> Surrogate:
        """A model that is fitted once, since no decision depends on it."""
        return Refitted(every=sys.maxsize)

    def start(self, outcome: Limited) -> Certifier:
        """See `DecisionMethod`. Unlike other methods, it uses the true distribution."""
        return Unlearning(lambda gp, time: TrueConstraint(gp, outcome, time))


class TrueConstraint(ChanceConstraint):
    """A constraint by the true quantile.

    Args:
        model: Any model of the outcome; margins do not depend on it.
        outcome: The outcome.
        time: The time from 0 to 1.
    """

    def __init__(self, model: SingleTaskGP, outcome: Limited, time: float) -> None:
        settings: dict[str, Any] = {"width": 1.0, "budget": math.inf, "rows": ()}
        super().__init__(model, outcome.limit, level=outcome.level, **settings)
        self.outcome, self.time = outcome, time

    def margins(self, X: Tensor, confidence: float | None = None) -> list[Tensor]:
        """Positive where the outcome is truly within its limit."""
        return [self.outcome.room(X.squeeze(-2), self.time).squeeze(-1)]

    optimism = ChanceConstraint.margin


@dataclass(frozen=True)
class RightProcess(GaussianQuantile):
    """The plain quantile of the task's Gaussian process with the right hyperparameters.

    It equals ``plain`` if the task fits its Gaussian process.
    """

    def surrogate(self, given: Surrogate) -> Surrogate:
        if isinstance(given, Fixed):
            return replace(given, lengthscale_factor=1.0, noise_factor=1.0)
        return given
