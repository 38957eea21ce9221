"""Streams of many observations, in parts, and inputs that spread too far for their lengthscale."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from torch.testing import assert_close

from botorch_calib.calibration import (
    AggregatedQuantileTracker,
    ExactQuantileLearner,
    OnlineQuantileTracker,
)
from botorch_calib.calibration.learners import quantile_learner
from botorch_calib.calibration.learners.quantile_learner import QuantileLearner

LEARNERS: dict[str, Callable[[], QuantileLearner]] = {
    "global": lambda: OnlineQuantileTracker([0.2, 0.7], 0.1),
    "local": lambda: OnlineQuantileTracker(
        [0.2, 0.7], 0.1, step_decay=0.2, scale=1.0, lengthscale=0.3, regularization=0.1
    ),
    "mixed": lambda: AggregatedQuantileTracker([0.2, 0.7]),
    "exact": lambda: ExactQuantileLearner([0.2, 0.7], 0.1, 0.3),
}
LOCALIZED = [name for name in LEARNERS if name != "global"]


def stream(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num, 2, dtype=torch.double, generator=generator)
    return X, torch.rand(num, dtype=torch.double, generator=generator)


@pytest.mark.parametrize("name", LEARNERS)
def test_parts_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, u = stream(23)
    whole, parts = LEARNERS[name](), LEARNERS[name]()
    met = whole.update(X, u)
    monkeypatch.setattr(quantile_learner, "_CHUNK", 5)
    assert_close(parts.update(X, u), met)
    assert_close(parts.threshold(X), whole.threshold(X))
    assert parts.num_updates == 23
    assert parts.update(X[:0], u[:0]).shape == (0, 2)


@pytest.mark.parametrize("name", LOCALIZED)
def test_no_tensor_grows_with_the_square_of_the_stream(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantile_learner, "_CHUNK", 16)
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    num = 400
    X, u = stream(num)
    with Watch():
        LEARNERS[name]().update(X, u)
    # The members' coefficients are n x K M; correlations of a part are 16 x n a lengthscale.
    columns = LEARNERS[name]().state_dict().get("coefficients", torch.zeros(0, 2)).shape[-1]
    assert largest <= num * max(16 * 8, 2 * columns)
    assert largest < num * num


@pytest.mark.parametrize("name", LOCALIZED)
def test_inputs_that_spread_too_far_are_refused(name: str) -> None:
    X, u = stream(3)
    learner = LEARNERS[name]()
    with pytest.raises(InputDataError, match="Normalize"):
        learner.update(1e9 * X, u)
    assert learner.num_updates == 0
    # A shift alone does no harm.
    learner.update(1e6 + X, u)
    with pytest.raises(InputDataError, match="lengthscales"):
        learner.update(X[:1] - 1e6, u[:1])


def test_without_localization_inputs_may_be_anywhere() -> None:
    X, u = stream(3)
    LEARNERS["global"]().update(1e12 * X, u)
