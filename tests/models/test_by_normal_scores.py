"""Calibrated models of any predictive distribution: predictions, learning, replays and errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.model import Model
from botorch.posteriors import TorchPosterior
from botorch_community.models.vblls import VBLLModel
from torch import Size, Tensor
from torch.distributions import StudentT
from torch.nn import Linear, Module
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedPosterior,
    CalibratedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
    QuantileRecalibrator,
    calibration_report,
)
from botorch_calib.calibration import NoCalibration
from botorch_calib.models.predict import scores_of_observations
from botorch_calib.models.process import kind_of
from botorch_calib.posteriors import OutcomeMap, normal_scores
from tests.contracts import PosteriorContract
from tests.random_numbers import normal, uniform


def points(*shape: int, seed: int = 0) -> Tensor:
    return uniform(*shape, generator=torch.Generator().manual_seed(seed))


class HeavyTails(Model):
    """States Student-t observations whose location and scale depend on the input."""

    def __init__(self, df: float = 4.0, scale: float = 0.3) -> None:
        super().__init__()
        self.df, self.scale = df, scale

    num_outputs = 1

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> TorchPosterior:
        location, scale = X.sum(dim=-1, keepdim=True).sin(), self.scale * (1.0 + X[..., :1])
        return TorchPosterior(StudentT(torch.full_like(scale, self.df), location, scale))


class Noisy(HeavyTails):
    """Predicts the objective, or an observation of ten times its scale."""

    def posterior(self, X: Tensor, *, observation_noise: bool = False) -> Any:  # type: ignore[override]
        wide = HeavyTails(self.df, (10.0 if observation_noise else 1.0) * self.scale)
        return wide.posterior(X)


class Refusing(HeavyTails):
    def posterior(self, X: Tensor, *, observation_noise: bool = False) -> Any:  # type: ignore[override]
        if observation_noise:
            raise NotImplementedError
        return super().posterior(X)


@pytest.mark.parametrize("process", [Noisy(), Refusing(), HeavyTails(), HeavyTails(scale=3.0)])
def test_noise_comes_from_the_model_where_it_takes_the_flag(process) -> None:
    X = points(4, 2)
    expected = process.posterior(X)
    if type(process) is Noisy:
        expected = process.posterior(X, observation_noise=True)
    model = CalibratedModel(process, NoCalibration(), denoise=False)
    for noise in (False, True):
        stated = model.posterior(X, observation_noise=noise)
        assert_close(stated.variance, expected.variance, rtol=1e-6, atol=0.0)
    Y = expected.mean + 1.0
    _, scores = scores_of_observations(process, X, Y)
    assert_close(scores, normal_scores(expected).latent(Y).flatten())


class TestStudentT(PosteriorContract):
    batch_shapes = (Size([2]),)

    def make_posterior(self, batch_shape, q, dtype):
        X = points(*batch_shape, 8, 2)[..., :q, :].to(dtype).requires_grad_()
        model = CalibratedModel(HeavyTails(df=12.0), learned(dtype), denoise=False)
        return model.posterior(X)


def learned(dtype: torch.dtype = torch.double) -> QuantileRecalibrator:
    calibrator = QuantileRecalibrator([0.2, 0.5, 0.8], step_size=0.1)
    z = 1.7 * normal(30, generator=torch.Generator().manual_seed(2)).to(dtype)
    calibrator.update(points(30, 2).to(dtype), z)
    return calibrator


def test_without_calibration_it_is_the_models_own() -> None:
    model = CalibratedModel(HeavyTails(), NoCalibration(), denoise=False)
    X = points(5, 1, 2)
    stated, own = model.posterior(X), HeavyTails().posterior(X).distribution
    assert isinstance(stated, CalibratedPosterior)
    assert_close(stated.mean, own.mean, rtol=1e-6, atol=1e-7)
    assert_close(stated.variance, own.variance, rtol=1e-4, atol=0.0)
    y = own.mean + 0.7
    assert_close(stated.density(y), own.log_prob(y).exp(), rtol=1e-6, atol=0.0)
    draws = own.rsample(Size([100000]))
    error = 4 * 0.5 / 100000**0.5  # standard errors of a probability
    assert ((draws < y).double().mean(dim=0) - stated.cdf(y)).abs().max() < error


def test_observed_scores_are_those_of_the_distribution() -> None:
    model = CalibratedModel(HeavyTails(), OnlineConformal(0.2), denoise=False)
    X, Y = points(40, 2), points(40, 1, seed=3)
    twin = OnlineConformal(0.2)
    stated: Any = model.posterior(X.unsqueeze(-2))
    twin.update(X, stated.outcome_map.latent(Y.unsqueeze(-1)).view(-1))
    model.observe(X, Y, condition=False)
    assert_close(model.calibrator.state_dict(), twin.state_dict())


def test_acquisition_functions_and_report() -> None:
    model = CalibratedModel(HeavyTails(), learned(), denoise=False)
    X = points(4, 1, 2)
    stated = model.posterior(X)
    bound = CalibratedUpperConfidenceBound(model, 0.9)(X)
    assert_close(bound, stated.quantile(0.9).view(-1))
    assert LogCalibratedExpectedImprovement(model, 0.5)(X).shape == (4,)
    assert qLogExpectedImprovement(model, 0.5)(points(4, 3, 2)).isfinite().all()
    held_out, Y = points(30, 2, seed=8), points(30, 1, seed=9)
    report = calibration_report(model, held_out, Y)
    pits = model.posterior(held_out.unsqueeze(-2)).cdf(Y.unsqueeze(-1)).view(-1)
    assert report.calibrated is not None
    assert_close(report.calibrated.pits, pits)
    assert "HeavyTails" in str(report)


def test_a_variational_last_layer_with_its_noise() -> None:
    torch.manual_seed(0)
    network = VBLLModel(in_features=2, hidden_features=8, num_layers=1)
    model = CalibratedModel(network, OnlineConformal(0.2), denoise=False)
    X = points(6, 1, 2)
    own = network.posterior(X)
    stated = CalibratedModel(network, NoCalibration(), denoise=False).posterior(X)
    assert_close(stated.mean, own.mean, rtol=1e-6, atol=1e-6)
    assert_close(stated.variance, own.variance, rtol=1e-5, atol=0.0)
    noise = network.model(X.squeeze(1)).predictive.variance.view(-1)
    assert_close(own.variance.view(-1), noise)  # including the noise
    model.observe(X.squeeze(1), own.mean.squeeze(1).detach() + 1.0, condition=False)
    assert model.calibrator.num_updates == 6
    with pytest.raises(UnsupportedError, match="condition=False"):
        model.observe(X.squeeze(1), own.mean.squeeze(1).detach())


class ToyNetwork(Module):
    """Learns in context: a histogram around a distance-weighted mean of its data."""

    style_encoder = y_style_encoder = None

    def __init__(self) -> None:
        super().__init__()
        self.layer = Linear(1, 1)
        self.criterion: Any = Module()
        self.criterion.borders = torch.linspace(-5.0, 5.0, 201)

    def forward(self, x: Tensor, y: Tensor, test_x: Tensor) -> Tensor:
        weights = (-8 * (test_x.unsqueeze(1) - x.unsqueeze(0)).square().sum(-1)).softmax(dim=1)
        center = (weights.unsqueeze(-1) * y.unsqueeze(0)).sum(dim=1)
        borders = self.criterion.borders
        middle = 0.5 * (borders[1:] + borders[:-1])
        return -2 * (middle - center).square()


@pytest.fixture
def prior_fitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``PFNModel``, which imports a package that only training needs."""
    train = ModuleType("pfns.train")
    train.MainConfig = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pfns", ModuleType("pfns"))
    monkeypatch.setitem(sys.modules, "pfns.train", train)
    from botorch_community.models.prior_fitted_network import PFNModel

    yield PFNModel
    del sys.modules[PFNModel.__module__]  # which nobody else can import


