"""`with_learned_spread`, against modes and evidences by a general optimiser in dense numpy."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.transforms import standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.optimize import minimize
from scipy.special import softmax
from torch import Size, Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, ChanceConstraint, LocalizedConformal
from botorch_calib.acquisition.thompson import draw_path
from botorch_calib.decisions.widening import leave_one_out_factor
from botorch_calib.diagnostics import calibration_report, noise_diagnosis
from botorch_calib.models import loo_residuals, sharpened, with_learned_spread
from botorch_calib.models.conditioning import with_observations
from botorch_calib.models.predict import predict
from tests import gps
from tests.contracts import ModelContract
from tests.gps import CONSTANT, DOUBLE, LENGTHSCALES, NOISE, make_gp
from tests.random_numbers import normal, uniform

pytestmark = pytest.mark.filterwarnings(
    "ignore:Data .(outcome observations|input features). is not"
)

X_NEW = uniform(9, 2, generator=torch.Generator().manual_seed(8))


def data(num: int, seed: int = 1, growth: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs in the unit square, outcomes, and their noise deviations, which grow as ``e^x``."""
    generator = torch.Generator().manual_seed(seed)
    X = uniform(num, 2, generator=generator)
    deviations = math.sqrt(NOISE) * (growth * (X[:, :1] - 0.5)).exp()
    f = (3 * X).sin().sum(dim=-1, keepdim=True) - 1.2
    return X, f + deviations * normal(num, 1, generator=generator), deviations


def process(X: Tensor, Y: Tensor, *_: Tensor) -> Any:
    """A process with the hyperparameters of `make_gp`."""
    gp: Any = make_gp(dtype=X.dtype)
    gp.set_train_data(X, Y.squeeze(-1), strict=False)
    return gp


def g_at(gp: Any, X: Tensor) -> Tensor:
    values: Tensor = gp.likelihood.variances(X) / gp.likelihood.noise_covar.level.noise
    return values.log().detach()


def rbf(A: Any, B: Any, lengthscales: Any) -> Any:
    return np.exp(-0.5 * (((A[:, None] - B) / lengthscales) ** 2).sum(axis=-1))


def oracle(X: Any, y: Any, U: Any) -> tuple[Any, Any]:
    """``g`` at ``U``, and the probabilities of the five hypotheses, of centred data."""
    K, (n, d) = rbf(X, X, LENGTHSCALES), X.shape
    hypotheses = [(0.0, 1.0, 0.5), *((t, s, 0.125) for s in (0.3, 0.8) for t in (0.5, 2.0))]
    g = np.zeros(n)
    for _ in range(2):
        precision = np.linalg.inv(K + NOISE * np.diag(np.exp(g)))
        total = 1.0 / precision.diagonal()
        r, v = (precision @ y) * total, total - NOISE * np.exp(g)
        squares = np.minimum(r**2, 16.0 * (v + NOISE))
        evidences, modes = [], []
        for tau, scale, share in hypotheses:
            prior = 0.25 + tau * rbf(X, X, scale * math.sqrt(d))
            root = np.linalg.cholesky(prior + 1e-10 * np.eye(n))

            def loss(u: Any, root: Any = root, v: Any = v, squares: Any = squares) -> float:
                s = v + NOISE * np.exp(root @ u)
                return float(0.5 * (np.log(s) + squares / s).sum() + 0.5 * u @ u)

            u = minimize(loss, np.zeros(n), method="BFGS", options={"gtol": 1e-7}).x
            information = 0.5 / (1.0 + v / (NOISE * np.exp(root @ u))) ** 2
            determinant = np.linalg.slogdet(np.eye(n) + prior * information)[1]
            evidences.append(math.log(share) - loss(u) - 0.5 * determinant)
            cross = 0.25 + tau * rbf(np.vstack([X, U]), X, scale * math.sqrt(d))
            modes.append(cross @ np.linalg.solve(root.T, u))
        p = softmax(evidences)
        g, at_new = np.split(np.clip(p @ np.array(modes), -5.0, 3.0), [n])
    return at_new, p


@pytest.mark.parametrize("growth", [3.0, 0.0])
def test_it_averages_modes_by_their_evidences(growth: float) -> None:
    X, Y, _ = data(30, growth=growth)
    expected, p = oracle(X.numpy(), Y.squeeze(-1).numpy() - CONSTANT, X_NEW.numpy())
    spread = with_learned_spread(process(X, Y))
    assert spread.likelihood.constant_probability == pytest.approx(p[0], abs=2e-3)
    assert g_at(spread, X_NEW).numpy() == pytest.approx(expected, abs=5e-3)
    assert p[0] < 0.3 if growth else p[0] > 0.5


def test_steps_reach_the_mode_where_full_ones_overshoot() -> None:
    X = data(30)[0]  # and residuals far below the noise
    expected, p = oracle(X.numpy(), np.zeros(30), X_NEW.numpy())
    spread = with_learned_spread(process(X, torch.full_like(X[:, :1], CONSTANT)))
    assert spread.likelihood.constant_probability == pytest.approx(p[0], rel=5e-3)
    assert g_at(spread, X_NEW).numpy() == pytest.approx(expected, abs=5e-3)


