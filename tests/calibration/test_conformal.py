"""Conformal calibrators: their initial state, online updates, state and long-run coverage."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from botorch_calib.calibration import (
    GaussianScore,
    LocalizedConformal,
    OnlineConformal,
    OnlineQuantileTracker,
    RationalScore,
    Score,
)
from tests.contracts import CalibratorContract

DOUBLE: dict[str, Any] = {"dtype": torch.double}
SCORES = [GaussianScore(), RationalScore()]
Make = Callable[..., LocalizedConformal]
KINDS: dict[str, Make] = {
    "online": OnlineConformal,
    "localized": lambda alpha, **kwargs: LocalizedConformal(alpha, 0.3, **kwargs),
}

kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
scores = pytest.mark.parametrize("score", SCORES, ids=["gaussian", "rational"])


def make_data(num: int = 20, spread: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 2, **DOUBLE, generator=generator)
    return X, spread * torch.randn(num, **DOUBLE, generator=generator)


def gaussian_half_width(alpha: float) -> float:
    return torch.special.ndtri(torch.tensor(1 - alpha / 2, **DOUBLE)).item()


class TestOnline(CalibratorContract):
    def make_calibrator(self) -> LocalizedConformal:
        return OnlineConformal(0.2)


class TestLocalized(CalibratorContract):
    def make_calibrator(self) -> LocalizedConformal:
        return LocalizedConformal(0.2, lengthscale=0.3)


class TestAsPublished(CalibratorContract):
    """The paper's score and tails, with decaying steps and corrections."""

    def make_calibrator(self) -> LocalizedConformal:
        return LocalizedConformal(
            0.3,
            lengthscale=0.4,
            scale=2.0,
            step_size=0.02,
            step_decay=0.05,
            regularization=0.5,
            score=GaussianScore(),
            tails="gaussian",
        )


# ------------------------------------------------------------------ the predictive distribution


@scores
@pytest.mark.parametrize("tails", ["gaussian", "stretched"])
@pytest.mark.parametrize("alpha", [0.01, 0.7])
def test_initial_distribution(score, tails, alpha):
    """Before any update the interval is the Gaussian model's own."""
    calibrator = LocalizedConformal(alpha, 0.3, score=score, tails=tails)
    X = make_data(5)[0]
    width = gaussian_half_width(alpha)
    predictive = calibrator.predictive(X)
    ends = torch.tensor([-width, width], **DOUBLE)
    probabilities = torch.tensor([alpha / 2, 1 - alpha / 2], **DOUBLE)
    torch.testing.assert_close(calibrator.half_width(X), torch.full((5, 1), width, **DOUBLE))
    torch.testing.assert_close(predictive.cdf(ends), probabilities.expand(5, 2))
    torch.testing.assert_close(predictive.quantile(probabilities), ends.expand(5, 2))
    assert calibrator.num_updates == 0 and "num_updates=0" in repr(calibrator)
    # Tails that follow the normal distribution, in both forms.
    far = torch.tensor([-5.0, -3.0, 3.0, 5.0], **DOUBLE)
    torch.testing.assert_close(predictive.cdf(far), torch.special.ndtr(far).expand(5, 4))


@scores
@pytest.mark.parametrize("max_width", [None, 2.0])
@pytest.mark.parametrize("threshold", [-0.5, 1.5])
def test_width_is_bounded_but_not_the_state(score, max_width, threshold):
    if max_width is not None:
        score = replace(score, max_width=max_width)
    calibrator = OnlineConformal(0.2, score=score)
    state = calibrator.state_dict()
    constants = torch.tensor([threshold], **DOUBLE)
    calibrator.load_state_dict({**state, "tracker.constants": constants})
    X = make_data(3)[0]
    wide = (threshold > 1) == (score.two_sided_level(0.2) > 0.5)
    torch.testing.assert_close(
        calibrator.half_width(X), torch.full((3, 1), score.max_width if wide else 1e-3, **DOUBLE)
    )
    calibrator.update(X[:1], torch.full((1,), 0.0 if wide else 1e6, **DOUBLE))
    moved = (calibrator.tracker.constants - constants).item()
    assert 0.009 < abs(moved) < 0.041 and (moved < 0) == (threshold > 1)


# ------------------------------------------------------------------ updates


NAN, INF = math.nan, math.inf


