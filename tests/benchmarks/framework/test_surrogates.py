"""Surrogates: the steps of fits, the parameters that are kept, and the stated errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.calibration.misspecified import misspecified
from benchmarks.framework.surrogates import Fixed, fit_gp, with_data

BOUNDS = torch.tensor([[0.0, 0.0], [2.0, 2.0]], dtype=torch.double)


def data(n: int) -> tuple[Tensor, Tensor]:
    with manual_seed(n):
        X = 2.0 * torch.rand(n, 2, dtype=torch.double)
        return X, 10.0 + 3.0 * torch.sin(2.0 * X).sum(dim=-1, keepdim=True)


def hyperparameters(gp: Any) -> dict[str, float]:
    kernel = gp.covar_module
    return {
        "lengthscale": kernel.base_kernel.lengthscale.item(),
        "outputscale": kernel.outputscale.item(),
        "noise": gp.likelihood.noise.item(),
        "mean": gp.mean_module.constant.item(),
    }


def test_other_data_under_the_same_hyperparameters() -> None:
    gp: Any = fit_gp(*data(8), BOUNDS)
    before, center = hyperparameters(gp), gp.outcome_transform.means.item()
    X, Y = data(12)
    other: Any = with_data(gp, X, Y)
    assert hyperparameters(other) == before
    assert other.outcome_transform.means.item() == center != pytest.approx(Y.mean().item())
    # The dense posterior, in the units of the outcome.
    scale = other.outcome_transform.stdvs.item()
    new = torch.tensor([[0.3, 1.1]], dtype=torch.double)
    with torch.no_grad():
        kernel = other.covar_module(X / 2.0).to_dense() + before["noise"] * torch.eye(12).double()
        cross = other.covar_module(new / 2.0, X / 2.0).to_dense()
        residual = (Y - center) / scale - before["mean"]
        mean = center + scale * (before["mean"] + cross @ torch.linalg.solve(kernel, residual))
        assert torch.allclose(other.posterior(new).mean, mean)


@pytest.mark.parametrize(
    ("case", "lengthscale", "noise"), [("lengthscale", 5.0, 1.0), ("noise", 1.0, 0.1)]
)
def test_fixed_hyperparameters_are_wrong_as_stated(case, lengthscale, noise) -> None:
    problem = misspecified("branin", case)
    assert isinstance(problem.surrogate, Fixed)
    right = hyperparameters(problem.surrogate.template())
    X = problem.initial_design(5, 0)
    Y = problem.build(0).truth(X)
    first = problem.surrogate(X, Y, problem.bounds_tensor(), 0, None)
    later = problem.surrogate(X[:4], Y[:4], problem.bounds_tensor(), 1, first)
    expected = {
        **right,
        "lengthscale": lengthscale * right["lengthscale"],
        "noise": noise * right["noise"],
    }
    for gp in (first, later):
        assert hyperparameters(gp) == pytest.approx(expected)
    # All replicates of a process share the template.
    assert hyperparameters(problem.surrogate.template()) == right
