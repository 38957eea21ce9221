"""Statistics against values computed by hand, and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.framework import statistics


def test_pooling_puts_each_problem_in_its_own_units() -> None:
    values = [{0: 1.0, 1: 3.0}, {0: 10.0, 1: 20.0}]
    baselines = [{0: 2.0, 1: 2.0}, {0: 40.0, 1: 60.0, 2: 50.0}]
    test = statistics.pooled_test(values, baselines)
    # By seed: the means of (-0.5, -0.6) and of (0.5, -0.8)
    differences = [-0.55, -0.15]
    assert test.pairs == 2
    assert test.difference.mean == pytest.approx(np.mean(differences))
    error = np.std(differences, ddof=1) / math.sqrt(2)
    assert test.difference.standard_error == pytest.approx(error)


def test_holm_by_hand() -> None:
    # 4 x 0.01, 3 x 0.02, and 2 x 0.03, where each is at least the previous one.
    adjusted = statistics.holm([0.03, 0.01, 0.9, 0.02])
    assert adjusted == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert statistics.holm([math.nan, 0.01]) == pytest.approx([1.0, 0.02])
    assert statistics.holm([]) == []


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # Ranks 1, 2.5 and 2.5: their signed sum is at most 1 of 6 in 2 of 8 choices of signs.
        ([1.0, -2.0, -2.0], 2 * 2 / 8),
        # A zero has no sign, so four differences have one sign.
        ([0.0, 3.0, 3.0, 1.0, 2.0], 2 / 2**4),
        # Half of the differences on either side.
        ([1.0, -1.0], 1.0),
        # Differences without ties, and many with ties.
        ([1.0, 2.0, 3.0, -4.0, 5.0], None),
        ([float(i % 7) - 2.0 for i in range(14)], None),
    ],
)
def test_wilcoxon(differences: list[float], p: float | None) -> None:
    expected = stats.wilcoxon(differences).pvalue if p is None else p
    assert statistics.wilcoxon_p_value(np.array(differences)) == pytest.approx(expected)


def test_the_interval_of_a_ratio() -> None:
    above, below = [1.0, 3.0, 2.0, 0.0], [4.0, 5.0, 2.0, 3.0]
    ratio, low, high = statistics.pooled_ratio(above, below)
    assert ratio == pytest.approx(6 / 14)
    residuals = (np.array(above) - ratio * np.array(below)) / np.mean(below)
    reach = stats.t.ppf(0.975, 3) * residuals.std(ddof=1) / 2
    assert (low, high) == pytest.approx((ratio - reach, ratio + reach))
    assert np.isnan(statistics.pooled_ratio([0.0], [0.0])).all()
    assert np.isnan(statistics.pooled_ratio([1.0], [2.0])).tolist() == [False, True, True]
