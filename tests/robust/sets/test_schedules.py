"""Balls with a radius schedule."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor

from botorch_calib.robust import (
    AmbiguitySet,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    RadiusSchedule,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)
from botorch_calib.robust.sets.base import Ball

BALLS: dict[str, Callable[[Any], Ball]] = {
    "wasserstein": WassersteinBall,
    "total variation": TotalVariationBall,
    "chi squared": ChiSquaredBall,
    "kl": KLBall,
}
SCHEDULE = RadiusSchedule(0.4)
every_ball = pytest.mark.parametrize("name", BALLS)


def lipschitz(radius: Any) -> WassersteinBall:
    return WassersteinBall(radius, method="lipschitz")


def instance(dtype: torch.dtype = torch.double) -> tuple[Tensor, ContextDistribution]:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(9, 2, dtype=dtype, generator=generator)
    weights = torch.rand(9, dtype=dtype, generator=generator)
    values = torch.randn(3, 9, dtype=dtype, generator=generator)
    return values, ContextDistribution(points, weights / weights.sum())


@pytest.mark.parametrize(("t", "dtype"), [(1, torch.float32), (7, torch.float64)])
@every_ball
def test_at_t_it_is_the_ball_with_the_number(name: str, t: int, dtype: torch.dtype) -> None:
    values, centre = instance(dtype)
    ball, number = BALLS[name](SCHEDULE).at(t), BALLS[name](0.4 / t**0.5)
    assert type(ball) is type(number) and ball.radius == number.radius
    assert repr(ball) == repr(number)
    assert torch.equal(ball.worst_case(values, centre), number.worst_case(values, centre))
    found = ball.worst_case_weights(values, centre)
    assert torch.equal(found, number.worst_case_weights(values, centre))
    assert ball.at(t + 1) is ball and number.at(t) is number


@pytest.mark.parametrize("ambiguity", [ConditionalValueAtRisk(0.3), WorstCase()])
def test_other_sets_are_the_same_for_all_t(ambiguity: AmbiguitySet) -> None:
    assert ambiguity.at(5) is ambiguity and not ambiguity.is_scheduled


@every_ball
def test_a_schedule_is_not_evaluated(name: str) -> None:
    values, centre = instance()
    ball = BALLS[name](SCHEDULE)
    assert ball.is_scheduled and not ball.at(3).is_scheduled
    for given in (values, values[0], torch.ones_like(values), values[:0]):
        with pytest.raises(UnsupportedError, match=r"schedule: call `\.at\(t\)`"):
            ball.worst_case(given, centre)
    with pytest.raises(UnsupportedError, match=r"schedule: call `\.at\(t\)`"):
        ball.worst_case_weights(values, centre)
    with pytest.raises(UnsupportedError, match=r"RadiusSchedule\(c=0.4\)"):
        _ = ball.radius
    with pytest.raises(UnsupportedError, match=r"\.at\(t\)"):
        lipschitz(SCHEDULE).worst_case(values, centre)


def test_the_schedule_is_asked_once_and_only_by_at() -> None:
    asked: list[int] = []

    def schedule(t: int) -> Tensor:
        asked.append(t)
        return torch.tensor([0.5]) / t

    ball = TotalVariationBall(schedule)  # type: ignore[arg-type]
    assert asked == []
    fifth = ball.at(5)
    fifth.worst_case(*instance())
    assert asked == [5] and fifth.radius == pytest.approx(0.1)


@every_ball
def test_what_a_schedule_takes_and_returns_is_checked(name: str) -> None:
    for bad in (-0.1, float("inf"), torch.ones(2), None):
        ball = BALLS[name](lambda t, bad=bad: bad)
        with pytest.raises(InputDataError, match="`radius`"):
            ball.at(3)
        assert ball.is_scheduled
    for t in (0, 1.5, "x"):
        for radius in (0.1, lambda t: 1.0 / (t + 0.5)):
            with pytest.raises(InputDataError, match="`t` must be an integer"):
                BALLS[name](radius).at(t)  # type: ignore[arg-type]
