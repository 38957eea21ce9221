"""`FeedbackLedger.arrival_probability` against SciPy's estimate, exact intervals and draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from botorch.exceptions.errors import InputDataError
from scipy.stats import CensoredData, binomtest, ecdf

from botorch_calib.ledger import FeedbackLedger
from botorch_calib.ledger.view_at_time import kaplan_meier


def draw(seed: int, num: int = 40, mean: float = 5.0, follow_up: int = 30) -> tuple[Any, Any]:
    """Delays, censored where their trial was started too short a time ago."""
    generator = np.random.default_rng(seed)
    delays = 1 + generator.poisson(mean, num)
    ages = generator.integers(0, follow_up, num)
    return np.minimum(delays, ages).astype(float), delays <= ages


@pytest.mark.parametrize("wait", [1, 3, 5, 8, 12])
def test_kaplan_and_meier(wait):
    for seed in range(2):
        waits, arrived = draw(seed)
        found = kaplan_meier(waits, arrived, wait, 0.95)
        data = CensoredData.right_censored(waits, ~arrived)
        assert found.estimate == pytest.approx(1 - ecdf(data).sf.evaluate(wait), abs=1e-12)
        assert 0.0 <= found.lower <= found.estimate <= found.upper <= 1.0
        wider = kaplan_meier(waits, arrived, wait, 0.99)
        assert wider.lower <= found.lower and wider.upper >= found.upper


@pytest.mark.parametrize("num_in_time", [0, 7, 20])
def test_exact_interval_where_nothing_is_censored_too_early(num_in_time):
    ledger = FeedbackLedger(1, max_wait=5.0)
    for trial in range(20):
        ledger.submit([0.0])
        if trial < num_in_time:
            ledger.observe(trial, 0.0, time=trial + 2.0)
    found = ledger.arrival_probability(now=40)
    expected = binomtest(num_in_time, 20).proportion_ci(0.95, "exact")
    assert found.estimate == pytest.approx(num_in_time / 20)
    assert (found.lower, found.upper) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_draws_are_covered():
    """Four standard errors of 400 intervals are 4.4 %; the mean is unbiased."""
    truth = float(np.mean([1 + np.random.default_rng(0).poisson(5.0, 10**6) <= 6]))
    found = [kaplan_meier(*draw(seed), wait=6, confidence=0.95) for seed in range(400)]
    covered = np.mean([each.lower <= truth <= each.upper for each in found])
    assert covered > 0.95 - 4 * math.sqrt(0.95 * 0.05 / 400)
    estimates = np.array([each.estimate for each in found])
    assert abs(estimates.mean() - truth) < 4 * estimates.std() / math.sqrt(400)
    # The share of the values that are there is another number: most trials are too young.
    naive = np.mean([(arrived & (waits <= 6)).mean() for waits, arrived in map(draw, range(200))])
    assert naive < truth - 0.05


def test_pending_expired_late_failed_and_added_trials():
    ledger = FeedbackLedger(1, max_wait=5.0, late="discard")
    ledger.add([[0.0]] * 6, [1.0] * 6)  # recorded with their values: no delays
    first = len(ledger)
    ids = [ledger.submit([0.0], time=float(first)) for _ in range(7)]
    ledger.observe(ids[0], 0.0, time=first + 2)
    ledger.observe(ids[1], 0.0, time=first + 5)  # just in time
    ledger.observe(ids[2], 0.0, time=first + 6)  # late
    ledger.fail(ids[3], time=first + 1)
    ledger.abandon(ids[4], time=first + 3)  # may have come in time
    # The sixth and seventh have been waited for all the time.
    found = ledger.arrival_probability(now=first + 10)
    # Six at risk at 2; four at 5, without the first trial and the one abandoned at 3.
    assert found.estimate == pytest.approx(1 - 5 / 6 * 3 / 4)
    # At a time when only the first has come: one of six, and nobody has waited long enough.
    early = ledger.arrival_probability(now=first + 4)
    assert math.isnan(early.estimate) or early.upper == 1.0
    assert ledger.arrival_probability(wait=2.0, now=first + 4).estimate == pytest.approx(1 / 6)
    assert ledger.arrival_probability(wait=6.0, now=first + 10).estimate == pytest.approx(
        1 - 5 / 6 * 3 / 4 * 2 / 3
    )


def test_the_iteration_that_is_not_over_does_not_count():
    """All delays are 3, and the values of the current iteration arrive one by one."""
    ledger = FeedbackLedger(1, max_wait=3.0)
    for t in range(10):
        for trial in range(max(t - 3, 0), t - 2):
            ledger.observe(trial, 0.0)
        ledger.submit([0.0])
        for wait, share in ((2.0, 0.0), (3.0, 1.0)):
            # At the end of iteration t, which the submission has begun, t - 3 have waited for 3.
            found = ledger.arrival_probability(wait)
            assert math.isnan(found.estimate) if t < wait else found.estimate == share
    assert ledger.arrival_probability(3.0) == ledger.arrival_probability(3.0, now=9)


def test_values_in_time_before_anybody_has_waited_long_enough():
    """Two of four have come after 1, at a time when the others have waited for 3 of 5."""
    found = kaplan_meier(np.array([1.0, 1.0, 3.0, 3.0]), np.array([1, 1, 0, 0], bool), 5.0, 0.95)
    assert found.estimate == pytest.approx(0.5) and found.upper == 1.0
    assert 0.0 < found.lower < 0.5


def test_arguments_are_checked_before_anything_is_known():
    ledger = FeedbackLedger(1)
    for wait in (None, -1.0):
        with pytest.raises(InputDataError, match="`wait` must be finite"):
            ledger.arrival_probability(wait)
    with pytest.raises(InputDataError, match="`confidence`"):
        ledger.arrival_probability(3.0, confidence=1.0)
    for _ in range(2):
        estimate, lower, upper = ledger.arrival_probability(3.0)
        assert math.isnan(estimate) and (lower, upper) == (0.0, 1.0)
        ledger.submit([0.0])
