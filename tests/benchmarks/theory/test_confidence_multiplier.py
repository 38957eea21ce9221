"""`confidence_multiplier` against dense determinants, the papers' formulas and random functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.settings import validate_input_scaling
from torch.testing import assert_close

from benchmarks.theory import confidence_multiplier
from botorch_calib import CalibratedModel, CensoredDelayModel, DelayedUpperConfidenceBound
from botorch_calib.calibration import NoCalibration
from tests.gps import CONSTANT, LENGTHSCALES, NOISE, Y_SCALE, make_data, make_gp
from tests.random_numbers import normal, uniform

DELTA, NOISE_BOUND, NORM_BOUND = 0.1, 0.3, 1.7


@pytest.fixture(autouse=True)
def no_warnings_of_scales():
    """Some data are not standardised, on purpose."""
    with validate_input_scaling(False):
        yield


def kernel_matrix(X: Any) -> Any:
    """The kernel matrix of models of `tests.gps`, in their units of inputs."""
    gaps = (X[:, None] - X[None]) / np.array(LENGTHSCALES)
    return np.exp(-0.5 * np.square(gaps).sum(axis=-1))


def oracle(K: Any, noise: Any, noise_bound: float = NOISE_BOUND) -> float:
    """The multiplier of the variance, from the eigenvalues of ``D^{-1/2} K D^{-1/2}``."""
    scaled = K / np.sqrt(np.outer(noise, noise))
    log_det = np.log1p(np.linalg.eigvalsh(scaled).clip(min=0.0)).sum()
    root = math.sqrt(log_det + 2 * math.log(1 / DELTA))
    return (NORM_BOUND + noise_bound / math.sqrt(noise.min()) * root) ** 2


def beta_of(model: Any) -> Any:
    return confidence_multiplier(model, DELTA, NOISE_BOUND, NORM_BOUND)


@pytest.mark.parametrize("transforms", [False, True])
@pytest.mark.parametrize("fixed_noise", [False, True])
def test_dense_determinant(fixed_noise, transforms):
    X, Y, Yvar = make_data()
    gp = make_gp(fixed_noise, transforms)
    unit = 1.0
    if transforms:
        unit = Y_SCALE * float(Y.std())
        X = Normalize(2)(X)
        Yvar = Yvar * Y_SCALE**2 / unit**2
    noise = Yvar.squeeze(-1).numpy() if fixed_noise else np.full(len(X), NOISE)
    expected = oracle(kernel_matrix(X.numpy()), noise, NOISE_BOUND / unit)
    assert beta_of(gp).shape == ()
    assert beta_of(gp).item() == pytest.approx(expected, rel=1e-11)
    # In both modes, which do not change.
    assert beta_of(gp.train()).item() == pytest.approx(expected, rel=1e-11) and gp.training


def test_equations_5_and_7_as_printed():
    """The half-width of the bound is ``beta_t sigma_t`` of [Micheli2025wdrbo], for any lambda."""
    X, Y, _ = (t.numpy() for t in make_data())
    x = uniform(7, 2, generator=torch.Generator().manual_seed(1))
    K, k, lam = kernel_matrix(X), kernel_matrix(np.concatenate([X, x.numpy()]))[12:, :12], NOISE
    inverse = np.linalg.inv(K + lam * np.eye(len(X)))
    sigma = np.sqrt((1 - np.einsum("ij,jk,ik->i", k, inverse, k)) / lam)
    determinant = np.linalg.det(np.eye(len(X)) + K / lam)
    beta = NOISE_BOUND * math.sqrt(2 * math.log(determinant**0.5 / DELTA))
    beta += math.sqrt(lam) * NORM_BOUND
    mean = CONSTANT + k @ inverse @ (Y[:, 0] - CONSTANT)
    gp = make_gp()
    bound = UpperConfidenceBound(gp, beta=beta_of(gp))(x.unsqueeze(-2))
    assert_close(bound.detach(), torch.from_numpy(mean + beta * sigma), rtol=0, atol=1e-9)


def test_wrappers_and_theorem_1_of_the_delays_paper():
    gp, X_pending = make_gp(), make_data(seed=9)[0][:4]
    model = CensoredDelayModel(gp, X_pending, -2.0)
    X = torch.cat([make_data()[0], X_pending]).numpy()
    expected = oracle(kernel_matrix(X), np.full(len(X), NOISE))
    assert beta_of(model).item() == pytest.approx(expected, rel=1e-11)
    calibrated = CalibratedModel(gp, NoCalibration())
    assert_close(beta_of(calibrated), beta_of(gp))
    # ``nu_t = B_y sum_s sigma(x_s) + B_f + (R + B_y) sqrt(2 (gain + log(2 / delta)))``, lambda = 1
    gp.likelihood.noise = 1.0
    model, B_y = CensoredDelayModel(gp, X_pending, -2.0), 4.0
    beta = confidence_multiplier(model, DELTA / 2, NOISE_BOUND + B_y, NORM_BOUND)
    acqf = DelayedUpperConfidenceBound(model, beta.item(), X_pending, feedback_bound=B_y)
    gain = 0.5 * np.linalg.slogdet(np.eye(len(X)) + kernel_matrix(X))[1]
    root = (NOISE_BOUND + B_y) * math.sqrt(2 * (gain + math.log(2 / DELTA)))
    sigmas = model.posterior(X_pending.unsqueeze(-2)).variance.sqrt().sum()
    assert acqf.nu.item() == pytest.approx(B_y * sigmas.item() + NORM_BOUND + root, rel=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_holds_the_objective_while_the_search_goes_on(seed):
    """It contains functions of a known norm, with normal noise and queries by the bound itself.

    The bound is loose: it holds for 200 of 200 seeds.
    """
    generator = torch.Generator().manual_seed(seed)
    centres, scale = uniform(15, 1, generator=generator), 0.15
    grid = torch.linspace(0, 1, 201, dtype=torch.double).unsqueeze(-1)

    def kernel(A: Any, B: Any) -> Any:
        return (-0.5 * ((A - B.mT) / scale).square()).exp()

    weights = normal(15, 1, generator=generator)
    weights *= NORM_BOUND / (weights.mT @ kernel(centres, centres) @ weights).sqrt()
    f, R = kernel(grid, centres) @ weights, 0.2
    rows = [0, 200]
    Y = f[rows] + R * normal(2, 1, generator=generator)
    for _ in range(25):
        gp = SingleTaskGP(grid[rows], Y, torch.full_like(Y, R**2), outcome_transform=None).eval()
        gp.covar_module.lengthscale = scale
        gp.mean_module.initialize(constant=0.0)
        with torch.no_grad():
            posterior = gp.posterior(grid)
            width = confidence_multiplier(gp, DELTA, R, NORM_BOUND).sqrt()
            width = width * posterior.variance.sqrt()
        assert ((f - posterior.mean).abs() <= width).all()
        rows.append(int((posterior.mean + width).argmax()))
        Y = torch.cat([Y, f[rows[-1:]] + R * normal(1, 1, generator=generator)])
