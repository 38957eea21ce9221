"""What learners keep of their state follows the state."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from botorch_calib.calibration.learners.aggregated import AggregatedQuantileTracker
from botorch_calib.calibration.learners.base import QuantileLearner
from botorch_calib.calibration.learners.online import OnlineQuantileTracker

LEVELS = [0.1, 0.4, 0.8]
LEARNERS: dict[str, Callable[[], QuantileLearner]] = {
    "one level": lambda: OnlineQuantileTracker([0.2], 0.1, scale=1.5, lengthscale=0.4),
    "several": lambda: OnlineQuantileTracker(LEVELS, 0.1, scale=0.7, lengthscale=0.3),
    "constant": lambda: OnlineQuantileTracker(LEVELS, 0.1, scale=0.7, lengthscale=math.inf),
    "mixture": lambda: AggregatedQuantileTracker(LEVELS, [0.2, 0.5, math.inf], [1.0], [0.1, 0.3]),
}


def uniform(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=torch.double, generator=generator)


def learned(name: str, dtype: torch.dtype = torch.double) -> QuantileLearner:
    learner = LEARNERS[name]().to(dtype)
    learner.update(uniform(25, 3).to(dtype), uniform(25, seed=1).to(dtype))
    return learner


@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_kept_follows_the_state(name):
    learner, points = learned(name), uniform(4, 3, seed=8)

    def check(learner: QuantileLearner) -> None:
        anew = LEARNERS[name]().to(learner.levels.dtype)
        anew.load_state_dict(learner.state_dict())
        assert torch.equal(learner.threshold(points), anew.threshold(points))
        assert learner.threshold(points).dtype == learner.levels.dtype

    with torch.inference_mode():
        learner.threshold(points)  # a graph may use what is made here
    learner.threshold(points.clone().requires_grad_()).sum().backward()
    twin = copy.deepcopy(learner)
    twin.update(uniform(2, 3, seed=2), uniform(2, seed=3))
    check(learner)
    check(twin)
    learner.load_state_dict(twin.state_dict())
    check(learner)
    check(learner.to(torch.float32))
    learner.reset()
    check(learner)


def test_far_away():
    """Terms vanish, and nothing else."""
    learner = learned("several")
    far = torch.full((2, 3), 1e5, dtype=torch.double)
    assert torch.equal(learner.threshold(far), learner.constants.expand(2, 3))
