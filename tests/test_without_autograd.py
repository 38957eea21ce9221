"""Calls within ``torch.no_grad``: searches work, and results can be differentiated later.

``inference_mode`` is not supported, as in BoTorch: later graphs refuse its tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedUpperConfidenceBound,
    CensoredDelayModel,
    ChanceConstraint,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    QuantileRecalibrator,
    TotalVariationBall,
    WassersteinBall,
    WassersteinUpperConfidenceBound,
    optimize_chance_constrained,
    optimize_robust,
)
from botorch_calib.acquisition import RobustAcquisition
from botorch_calib.calibration import Calibrator
from botorch_calib.robust import AmbiguitySet
from tests.gps import make_gp

CALIBRATORS: list[Calibrator] = [
    LocalizedConformal(0.2, lengthscale=0.3, regularization=0.1),
    LocalizedConformal(0.2),
    QuantileRecalibrator(),
    QuantileRecalibrator([0.5, 0.9], lengthscale=0.3),
]


def points(num: int, width: int = 2) -> Tensor:
    return torch.rand(
        num, 1, width, dtype=torch.double, generator=torch.Generator().manual_seed(width)
    )


def value_and_gradient(acqf: Callable[[Tensor], Tensor], X: Tensor) -> tuple[Tensor, Tensor]:
    X = X.clone().requires_grad_()
    values = acqf(X)
    (gradient,) = torch.autograd.grad(values.sum(), X)
    return values.detach(), gradient


def pending(gp: Any) -> CensoredDelayModel:
    return CensoredDelayModel(gp, points(3).squeeze(1), censor_value=-2.0)


def calibrated() -> CalibratedModel:
    return CalibratedModel.from_history(make_gp(), CALIBRATORS[0])


def contexts() -> Tensor:
    return points(4, 1).squeeze(1)


def robust(ambiguity: AmbiguitySet) -> RobustAcquisition:
    return RobustAcquisition(CalibratedUpperConfidenceBound(calibrated()), ambiguity, contexts())


ACQUISITIONS: dict[str, tuple[int, Callable[[], Any]]] = {
    "improvement": (2, lambda: LogCalibratedExpectedImprovement(calibrated(), best_f=0.5)),
    "bound": (2, lambda: CalibratedUpperConfidenceBound(calibrated(), level=0.8)),
    "pending": (2, lambda: LogCalibratedExpectedImprovement(pending(calibrated()), best_f=0.5)),
    "delayed": (2, lambda: DelayedUpperConfidenceBound(pending(make_gp()), beta=2.0)),
    "draw": (2, lambda: DelayedThompsonSampling(pending(make_gp()))),
    "calibrated draw": (2, lambda: DelayedThompsonSampling(pending(calibrated()))),
    "margin": (2, lambda: ChanceConstraint.from_history(make_gp(), upper=0.8).margin),
    "wasserstein": (1, lambda: WassersteinUpperConfidenceBound(make_gp(), 2.0, 0.1, contexts())),
    "robust": (1, lambda: robust(TotalVariationBall(0.2))),
    "lipschitz": (1, lambda: robust(WassersteinBall(0.2, "lipschitz"))),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_a_first_evaluation_spoils_no_later_gradient(name: str) -> None:
    width, make = ACQUISITIONS[name]
    X = points(4, width)
    expected, slope = value_and_gradient(make(), X)
    acqf = make()
    with torch.no_grad():
        assert_close(acqf(X.clone()), expected)
    values, gradient = value_and_gradient(acqf, X)
    assert_close(values, expected)
    assert_close(gradient, slope)


@pytest.mark.parametrize("make", [make_gp, calibrated])
@pytest.mark.parametrize("kind", [DelayedThompsonSampling, DelayedUpperConfidenceBound])
def test_what_is_made_can_be_differentiated_later(make: Any, kind: Any) -> None:
    """Objects with pending points of the model, and with further pending points."""

    def made(mode: Any) -> Any:
        model = pending(make())
        with mode():
            acqf = kind(model, beta=2.0)
            acqf.set_X_pending(points(5).squeeze(1)[3:])
        return acqf

    X = points(4)
    expected = value_and_gradient(made(torch.enable_grad), X)
    for found, wanted in zip(value_and_gradient(made(torch.no_grad), X), expected, strict=True):
        assert_close(found, wanted)


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: type(c).__name__)
def test_what_is_learned_can_be_differentiated_later(calibrator: Calibrator) -> None:
    """Data are made, replayed and observed within ``no_grad``."""

    def learned(mode: Any) -> CalibratedModel:
        gp = make_gp()
        with mode():
            model = CalibratedModel.from_history(gp, calibrator)
            X = points(3).squeeze(1)
            model.observe(X, X.sum(dim=-1, keepdim=True))
        return model

    X = points(4)
    expected = value_and_gradient(CalibratedUpperConfidenceBound(learned(torch.enable_grad)), X)
    acqf = CalibratedUpperConfidenceBound(learned(torch.no_grad))
    for found, wanted in zip(value_and_gradient(acqf, X), expected, strict=True):
        assert_close(found, wanted)


def test_constraints_and_pending_points_learn() -> None:
    constraint = ChanceConstraint.from_history(make_gp(), upper=100.0)
    delayed = pending(make_gp())
    with torch.no_grad():
        X = points(3).squeeze(1)
        constraint.observe(X, X.sum(dim=-1, keepdim=True))
        delayed.observe(X[:1], X[:1, :1])
    for function in (constraint.margin, DelayedUpperConfidenceBound(delayed, beta=2.0)):
        _, gradient = value_and_gradient(function, points(4))
        assert gradient.isfinite().all() and gradient.abs().sum() > 0


def search(constrained: bool, bounds: Tensor, acqf: AcquisitionFunction, limit: Any) -> Tensor:
    torch.manual_seed(0)
    if constrained:
        return optimize_chance_constrained(acqf, limit, bounds, num_restarts=2, raw_samples=64)[0]
    return optimize_robust(acqf, bounds, num_restarts=2, raw_samples=32)[0]


@pytest.mark.parametrize("constrained", [False, True])
def test_searches_climb(constrained: bool) -> None:
    """Results are as without ``no_grad``, up to the tolerance, also with bounds made within it."""
    width, make = ACQUISITIONS["improvement" if constrained else "wasserstein"]
    corner = [[0.0] * width, [1.0] * width]
    acqf, limit = make(), ChanceConstraint.from_history(make_gp(), upper=0.8)
    expected = search(constrained, torch.tensor(corner).double(), acqf, limit)
    with torch.no_grad():
        found = search(constrained, torch.tensor(corner).double(), acqf, limit)
    assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert not found.requires_grad
    # Without gradients the search would have stopped at one of its samples.
    again = search(constrained, torch.tensor(corner).double(), acqf, limit)
    assert_close(again, expected, rtol=1e-3, atol=1e-3)
