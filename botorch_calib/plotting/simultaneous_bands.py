"""Simultaneous bands, which contain a calibrated model's whole curve of frequencies.

A frequency is the share of observations at or below a predicted quantile, or in a bin. A curve of
``M`` frequencies leaves at least one of ``M`` pointwise 95 % bands in far more than 5 % of cases.
So each pointwise band is widened to a larger probability, the same for all frequencies, such that
the whole curve is inside with the wanted probability. Dynamic programming over the counts computes
the probability that the whole curve is inside [Sailynoja2022].

.. [Sailynoja2022]
    T. Säilynoja, P.-C. Bürkner and A. Vehtari. Graphical test for discrete uniformity and its
    applications in goodness-of-fit evaluation and multiple sample comparison. Statistics and
    Computing 32, 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import binom

# The pointwise tail probability is computed for at most this number of observations, and is also
# used for more observations. It hardly changes with their number, while the computing time grows
# with the square of the number.
_MAX_EXACT = 1000


def simultaneous_band(
    num_observations: int, levels: np.ndarray, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends ``M`` of a band for the fractions of PITs at or below ``M`` levels.

    PITs (probability integral transforms) of a calibrated model are independent and uniform. All
    ``M`` fractions are inside the band with the probability ``confidence``, or slightly more, since
    counts are integers. The ``levels`` are in (0, 1) and increasing.
    """
    below = np.concatenate([[0.0], levels[:-1]])
    steps = (levels - below) / (1.0 - below)
    return _shares(levels, partial(_probability_inside, steps), num_observations, confidence)


def simultaneous_histogram_band(
    num_observations: int, num_bins: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Lower and upper end of a band for the fractions of PITs in ``num_bins`` equal bins.

    The PITs of a calibrated model are independent and uniform, and all fractions are inside the
    band with the probability ``confidence``, or slightly more.
    """
    so_far = np.arange(1, num_bins + 1)
    steps = 1.0 / so_far[::-1]

    def stays(num: int, least: float, most: float) -> float:
        # The count up to each edge has bounds, given ``least`` and ``most`` in each bin on the left
        # and on the right of the edge. Only counts within these bounds need to be considered.
        rest = num_bins - so_far
        low = np.maximum(so_far * least, num - rest * most)
        high = np.minimum(so_far * most, num - rest * least)
        return _probability_inside(steps, num, low, high, least, most)

    return _shares(1.0 / num_bins, stays, num_observations, confidence)


def _shares(p: np.ndarray | float, stays: Callable[..., float], num: int, confidence: float) -> Any:
    """Lower and upper limits of bands for the observed frequencies of events in ``num`` trials.

    The events have the probabilities ``p``. ``stays(num, low, high)`` returns the probability that
    all counts are between ``low`` and ``high``. All counts have the same tail
    probability below and above their bands. The largest tail probability for which ``stays`` is at
    least ``confidence`` is found to a relative accuracy of 1e-3.
    """

    def ends(num: int, tail: float) -> Any:
        return binom.ppf(tail, num, p), binom.isf(tail, num, p)

    few, safe, unsafe = min(num, _MAX_EXACT), 1e-9, 1.0 - confidence
    while unsafe > 1.001 * safe:
        middle = float(np.sqrt(safe * unsafe))
        inside = stays(few, *ends(few, middle)) >= confidence
        safe, unsafe = (middle, unsafe) if inside else (safe, middle)
    low, high = ends(num, safe)
    return low / num, high / num


def _probability_inside(
    steps: np.ndarray,
    num: int,
    low: np.ndarray,
    high: np.ndarray,
    least: float = 0,
    most: float = np.inf,
) -> float:
    """Probability that the counts of uniform numbers up to increasing levels are in their bands.

    The count up to level ``k``, among ``num`` numbers, must be between ``low[k]`` and ``high[k]``.
    If ``c`` numbers are at or below the level before, each of the other ``num - c`` numbers is at
    or below level ``k`` with the probability ``steps[k]``. So the number of numbers between both
    levels is binomial. This number must be between ``least`` and ``most``.
    """
    counts, weights = np.zeros(1, int), np.ones(1)
    for step, lowest, highest in zip(steps, low, high, strict=True):
        new = np.arange(int(lowest), int(highest) + 1)
        added = new[:, None] - counts
        chances = binom.pmf(added, num - counts, step)
        counts, weights = new, np.where((added >= least) & (added <= most), chances, 0.0) @ weights
    return float(weights.sum())
