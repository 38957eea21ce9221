"""Acquisition functions on the same problem in several units of the outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    ProbabilityOfImprovement,
    UpperConfidenceBound,
)
from botorch.acquisition.objective import LinearMCObjective, ScalarizedPosteriorTransform
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.kernels import RQKernel, ScaleKernel
from torch import Tensor

from botorch_calib import (
    CalibratedModel,
    ContextDistribution,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LocalizedConformal,
    RobustUpperConfidenceBound,
    TotalVariationBall,
    optimize_robust,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.acquisition import RobustAcquisition

# Unit and tolerance by precision. GPyTorch raises standard deviations to 1e-5 or 1e-3, far above
# deviations of outcomes in the small units. Powers of two avoid rounding.
SMALL = [(torch.double, 2.0**-24, 1e-9), (torch.float, 2.0**-14, 1e-3)]
UNITS = [*SMALL, (torch.double, 2.0**24, 1e-9)]


def data(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Training inputs, outcomes, and points for evaluation, which include training inputs."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(15, 3, generator=generator, dtype=dtype)
    others = torch.rand(3, 3, generator=generator, dtype=dtype)
    return X, (5 * X).sin().prod(dim=-1, keepdim=True), torch.cat([X[:3], others]).unsqueeze(-2)


def delayed(model: Any, X: Tensor, unit: float, **settings: Any) -> Any:
    return DelayedUpperConfidenceBound(
        model, 4.0, X_window=0.9 * X[:2], feedback_bound=1.0 / unit, **settings
    )


def robust(model: Any, X: Tensor, unit: float, **settings: Any) -> Any:
    contexts = ContextDistribution.empirical(X[:6, 2:])
    return RobustUpperConfidenceBound(model, 2.25, TotalVariationBall(0.2), contexts, **settings)


def halved(model: Any, X: Tensor, unit: float) -> Any:
    transform = ScalarizedPosteriorTransform(X.new_tensor([-0.5]))
    return delayed(model, X, unit, posterior_transform=transform)


def halved_robust(model: Any, X: Tensor, unit: float) -> Any:
    transform = ScalarizedPosteriorTransform(X.new_tensor([-0.5]))
    return robust(model, X, unit, posterior_transform=transform)


@pytest.mark.parametrize(
    ("make", "kernel", "calibrated"),  # with a closed form and without
    [
        (delayed, None, False),
        (halved, None, True),
        (robust, None, False),
        (robust, RQKernel, True),
        (halved_robust, None, True),
        (halved_robust, RQKernel, False),
    ],
)
@pytest.mark.parametrize(("dtype", "unit", "tolerance"), UNITS)
def test_bounds_do_not_depend_on_the_unit(
    make: Callable[..., Any],
    kernel: Any,
    calibrated: bool,
    dtype: torch.dtype,
    unit: float,
    tolerance: float,
) -> None:
    X, Y, at = data(dtype)

    def values(unit: float) -> Tensor:
        covariance = None if kernel is None else ScaleKernel(kernel())
        gp: Any = SingleTaskGP(
            X, unit * Y, covar_module=covariance, outcome_transform=Standardize(1)
        )
        model = CalibratedModel.from_history(gp, LocalizedConformal(0.2)) if calibrated else gp
        decisions = at[..., :2] if make in (robust, halved_robust) else at
        return (make(model, X, unit)(decisions) / unit).detach()

    torch.testing.assert_close(values(unit), values(1.0), rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:A not p.d.")
@pytest.mark.parametrize("denoise", [False, True])
@pytest.mark.parametrize(("dtype", "unit", "tolerance"), UNITS)
def test_samples_do_not_depend_on_the_unit(
    dtype: torch.dtype, unit: float, tolerance: float, denoise: bool
) -> None:
    """Of points so close that jitter is needed, which GPyTorch adds in whatever units."""
    X, Y, _ = data(dtype)
    close = X[:1] + torch.linspace(0, 0.1, 40, dtype=dtype).unsqueeze(-1)

    def values(unit: float) -> tuple[Tensor, ...]:
        gp: Any = SingleTaskGP(X, unit * Y, outcome_transform=Standardize(1))
        gp.covar_module.lengthscale = 0.5
        model = CalibratedModel.from_history(gp, LocalizedConformal(0.2), denoise=denoise)
        posterior = model.posterior(close)
        generator = torch.Generator().manual_seed(1)
        shape = (3, *posterior.base_sample_shape)
        draws = torch.randn(shape, generator=generator, dtype=dtype)
        drawn = DelayedThompsonSampling(model, choices=close)(close.unsqueeze(-2))
        # Temperatures of the smoothed maximum do not scale with the units of the outcome.
        noisy = qLogCalibratedNoisyExpectedImprovement(
            model,
            X_baseline=close[::2],
            objective=LinearMCObjective(torch.tensor([1.0 / unit], dtype=dtype)),
            prune_baseline=False,
            sampler=SobolQMCNormalSampler(torch.Size([8]), seed=0),
        )
        with torch.no_grad():
            samples = posterior.rsample_from_base_samples(torch.Size([3]), draws)
            return samples / unit, drawn / unit, noisy(close[1:4].unsqueeze(-2))

    for found, expected in zip(values(unit), values(1.0), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "make", [UpperConfidenceBound, LogExpectedImprovement, ProbabilityOfImprovement]
)
def test_the_robust_search_climbs_any_function(make: Any) -> None:
    """Values are not always in units of the outcome: logarithms and probabilities have none."""
    X, Y, _ = data(torch.double)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    contexts = ContextDistribution.empirical(X[:6, 2:])

    def found(unit: float) -> Tensor:
        gp: Any = SingleTaskGP(X, unit * Y, outcome_transform=Standardize(1))
        gp.covar_module.lengthscale = 0.3
        single = make(gp, 2.25 if make is UpperConfidenceBound else 0.3 * unit)
        acqf = RobustAcquisition(single, TotalVariationBall(0.2), contexts)
        torch.manual_seed(0)
        point, value = optimize_robust(acqf, bounds, num_restarts=2, raw_samples=4)
        torch.testing.assert_close(value, acqf(point.unsqueeze(0)).squeeze())
        return point

    expected = found(1.0)
    for unit in (2.0**-10, 2.0**24):
        torch.testing.assert_close(found(unit), expected, rtol=0, atol=1e-3)
