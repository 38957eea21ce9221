"""The logarithm of the last regret, an endpoint of the suites on calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.framework.metrics import regret_trace, trace
from benchmarks.framework.replicate_result import Result

# Regret below this, in units of the objective's spread, is irrelevant: it is a fiftieth of the
# noise. The floor keeps lucky hits from dominating the mean of logarithms.
FLOOR = 0.01


@dataclass(frozen=True)
class LogRegret:
    """The decimal logarithm of the last regret, in units of the objective's spread.

    If the spread is not recorded, the unit is that of the objective. Regret is at least `FLOOR`.

    Args:
        inference: The point whose regret is taken, see `metrics.regret_trace`.
    """

    inference: str

    def __call__(self, result: Result) -> float:
        (spread,) = trace(result, "spread") if "spread" in result.extras else [1.0]
        return math.log10(max(regret_trace(result, self.inference)[-1] / spread, FLOOR))
