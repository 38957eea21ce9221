"""Observations learned from at once, and how far the constants can go."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch.testing import assert_close

from botorch_calib.calibration import (
    AggregatedQuantileTracker,
    ExactQuantileLearner,
    OnlineQuantileTracker,
    QuantileRecalibrator,
)


def data(num: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X, u = (torch.rand(num, k, dtype=torch.double, generator=generator) for k in (2, 1))
    return X, u.squeeze(-1)


def local_tracker(**kwargs: Any) -> OnlineQuantileTracker:
    return OnlineQuantileTracker([0.3, 0.8], 0.05, scale=1.0, lengthscale=0.4, **kwargs)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_all_are_compared_with_the_present_thresholds(decay: float) -> None:
    """Each is learned from by a tracker of its own; the moves add up, later ones shrink earlier."""
    X, u = data(5)
    tracker = local_tracker(regularization=0.1, step_decay=decay)
    tracker.update(*data(4, seed=1))
    before = tracker.threshold(X)
    constants, present = tracker.constants.clone(), tracker.coefficients.clone()
    met = tracker.update(X, u, at_once=True)
    assert_close(met, before)
    steps = [tracker.step_at(t) for t in range(5, 10)]
    moves = torch.tensor(steps).double().unsqueeze(-1) * (
        tracker.levels - (u.unsqueeze(-1) <= before).double()
    )
    assert_close(tracker.constants, constants + moves.sum(dim=0))
    shrunk = torch.cat([present, moves])
    for i, step in enumerate(steps):
        shrunk[: 4 + i] *= 1 - 0.1 * step
    assert_close(tracker.coefficients, shrunk)
    assert tracker.num_updates == 9 and len(tracker.centers) == 9


def test_a_single_one_is_the_same_either_way() -> None:
    for make in (local_tracker, lambda: AggregatedQuantileTracker([0.2, 0.7])):
        one, other = make(), make()
        X, u = data(1)
        one.update(X, u, at_once=True)
        other.update(X, u)
        assert_close(one.threshold(data(3)[0]), other.threshold(data(3)[0]))


def test_an_exact_learner_does_not_tell_the_two_apart() -> None:
    one, other = (ExactQuantileLearner([0.2, 0.7], 0.1, 0.5) for _ in range(2))
    X, u = data(6)
    met = one.update(X, u, at_once=True)
    other.update(X, u)
    assert_close(met, other.initial.expand(6, -1))
    assert_close(one.threshold(X), other.threshold(X))


def test_a_bank_of_trackers_refuses() -> None:
    with pytest.raises(UnsupportedError, match="at once"):
        AggregatedQuantileTracker([0.5]).update(*data(2), at_once=True)


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("kind", ["global", "local"])
def test_constants_stay_within_reach(kind: str, at_once: int) -> None:
    """Observations that drive each constant as far as they can, up and then down."""
    tracker = OnlineQuantileTracker([0.3, 0.8], 0.2)
    if kind == "local":
        tracker = OnlineQuantileTracker(
            [0.3, 0.8], 0.2, scale=0.5, lengthscale=0.1, regularization=0.5
        )
    low, high = tracker.reach(at_once)
    X = torch.rand(at_once, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    for target in (1.0, 0.0, 1.0):
        for i in range(200):
            # Elsewhere each time, where the local part has done nothing yet
            tracker.update(X + i, torch.full((at_once,), target).double(), at_once=True)
            assert (tracker.constants <= high + 1e-12).all()
            assert (tracker.constants >= low - 1e-12).all()
    if kind == "global":
        assert_close(high, 1.0 + at_once * 0.2 * tracker.levels)
        assert_close(low, -at_once * 0.2 * (1.0 - tracker.levels))
        assert (tracker.constants >= 0.8).all()


def test_reach_wants_forgetting_and_a_count() -> None:
    with pytest.raises(UnsupportedError, match="regularization"):
        local_tracker().reach()
    with pytest.raises(InputDataError, match="batch_size"):
        local_tracker(regularization=0.1).reach(0)


def test_a_level_is_found_and_read_off_raw() -> None:
    X = data(4)[0].unsqueeze(-2)
    made = QuantileRecalibrator([0.2, 0.9])
    assert (made.index_of(0.9), made.index_of(1 - 0.8), made.index_of(0.5)) == (1, 0, None)
    made.tracker.constants = torch.tensor([0.7, 0.6]).double()
    knots = made.score.knots(torch.tensor([0.7, 0.6]).double())
    # Crossed: the distribution sorts them, the quantile of a level stays its own.
    assert_close(made.quantile(X, 0.9), knots[1].expand(4, 1, 1))
    stated = made.predictive(X).quantile(torch.tensor(0.9).double())
    assert_close(stated, knots[0].expand(4, 1, 1), atol=1e-5, rtol=0)
    between = made.quantile(X, 0.5)
    assert (between > knots[1]).all() and (between < knots[0]).all()


def test_levels_are_told_apart_relative_to_the_rarer_side() -> None:
    made = QuantileRecalibrator([1e-7, 0.999999, 0.9999995])
    assert [made.index_of(p) for p in (0.9999995, 0.999999, 1e-7, 2e-7)] == [2, 1, 0, None]
    assert made.index_of(1 - 1e-6) == 1 and made.index_of(0.9999992) is None
    # Levels in single precision are found by the numbers that they stand for.
    single = QuantileRecalibrator(torch.tensor([0.9, 0.9999, 0.999999]))
    assert [single.index_of(p) for p in (0.9, 0.9999, 0.999999)] == [0, 1, 2]
    assert single.index_of(0.9999995) is None


def test_a_single_level_needs_no_thought_about_tails() -> None:
    assert QuantileRecalibrator([0.9]).tails == "gaussian"
    assert QuantileRecalibrator([0.1, 0.9]).tails == "stretched"
    with pytest.raises(InputDataError, match="leave it out"):
        QuantileRecalibrator([0.9], tails="stretched")
    assert math.isclose(QuantileRecalibrator([0.9]).max_width, 50.0)
