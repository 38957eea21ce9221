"""Bands of whole curves against all possible counts, and against simulated PITs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from botorch_calib.plotting.simultaneous_bands import simultaneous_band, simultaneous_histogram_band


def by_enumeration(num, edges, inside):
    """Probability that the counts of uniform numbers between the edges satisfy ``inside``."""
    shares = np.diff(edges)
    counts = [c for c in itertools.product(range(num + 1), repeat=len(shares)) if sum(c) == num]
    return sum(multinomial.pmf(c, num, shares) for c in counts if inside(np.array(c)))


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_a_band_holds_the_curve_with_the_confidence_and_the_next_narrower_does_not(confidence):
    num, levels = 6, np.array([0.2, 0.55, 0.7])
    edges = np.concatenate([[0.0], levels, [1.0]])

    def probability(low, high):
        def inside(counts):
            shares = counts.cumsum()[:-1]
            return ((low <= shares) & (shares <= high)).all()

        return by_enumeration(num, edges, inside)

    low, high = (end * num for end in simultaneous_band(num, levels, confidence))
    assert probability(low, high) >= confidence
    # Of the bands with equal tails at each level, that with the next larger tail
    tails = np.unique(
        np.concatenate([binom.cdf(low, num, levels), binom.sf(high - 1, num, levels)])
    )
    tail = tails.min() * 1.01
    assert probability(binom.ppf(tail, num, levels), binom.isf(tail, num, levels)) < confidence


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_a_band_of_a_histogram_holds_all_bins_and_the_next_narrower_does_not(confidence):
    num, bins = 7, 4

    def probability(low, high):
        edges = np.linspace(0.0, 1.0, bins + 1)
        return by_enumeration(num, edges, lambda c: (low <= c).all() and (c <= high).all())

    low, high = (end * num for end in simultaneous_histogram_band(num, bins, confidence))
    assert probability(low, high) >= confidence
    tail = min(binom.cdf(low, num, 1 / bins), binom.sf(high - 1, num, 1 / bins)) * 1.01
    assert probability(binom.ppf(tail, num, 1 / bins), binom.isf(tail, num, 1 / bins)) < confidence


@pytest.mark.parametrize("num", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_bands_hold_simulated_curves_as_often_as_they_say(num):
    runs, levels = 1000, np.arange(1, 20) / 20
    counts = np.random.default_rng(0).multinomial(num, np.full(20, 0.05), size=runs)
    shares = counts.cumsum(axis=1)[:, :-1] / num
    low, high = simultaneous_band(num, levels, 0.9)
    curves = ((low <= shares) & (shares <= high)).all(axis=1).mean()
    least, most = simultaneous_histogram_band(num, 20, 0.9)
    bars = ((least <= counts / num) & (counts / num <= most)).all(axis=1).mean()
    # Four standard errors below; above, the excess due to integer counts at these numbers
    for held in (curves, bars):
        assert 0.9 - 4 * np.sqrt(0.09 / runs) <= held <= 0.96
    single_low, single_high = binom.interval(0.9, num, levels)
    alone = ((single_low <= shares * num) & (shares * num <= single_high)).all(axis=1).mean()
    assert alone < 0.65  # the coverage of pointwise bands
