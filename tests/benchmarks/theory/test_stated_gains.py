"""`stated_gains`: its counts and evidence by definition, and under the null hypothesis."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.theory import stated_gains


def test_counts_and_evidence_are_those_of_the_definition() -> None:
    stated, gains = torch.tensor([1.0, 2.0, 0.5, 1.0]), torch.tensor([0.0, 5.0, 1.0, 12.0])
    found = stated_gains(stated, gains, ratios=(2.0, 10.0))
    assert found.ratios == (2.0, 10.0) and found.allowed == (0.5, 0.1)
    assert found.shares == (0.75, 0.25)
    ratios, best = [0.0, 2.5, 2.0, 12.0], 1.0
    for num in range(1, 5):
        stakes = (0.1, 0.25, 0.5, 0.75)
        won = [math.prod(1 + a * (r - 1) for r in ratios[:num]) for a in stakes]
        best = max(best, sum(won) / 4)
    assert found.evidence == pytest.approx(best)


def test_right_statements_are_hardly_ever_doubted_and_wrong_ones_soon() -> None:
    """2000 runs of fifty exponential gains, with the stated mean and with twice this mean."""
    generator = torch.Generator().manual_seed(0)
    draws = -torch.rand(2000, 50, dtype=torch.double, generator=generator).log()
    stated, false, true = torch.ones(50), 0, 0
    for gains in draws:
        false += stated_gains(stated, gains).evidence >= 20
    for gains in 2 * draws[:200]:
        true += stated_gains(stated, gains).evidence >= 20
    # A share of at most 5 %, plus three standard deviations of the count.
    assert 0 < false <= 100 + 3 * (0.05 * 0.95 * 2000) ** 0.5
    assert true >= 150
