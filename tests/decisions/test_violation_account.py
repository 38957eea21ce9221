"""`ViolationAccount`: its inequality on any sequence, without a model and without a tracker."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError

from botorch_calib.decisions.violation_account import (
    PATIENCE,
    TrackerStart,
    TrackerState,
    ViolationAccount,
)

LEVEL = 0.9
# What an adversary answers at a threshold: whether to certify, and whether the outcome is a miss.
Adversary = Callable[[random.Random, float, int], tuple[bool, bool]]


@dataclass
class Game:
    """An adversary against a tracker of one level, whose account may let idle rounds teach.

    Args:
        step: The tracker's constant step.
        sign: 1 at an upper limit, -1 at a lower one.
        initial: The tracker's constant at the start, for an upper limit.
        gain: How fast misses in excess are made up for.
        heeded: Whether the account is asked which idle rounds teach; otherwise all of them do.
    """

    step: float
    sign: int = 1
    initial: float = LEVEL
    gain: float = 0.0
    heeded: bool = True

    def __post_init__(self) -> None:
        # An upper limit's constant; that of a lower limit is its mirror image.
        self.height = self.initial
        self.lowest = min(self.initial, -self.step * (1.0 - LEVEL))
        self.highest = max(self.initial, 1.0 + self.step * LEVEL)
        ends = self.lowest, self.highest
        if self.sign < 0:
            ends = 1.0 - self.highest, 1.0 - self.lowest
        start = TrackerStart(0, [ends[0]], [ends[1]])
        self.account = ViolationAccount(1.0 - LEVEL, [self.sign], start)
        self.num_certified = self.num_violations = 0

    def mirrored(self, value: float) -> float:
        """What ``value`` is at this side of the limits."""
        return value if self.sign > 0 else 1.0 - value

    def play(self, certified: bool, miss: bool) -> None:
        """One round; a certified miss violates the limit."""
        # Scores are in [0, 1]: at a threshold of 1 or more nothing is certified and all are hits.
        certified = certified and self.height < 1.0
        miss = (miss and self.height < 1.0) or self.height < 0.0
        teaches = certified
        if not certified:
            state = TrackerState([self.mirrored(self.height)], self.step, self.step)
            teaches = self.account.num_idle_teachers(1, state) == 1 or not self.heeded
        if teaches:
            self.height += self.step * (LEVEL - (not miss))
        self.num_certified += certified
        self.num_violations += certified and miss
        row = torch.tensor([[certified and miss]])
        self.account.record(row, row, int(certified), int(teaches))
        if certified:
            constant = torch.tensor([self.mirrored(self.height)], dtype=torch.double)
            moved = self.account.balanced(constant, self.step, self.gain)
            self.height = self.mirrored(moved.item())

    @property
    def spare(self) -> float:
        """The right side of the inequality less its left side, by numbers of its own."""
        allowed = (1.0 - LEVEL) * self.num_certified + (self.height - self.lowest) / self.step
        return allowed - self.num_violations


def violates_whenever_it_can(random: random.Random, height: float, t: int) -> tuple[bool, bool]:
    return True, True


def relaxes_then_violates(random: random.Random, height: float, t: int) -> tuple[bool, bool]:
    """Good outcomes that are not certified bring the threshold down, and certified ones violate."""
    certified = t % 200 >= 150
    return certified, certified


def anything(random: random.Random, height: float, t: int) -> tuple[bool, bool]:
    return random.random() < 0.5, random.random() < 0.5


def in_spells(random: random.Random, height: float, t: int) -> tuple[bool, bool]:
    certified = (t // random.choice((7, 30))) % 2 == 0
    return certified, random.random() < (0.9 if certified else 0.02)


ADVERSARIES = [violates_whenever_it_can, relaxes_then_violates, anything, in_spells]


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("step", [0.05, 0.5])
@pytest.mark.parametrize("gain", [0.0, 0.05, 10.0])
def test_the_inequality_holds_against_adversaries(
    adversary: Adversary, sign: int, step: float, gain: float
) -> None:
    for seed, initial in enumerate((LEVEL, 0.0, 1.0, 1.4)):
        game, source = Game(step, sign, initial, gain), random.Random(seed)
        for t in range(800):
            game.play(*adversary(source, game.height, t))
            assert game.spare >= -1e-9
            assert game.lowest - 1e-9 <= game.height <= game.highest + 1e-9
            if game.num_certified:
                bound = game.account.bound(game.num_certified, step, step)
                assert game.num_violations <= bound
        state = TrackerState([game.mirrored(game.height)], step, step)
        assert game.account.slack(state) == pytest.approx(game.spare, abs=1e-6)


def test_without_the_account_the_same_adversary_breaks_the_bound() -> None:
    """So it is the account that keeps it: idle rounds lower the threshold as often as they like."""
    heeded, unheeded = Game(0.05), Game(0.05, heeded=False)
    for game in (heeded, unheeded):
        for t in range(2000):
            game.play(*relaxes_then_violates(random.Random(0), game.height, t))
    bounds = [game.account.bound(game.num_certified, 0.05, 0.05) for game in (heeded, unheeded)]
    assert heeded.num_violations <= bounds[0]
    assert unheeded.num_violations > bounds[1]


def test_the_greediest_adversary_reaches_the_bound_nearly() -> None:
    """The bound is not idle: from the lowest start a violation in each round comes within two."""
    game = Game(0.05, initial=-0.05 * 0.1)
    while game.height < 1.0:
        game.play(True, True)
    assert game.num_violations >= game.account.bound(game.num_certified, 0.05, 0.05) - 2
    assert game.num_violations == game.num_certified


def test_idle_rounds_wait_and_then_teach_as_long_as_there_is_something_to_spare() -> None:
    account = ViolationAccount(0.1, [1.0], TrackerStart(0, [0.0], [1.0]))
    state, none = TrackerState([0.9], 0.5, 0.5), torch.zeros(3, 1, dtype=torch.bool)
    for _ in range(PATIENCE):
        assert account.num_idle_teachers(3, state) == 0
        account.record(none, none, num_certified=0, num_taught=0)
    assert account.num_idle_teachers(30, state) == 18  # 0.9 / 0.5 to spare, 0.1 for each
    assert account.num_idle_teachers(3, state) == 3
    assert account.num_idle_teachers(3, TrackerState([0.049], 0.5, 0.5)) == 0
    # Under two limits both sides need it.
    both = ViolationAccount(0.05, [-1.0, 1.0], TrackerStart(0, [0.0, 0.0], [1.0, 1.0]))
    for _ in range(PATIENCE):
        both.record(none.expand(3, 2), none.expand(3, 2), num_certified=0, num_taught=0)
    assert both.num_idle_teachers(100, TrackerState([0.75, 0.9], 0.5, 0.5)) == 10
    # Nothing to keep, nothing to spend: one of each round.
    free = ViolationAccount(0.1, [1.0])
    for _ in range(PATIENCE):
        assert free.num_idle_teachers(3) == 0
        free.record(none, none, num_certified=0, num_taught=0)
    assert [free.num_idle_teachers(num) for num in (0, 1, 3)] == [0, 1, 1]
    with pytest.raises(UnsupportedError, match="`start`"):
        free.bound(10, 0.5, 0.5)


def test_rounds_are_counted_by_side() -> None:
    account = ViolationAccount(0.05, [-1.0, 1.0])
    violated = torch.tensor([[True, False], [True, False], [False, True], [False, False]])
    missed = violated | torch.tensor([[False, False]] * 3 + [[False, True]])
    account.record(violated, missed, num_certified=4, num_taught=4)
    account.record(torch.zeros(2, 2).bool(), torch.zeros(2, 2).bool(), 0, num_taught=1)
    counts = account.counts
    assert (counts.violations, counts.misses) == ([2, 1], [2, 2])
    assert (counts.num_rounds, counts.num_observed, counts.num_certified) == (2, 6, 4)
    assert (counts.num_violations, counts.num_idle, counts.largest_batch) == (3, 1, 4)


def test_batches_lengthen_the_interval() -> None:
    account = ViolationAccount(0.1, [1.0], TrackerStart(0, [-0.005], [1.045]))
    assert account.bound(1000, 0.05, 0.05) == 100 + 21
    assert account.bound(1000, 0.05, 0.05, batch_size=4) == 100 + 24
    none = torch.zeros(4, 1, dtype=torch.bool)
    account.record(none, none, num_certified=4, num_taught=4)
    assert account.bound(1000, 0.05, 0.05) == 100 + 24
    assert account.bound(5, 0.05, 0.05) == 5


def test_it_goes_on_from_what_was_saved() -> None:
    account = ViolationAccount(0.1, [1.0], TrackerStart(7, [-0.005], [1.045]))
    account.record(torch.tensor([[True]]), torch.tensor([[True]]), 1, num_taught=1)
    saved = account.state_dict()
    assert saved == {
        "guarantee": {"num_updates": 7, "lowest": [-0.005], "highest": [1.045]},
        "violations": [1],
        "misses": [1],
        "num_observed": 1,
        "num_certified": 1,
        "num_violations": 1,
        "num_rounds": 1,
        "num_idle": 0,
        "largest_batch": 1,
    }
    twin = ViolationAccount(0.1, [1.0])
    twin.load_state_dict(json.loads(json.dumps(saved)))
    assert (twin.start, twin.counts) == (account.start, account.counts)
    saved["guarantee"]["lowest"][0] = math.nan
    twin.load_state_dict(account.state_dict() | {"guarantee": None})
    assert twin.start is None and account.start == TrackerStart(7, [-0.005], [1.045])
