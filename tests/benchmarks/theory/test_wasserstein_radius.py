"""The proven radius: equation 16 as printed, by hand."""

from __future__ import annotations

import math

from torch.testing import assert_close

from benchmarks.theory import log_covering_number, wasserstein_radius


def test_radius_of_equation_16() -> None:
    number = log_covering_number(10, 2.0, dim=3, constant=0.5)
    assert_close(number, 0.5 * (1 + math.log(20)) ** 4 + 0.5 * (1 + math.log(20)) ** 7)
    radius = wasserstein_radius(
        10,
        0.1,
        context_diameter=2.0,
        decision_diameter=1.5,
        decision_dim=2,
        log_covering_number=number,
    )
    terms = math.log(10) + 2 * math.log(31) + number
    assert_close(radius, math.sqrt(2 * 4 * terms / 10))
    assert log_covering_number(1000, 10.0, dim=200) == math.inf
