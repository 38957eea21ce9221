"""Bands that hold a whole curve of frequencies of true statements, not each point by itself.

A curve of ``M`` frequencies leaves at least one of ``M`` bands of 95 % far more often than in 5 %
of the cases. These bands have the same probability at each level, chosen so that the whole curve
stays inside with the confidence asked for: exactly, by dynamic programming over the counts
[Sailynoja2022].

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

# With more observations the tail probability is taken from as many: it hardly depends on them, and
# the programme takes the square of their number.
_MAX_EXACT = 1000


def simultaneous_band(
    num_observations: int, levels: np.ndarray, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of a band for the shares of PITs at or below each of ``M`` increasing levels, ``M``.

    Under true statements PITs are independent and uniform, and all ``M`` shares lie inside with
    a probability of ``confidence``, or somewhat more, as counts are whole numbers.
    """
    below = np.concatenate([[0.0], levels[:-1]])
    steps = (levels - below) / (1.0 - below)
    return _shares(levels, partial(_probability_inside, steps), num_observations, confidence)


def simultaneous_histogram_band(
    num_observations: int, num_bins: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Ends of a band for the shares of PITs in each of some bins of equal width; see above."""
    so_far = np.arange(1, num_bins + 1)
    steps = 1.0 / so_far[::-1]

    def stays(num: int, least: float, most: float) -> float:
        # What these and the other bins may hold bounds the counts up to each edge.
        rest = num_bins - so_far
        low = np.maximum(so_far * least, num - rest * most)
        high = np.minimum(so_far * most, num - rest * least)
        return _probability_inside(steps, num, low, high, least, most)

    return _shares(1.0 / num_bins, stays, num_observations, confidence)


def _shares(p: np.ndarray | float, stays: Callable[..., float], num: int, confidence: float) -> Any:
    """Ends of bands with which all counts stay inside, of which each has the probability ``p``.

    They leave a tail to each count, found to a thousandth of it.
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
    """Probability that all counts of uniform numbers up to increasing levels lie in their bands.

    Given ``c`` at or below one level, the number between that and the next is binomial: of the
    ``num - c`` others each lies there with the probability ``steps[k]``. That number has to lie
    between ``least`` and ``most``.
    """
    counts, weights = np.zeros(1, int), np.ones(1)
    for step, lowest, highest in zip(steps, low, high, strict=True):
        new = np.arange(int(lowest), int(highest) + 1)
        added = new[:, None] - counts
        chances = binom.pmf(added, num - counts, step)
        counts, weights = new, np.where((added >= least) & (added <= most), chances, 0.0) @ weights
    return float(weights.sum())
