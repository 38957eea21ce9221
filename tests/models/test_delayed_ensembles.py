"""Pending points of an ensemble: each of its members is conditioned on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, CensoredDelayModel, QuantileRecalibrator
from botorch_calib.models import NoisyEnsemble
from tests.gps import DOUBLE
from tests.models.ensembles import Lines

MEMBERS, LEAST = 3, -2.0
PENDING = torch.tensor([[0.2, 0.7], [0.9, 0.4]], **DOUBLE)
AT = torch.tensor([[0.25, 0.65], [0.5, 0.1], [0.8, 0.8]], **DOUBLE)


def data(num: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num, 2, generator=generator, **DOUBLE)
    return X, torch.sin(5.0 * X).sum(dim=-1, keepdim=True)


def ensemble(noise: Tensor | None = None, dtype: torch.dtype = torch.double, **parts: Any) -> Any:
    """Members of different lengthscales, scales and means."""
    X, Y = (values.to(dtype) for values in data())
    taus = torch.tensor([0.05, 0.5, 2.0], dtype=dtype)
    parts = {"outcome_transform": None, **parts}
    model = EnsembleMapSaasSingleTaskGP(X, Y, noise, num_taus=MEMBERS, taus=taus, **parts)
    factors = torch.tensor([0.3, 0.7, 1.5], dtype=dtype).view(-1, 1, 1)
    model.covar_module.base_kernel.lengthscale = factors.expand(-1, 1, 2)
    model.covar_module.outputscale = torch.tensor([0.5, 1.0, 3.0], dtype=dtype)
    model.mean_module.constant.data = torch.tensor([0.0, 0.4, -0.3], dtype=dtype)
    if noise is None:
        model.likelihood.noise = torch.tensor([[0.01], [0.1], [0.02]], dtype=dtype)
    return model.eval()


def means(model: Any, X: Tensor) -> Tensor:
    """Posterior means of all members."""
    mean: Tensor = model.posterior(X).mean
    return mean


def member_by_hand(
    model: Any, i: int, X: Tensor, Y: Tensor, noise: Tensor, at: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of one member by equation 1 of the paper, in dense algebra."""
    with torch.no_grad():
        joint = torch.cat([X, at]).expand(MEMBERS, -1, -1)
        K = model.covar_module(joint).to_dense()[i]
    n, constant = len(X), model.mean_module.constant[i].item()
    weights = torch.linalg.solve(K[:n, :n] + noise.diag(), K[:n, n:])
    mean = constant + weights.mT @ (Y - constant)
    return mean.squeeze(-1), K[n:, n:] - K[n:, :n] @ weights


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("imputation", ["censor", "hallucinate"])
def test_each_member_is_conditioned_as_alone(imputation: str, known: bool) -> None:
    X, Y = data()
    Yvar = torch.linspace(0.01, 0.05, 7, **DOUBLE).unsqueeze(-1) if known else None
    model = ensemble(Yvar)
    delayed = CensoredDelayModel(model, PENDING, LEAST, imputation)
    posterior: Any = delayed.posterior(AT)
    assert posterior.mean.shape == (MEMBERS, 3, 1)
    for i in range(MEMBERS):
        if Yvar is None:
            noise = model.likelihood.noise[i].expand(9).detach()
        else:
            noise = torch.cat([Yvar.squeeze(-1), Yvar.mean().expand(2)])
        values = torch.full((2, 1), LEAST, **DOUBLE)
        if imputation == "hallucinate":
            values, _ = member_by_hand(model, i, X, Y, noise[:7], PENDING)
            values = values.unsqueeze(-1)
            assert_close(delayed.Y_imputed[i], values, rtol=1e-7, atol=1e-9)
        mean, covariance = member_by_hand(
            model, i, torch.cat([X, PENDING]), torch.cat([Y, values]), noise, AT
        )
        assert_close(posterior.mean[i, :, 0], mean, rtol=1e-6, atol=1e-8)
        own = posterior.mvn.covariance_matrix[i]
        assert_close(own, covariance, rtol=1e-5, atol=1e-7)
    plain = model.posterior(AT)
    if imputation == "hallucinate":
        assert_close(posterior.mean, plain.mean, rtol=1e-6, atol=1e-8)
    else:
        assert (posterior.mean[:, 0] < plain.mean[:, 0]).all()


def test_observations_resolve_pending_points() -> None:
    """In the units of the outcome, under transforms; of equal data equal predictions."""
    bounds = torch.tensor([[0.0, 0.0], [2.0, 1.0]], **DOUBLE)

    def made() -> Any:
        standardize = Standardize(1, batch_shape=torch.Size([MEMBERS]))
        normalize = Normalize(2, bounds=bounds)
        return ensemble(input_transform=normalize, outcome_transform=standardize)

    y = torch.tensor([[0.3]], **DOUBLE)
    delayed = CensoredDelayModel(made(), PENDING, LEAST)
    resolved = delayed.resolve(PENDING[:1], y)
    delayed.observe(PENDING[:1], y)
    again = CensoredDelayModel(made(), None, LEAST).with_observations(PENDING[:1], y)
    expected = again.with_pending(PENDING[1:])
    for model in (resolved, delayed):
        assert torch.equal(model.X_pending, PENDING[1:])
        assert_close(means(model, AT), means(expected, AT), rtol=1e-8, atol=1e-10)
    assert (delayed.Y_imputed == LEAST).all()


def test_calibration_of_an_ensemble_with_pending_points() -> None:
    """The calibrator learns from observed data, and scales predictions given pending points."""
    calibrator = QuantileRecalibrator([0.1, 0.5, 0.9])
    calibrated = CalibratedModel.from_history(ensemble(), calibrator, denoise=False)
    model = CensoredDelayModel(calibrated, PENDING, LEAST)
    levels = [0.05, 0.5, 0.8]
    posterior = model.posterior(AT.unsqueeze(-2))
    stated = [posterior.quantile(level).flatten() for level in levels]
    # The same calibrator around an ensemble that was conditioned member by member.
    conditioned = ensemble()
    conditioned.posterior(AT)
    censored = torch.full((2, 1), LEAST, **DOUBLE)
    rows = [values.expand(MEMBERS, *values.shape) for values in (PENDING, censored)]
    conditioned = conditioned.condition_on_observations(*rows)
    own = CalibratedModel.from_history(ensemble(), calibrator, denoise=False)
    expected = own.with_model(conditioned).posterior(AT.unsqueeze(-2))
    for level, quantile in zip(levels, stated, strict=True):
        assert_close(quantile, expected.quantile(level).flatten(), rtol=1e-7, atol=1e-9)
    model.observe(PENDING[:1], torch.tensor([[0.3]], **DOUBLE))
    assert torch.equal(model.X_pending, PENDING[1:])


def test_values_of_members_without_conditioning_cannot_be_imputed() -> None:
    ensemble = NoisyEnsemble(Lines(), 0.1)
    with pytest.raises(UnsupportedError, match="NoisyEnsemble cannot be conditioned"):
        CensoredDelayModel(ensemble, torch.rand(2, 1).double(), imputation="hallucinate")


def test_ensembles_that_cannot_be_conditioned() -> None:
    with pytest.raises(UnsupportedError, match="NoisyEnsemble cannot be conditioned"):
        CensoredDelayModel(NoisyEnsemble(Lines(), 0.1), PENDING, LEAST)
