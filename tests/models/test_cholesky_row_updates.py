"""Rows added to a Cholesky factor, against factors of the whole matrix and GPyTorch's update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.models.conditioning import conditioned_on, given_noise
from tests.models.delayed_cases import DOUBLE, Setting

settings = pytest.mark.parametrize(
    "setting",
    [Setting(), Setting(fixed_noise=True, transforms=True)],
    ids=["plain", "fixed noise, transforms"],
)


def covariance(gp: Any) -> Tensor:
    """Prior covariance of a model's observations, noise included, as a dense matrix."""
    prior = gp.forward(*gp.train_inputs)
    matrix: Tensor = gp.likelihood(prior, gp.train_inputs).covariance_matrix.detach()
    return matrix


@settings
def test_factor_and_weights(setting):
    """After one and after several updates they agree with the whole covariance matrix."""
    gp = setting.gp()
    for num, seed in ((1, 8), (4, 9), (20, 10)):
        X = setting.pending(num, seed)
        Y = setting.values(X) + 1.0
        with torch.no_grad():
            gp = conditioned_on(gp, X, Y, **given_noise(gp, X, Y, None))
        strategy, K = gp.prediction_strategy, covariance(gp)
        root = strategy.lik_train_train_covar.root_decomposition().root.to_dense()
        assert_close(root @ root.mT, K, rtol=0, atol=1e-12)
        assert (root.triu(1) == 0).all()
        deviation = gp.train_targets - gp.mean_module(gp.train_inputs[0]).detach()
        weights = torch.linalg.solve(K, deviation)
        assert_close(strategy.mean_cache, weights, rtol=0, atol=1e-9 * weights.abs().max().item())
    assert gp.train_targets.shape == (setting.num + 25,)


def test_single_precision():
    """Rounding errors are as large as in a new model."""
    setting = Setting(num=60, noise=1e-3)
    X, X_new = setting.pending(10), setting.points(30, seed=21)
    Y = torch.full((10, 1), -2.5, **DOUBLE)
    exact, _ = setting.dense(X_new, X, Y)
    single = replace(setting, dtype=torch.float32)
    with torch.no_grad():
        updated = conditioned_on(single.gp(), X.float(), Y.float())
        anew = single.gp()
        anew.set_train_data(
            torch.cat([anew.train_inputs[0], X.float()]),
            torch.cat([anew.train_targets, Y.flatten().float()]),
            strict=False,
        )
        errors = [
            abs(model.posterior(X_new.float()).mean.squeeze(-1).double().numpy() - exact).max()
            for model in (updated, anew)
        ]
    assert errors[0] < 5 * errors[1] < 0.05


def test_gradients_and_batches_are_left_to_gpytorch():
    setting = Setting()
    gp, X = setting.gp(), setting.pending(3).requires_grad_()
    Y = setting.values(X.detach())
    mean = conditioned_on(gp, X, Y).posterior(setting.points(2, seed=21)).mean
    (gradient,) = torch.autograd.grad(mean.sum(), X)
    assert gradient.isfinite().all() and (gradient != 0).any()
    with torch.no_grad():
        batch = conditioned_on(gp, X.expand(2, 3, 2), torch.stack([Y, -Y]))
        assert batch.batch_shape == (2,)
        X_new = setting.points(5, seed=21)
        for index, values in enumerate((Y, -Y)):
            single = conditioned_on(gp, X, values).posterior(X_new).mean
            assert_close(batch.posterior(X_new).mean[index], single, rtol=0, atol=1e-9)


@pytest.mark.parametrize("num", [1, 2])
def test_a_model_of_hardly_any_data(num):
    setting = Setting(num=14)
    X, Y, Yvar = setting.data()
    gp = setting.gp()
    gp.set_train_data(X[:num], Y[:num].flatten(), strict=False)
    with torch.no_grad():
        result = conditioned_on(gp, X[num:], Y[num:])
        X_new = setting.points(9, seed=21)
        expected = setting.gp().posterior(X_new)
        assert_close(result.posterior(X_new).mean, expected.mean, rtol=0, atol=1e-9)
        assert_close(result.posterior(X_new).variance, expected.variance, rtol=0, atol=1e-9)
