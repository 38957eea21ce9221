"""How likely a value is to arrive within a wait, estimated from the delays seen so far."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from botorch_calib._validation import check_open_unit
from botorch_calib.distributions.scoring_rules import binomial_interval


class ArrivalProbability(NamedTuple):
    """An estimate of the probability that a value arrives within a wait, with an interval.

    Attributes:
        estimate: Kaplan and Meier's estimate; NaN if no trial's fate at the end of the wait is
            known. While no trial has waited that long it is that of the longest wait seen.
        lower: Lower end of the confidence interval.
        upper: Upper end; 1 while no trial has waited that long.

    Example:
        >>> estimate, lower, upper = ledger.arrival_probability(wait=5)
    """

    estimate: float
    lower: float
    upper: float


def kaplan_meier(
    waits: NDArray[np.float64], arrived: NDArray[np.bool_], wait: float, confidence: float
) -> ArrivalProbability:
    """``P(delay <= wait)`` from delays or, where none has ``arrived``, how long it was waited for.

    The interval is Clopper and Pearson's for the number of trials without censoring that would
    give Greenwood's variance (Dorey and Korn 1987): the exact binomial one if nothing is censored.
    """
    check_open_unit("confidence", confidence)
    in_time = arrived & (waits <= wait)
    num_known = int((in_time | (waits >= wait)).sum())
    if num_known == 0:
        return ArrivalProbability(math.nan, 0.0, 1.0)
    times, arrivals = np.unique(waits[in_time], return_counts=True)
    # One that is waited for has a longer delay than it has waited, and is at risk until then.
    at_risk = len(waits) - np.searchsorted(np.sort(waits), times, side="left")
    late = float(np.prod(1 - arrivals / at_risk))
    num = float(num_known)
    if 0.0 < late < 1.0:
        num = (1 - late) / (late * float(np.sum(arrivals / (at_risk * (at_risk - arrivals)))))
    count, total = torch.tensor([(1 - late) * num, num], dtype=torch.double)
    low, high = binomial_interval(count, total, confidence)
    is_followed = late == 0.0 or bool((waits >= wait).any())
    return ArrivalProbability(1 - late, float(low), float(high) if is_followed else 1.0)