@pytest.mark.filterwarnings("ignore:Very small noise values")  # a likelihood that is not used
def test_a_prior_fitted_network_replays_from_prefixes(prior_fitted: Any) -> None:
    X, Y = points(12, 2), normal(12, 1, generator=torch.Generator().manual_seed(4))
    network = ToyNetwork()
    base = prior_fitted(X, Y, network)
    model = CalibratedModel.from_history(base, OnlineConformal(0.2), denoise=False)
    assert model.calibrator.num_updates == 11
    twin = OnlineConformal(0.2)
    for i in range(1, 12):
        prefix = prior_fitted(X[:i], Y[:i], network).posterior(X[i].view(1, 1, 2))
        # The borders and shares as BoTorch has them
        below = prefix.cumprobs.view(-1)
        index = int((prefix.borders[1:] < Y[i]).sum())
        part = (Y[i] - prefix.borders[index]) / (prefix.borders[index + 1] - prefix.borders[index])
        level = below[index] - (1 - part) * prefix.probabilities.view(-1)[index]
        twin.update(X[i : i + 1], torch.special.ndtri(level))
    assert_close(model.calibrator.state_dict(), twin.state_dict(), rtol=1e-6, atol=1e-6)
    new = points(5, 1, 2, seed=7)
    model.observe(new[:2].squeeze(1), torch.zeros(2, 1).double())
    assert model.model.train_Y.shape == (14, 1) and base.train_Y.shape == (12, 1)
    stated = model.posterior(new)
    assert ((stated.quantile(0.1) < stated.mean) & (stated.mean < stated.quantile(0.9))).all()
    with pytest.raises(UnsupportedError, match="leave-one-out"):
        CalibratedModel.from_history(base, OnlineConformal(0.2), denoise=False, residuals="loo")


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="HeavyTails predicts observations only.*`denoise=F"):
        CalibratedModel(HeavyTails(), OnlineConformal(0.2))
    model = CalibratedModel(HeavyTails(), OnlineConformal(0.2), denoise=False)
    X, Y = points(2, 2), points(2, 1)
    with pytest.raises(UnsupportedError, match="calibrate it online.*`CalibratedModel.observe`"):
        CalibratedModel.from_history(HeavyTails(), OnlineConformal(0.2), denoise=False)
    with pytest.raises(UnsupportedError, match="condition=False"):
        model.observe(X, Y)
    with pytest.raises(UnsupportedError, match="include noise"):
        model.posterior(X, observation_noise=torch.ones(2, 1).double())
    with pytest.raises(UnsupportedError, match="given noise"):
        model.observe(X, Y, torch.ones(2, 1).double(), condition=False)
    both = HeavyTails()
    both.num_outputs = 2
    with pytest.raises(UnsupportedError, match="CalibratedModelList"):
        CalibratedModel(both, OnlineConformal(0.2), denoise=False)
    assert isinstance(CalibratedModel(SingleTaskGP(X, Y), OnlineConformal(0.2)), CalibratedModel)


