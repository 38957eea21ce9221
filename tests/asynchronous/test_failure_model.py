"""The model of failures against dense algebra, and its use by the search."""

import math

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.models import SingleTaskGP
from scipy.stats import multivariate_normal, norm
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.asynchronous.failed_queries import (
    LENGTHSCALES,
    NOISE,
    Feasibility,
    FeasibleAcquisition,
)
from botorch_calib.models.wrapper import standardized_gp
from tests.gps import DOUBLE

BOUNDS = torch.tensor([[-1.0, 10.0], [1.0, 40.0]], **DOUBLE)


def points(num: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(num, 2, generator=generator, **DOUBLE)
    return BOUNDS[0] + unit * (BOUNDS[1] - BOUNDS[0])


def feasibility_of(X: Tensor, X_failed: Tensor) -> Feasibility:
    failed = torch.arange(len(X) + len(X_failed)) >= len(X)
    return Feasibility(torch.cat([X, X_failed]), failed, BOUNDS, cost=float(len(X_failed)))


def correlation(first: Tensor, second: Tensor, lengthscale: float) -> float:
    r = math.sqrt(5.0) * math.dist(first.tolist(), second.tolist()) / lengthscale
    return (1.0 + r + r**2 / 3.0) * math.exp(-r)


@pytest.mark.parametrize("num_failed", [1, 4])
def test_prediction_beside_the_formula(num_failed: int) -> None:
    """Each lengthscale with the variance that suits it best, by SciPy's density."""
    X, X_failed, at = points(9, 1), points(num_failed, 2), points(5, 3)
    unit = [(each - BOUNDS[0]) / (BOUNDS[1] - BOUNDS[0]) for each in (X, X_failed, at)]
    data, residuals = torch.cat(unit[:2]), torch.tensor([0.0] * 9 + [-1.0] * num_failed, **DOUBLE)
    best, predicted = -math.inf, torch.empty(0)
    for factor in LENGTHSCALES:
        lengthscale = factor * math.sqrt(2.0)
        K = torch.tensor([[correlation(a, b, lengthscale) for b in data] for a in data], **DOUBLE)
        k = torch.tensor(
            [[correlation(a, b, lengthscale) for b in data] for a in unit[2]], **DOUBLE
        )
        K = K + NOISE * torch.eye(len(K), **DOUBLE)
        weights = torch.linalg.solve(K, residuals)
        likelihood = max(
            multivariate_normal(cov=(scale * K).numpy()).logpdf(residuals.numpy())
            for scale in float(residuals @ weights) / len(K) * torch.tensor([0.99, 1.0, 1.01])
        )
        if likelihood > best:
            best, predicted = likelihood, 1.0 + k.to(weights) @ weights
    model = feasibility_of(X, X_failed)
    assert_close(model.predict(at), predicted, rtol=1e-7, atol=1e-9)
    assert_close(model.predict(at.reshape(5, 1, 2)), predicted.unsqueeze(-1), rtol=1e-7, atol=1e-9)
    expected = norm.cdf((predicted.numpy() - model.threshold) / 0.1)
    assert_close(model.score(at), torch.from_numpy(expected), rtol=1e-6, atol=1e-12)


def test_what_nobody_has_tried_succeeds() -> None:
    corner, far = BOUNDS[:1], BOUNDS[1:]
    model = feasibility_of(corner + 0.01, corner)  # neighbours: a short lengthscale
    assert_close(model.predict(far), torch.ones(1, **DOUBLE), rtol=0.0, atol=1e-2)


def test_the_safest_point_is_at_no_border() -> None:
    """A value beside a failure vouches for its neighbours, but none of these is the choice."""
    X, X_failed = torch.tensor([[0.0, 25.0], [-0.08, 25.0]], **DOUBLE), points(1, 5)
    X_failed[:] = torch.tensor([0.2, 25.0])
    model = feasibility_of(X, X_failed)
    # In widths of the box the border is 0.1414 wide; these are at 0.14, 0.14, 0.145 and 0.15.
    at = torch.tensor([[-0.08, 25.0], [0.2, 29.2], [0.2, 29.35], [0.2, 29.5]], **DOUBLE)
    predicted = model.predict(at)
    assert predicted[0] > predicted[3] > predicted[2] > predicted[1]
    assert torch.equal(model.safest(at), at[3]) and torch.equal(model.safest(at[:3]), at[2])
    assert torch.equal(model.safest(at[:2]), at[0])


def test_many_failures_at_one_point() -> None:
    """Repeated points do not make the covariance matrix singular."""
    x = points(1, 1)
    model = feasibility_of(points(4, 2), x.expand(50, -1))
    assert model.predict(x).item() == pytest.approx(0.0, abs=1e-2)


@pytest.mark.parametrize("level", [1e6, 1e9])
def test_a_fixed_feature_far_outside_of_the_box(level: float) -> None:
    """Only differences matter, also for so many points that PyTorch uses matrix products."""
    X, X_failed, at = points(60, 1), points(9, 2), points(40, 3)
    models = []
    for each in (0.0, level):
        X[:, 1] = X_failed[:, 1] = at[:, 1] = each
        models.append(feasibility_of(X, X_failed).predict(at))
    assert_close(*models, rtol=0.0, atol=1e-9)


class Given(AcquisitionFunction):
    """The first coordinate."""

    def forward(self, X: Tensor) -> Tensor:
        return X[..., 0, 0]


def test_a_failure_is_worth_a_poor_value() -> None:
    model, (X, X_failed) = standardized_gp_of(6), (points(6, 4), points(2, 5))
    feasibility = feasibility_of(X, X_failed)
    acqf = FeasibleAcquisition(Given(model), model, feasibility, poor=-0.5)
    for x in torch.cat([X, X_failed, torch.tensor([[-0.9, 20.0]], **DOUBLE)]):
        a, score = x[0].item(), feasibility.score(x.unsqueeze(0)).item()
        expected = -0.5 + score * (a + 0.5) if a > -0.5 else a
        assert acqf(x.reshape(1, 1, 2)).item() == pytest.approx(expected, rel=1e-12)
    assert acqf(points(6, 7).reshape(3, 2, 1, 2)[:, 0]).shape == (3,)


def standardized_gp_of(num: int, dtype: torch.dtype = torch.double) -> SingleTaskGP:
    X = points(num, 4).to(dtype)
    return standardized_gp(train_X=X, train_Y=X.sum(dim=-1, keepdim=True)).eval()


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_gradients_and_precision(dtype: torch.dtype) -> None:
    model = standardized_gp_of(6, dtype)
    feasibility = feasibility_of(points(6, 4), points(2, 5))
    acqf = FeasibleAcquisition(UpperConfidenceBound(model, 4.0), model, feasibility, poor=20.0)
    x = points(3, 8).unsqueeze(-2).to(dtype).requires_grad_()
    values = acqf(x)
    assert values.dtype == dtype and values.isfinite().all()
    if dtype == torch.double:
        torch.autograd.gradcheck(acqf, x, atol=1e-4)
