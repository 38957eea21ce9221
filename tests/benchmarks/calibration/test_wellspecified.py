"""Paths of the prior: their distribution, their maxima, and the true model."""

from __future__ import annotations

import pytest
import torch
from botorch.utils.sampling import manual_seed

from benchmarks.calibration import wellspecified
from benchmarks.calibration.wellspecified import LENGTHSCALES, PriorPath, TrueGP


@pytest.fixture(autouse=True)
def few_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covariances and maxima do not depend on the number of features."""
    monkeypatch.setattr(wellspecified, "NUM_FEATURES", 128)
    monkeypatch.setattr(wellspecified, "_oracle", wellspecified._oracle.__wrapped__)


@pytest.mark.parametrize("dim", LENGTHSCALES)
def test_maxima_by_denser_search(dim) -> None:
    oracle = PriorPath(dim)(1)
    assert oracle.optimal_value is not None
    with manual_seed(1):
        X = torch.rand(8192, dim, dtype=torch.double)
    f = oracle.truth(X).squeeze(-1)
    best = X[f.topk(32).indices]
    for step in range(30):
        # Random search with decreasing steps, without gradients or shared code.
        radius = 0.1 * 0.8**step
        near = best.unsqueeze(0) + radius * (2 * torch.rand(16, 32, dim).double() - 1)
        near = torch.cat([best.unsqueeze(0), near.clamp(0.0, 1.0)])
        values = oracle.truth(near.reshape(-1, dim)).reshape(-1, 32)
        best = near[values.argmax(dim=0), torch.arange(32)]
    found = oracle.truth(best).max().item()
    assert found <= oracle.optimal_value + 1e-9
    assert found == pytest.approx(oracle.optimal_value, abs=1e-4)


def test_paths_have_the_covariance_of_the_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wellspecified, "maximum", lambda path, dim: 0.0)
    X = torch.tensor([[0.2, 0.3], [0.4, 0.3], [0.9, 0.8]], dtype=torch.double)
    num = 100
    paths = torch.stack([PriorPath(2)(seed).truth(X).squeeze(-1) for seed in range(num)])
    with torch.no_grad():
        expected = TrueGP(2)().covar_module(X).to_dense()
    # Four standard errors. The variance of a product of two standard normals is at most 2.
    tol = 4 * (2 / num) ** 0.5
    assert (paths.T @ paths / num - expected).abs().max() < tol
    assert paths.mean(dim=0).abs().max() < 4 / num**0.5
