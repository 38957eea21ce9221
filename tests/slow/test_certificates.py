"""Certificates under their null hypotheses: false ones in at most the stated share of 2000 runs."""

from __future__ import annotations

import random

import pytest
import torch

from botorch_calib.decisions import ConfirmationTest
from botorch_calib.diagnostics import CalibrationAlarm

pytestmark = pytest.mark.slow

RUNS = 2000
# The stated share of 5 %, plus three standard deviations of the count.
MOST = 0.05 * RUNS + 3 * (0.05 * 0.95 * RUNS) ** 0.5
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


@pytest.mark.parametrize("kind", ["independent", "violations come together", "as late as may be"])
def test_points_that_are_not_safe_are_hardly_ever_confirmed(kind: str) -> None:
    """Each measurement violates with a conditional probability of at least 0.1: barely unsafe.

    The test is read after each of 200 measurements, and stopped when it confirms the point.
    """
    rng, confirmed = random.Random(0), 0
    for _ in range(RUNS):
        test, last = ConfirmationTest(0.9, 0.95), False
        for _ in range(200):
            p = 0.1
            if kind == "violations come together" and last:
                p = 0.9
            elif kind == "as late as may be":
                # The closer the test is to a confirmation, the more probable a violation becomes.
                p = 0.1 if test.wealth < 10.0 else 0.5
            last = rng.random() < p
            if test.observe(last):
                confirmed += 1
                break
    assert 0 < confirmed <= MOST


def test_safe_points_are_confirmed() -> None:
    """They are confirmed soon if their probability of a violation is 2 % and 10 % is allowed."""
    rng, needed = random.Random(1), []
    for _ in range(300):
        test = ConfirmationTest()
        while not test.observe(rng.random() < 0.02) and test.num_measured < 400:
            pass
        needed.append(test.num_measured)
    assert sorted(needed)[150] <= 90 and sum(n < 400 for n in needed) >= 290


@pytest.mark.parametrize("regions", [False, True])
def test_right_predictions_hardly_ever_raise_an_alarm(regions: bool) -> None:
    """Points are chosen adaptively, where the alarm has gained most or least so far."""
    generator, raised = torch.Generator().manual_seed(0), 0
    for run in range(RUNS):
        alarm = CalibrationAlarm(0.05, BOUNDS if regions else None)
        pits = torch.rand(60, dtype=torch.double, generator=generator)
        x = torch.full((1, 2), 0.25, dtype=torch.double)
        for t in range(60):
            if regions and t % 5 == 4:
                column = int(run % 2)
                x = torch.full((1, 2), 0.25, dtype=torch.double)
                x[0, column] = 0.75 if alarm.wealth > 1.0 else 0.25
            if alarm.observe(pits[t : t + 1], x):
                raised += 1
                break
    assert 0 < raised <= MOST


def test_wrong_predictions_raise_it_soon() -> None:
    """If stated deviations are half of the true ones: within 40 outcomes in 90 % of the runs."""
    generator, late = torch.Generator().manual_seed(1), 0
    for _ in range(200):
        alarm = CalibrationAlarm()
        z = 2.0 * torch.randn(40, dtype=torch.double, generator=generator)
        late += not any(alarm.observe(torch.special.ndtr(each)) for each in z.split(1))
    assert late <= 20