class Calibrated(HeavyTails):
    """States the positive outcomes of a process of their logarithms, with noise."""

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        mean = X.sum(dim=-1, keepdim=True)
        moments = mean, torch.full_like(mean, 0.04), torch.full_like(mean, 0.01)
        return CalibratedPosterior.of_targets(*moments, None, LogNormal(), objective=False)


class LogNormal(OutcomeMap):
    def outcome(self, latent: Tensor) -> Tensor:
        return latent.exp()

    def latent(self, outcome: Tensor) -> Tensor:
        return outcome.clamp_min(0.0).log()


def test_impossible_outcomes_of_a_users_model_have_finite_scores() -> None:
    model, calibrator = Calibrated(), OnlineConformal(0.2)
    assert kind_of(model) == "cdf"
    X, Y = points(3, 2), torch.tensor([[-1.0], [2.0], [0.0]], dtype=torch.double)
    _, z = scores_of_observations(model, X, Y)
    assert_close(z[[0, 2]], torch.full((2,), -38.0, dtype=torch.double))
    assert_close(z[1], (torch.tensor(2.0).double().log() - X[1].sum()) / 0.05**0.5)
    CalibratedModel(model, calibrator, denoise=False).observe(X, Y, condition=False)
    assert calibrator.num_updates == 3


def test_kinds_of_processes() -> None:
    X, Y = points(6, 2), points(6, 1)
    assert kind_of(SingleTaskGP(X, Y)) == kind_of(ModelListGP(SingleTaskGP(X, Y))) == "gaussian"
    assert kind_of(EnsembleMapSaasSingleTaskGP(X, Y, num_taus=2)) == "members"
    assert kind_of(HeavyTails()) == "cdf"
