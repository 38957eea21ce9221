"""The RBF surrogate: fits find maxima of the posterior density."""

from __future__ import annotations

import pytest
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.framework.rbf_surrogate import fit_rbf_gp, hyperparameters


def test_fit_finds_a_maximum() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(25, 2, dtype=torch.double, generator=generator) * 4 - 2
    Y = 5 + torch.sin(3 * X).sum(dim=-1, keepdim=True)
    Y = Y + 0.1 * torch.randn(25, 1, dtype=torch.double, generator=generator)
    bounds = torch.tensor([[-2.0, -2.0], [2.0, 2.0]], dtype=torch.double)
    gp = fit_rbf_gp(X, Y, bounds)
    assert not any(p.requires_grad for p in gp.parameters())
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp.train())
    parameters = [p.requires_grad_() for p in gp.parameters()]
    log_density = mll(gp(*gp.train_inputs), gp.train_targets) * len(Y)
    slopes = torch.autograd.grad(log_density, parameters)
    # Logarithms of positive parameters, and the mean in standard deviations
    for p, slope in zip(parameters, slopes, strict=True):
        assert (slope * p.abs().clamp(max=1.0)).abs().max() < 0.02
    # A fit that starts from the optimum stays there, with or without a second start.
    again = hyperparameters(fit_rbf_gp(X, Y, bounds, previous=gp))
    for own, other in zip(again, hyperparameters(gp), strict=True):
        assert own.tolist() == pytest.approx(other.tolist(), rel=0.01, abs=0.01)