def test_a_wrong_level_counts_against_constant_noise() -> None:
    medians = []
    for factor in (0.1, 1.0, 10.0):
        probabilities = []
        for seed in range(8):
            gp = process(*data(40, seed, growth=0.0))
            gp.likelihood.noise = factor * NOISE
            probabilities.append(with_learned_spread(gp).likelihood.constant_probability)
        medians.append(np.median(probabilities))
    assert medians[0] < 0.05 and medians[1] > 0.5 and medians[2] < 0.05


def test_it_predicts_by_the_noise_at_each_input() -> None:
    gp, (more, values, _) = process(*data(40)), data(5, 4)
    before = gp.posterior(X_NEW).mean
    spread = with_learned_spread(gp)
    with torch.no_grad():
        spread.posterior(X_NEW)
        conditioned = spread.condition_on_observations(more, values)
        calibrated = CalibratedModel(spread, LocalizedConformal(0.2))
        calibrated.observe(more, values)
    X, Y = torch.cat([gp.train_inputs[0], more]), torch.cat([gp.train_targets, values[:, 0]])
    for model, n in ((spread, 40), (conditioned, 45), (calibrated.model, 45)):
        noise = NOISE * g_at(spread, X[:n]).exp()
        mean, variance = gps.dense_posterior(X[:n], Y[:n], noise, X_NEW)
        noisy = variance + NOISE * g_at(spread, X_NEW).exp()
        for X_at in (X_NEW, X_NEW.unsqueeze(-2)):
            posterior = model.posterior(X_at, observation_noise=True)
            assert_close(posterior.mean.flatten(), mean)
            assert_close(posterior.variance.flatten(), noisy)
            stated = predict(model, X_at, objective=False)
            assert_close(stated.variance.flatten(), noisy)
    assert_close(gp.posterior(X_NEW).mean, before, rtol=0.0, atol=0.0)
    assert noisy.max() > 3.0 * noisy.min()


class TestModel(ModelContract):
    def make_model(self, dtype: torch.dtype) -> SingleTaskGP:
        gp: SingleTaskGP = with_learned_spread(process(*(each.to(dtype) for each in data(40))))
        return gp


def test_units_and_precision_do_not_matter() -> None:
    X, Y, _ = data(40)
    X, Y = (X - X.amin(dim=0)) / (X.amax(dim=0) - X.amin(dim=0)), standardize(Y)
    gp = process(X, Y)
    expected = g_at(with_learned_spread(gp), X_NEW)
    parts = gp.likelihood, gp.covar_module, gp.mean_module, Standardize(1), Normalize(2)
    scaled = SingleTaskGP(10.0 * X - 5.0, 7.0 * Y + 30.0, None, *parts)
    assert_close(g_at(with_learned_spread(scaled), X_NEW), expected)
    single = with_learned_spread(process(X.float(), Y.float()))
    assert single.likelihood.variances(X_NEW.float()).dtype == torch.float32
    assert_close(g_at(single, X_NEW.float()).double(), expected, rtol=0.0, atol=1e-3)
    far = process(X + 1e6, Y)
    assert_close(g_at(with_learned_spread(far), X_NEW + 1e6), expected, rtol=0.0, atol=1e-6)
    # Ranges above 1 without an input transform are divided by the range of the data.
    wide = process(10.0 * X, Y)
    wide.covar_module.lengthscale = 10.0 * wide.covar_module.lengthscale.detach()
    assert_close(g_at(with_learned_spread(wide), 10.0 * X_NEW), expected)


def test_it_learns_how_the_noise_varies_and_whether_it_does() -> None:
    X, Y, deviations = data(120, 5)
    spread = with_learned_spread(process(X, Y))
    learned = torch.stack([g_at(spread, X), deviations.log().squeeze(-1)])
    assert torch.corrcoef(learned)[0, 1] > 0.9 and spread.likelihood.constant_probability < 1e-3
    ratios = []
    for seed in range(6):
        spread = with_learned_spread(process(*data(120, seed, growth=0.0)))
        assert spread.likelihood.constant_probability > 0.5
        ratios.append(spread.likelihood.variances(X_NEW).mean().item() / NOISE)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.15)


def test_lengthscales_that_are_too_long_are_not_taken_for_noise() -> None:
    X = data(40)[0]
    gp = process(X, (9 * X).sin().sum(dim=-1) + 0.1 * data(40, growth=0.0)[1].squeeze(-1))
    gp.covar_module.lengthscale = 2.0 * gp.covar_module.lengthscale.detach()
    gp.likelihood.noise = 0.01
    given = copy.deepcopy(gp.state_dict())
    with pytest.raises(UnsupportedError, match=r"0\.41 times as long.*sharpened\(model\)"):
        with_learned_spread(gp)
    assert all(torch.equal(value, given[name]) for name, value in gp.state_dict().items())
    corrected = sharpened(gp)
    spread = with_learned_spread(corrected)
    assert torch.equal(spread.covar_module.lengthscale, corrected.covar_module.lengthscale)