def test_failed_updates_name_the_argument():
    """That they change nothing is for the contract."""
    calibrator = LocalizedConformal(0.2, 0.3)
    calibrator.update(*make_data())
    two = torch.ones(2, 2)
    for X, z, error, name in (
        (two, torch.tensor([0.5, NAN]), InputDataError, "z"),
        (torch.tensor([[0.1, NAN]]), torch.ones(1), InputDataError, "X"),
        (two, torch.ones(2, 1), BotorchTensorDimensionError, "z"),
        (torch.ones(2), torch.ones(2), BotorchTensorDimensionError, "X"),
        (torch.ones(2, 3), torch.ones(2), BotorchTensorDimensionError, "X"),
    ):
        with pytest.raises(error, match=f"`{name}`"):
            calibrator.update(X.double(), z.double())


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"alpha": 1.0}, "`alpha`"),
        ({"alpha": NAN}, "`alpha`"),
        ({"step_decay": -0.1}, "`step_decay`"),
        ({"tails": "heavy"}, "`tails`"),
        ({"lengthscale": 0.0}, "`lengthscale`"),
        ({"lengthscale": 0.3, "step_size": 0.0}, "`step_size`"),
        ({"lengthscale": 0.3, "scale": -1.0}, "`scale`"),
        ({"lengthscale": 0.3, "regularization": 20.0}, "`regularization"),
        ({"score": RationalScore}, "`score` must be a Score such as"),
        ({"score": None}, "`score`"),
        ({"scale": -1.0}, "`scale` must be a positive number, got -1.0"),
        ({"scale": []}, "`scale` must not be empty"),
        ({"step_size": [0.1, 0.0]}, "`step_size` must be a positive number, got 0.0"),
        ({"lengthscale": [0.3, NAN]}, "`lengthscale` must be a positive number, got nan"),
        ({"lengthscale": torch.tensor([0.1, 0.2])}, "`lengthscale` must be .* got Tensor"),
        ({"scale": torch.tensor(1.0)}, "`scale` must be a number, a list of numbers or None, got"),
        ({"step_size": torch.ones(2).numpy()}, "`step_size` must be .* got ndarray"),
        ({"scale": "auto"}, "`scale` must be .* or None, got 'auto'"),
        ({"lengthscale": None}, "`lengthscale` must be .* or 'auto', got None"),
        ({"lengthscale": {0.1}}, "`lengthscale` must be .*, got set\\.$"),
        ({"lengthscale": INF, "scale": -1.0}, "`scale` must be a finite number of at least 0"),
        ({"regularization": -1.0}, "`regularization` must be a finite number of at least 0"),
        ({"regularization": 0.1}, "`regularization` needs a single tracker: give `lengthscale`"),
    ],
)
def test_errors_name_the_argument_that_was_given(kwargs, match):
    with pytest.raises(InputDataError, match=match):
        LocalizedConformal(**{"alpha": 0.2, **kwargs})


# ------------------------------------------------------------------ long-run coverage


STREAMS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "overconfident": lambda n, g: 3.0 * torch.randn(n, **DOUBLE, generator=g),
    "student": lambda n, g: (
        torch.randn(n, **DOUBLE, generator=g)
        / (torch.randn(n, 3, **DOUBLE, generator=g).square().sum(-1) / 3).sqrt()
    ),
    "underconfident": lambda n, g: 0.3 * torch.randn(n, **DOUBLE, generator=g),
}


@kinds
@scores
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_long_run_miscoverage(make: Make, score: Score, stream):
    alpha, num = 0.2, 800
    # The guarantee needs a wide cap.
    calibrator = make(alpha, score=replace(score, max_width=30.0))
    generator = torch.Generator().manual_seed(17)
    z = stream(num, generator)
    # Misses of the intervals predicted before each residual
    stated = calibrator.update(torch.rand(num, 2, **DOUBLE, generator=generator), z)
    misses = (z.abs() > stated.knots[..., 0, 2]).double()
    noise = 4 * math.sqrt(alpha * (1 - alpha) / num)
    bound = calibrator.tracker.coverage_bound(num).item()
    assert abs(misses.mean().item() - alpha) <= bound + noise
    # The bound is for the worst sequence; the second half of this sequence is far better. The bound
    # for this half allows for moves of the constants, by less than 1 in total.
    late = OnlineQuantileTracker([alpha], 0.05).coverage_bound(num // 2).item()
    assert abs(misses[num // 2 :].mean().item() - alpha) <= late + math.sqrt(2) * noise
    # The coverage of the model without calibration is wrong.
    own = (z.abs() > gaussian_half_width(alpha)).double().mean().item()
    assert abs(own - alpha) > noise
