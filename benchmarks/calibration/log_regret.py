"""The logarithm of the last regret: an endpoint of the suites on calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.framework.metrics import regret_trace, trace
from benchmarks.framework.replicate_result import Result

# Regret in units of the objective's spread below which it makes no difference to anyone: a fiftieth
# of the noise. It keeps lucky hits from ruling the mean of logarithms.
FLOOR = 0.01


@dataclass(frozen=True)
class LogRegret:
    """The decimal logarithm of the last regret, in units of the objective's spread.

    Where the spread is not recorded, in units of the objective itself. Regret counts as `FLOOR` at
    the least.

    Args:
        inference: The point whose regret it is, see `metrics.regret_trace`.
    """

    inference: str

    def __call__(self, result: Result) -> float:
        (spread,) = trace(result, "spread") if "spread" in result.extras else [1.0]
        return math.log10(max(regret_trace(result, self.inference)[-1] / spread, FLOOR))