def test_other_models_are_refused() -> None:
    X, Y, _ = data(12)
    two = SingleTaskGP(X, torch.cat([Y, -Y], dim=-1))
    batch = SingleTaskGP(X.expand(2, 12, 2), Y.expand(2, 12, 1))
    given = make_gp(fixed_noise=True)
    others = ModelListGP(given), gps.make_variational(), given, gps.make_multitask(), two, batch
    for model in others:
        with pytest.raises(UnsupportedError):
            with_learned_spread(model)


@pytest.mark.parametrize("dtype", [torch.double, torch.float32])
def test_extremes_are_finite(dtype: torch.dtype) -> None:
    X, Y = (each.to(dtype) for each in data(12, 2, 0.0)[:2])
    outlier, same = Y.clone(), X.clone()
    outlier[3], same[4:8] = 1e3, X[3]
    few = [(X[:n], Y[:n], 1e-4) for n in (1, 3)]
    cases = (X, outlier, 1.0), (same, Y, 1e-4), (0 * X, Y, 1e-4), (X, 0 * Y, 1e-4)
    for inputs, outcomes, noise in (*few, *cases):
        gp = process(inputs, outcomes)
        gp.likelihood.noise = 1.001 * noise
        spread = with_learned_spread(gp)
        posterior = spread.posterior(X_NEW.to(dtype), observation_noise=True)
        assert posterior.mean.isfinite().all() and posterior.variance.isfinite().all()
        assert (spread.likelihood.variances(inputs) > 0.0).all()


def test_derivatives_go_through_the_noise() -> None:
    spread, X = with_learned_spread(process(*data(40))), X_NEW[:3].unsqueeze(-2).requires_grad_()

    def noise(X: Tensor) -> Tensor:
        return predict(spread, X, objective=False).spread().of_noise

    assert torch.autograd.gradcheck(noise, X)
    assert torch.autograd.grad(noise(X).sum(), X)[0].abs().max() > 1e-3


def test_what_takes_models_takes_it() -> None:
    spread = with_learned_spread(process(*data(60)))
    z = loo_residuals(spread)
    assert abs(z.square().mean() - 1.0) < 0.3
    assert abs(leave_one_out_factor(spread) - 1.0) < 0.3
    diagnosis = noise_diagnosis(spread)
    assert diagnosis.agrees and not diagnosis.given
    noise = spread.likelihood.variances(spread.train_inputs[0])
    assert diagnosis.stated == pytest.approx(noise.mean().sqrt().item())
    model = CalibratedModel.from_history(spread, LocalizedConformal(0.2), residuals="loo")
    assert calibration_report(model).num_observations == 60
    constraint = ChanceConstraint(spread, upper=1.0, rows=())
    X = torch.tensor([[[0.05, 0.5]], [[0.95, 0.5]]], **DOUBLE)
    widths = 1.0 - spread.posterior(X).mean.flatten() - constraint.margin(X)
    assert widths[1] > 2.0 * widths[0]
    constraint.observe(X_NEW[:2], torch.zeros(2, 1, **DOUBLE))
    again = constraint.with_model(with_learned_spread(constraint.model))
    assert again.model.likelihood.noise_covar.points.shape == (62, 2)


def test_paths_are_conditioned_by_the_noise_at_each_input() -> None:
    spread = with_observations(with_learned_spread(process(*data(40))), *data(5, 4)[:2])
    torch.manual_seed(0)
    draws: Any = draw_matheron_paths(spread, Size([4000]))(X_NEW)
    posterior: Any = spread.posterior(X_NEW)
    assert_close(draws.mean(dim=0), posterior.mean.squeeze(-1), rtol=0.0, atol=0.05)
    assert_close(draws.std(dim=0), posterior.variance.sqrt().squeeze(-1), rtol=0.1, atol=0.0)
    assert draw_path(spread, torch.ones(1, **DOUBLE), seed=1)(X_NEW).isfinite().all()


def test_a_change_in_place_is_felt_and_a_fit_keeps_the_proportions() -> None:
    spread, other = (with_learned_spread(process(*data(40, growth=a))) for a in (3.0, 0.0))
    noise, before = spread.likelihood.variances(X_NEW), other.posterior(X_NEW).mean
    other.load_state_dict(spread.state_dict())
    assert_close(other.likelihood.variances(X_NEW), noise)
    assert not torch.allclose(other.posterior(X_NEW).mean, before)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(spread.likelihood, spread))
    ratios = spread.likelihood.variances(X_NEW) / noise
    assert_close(ratios, ratios[:1].expand_as(ratios))
    assert abs(ratios[0] - 1.0) > 1e-3
    with pytest.raises(UnsupportedError, match="learn the noise again"):
        spread.likelihood(spread.posterior(X_NEW).distribution)
