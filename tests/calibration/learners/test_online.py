"""The tracker: comparison with a naive oracle, its guarantee, and its module interface."""

import copy
import math
from itertools import product
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_calib.calibration import OnlineQuantileTracker
from tests.calibration.sequences import play

DOUBLE: dict[str, Any] = {"dtype": torch.double}
CONFIGS: dict[str, dict[str, float]] = {
    "global": {"step_size": 0.1},
    "decaying": {"step_size": 0.3, "step_decay": 0.5},
    "localized": {"step_size": 0.2, "scale": 1.5, "lengthscale": 0.3},
    "constant kernel": {"step_size": 0.2, "scale": 0.7, "regularization": 0.5},
    "everything": {
        "step_size": 0.4,
        "step_decay": 0.6,
        "scale": 2.0,
        "lengthscale": 0.4,
        "regularization": 0.8,
    },
}
LEVELS = {"one": [0.2], "many": [0.05, 0.3, 0.5, 0.9]}


def make_data(num: int = 40, seed: int = 0, dtype: torch.dtype = torch.double):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 2, dtype=torch.double, generator=generator)
    return X.to(dtype), torch.rand(num, dtype=torch.double, generator=generator).to(dtype)


class NaiveTracker:
    """The update rule of the papers by plain loops over numbers."""

    def __init__(
        self,
        levels: list[float],
        step_size: float,
        step_decay: float = 0.0,
        scale: float = 0.0,
        lengthscale: float = math.inf,
        regularization: float = 0.0,
    ) -> None:
        self.levels, self.constants = levels, list(levels)
        self.step_size, self.step_decay = step_size, step_decay
        self.scale, self.lengthscale, self.regularization = scale, lengthscale, regularization
        self.centers: list[list[float]] = []
        self.coefficients: list[list[float]] = []

    def threshold(self, x: list[float]) -> list[float]:
        result = list(self.constants)
        for center, row in zip(self.centers, self.coefficients, strict=True):
            squared = sum((a - b) ** 2 for a, b in zip(x, center, strict=True))
            kernel = self.scale * math.exp(-squared / self.lengthscale**2)
            result = [r + kernel * b for r, b in zip(result, row, strict=True)]
        return result

    def update(self, x: list[float], u: float) -> None:
        eta = self.step_size * (len(self.centers) + 1) ** -self.step_decay
        pairs = zip(self.levels, self.threshold(x), strict=True)
        delta = [eta * (p - (u <= theta)) for p, theta in pairs]
        self.constants = [c + d for c, d in zip(self.constants, delta, strict=True)]
        shrink = 1 - self.regularization * eta
        self.coefficients = [[shrink * b for b in row] for row in self.coefficients] + [delta]
        self.centers.append(x)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_equals_naive_oracle(config, levels):
    tracker = OnlineQuantileTracker(levels, **config)
    oracle = NaiveTracker(levels, **config)
    X, u = make_data()
    batches = [17, 0, 1, 22]
    for X_part, u_part in zip(X.split(batches), u.split(batches), strict=True):
        used = tracker.update(X_part, u_part)
        for x, u_i, theta in zip(X_part.tolist(), u_part.tolist(), used.tolist(), strict=True):
            assert theta == pytest.approx(oracle.threshold(x), abs=1e-12)
            oracle.update(x, u_i)
    X_new = make_data(9, seed=1)[0]
    expected = torch.tensor([oracle.threshold(x) for x in X_new.tolist()], **DOUBLE)
    torch.testing.assert_close(tracker.threshold(X_new), expected, atol=1e-12, rtol=0)
    assert tracker.num_updates == 40
    localized = "scale" in config
    assert tracker.centers.shape == (40 if localized else 0, 2)
    assert tracker.coefficients.shape == (40 if localized else 0, len(levels))


