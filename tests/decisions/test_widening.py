"""The width after any record stays a number."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from botorch_calib.decisions.budget import Account
from botorch_calib.decisions.widening import narrowed, widened, width


def test_the_width_stays_a_number() -> None:
    assert width(Account()) == 1.05
    assert width(Account(excess=1e6)) == pytest.approx(1.05 * math.exp(20.0))
    assert width(Account(excess=-1e6)) == pytest.approx(1.05 * math.exp(-20.0))


@pytest.mark.parametrize("k", [0.3, 1.0, 2.5])
def test_scores_are_narrowed_as_they_were_widened(k: float) -> None:
    z = torch.tensor([-1.0, 0.2, 1.0, 1.3, 4.0], dtype=torch.double)
    assert_close(widened(z, k), z + (k - 1.0) * torch.tensor([1.0, 1.0, 1.0, 1.3, 4.0]).double())
    assert_close(narrowed(widened(z, k), z, k), z)
    assert_close(narrowed(z, torch.tensor(1.3), k), z / k)
