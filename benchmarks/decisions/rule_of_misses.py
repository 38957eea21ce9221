"""The previous rule: misses of the deciding quantile widen it, and it never becomes narrower.

The excess counts outcomes beyond the deciding quantile instead of violations of the limit, and has
no lower bound. The factor from the model's data is the root mean square of its leave-one-out scores
on both sides together. Points are recommended by the width of the rounds, but at least 1.25.
"""

from __future__ import annotations

import math

from botorch_calib import ChanceConstraint
from botorch_calib.decisions.budget import Account
from botorch_calib.decisions.rows import Side, decision_of
from botorch_calib.decisions.widening import width
from botorch_calib.models.predict import history
from botorch_calib.models.process import observed_process

PRIOR_COUNT, MOST_FACTOR, OF_ONE_POINT = 8.0, 3.0, 1.25


class RuleOfMisses(ChanceConstraint):
    """A `ChanceConstraint` by the previous rule, for plain Gaussian processes without contexts."""

    @property
    def account(self) -> Account:
        decisions = [each._replace(violated=each.missed) for each in map(decision_of, self._rows)]
        by_misses = Account.of(decisions, 1.0 - self.level, self.budget.size, -math.inf)
        return super().account._replace(excess=by_misses.excess, relief=by_misses.relief)

    def _factors(self, side: Side, of_one_point: bool = False) -> tuple[float, float]:
        key = side.name, 0.0
        if key not in self._factor:
            z = history(observed_process(self.models[side.name]), "loo").scores.double()
            square = (PRIOR_COUNT + z.square().sum()) / (PRIOR_COUNT + len(z))
            self._factor[key] = min(float(square.sqrt()), MOST_FACTOR)
        k = width(self.account)
        return self._factor[key], max(k, OF_ONE_POINT) if of_one_point else k
