"""Density ratios by classification: against known ratios, scikit-learn and finite differences."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import linear_model
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from benchmarks.baselines import ClassifierDensityRatio

DOUBLE: dict[str, Any] = {"dtype": torch.double}


def make_samples(n: int = 40, m: int = 90, d: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X_past = torch.rand(n, d, **DOUBLE, generator=generator)
    return X_past, torch.rand(m, d, **DOUBLE, generator=generator).sqrt()


# ------------------------------------------------------------------ oracles


def gaussian_pair(d: int) -> tuple[MultivariateNormal, MultivariateNormal]:
    """Two distributions that differ in location, spread and correlation."""
    past = MultivariateNormal(torch.zeros(d, **DOUBLE), torch.eye(d, **DOUBLE))
    factor = torch.tensor([[0.8, 0.0], [0.3, 0.7]], **DOUBLE)[:d, :d]
    mean = torch.tensor([0.7, -0.4], **DOUBLE)[:d]
    return past, MultivariateNormal(mean, scale_tril=factor)


@pytest.mark.parametrize(("d", "n", "m"), [(1, 4000, 4000), (2, 1500, 6000)])
def test_known_ratio(d, n, m):
    """The truth is quadratic, so the error is sampling error alone: within 4 standard errors.

    With class weights ``s`` the estimate is asymptotically normal with the covariance
    ``H^-1 V H^-1``, ``H = sum s q (1 - q) f f'`` and ``V = sum s^2 q (1 - q) f f'`` at the true
    odds ``q`` (for fixed class sizes the variance of the constant is even smaller).
    """
    past, proposal = gaussian_pair(d)
    torch.manual_seed(d)
    X_past, X_proposal = past.sample((n,)), proposal.sample((m,))
    ratio = ClassifierDensityRatio(X_past, X_proposal, penalty=1e-6)
    points = past.sample((200,))
    truth = proposal.log_prob(points) - past.log_prob(points)

    def features(X: Tensor) -> Tensor:
        products = [X[:, i] * X[:, j] for i in range(d) for j in range(i, d)]
        return torch.stack([torch.ones_like(X[:, 0]), *X.unbind(-1), *products], dim=-1)

    X = torch.cat([X_past, X_proposal])
    s = torch.cat([torch.full((size,), min(n, m) / size, **DOUBLE) for size in (n, m)])
    q = (proposal.log_prob(X) - past.log_prob(X)).sigmoid()
    f = features(X)
    H = (f.mT * (s * q * (1 - q))) @ f
    # Squares of the residuals, whose mean is q (1 - q) where classes have equal sizes.
    labels = torch.cat([torch.zeros(n, **DOUBLE), torch.ones(m, **DOUBLE)])
    V = (f.mT * (s * (labels - q)).square()) @ f
    inverse = torch.linalg.inv(H)
    error = (features(points) @ (inverse @ V @ inverse) * features(points)).sum(-1).sqrt()
    inside = truth.abs() < 4.0  # well within the clipped range
    assert inside.sum() > 150
    assert ((ratio.log_ratio(points) - truth).abs()[inside] <= 4 * error[inside]).all()
    assert error[inside].median() < 0.1


@pytest.mark.parametrize(
    ("n", "m", "d", "penalty"), [(40, 90, 2, 0.1), (6, 256, 3, 1.0), (30, 5, 1, 0.1)]
)
def test_against_scikit_learn(n, m, d, penalty):
    """The same features, class weights and penalty, put together in another way."""
    X_past, X_proposal = make_samples(n, m, d)
    weights = np.repeat([min(n, m) / n, min(n, m) / m], [n, m])

    def standardized(values: np.ndarray, fitted: np.ndarray) -> np.ndarray:
        mean = np.average(fitted, axis=0, weights=weights)
        return (values - mean) / np.sqrt(np.average((fitted - mean) ** 2, axis=0, weights=weights))

    def products(u: np.ndarray) -> np.ndarray:
        pairs = [u[:, i] * u[:, j] for i in range(d) for j in range(i, d)]
        return np.column_stack([u, *pairs])

    train = torch.cat([X_past, X_proposal]).numpy()
    points = 1.5 * torch.rand(50, d, **DOUBLE, generator=torch.Generator().manual_seed(5))
    u_train, u_new = standardized(train, train), standardized(points.numpy(), train)
    f_train, f_new = (standardized(products(u), products(u_train)) for u in (u_train, u_new))
    model = linear_model.LogisticRegression(
        C=1 / penalty, solver="newton-cholesky", tol=1e-12, max_iter=1000
    )
    model.fit(f_train, np.repeat([0, 1], [n, m]), sample_weight=weights)
    expected = torch.from_numpy(model.decision_function(f_new))
    ratio = ClassifierDensityRatio(X_past, X_proposal, penalty=penalty, max_ratio=1e30)
    assert_close(ratio.log_ratio(points), expected, rtol=1e-6, atol=1e-6)


def test_gradient_and_shapes():
    ratio = ClassifierDensityRatio(*make_samples())
    X = torch.rand(2, 3, 4, 2, **DOUBLE, generator=torch.Generator().manual_seed(1))
    assert ratio(X).shape == ratio.log_ratio(X).shape == (2, 3, 4)
    assert_close(ratio(X).log(), ratio.log_ratio(X))
    assert_close(ratio(X)[1, 2, 3], ratio(X[1, 2, 3]))
    assert torch.autograd.gradcheck(ratio, X[0, 0].requires_grad_())


# ------------------------------------------------------------------ behaviour


@pytest.mark.parametrize("penalty", [1e-8, 1.0])
def test_separated_samples(penalty):
    """Classes that can be separated: the fit converges and the ratio stays in its range."""
    X_past, X_proposal = make_samples(20, 60)
    ratio = ClassifierDensityRatio(X_past, X_proposal + 3.0, penalty=penalty, max_ratio=20.0)
    far = torch.tensor([[-50.0, -50.0], [0.5, 0.5], [3.5, 3.5], [50.0, 50.0]], **DOUBLE)
    values = ratio(far)
    assert values.isfinite().all()
    assert (values >= 0.05 - 1e-12).all() and (values <= 20.0 + 1e-9).all()
    assert values[1] < 0.1 and values[2] > 10.0
