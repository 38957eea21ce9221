"""Simultaneous bands, which contain a calibrated model's whole curve of frequencies.

A curve of ``M`` frequencies leaves at least one of ``M`` pointwise 95 % bands in far more than 5 %
of cases. So a simultaneous band has a larger pointwise probability, the same at each level. Dynamic
programming over the counts gives the probability that the whole curve is inside [Sailynoja2022].

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

# The tail probability is computed for at most this number of observations. It hardly changes with
# more observations, while the time grows with the square of their number.
_MAX_EXACT = 1000


def simultaneous_band(
    num_observations: int, levels: np.ndarray, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends ``M`` of a band for the fractions of PITs at or below ``M`` levels.

    PITs of a calibrated model are independent and uniform. All ``M`` fractions are inside the band
    with the probability ``confidence``, or slightly more, as counts are integers.
    """
    below = np.concatenate([[0.0], levels[:-1]])
    steps = (levels - below) / (1.0 - below)
    return _shares(levels, partial(_probability_inside, steps), num_observations, confidence)


def simultaneous_histogram_band(
    num_observations: int, num_bins: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Lower and upper end of a band for the fractions of PITs in ``num_bins`` equal bins."""
    so_far = np.arange(1, num_bins + 1)
    steps = 1.0 / so_far[::-1]

    def stays(num: int, least: float, most: float) -> float:
        # Bounds of each bin imply bounds of the count up to each edge.
        rest = num_bins - so_far
        low = np.maximum(so_far * least, num - rest * most)
        high = np.minimum(so_far * most, num - rest * least)
        return _probability_inside(steps, num, low, high, least, most)

    return _shares(1.0 / num_bins, stays, num_observations, confidence)


def _shares(p: np.ndarray | float, stays: Callable[..., float], num: int, confidence: float) -> Any:
    """Ends of bands for the frequencies, in ``num`` trials, of events with probabilities ``p``.

    ``stays`` gives the probability that all counts are inside. Each count has the same probability
    in either tail, found to a relative accuracy of 1e-3.
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
    """Probability that all counts of uniform numbers up to increasing levels are in their bands.

    If ``c`` numbers are at or below level ``k``, each of the other ``num - c`` numbers is below the
    next level with the probability ``steps[k]``, so their count is binomial. This count must be
    between ``least`` and ``most``.
    """
    counts, weights = np.zeros(1, int), np.ones(1)
    for step, lowest, highest in zip(steps, low, high, strict=True):
        new = np.arange(int(lowest), int(highest) + 1)
        added = new[:, None] - counts
        chances = binom.pmf(added, num - counts, step)
        counts, weights = new, np.where((added >= least) & (added <= most), chances, 0.0) @ weights
    return float(weights.sum())
