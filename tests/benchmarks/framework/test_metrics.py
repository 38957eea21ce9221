"""Scores of runs against values computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.framework import metrics
from benchmarks.framework.replicate_result import Result
from tests.benchmarks.made_up_results import result_with


def result(**extras: Any) -> Result:
    return result_with("problem", "random", 0, extras=extras)


def test_miscoverage_is_that_of_the_last_half() -> None:
    assert metrics.miscoverage(result(covered=[0, 0, 1, 0, 1, 1])) == pytest.approx(1 / 3)
    # The last three of five outcomes.
    assert metrics.miscoverage(result(covered=[0, 0, 1, 0, 1])) == pytest.approx(1 / 3)
    assert math.isnan(metrics.miscoverage(result()))


def test_calibration_error_by_hand() -> None:
    # All PITs at 1: no level is reached, so the error is the sum of (j / 20)^2.
    expected = sum(j**2 for j in range(1, 20)) / 400
    assert metrics.calibration_error(result(pit=[1.0, 1.0])) == pytest.approx(expected)
    # One PIT at 0.5: the fraction is 1 for levels from 0.5 and 0 for lower levels.
    expected = sum((j / 20 - (j >= 10)) ** 2 for j in range(1, 20))
    assert metrics.calibration_error(result(pit=[0.5])) == pytest.approx(expected)
    even = [(j + 0.5) / 20 for j in range(20)]
    assert metrics.calibration_error(result(pit=even)) == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(metrics.calibration_error(result()))
