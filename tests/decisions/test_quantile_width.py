"""The width after any record stays a number."""

from __future__ import annotations

import math

import pytest

from botorch_calib.decisions.budget import Account
from botorch_calib.decisions.quantile_width import width


def test_the_width_stays_a_number() -> None:
    assert width(Account()) == 1.05
    assert width(Account(excess=1e6)) == pytest.approx(1.05 * math.exp(20.0))
    assert width(Account(excess=-1e6)) == pytest.approx(1.05 * math.exp(-20.0))
