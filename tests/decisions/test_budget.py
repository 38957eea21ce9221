"""The budget of violations, its bound against adversaries, and the width: without any model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from torch.testing import assert_close

from botorch_calib.decisions import ConfirmationTest, objective_coverage_bound
from botorch_calib.decisions.budget import Account, Budget, Decision, check_level
from botorch_calib.decisions.widening import narrowed, widened, width

# What an adversary does who sees all: whether an offered point violates, and when outcomes come.
Adversary = Callable[[random.Random, int, float], bool]
ADVERSARIES: dict[str, Adversary] = {
    "always": lambda rng, t, left: True,
    "at random": lambda rng, t, left: rng.random() < 0.5,
    "in turns": lambda rng, t, left: (t // 150) % 2 == 1,
    "last moment": lambda rng, t, left: left < 1.0 or rng.random() < 0.2,
    "after a lull": lambda rng, t, left: t > 500,
}


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize(
    ("delay", "level", "size"),
    [("none", 0.9, 10.0), ("late", 0.75, 2.5), ("out of order", 0.99, 4.0), ("never", 0.3, 1.0)],
)
def test_the_bound_holds_at_all_times(name: str, delay: str, level: float, size: float) -> None:
    """Of the first T for every T, counting violations that nobody has been told of yet."""
    rng, budget = random.Random(0), Budget(level, size)
    outcomes: list[bool] = []  # of the certified points
    out: list[int] = []  # those whose outcome is still to come
    num_true = 0
    for t in range(800):
        known = sum(outcomes) - sum(outcomes[i] for i in out)
        if budget.allows(len(outcomes), known + len(out)):
            left = budget.left(len(outcomes), known + len(out))
            outcomes.append(ADVERSARIES[name](rng, t, left))
            out.append(len(outcomes) - 1)
            num_true += outcomes[-1]
            # Exactly, in numbers that know no rounding.
            share = 1 - Fraction(str(level))
            assert num_true < share * (len(outcomes) - 1) + Fraction(size) + 1
            assert num_true <= budget.bound(len(outcomes))
        if delay == "none":
            out.clear()
        elif delay == "late" and len(out) > 5:
            out.pop(0)
        elif delay == "out of order" and out:
            out.pop(rng.randrange(len(out)))
        elif delay == "never":
            out = [i for i in out if i % 7 == 0]
    assert len(outcomes) > 1


def test_the_bound_is_reached() -> None:
    """By the one that always violates: not one violation fewer could be promised."""
    budget, num = Budget(0.9, 10.0), 0
    while budget.allows(num, num):
        num += 1
    assert num == math.floor(budget.bound(12)) == 12  # 0.1 T + 10.9 is 12.1 there
    assert [Budget(0.9).bound(T) for T in (1, 5, 100, 1000)] == [1.0, 5.0, 20.9, 110.9]
    assert Budget(0.9).bound(10**9) == 1e8 + 10.9  # alpha T without the error of 1 - 0.9
    even = Budget(0.5, 1.0)
    assert even.allows(1, 1) and even.left(2, 2) == 0.0 and not even.allows(2, 2)
    assert Budget(0.9, math.inf).bound(7) == 7.0 and Budget(0.9, math.inf).allows(5, 5)


def test_the_account_is_that_of_the_definition() -> None:
    """By the definition once more, in fractions of which not one is rounded."""
    rng = random.Random(1)
    for _ in range(30):
        decisions = []
        for _ in range(rng.randrange(80)):
            certified, missed = rng.random() < 0.7, rng.random() < 0.3
            out = rng.random() < 0.1
            violated = missed and rng.random() < 0.5
            decisions.append(
                Decision(certified, None, None) if out else Decision(certified, violated, missed)
            )
        share, excess, relief = Fraction(1, 8), Fraction(0), 0
        for each in decisions:
            if each.certified:
                relief = max(relief - 1, 0)
                if each.violated is not None:
                    excess = max(excess + each.violated - share, Fraction(-2))
                continue
            if excess < 5:
                relief = min(relief + 1, 7)
            if each.missed is False and excess > 0:
                excess = max(excess - share, Fraction(0))
        account = Account.of(decisions, 0.125)
        certified_ones = [each for each in decisions if each.certified]
        assert account.num_certified == len(certified_ones)
        assert account.num_violations == sum(each.violated is True for each in certified_ones)
        assert account.num_outstanding == sum(each.violated is None for each in certified_ones)
        assert account.excess == float(excess) and account.relief == relief
        expected = 1.05 * math.exp(0.2 * float(excess) - 0.1 * relief)
        assert width(account) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("level", [1 - 1e-13, 1.0, 0.0, math.nan, "0.9"])
def test_levels_that_mean_nothing_are_refused(level: float) -> None:
    with pytest.raises(InputDataError, match="`level`"):
        check_level(level)


def test_levels_are_taken_up_to_the_last_that_mean_something() -> None:
    assert check_level(1 - 1e-12) == 1 - 1e-12 and check_level(1e-300) == 1e-300


@pytest.mark.parametrize("single", [torch.tensor(0.9), np.float32(0.9)])
def test_a_level_in_single_precision_is_as_written(single: Any) -> None:
    """Rows hold the level, and a constraint leaves rows at another level out."""
    assert check_level(single) == ConfirmationTest(single).level == 0.9


def test_an_outcome_is_beyond_as_often_as_the_lemma_says() -> None:
    """Skewed noise: P(noise >= 0) is 0.2. Where f is above U by any amount, y is as often."""
    torch.manual_seed(0)
    num = 100_000
    noise = torch.where(torch.rand(num) < 0.2, 1.0, -0.25)  # a mean of zero
    f, upper = torch.randn(num), torch.zeros(())
    beyond, seen = (f > upper).double().sum(), (f + noise > upper).double().sum()
    assert beyond <= objective_coverage_bound(float(seen), 0.2)
    # Just above the end, as an adversary would choose it, the lemma is an equality.
    f = torch.full((num,), 0.1)
    seen = (f + noise > upper).double().mean()
    assert objective_coverage_bound(float(seen), 0.2) == pytest.approx(1.0, abs=0.03)  # 5 errors


def test_half_of_the_noise_on_either_side_is_assumed() -> None:
    assert objective_coverage_bound(20.9) == pytest.approx(41.8)
    for misses, share in ((-1.0, 0.5), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(InputDataError):
            objective_coverage_bound(misses, share)


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
