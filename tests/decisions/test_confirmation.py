"""`ConfirmationTest`: its wealth by the definition, what it proves, and how long it takes."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_calib.decisions import ConfirmationTest


def wealth(test: ConfirmationTest, outcomes: list[bool], alpha: float) -> float:
    """The product of the definition."""
    total = 0.0
    for p, weight in ((0.0, test._weight), (alpha / 4, 1 - test._weight)):
        factors = (p / alpha if y else (1 - p) / (1 - alpha) for y in outcomes)
        total += weight * math.prod(factors)
    return total


@pytest.mark.parametrize(
    ("level", "confidence", "num"),
    [(0.9, 0.95, 29), (0.95, 0.95, 59), (0.99, 0.9, 230), (0.5, 0.9, 4), (0.1, 0.99, 2)],
)
def test_the_fewest_measurements_that_can_confirm(
    level: float, confidence: float, num: int
) -> None:
    """As many as it takes for 0.9^n to fall to 0.05: no test could do with fewer."""
    assert level**num <= 1 - confidence < level ** (num - 1)
    test = ConfirmationTest(level, confidence)
    for done in range(num):
        assert not test.confirmed and test.num_needed == num - done
        test.observe(False)
    assert test.confirmed and test.num_needed == 0 and test.num_measured == num
    assert "confirmed" in repr(test)


def test_a_violation_costs_and_is_not_the_end() -> None:
    test = ConfirmationTest()
    test.observe([False] * 10 + [True])
    assert test.num_needed == 73 and "at best 73 more confirm 0.9" in repr(test)
    assert not test.observe([False] * 72) and test.observe(False)
    assert test.num_violations == 1 and test.num_measured == 84
    test.observe([True] * 50)
    assert test.confirmed  # once is enough


def test_the_wealth_is_that_of_the_definition() -> None:
    rng = random.Random(0)
    for level in (0.5, 0.9, 0.99):
        test, outcomes = ConfirmationTest(level), []
        for _ in range(60):
            outcomes.append(rng.random() < 0.04)
            test.observe(outcomes[-1])
            assert test.wealth == pytest.approx(wealth(test, outcomes, 1 - level), rel=1e-9)


@pytest.mark.parametrize(("level", "p"), [(0.9, 0.1), (0.8, 0.5), (0.5, 0.6)])
def test_it_is_a_supermartingale_where_a_point_is_not_safe(level: float, p: float) -> None:
    """By summing over all outcomes of eight measurements."""
    mean = 0.0
    for outcomes in itertools.product([False, True], repeat=8):
        test = ConfirmationTest(level)
        test.observe(outcomes)
        probability = p ** sum(outcomes) * (1 - p) ** (8 - sum(outcomes))
        mean += probability * test.wealth
    assert mean <= 1 + 1e-9
    if p == pytest.approx(1 - level):
        assert mean == pytest.approx(1)


def test_what_is_proved_so_far_is_the_level_at_which_the_wealth_is_reached() -> None:
    test, outcomes = ConfirmationTest(), []
    for t in range(60):
        before = test.proved_level
        outcomes.append(t == 20)
        test.observe(outcomes[-1])
        assert test.proved_level >= before
        if test.proved_level > before:
            assert wealth(test, outcomes, 1 - test.proved_level) == pytest.approx(20, rel=1e-3)
    assert 0.8 < test.proved_level < 0.9
    # The wealth falls with the level, so all levels are proved at once.
    found = [wealth(test, outcomes, 1 - level / 100) for level in range(1, 100)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    "violated",
    [
        torch.tensor(True),
        np.True_,
        (each for each in [1]),
        {3: True}.values(),
    ],
)
def test_a_measurement_comes_in_any_form(violated: Any) -> None:
    """Such as what `ChanceConstraint.violated` returns for one outcome, or for a column of them."""
    test = ConfirmationTest()
    test.observe(violated)
    test.observe(torch.tensor([[False], [True], [False]]))
    assert (test.num_violations, test.num_clean) == (2, 2)


@pytest.mark.parametrize("share", [1e-6, 1e-9, 1e-12])
def test_levels_next_to_one(share: float) -> None:
    """As many measurements as it takes for level^n to fall to 0.05; a violation is not the end."""
    test = ConfirmationTest(1.0 - share)
    share = 1.0 - test.level
    with mpmath.workdps(50):
        num = int(mpmath.ceil(mpmath.log(0.05) / mpmath.log(1 - mpmath.mpf(share))))
    assert test.num_needed == pytest.approx(num, rel=1e-9)
    test.observe(True)
    # From here on the wealth is (1 - weight) / 4 ((1 - share / 4) / (1 - share))^n.
    with mpmath.workdps(50):
        growth = mpmath.log((1 - mpmath.mpf(share) / 4) / (1 - mpmath.mpf(share)))
        num = mpmath.log(80 / mpmath.mpf(1 - test._weight)) / growth
    assert test.num_needed == pytest.approx(float(num), rel=1e-6)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InputDataError, match="level"):
        ConfirmationTest(level=1.0)
    with pytest.raises(InputDataError, match="level"):
        ConfirmationTest(level=1.0 - 1e-16)
    with pytest.raises(InputDataError, match="confidence"):
        ConfirmationTest(confidence=0.0)


@pytest.mark.parametrize("violated", [None, math.nan, [0.2, -1.0], "no", [[1], [0, 1]]])
def test_what_is_no_flag_is_refused_and_not_counted(violated: Any) -> None:
    """Outcomes instead of flags, or an outcome that is not known."""
    test = ConfirmationTest()
    with pytest.raises(InputDataError, match="`violated` must be True or False"):
        test.observe(violated)
    assert test.num_measured == 0