@pytest.mark.parametrize("initial", [None, [0.5, 0.9]])
def test_start(initial):
    tracker = OnlineQuantileTracker([0.2, 0.6], 0.1, scale=1.0, lengthscale=0.2, initial=initial)
    theta = tracker.threshold(torch.rand(3, 1, 2, **DOUBLE))
    assert theta.shape == (3, 1, 2)
    assert (theta == torch.tensor(initial or [0.2, 0.6], **DOUBLE)).all()


@pytest.mark.parametrize("shape", [(2,), (2, 3, 1, 2)])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_threshold_shapes_and_dtypes(shape, dtype, scale):
    levels = torch.tensor([0.1, 0.5, 0.8], dtype=dtype)
    tracker = OnlineQuantileTracker(levels, 0.2, scale=scale, lengthscale=0.5)
    X, u = make_data(dtype=dtype)
    tracker.update(X, u)
    X_new = torch.rand(shape, dtype=dtype)
    theta = tracker.threshold(X_new)
    assert theta.shape == (*shape[:-1], 3) and theta.dtype == dtype
    reference = tracker.double().threshold(X_new.double())
    torch.testing.assert_close(theta.double(), reference, atol=1e-5, rtol=1e-5)
    # Inputs of another precision are cast, in both methods.
    other = torch.float if dtype == torch.double else torch.double
    assert tracker.threshold(X_new.to(other)).dtype == torch.double
    tracker.update(X.to(other), u.to(other))
    assert tracker.constants.dtype == torch.double and tracker.num_updates == 80


def test_no_cancellation_far_from_the_origin():
    near = OnlineQuantileTracker([0.2], 0.3, scale=1.0, lengthscale=0.3)
    far = copy.deepcopy(near)
    X, u = make_data()
    shift = 2.0**20  # exact in binary, so both see the same distances
    X = (X * 1024).round() / 1024
    near.update(X, u)
    far.update(X + shift, u)
    torch.testing.assert_close(far.threshold(X + shift), near.threshold(X), atol=1e-12, rtol=0)


@pytest.mark.parametrize("config", ["global", "everything"])
@pytest.mark.parametrize("lengths", [(25, 0), (7, 25)])
def test_state_dict_across_lengths(config, lengths):
    source, target = (OnlineQuantileTracker([0.1, 0.6], **CONFIGS[config]) for _ in lengths)
    for tracker, length, seed in zip((source, target), lengths, (0, 1), strict=True):
        tracker.update(*make_data(length, seed))
    kept = {key: value.clone() for key, value in source.state_dict().items()}
    target.load_state_dict(source.state_dict())
    X, u = make_data(5, seed=2)
    torch.testing.assert_close(target.threshold(X), source.threshold(X), atol=0, rtol=0)
    snapshot = source.state_dict()
    target.update(X, u)
    source.update(X, u)
    torch.testing.assert_close(target.state_dict(), source.state_dict(), atol=0, rtol=0)
    # Updates replace the buffers, so neither a snapshot nor the other tracker changes.
    torch.testing.assert_close(snapshot, kept, atol=0, rtol=0)
    assert target.num_updates == lengths[0] + 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"constants": torch.zeros(3)}, r"must have shape \(2,\)"),
        ({"coefficients": torch.zeros(5, 2)}, "shapes t x d and t x 2"),
        ({"centers": torch.zeros(4)}, "shapes t x d and t x 2"),
        ({"step_count": None}, r"lacks \['step_count'\]"),
    ],
)
def test_failed_load_changes_nothing(change, message):
    tracker = OnlineQuantileTracker([0.2, 0.6], 0.1, scale=1.0, lengthscale=0.5)
    tracker.update(*make_data(4))
    before = copy.deepcopy(tracker.state_dict())
    state = {k: v for k, v in {**before, **change}.items() if v is not None}
    state["levels"] = torch.tensor([0.3, 0.4], **DOUBLE)
    with pytest.raises(RuntimeError, match=message):
        tracker.load_state_dict(state)
    torch.testing.assert_close(tracker.state_dict(), before, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"levels": [0.5, 0.2]}, "levels"),
        ({"levels": [0.0, 0.2]}, "levels"),
        ({"levels": []}, "levels"),
        ({"levels": torch.tensor([1])}, "increase strictly"),
        ({"step_size": 0.0}, "step_size"),
        ({"step_decay": -0.1}, "step_decay"),
        ({"scale": -1.0}, "scale"),
        ({"lengthscale": 0.0}, "lengthscale"),
        ({"regularization": -1.0}, "regularization"),
        ({"regularization": 10.0}, "regularization"),
        ({"initial": [0.1, 0.2]}, "initial"),
        ({"initial": [1.2]}, "initial"),
    ],
)
def test_invalid_arguments(kwargs, name):
    with pytest.raises((InputDataError, BotorchTensorDimensionError), match=name):
        OnlineQuantileTracker(**{"levels": [0.2], "step_size": 0.1, **kwargs})


