"""`CensoredDelayModel.rescaling`: values that never arrive shrink the mean; how to undo that."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log
from botorch.settings import validate_input_scaling
from torch.testing import assert_close

from botorch_calib import CalibratedModel, DelayedUpperConfidenceBound, LocalizedConformal
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CensoredDelayModel
from tests.models.delayed_cases import Setting

RHO, NUM = 0.3, 5


def with_prior_at(setting: Setting, gp: Any) -> Any:
    """The same with the censoring value as its prior mean, which is the theorem's 0."""
    _, _, offset, scale = setting.units()
    constant = torch.tensor((setting.censor_value - offset) / scale, dtype=setting.dtype)
    gp.mean_module.initialize(constant=constant)
    return gp


@pytest.fixture(autouse=True)
def no_warnings_of_scales():
    """A few values of a function are not standardised."""
    with validate_input_scaling(False):
        yield


def gp_of(setting: Setting, X: Any, Y: Any) -> Any:
    return setting.gp((X, Y, torch.full_like(Y, setting.noise)))


def only_queries(setting: Setting, X: Any, Y: Any, arrived: Any) -> CensoredDelayModel:
    """A model all of whose queries either arrived or stay censored; the prior mean is ``c``."""
    gp = with_prior_at(setting, gp_of(setting, X[arrived], Y[arrived]))
    return CensoredDelayModel(gp, X[~arrived], setting.censor_value)


def test_theorem_1_in_expectation():
    """Averaged over the values that arrive, the rescaled mean equals the mean given all values.

    The mean is linear in ``y 1{d <= m}``, whose expectation is ``rho y``: exact, by enumeration.
    """
    setting = Setting()
    X, Y, _ = setting.data(NUM)
    grid, mean = setting.points(9, seed=21), 0.0
    for mask in product([True, False], repeat=NUM):
        num, arrived = sum(mask), torch.tensor(mask)
        if num == 0:  # a process needs an observation: without any the mean is ``c``
            mean = mean + (1 - RHO) ** NUM * setting.censor_value
            continue
        model = only_queries(setting, X, Y, arrived)
        posterior = model.posterior(grid, posterior_transform=model.rescaling(RHO))
        mean = mean + RHO**num * (1 - RHO) ** (NUM - num) * posterior.mean.detach()
    everything = only_queries(setting, X, Y, torch.ones(NUM, dtype=torch.bool))
    full = everything.posterior(grid)
    assert_close(mean, full.mean.detach(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.double, torch.float32])
@pytest.mark.parametrize("transforms", [False, True])
def test_mean_and_variance(transforms, dtype):
    setting = Setting(transforms=transforms, noise=0.1, dtype=dtype)
    model, c = setting.model(), setting.censor_value
    X = setting.points(24, seed=21).to(dtype).view(2, 3, 4, 2).requires_grad_()
    plain = model.posterior(X)
    rescaled = model.posterior(X, posterior_transform=model.rescaling(RHO))
    tolerance: dict[str, Any] = {"rtol": 1e-12 if dtype == torch.double else 1e-5, "atol": 1e-5}
    if dtype == torch.double:
        tolerance["atol"] = 1e-11
    assert_close(rescaled.mean, c + (plain.mean - c) / RHO, **tolerance)
    assert_close(rescaled.variance, plain.variance / RHO**2, **tolerance)
    assert rescaled.mean.dtype == dtype
    gradients = [torch.autograd.grad(p.mean.sum(), X)[0] for p in (plain, rescaled)]
    assert_close(gradients[1], gradients[0] / RHO, rtol=1e-4, atol=1e-6)
    same = model.posterior(X, posterior_transform=model.rescaling(1.0))
    assert_close(same.mean, plain.mean, **tolerance)


def test_calibrated_inside():
    setting = Setting()
    calibrated = CalibratedModel.from_history(setting.gp(), LocalizedConformal(0.2))
    model = CensoredDelayModel(calibrated, setting.pending(3), setting.censor_value)
    X, c = setting.points(6, seed=21).unsqueeze(-2), setting.censor_value
    plain, transform = model.posterior(X), model.rescaling(RHO)
    rescaled = model.posterior(X, posterior_transform=transform)
    assert_close(rescaled.mean, c + (plain.mean - c) / RHO)
    assert_close(rescaled.variance, plain.variance / RHO**2)
    assert_close(rescaled.quantile(0.9), c + (plain.quantile(0.9) - c) / RHO)


def test_choice_of_bounds_stays_and_that_of_improvement_does_not():
    """``nu`` and its window of pending queries are not rescaled, and bounds rank as before."""
    ledger = FeedbackLedger(2, censor_value=-2.5, max_wait=6.0)
    setting = Setting()
    X, Y, _ = setting.data()
    for x in X:
        ledger.submit(x)
    for trial in range(0, 14, 3):
        ledger.observe(trial, Y[trial], time=trial + 1)
    pending = len(ledger.pending())
    assert 0 < pending < len(ledger.incomplete())
    model = CensoredDelayModel.from_ledger(ledger, partial(gp_of, setting))
    assert len(model.X_pending) == len(ledger.incomplete())
    transform = model.rescaling(ledger.arrival_probability().estimate)
    rho = 1 / transform.weights.item()
    plain = DelayedUpperConfidenceBound.from_ledger(model, ledger)
    rescaled = DelayedUpperConfidenceBound.from_ledger(model, ledger, posterior_transform=transform)
    assert len(plain.X_window) == len(rescaled.X_window) == pending
    assert_close(rescaled.nu, plain.nu, rtol=0, atol=0)
    at = setting.points(200, seed=5).unsqueeze(-2)
    assert_close(rescaled(at), -2.5 + (plain(at) + 2.5) / rho)
    # The window of pending queries is no remedy: the mean under it is the shrunken one.
    improvements = [
        LogExpectedImprovement(model, Y.max(), posterior_transform=each)(at)
        for each in (None, transform)
    ]
    assert (improvements[1] > improvements[0]).all()


def test_errors():
    setting = Setting()
    for model in (setting.model(imputation="hallucinate"), CensoredDelayModel(setting.gp())):
        with pytest.raises(UnsupportedError, match="can be rescaled"):
            model.rescaling(0.5)
    X, Y, _ = setting.data()
    gp = SingleTaskGP(X, Y.exp(), outcome_transform=Log())
    for base in (gp, CalibratedModel(gp, LocalizedConformal(0.2))):
        with pytest.raises(UnsupportedError, match="outcome transform Log is not affine"):
            CensoredDelayModel(base, X[:1] + 0.05, 0.1).rescaling(0.5)
    for rho in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(InputDataError, match="`arrival_probability`"):
            setting.model().rescaling(rho)
