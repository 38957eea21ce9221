"""Methods that know what rivals do not: what these are compared with.

`Oracle` knows which points are safe. `RightProcess` knows which hyperparameters are right, and no
more of the functions than rivals do: what it earns less than the oracle is the price of learning.
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
        name: Names the method.
    """

    def surrogate(self, given: Surrogate) -> Surrogate:
        """A model that nothing rests on, fitted once."""
        return Refitted(every=sys.maxsize)

    def start(self, outcome: Limited) -> Certifier:
        """See `DecisionMethod`; it uses all of the outcome."""
        return Unlearning(lambda gp, time: TrueConstraint(gp, outcome, time))


class TrueConstraint(ChanceConstraint):
    """The limit by the true quantile.

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
    """The plain quantile of the Gaussian process that the task gives, without the task's faults.

    Where the task fits its Gaussian process it is ``plain`` over again.
    """

    def surrogate(self, given: Surrogate) -> Surrogate:
        if isinstance(given, Fixed):
            return replace(given, lengthscale_factor=1.0, noise_factor=1.0)
        return given
