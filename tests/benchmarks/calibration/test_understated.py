"""Reported errors that are too small, and each remedy, by other computations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.calibration.remedies import LeaveOneOutScaled, RelevancePursuit
from benchmarks.calibration.understated import understated
from botorch_calib.models import loo_residuals

PROBLEM = understated("branin")
BOUNDS = PROBLEM.bounds_tensor()
REPORTED: Any = PROBLEM.surrogate


def data(n: int) -> tuple[Tensor, Tensor]:
    with manual_seed(n):
        X = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(n, 2, dtype=torch.double)
        return X, PROBLEM.build(0).observe(X)


def predicted(gp: SingleTaskGP, X: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        posterior = gp.posterior(X)
    return posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)


def by_hand(X: Tensor, Y: Tensor, variances: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """The posterior of the template's prior by dense algebra."""
    gp: Any = REPORTED.template()
    shift, scale = gp.outcome_transform.means.squeeze(), gp.outcome_transform.stdvs.squeeze()
    U, V = ((points - BOUNDS[0]) / (BOUNDS[1] - BOUNDS[0]) for points in (X, at))
    with torch.no_grad():
        constant = gp.mean_module.constant
        K = gp.covar_module(U).to_dense() + torch.diag(variances.squeeze(-1) / scale**2)
        k = gp.covar_module(V, U).to_dense()
        prior = gp.covar_module(V).diagonal(dim1=-2, dim2=-1)
    residual = (Y.squeeze(-1) - shift) / scale - constant
    mean = constant + k @ torch.linalg.solve(K, residual)
    variance = prior - (k * torch.linalg.solve(K, k.T).T).sum(dim=-1)
    return shift + scale * mean, scale**2 * variance


def test_leave_one_out_scales_all_variances() -> None:
    X, Y = data(40)
    at, _ = data(7)
    plain = REPORTED(X, Y, BOUNDS, 0, None)
    surrogate = LeaveOneOutScaled(REPORTED)
    scaled = surrogate(X, Y, BOUNDS, 0, None)
    factor = loo_residuals(plain).square().mean()
    assert factor > 2.0
    torch.testing.assert_close(predicted(scaled, at)[0], predicted(plain, at)[0])
    torch.testing.assert_close(predicted(scaled, at)[1], factor * predicted(plain, at)[1])
    assert loo_residuals(scaled).square().mean().item() == pytest.approx(1.0)
    # The added variance does not accumulate over steps.
    again = surrogate(X, Y, BOUNDS, 1, scaled)
    torch.testing.assert_close(predicted(again, at)[1], predicted(scaled, at)[1])


@pytest.mark.slow
def test_relevance_pursuit_gives_outliers_variance_of_their_own() -> None:
    X, _ = data(12)
    Y = PROBLEM.build(0).truth(X)
    Y[7] += 20 * REPORTED.variances(X)[0, 0].sqrt()
    surrogate = RelevancePursuit(REPORTED, every=5)
    variances = REPORTED.variances(X)
    added = surrogate.added(X, Y, variances)
    assert added.argmax().item() == 7
    assert added[7] > 50 * variances[7]
    assert added.ge(0.0).all()
    gp: Any = surrogate(X, Y, BOUNDS, 0, None)
    at, _ = data(4)
    for value, reference in zip(
        predicted(gp, at), by_hand(X, Y, variances + added, at), strict=True
    ):
        torch.testing.assert_close(value, reference)
    # Until the next fit, a new outcome has its reported variance, and others keep their variances.
    new, outcome = data(1)
    next_gp: Any = surrogate(torch.cat([X, new]), torch.cat([Y, outcome]), BOUNDS, 1, gp)
    noise = next_gp.likelihood.noise
    torch.testing.assert_close(noise[:-1], gp.likelihood.noise)
    unit = REPORTED.template().outcome_transform.stdvs.item() ** 2
    assert noise[-1].item() * unit == pytest.approx(REPORTED.variances(new).item())