@pytest.mark.parametrize(
    ("X", "u", "name"),
    [
        (torch.rand(3, 3), torch.rand(3), "X"),
        (torch.rand(1, 3, 2), torch.rand(3), "X"),
        (torch.tensor([[0.1, math.nan]]), torch.rand(1), "X"),
        (torch.rand(3, 2), torch.rand(3, 1), "u"),
        (torch.rand(2, 2), torch.tensor([0.1, math.nan]), "u"),
        (torch.rand(2, 2), torch.tensor([0.1, 1.1]), "u"),
        (torch.rand(2, 2), torch.tensor([-0.1, 0.1]), "u"),
    ],
)
def test_failed_update_changes_nothing(X, u, name):
    tracker = OnlineQuantileTracker([0.2], 0.1, scale=1.0, lengthscale=0.5)
    tracker.update(*make_data(4))
    before = copy.deepcopy(tracker.state_dict())
    with pytest.raises((InputDataError, BotorchTensorDimensionError), match=f"`{name}`"):
        tracker.update(X, u)
    torch.testing.assert_close(tracker.state_dict(), before, atol=0, rtol=0)
    with pytest.raises(BotorchTensorDimensionError, match=r"`X` must have shape \.\.\. x 2"):
        tracker.threshold(torch.rand(4, 3))


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        *product(["above", "waves"], [(0.1, 0.0), (0.1, 0.5)]),
        *product(["waves"], [(0.5, 0.5, 0.3, 0.3, 0.0), (0.5, 0.5, 0.3, 0.3, 1.0)]),
    ],
)
def test_coverage_guarantee(strategy, settings):
    tracker = OnlineQuantileTracker([0.1, 0.5, 0.8], *settings)
    outcomes = play(tracker, strategy, num_steps=300)
    step_size, step_decay, *local = settings
    for T in (1, 30, 300):
        error = (outcomes[:T].double().mean(dim=0) - tracker.levels).abs()
        bound = tracker.coverage_bound(T)
        assert (error <= bound + 1e-12).all()
        simple = (1 + 2 * step_size) / (T * step_size * T**-step_decay)
        assert local or (bound <= simple).all()


def test_coverage_guarantee_is_nearly_attained():
    tracker = OnlineQuantileTracker([0.2], 0.05)
    error = 0.2 - play(tracker, "above", num_steps=80).double().mean()
    assert 0.7 * tracker.coverage_bound(80) < error <= tracker.coverage_bound(80)


def test_thresholds_follow_buffers_that_change_in_place():
    tracker, (X, u) = OnlineQuantileTracker([0.9], **CONFIGS["localized"]), make_data()
    tracker.update(X, u)
    before = tracker.threshold(X)
    tracker.coefficients.zero_()
    assert (tracker.threshold(X) - before).abs().max() > 0.01
    assert torch.equal(tracker.threshold(X), copy.deepcopy(tracker).threshold(X))
