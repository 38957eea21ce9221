"""Thresholds at all pairs against those of the learners, input by input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.calibration.learners import radial_sum
from botorch_calib.calibration.learners.aggregated import AggregatedQuantileTracker
from botorch_calib.calibration.learners.base import QuantileLearner
from botorch_calib.calibration.learners.exact import ExactQuantileLearner
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


@pytest.mark.parametrize("columns", [([0, 1], [2]), ([2], [1, 0])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LEARNERS)
def test_pairs(name, dtype, columns, monkeypatch):
    learner = learned(name, dtype)
    order = columns[0] + columns[1]
    first, second = (uniform(n, len(c), seed=n) for n, c in zip((4, 6), columns, strict=True))
    joint = torch.empty(4, 6, 3, dtype=torch.double)
    joint[..., columns[0]], joint[..., columns[1]] = first.unsqueeze(1), second
    joint = joint.to(dtype).requires_grad_()
    expected = learner.threshold(joint)
    found = learner.radial_sum()
    assert found is not None
    tolerance = 1e-12 if dtype == torch.double else 1e-5
    for elements in (2**21, 1):
        monkeypatch.setattr(radial_sum, "_ELEMENTS", elements)
        pairs = found.at_pairs(first.to(dtype), second.to(dtype), columns)
        sums = pairs.values()
        assert sums.dtype == dtype and not sums.requires_grad
        sums.requires_grad_()
        values = learner.finished(sums)
        assert_close(values, expected, rtol=tolerance, atol=tolerance)
        for level in range(values.shape[-1]):
            (wanted,) = torch.autograd.grad(expected[..., level].sum(), joint, retain_graph=True)
            (outer,) = torch.autograd.grad(values[..., level].sum(), sums, retain_graph=True)
            got = pairs.pulled(outer)
            assert got.dtype == dtype and not got.requires_grad
            assert_close(got, wanted[..., order], rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_sum_is_that_of_the_present_state(name):
    learner, first, second = learned(name), uniform(3, 2, seed=6), uniform(2, 1, seed=7)
    points = torch.cat([first.unsqueeze(1).expand(-1, 2, -1), second.expand(3, -1, -1)], dim=-1)

    def check() -> None:
        sums = learner.radial_sum().at_pairs(first, second, ([0, 1], [2])).values()
        assert_close(learner.finished(sums), learner.threshold(points), rtol=1e-12, atol=1e-12)

    learner.update(uniform(1, 3, seed=2), uniform(1, seed=3))
    check()
    other = learned(name)
    other.update(uniform(1, 3, seed=4), uniform(1, seed=5))
    learner.load_state_dict(other.state_dict())
    check()
    if isinstance(learner, OnlineQuantileTracker):
        learner.scale = 2.0 * learner.scale
        check()


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
    found = learner.radial_sum()
    assert found is not None
    far = torch.full((2, 2), 1e5, dtype=torch.double)
    pairs = found.at_pairs(far, uniform(3, 1), ([0, 1], [2]))
    sums = pairs.values()
    assert torch.equal(sums, found.constants.expand_as(sums))
    assert not pairs.pulled(torch.ones_like(sums)).any()


def test_no_points():
    found = learned("several").radial_sum()
    assert found is not None
    for first, second in ((uniform(0, 2), uniform(3, 1)), (uniform(2, 2), uniform(0, 1))):
        pairs = found.at_pairs(first, second, ([0, 1], [2]))
        sums = pairs.values()
        assert sums.shape == (len(first), len(second), 3)
        assert pairs.pulled(sums).shape == (len(first), len(second), 3)


def test_learners_without_a_sum():
    exact = ExactQuantileLearner(LEVELS, 0.05, 0.5)
    exact.update(uniform(9, 3), uniform(9, seed=1))
    everywhere = OnlineQuantileTracker(LEVELS, 0.1)
    everywhere.update(uniform(9, 3), uniform(9, seed=1))
    for learner in (exact, everywhere, *(make() for make in LEARNERS.values())):
        assert learner.radial_sum() is None


@pytest.mark.parametrize("name", ["several", "mixture"])
def test_derived_learners_with_other_thresholds_have_no_sum(name):
    learner = learned(name)
    parent = type(learner)

    class Widened(parent):
        def threshold(self, X: Tensor) -> Tensor:
            return 0.5 * super().threshold(X)

    class Renamed(parent):
        pass

    learner.__class__ = Renamed
    assert learner.radial_sum() is not None
    learner.__class__ = Widened
    assert learner.radial_sum() is None
