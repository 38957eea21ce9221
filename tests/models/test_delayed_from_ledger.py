"""Models of a ledger, against models that are built by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP, SingleTaskVariationalGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.settings import validate_input_scaling
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, LocalizedConformal, OnlineConformal
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CensoredDelayModel
from tests.models.delayed_cases import Setting

SETTING = Setting(transforms=True)
QUERIES = SETTING.points(14, seed=3)
VALUES = SETTING.values(QUERIES)
# Trials by their final state; the others have arrived, in this order.
PENDING, EXPIRED, FAILED = [9, 12], [2], [5]
ARRIVAL = [4, 0, 1, 3, 7, 6, 13, 8, 11, 10]
CENSOR = 10.0
kinds = pytest.mark.parametrize("hyperparameters", ["observed", "censored"])
imputations = pytest.mark.parametrize("imputation", ["censor", "hallucinate", "none"])


def make_ledger(censor_value: float | None = CENSOR, **kwargs: Any) -> FeedbackLedger:
    ledger = FeedbackLedger(2, censor_value, **kwargs)
    for x in QUERIES:
        ledger.submit(x)
    for position, trial in enumerate(ARRIVAL):
        ledger.observe(trial, VALUES[trial], time=13 + position / 20)
    for trial in EXPIRED:
        ledger.abandon(trial)
    for trial in FAILED:
        ledger.fail(trial, "no value")
    return ledger


def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Hyperparameters that depend on the data, at no cost."""
    gp = SingleTaskGP(X, Y, input_transform=Normalize(2), outcome_transform=Standardize(1))
    gp.covar_module.lengthscale = 0.2 + Y.mean().abs() / 100
    gp.likelihood.noise = 0.01 + Y.std() / 500
    return gp.eval()


def fit_given_noise(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """With noise variances that differ from row to row."""
    gp = SingleTaskGP(X, Y, (0.1 + 0.01 * Y.abs()), input_transform=Normalize(2))
    return gp.eval()


def grid() -> Tensor:
    return SETTING.points(9, seed=21)


def assert_same(model: Any, other: Any, atol: float = 1e-8) -> None:
    result, expected = model.posterior(grid()), other.posterior(grid())
    assert_close(result.mean, expected.mean, rtol=0, atol=7 * atol)
    assert_close(result.variance, expected.variance, rtol=0, atol=49 * atol)


@imputations
def test_observed_hyperparameters(imputation):
    model = CensoredDelayModel.from_ledger(make_ledger(), fit, imputation)
    gp = fit(QUERIES[ARRIVAL], VALUES[ARRIVAL])
    rows = sorted(PENDING + EXPIRED) if imputation == "censor" else PENDING
    expected = CensoredDelayModel(gp, QUERIES[rows], CENSOR, imputation)
    assert torch.equal(model.X_pending, expected.X_pending)
    assert (model.imputation, model.censor_value) == (imputation, CENSOR)
    assert_same(model, expected)
    # In order of arrival, as replaying a calibrator needs it.
    model.train()
    assert torch.equal(model.train_inputs[0], QUERIES[ARRIVAL])


def test_censored_hyperparameters():
    """As in the paper, the posterior is as of a model fitted to the censored data."""
    rows = [row for row in range(14) if row not in FAILED]
    X, Y = QUERIES[rows], VALUES[rows].clone()
    for trial in PENDING + EXPIRED:
        Y[rows.index(trial)] = CENSOR
    fitted = fit(X, Y)
    model = CensoredDelayModel.from_ledger(make_ledger(), fit, hyperparameters="censored")
    assert_same(model, fitted)
    assert fitted.train_targets.shape == (13,)
    # Censored queries are pending, and observed values are in order of arrival.
    assert torch.equal(model.X_pending, QUERIES[sorted(PENDING + EXPIRED)])
    assert_close(
        model.posterior(grid(), observation_noise=True).variance,
        fitted.posterior(grid(), observation_noise=True).variance,
    )
    observed = model.model
    for name, parameter in fitted.named_parameters():
        assert torch.equal(dict(observed.named_parameters())[name], parameter)
    targets = fitted.outcome_transform(VALUES[ARRIVAL])[0].squeeze(-1)
    assert_close(model.train_targets, targets, rtol=0, atol=1e-12)
    observed.train()
    assert torch.equal(observed.train_inputs[0], QUERIES[ARRIVAL])
    # A value that arrives then takes the place of the censored one.
    resolved = model.resolve(QUERIES[[9]], VALUES[[9]])
    with validate_input_scaling(False):
        Y[rows.index(9)] = VALUES[9]
        anew = copy.deepcopy(fitted)
        anew.eval()
        anew.set_train_data(targets=fitted.outcome_transform(Y)[0].squeeze(-1))
    assert_same(resolved, anew)


@pytest.mark.filterwarnings("ignore:Data .* is not")
def test_censored_hyperparameters_with_given_noise():
    """Observed rows have the given noise; censored values have its mean."""
    model = CensoredDelayModel.from_ledger(
        make_ledger(), fit_given_noise, hyperparameters="censored"
    )
    expected = 0.1 + 0.01 * VALUES[ARRIVAL].abs().squeeze(-1)
    scale = fit_given_noise(*make_ledger().training_data()).outcome_transform.stdvs.item()
    assert_close(model.likelihood.noise * scale**2, expected)
    noise = model.gaussian_model.likelihood.noise
    assert noise.shape == (13,)
    assert_close(noise[10:], noise[:10].mean().expand(3))


@kinds
def test_past_times(hyperparameters):
    """At an earlier time, later entries of the ledger do not matter."""
    ledger = FeedbackLedger(2, CENSOR)
    for trial, x in enumerate(QUERIES):
        ledger.submit(x)
        if trial >= 2:
            ledger.observe(trial - 2, VALUES[trial - 2])
    model = CensoredDelayModel.from_ledger(ledger, fit, "censor", hyperparameters, now=9)
    # At time 9 there are queries 0 to 8; value s arrived with query s + 2, so at time s + 3.
    assert torch.equal(model.X_pending, QUERIES[7:9])
    assert model.train_targets.shape == (7,)
    reference = FeedbackLedger(2, CENSOR)
    for trial, x in enumerate(QUERIES[:9]):
        reference.submit(x)
        if trial >= 2:
            reference.observe(trial - 2, VALUES[trial - 2])
    assert_same(model, CensoredDelayModel.from_ledger(reference, fit, "censor", hyperparameters))


@kinds
@pytest.mark.parametrize("order", ["inside", "outside"])
def test_calibration_sees_observed_values_only(hyperparameters, order):
    """Counts and thresholds are as for the observed data, with the same hyperparameters."""
    template = LocalizedConformal(0.3, lengthscale=0.4, step_size=0.1)
    ledger = make_ledger()
    model = CensoredDelayModel.from_ledger(ledger, fit, "censor", hyperparameters)
    expected = CalibratedModel.from_history(copy.deepcopy(model.model), template)
    if order == "outside":
        calibrated = CalibratedModel.from_history(model, template)
    elif hyperparameters == "censored":
        with pytest.raises(UnsupportedError, match="CalibratedModel.*censored values"):
            CensoredDelayModel.from_ledger(
                ledger,
                lambda X, Y: CalibratedModel.from_history(fit(X, Y), template),
                hyperparameters="censored",
            )
        return
    else:
        inner = CensoredDelayModel.from_ledger(
            ledger, lambda X, Y: CalibratedModel.from_history(fit(X, Y), template)
        )
        calibrated = inner
    assert calibrated.calibrator.num_updates == expected.calibrator.num_updates == len(ARRIVAL)
    X: Any = expected.transform_inputs(grid())
    assert torch.equal(
        calibrated.calibrator.tracker.threshold(X), expected.calibrator.tracker.threshold(X)
    )


@kinds
def test_few_values(hyperparameters):
    ledger = FeedbackLedger(2, CENSOR)
    for trial in range(5):
        ledger.submit(QUERIES[trial])
    ledger.observe(0, VALUES[0])
    with pytest.raises(InputDataError, match="`ledger` has 1 observed.*at least 2"):
        CensoredDelayModel.from_ledger(ledger, fit, hyperparameters=hyperparameters)


def variational(X: Tensor, Y: Tensor) -> Model:
    return SingleTaskVariationalGP(X, Y, inducing_points=X[:4].clone())


def backwards(X: Tensor, Y: Tensor) -> Model:
    return fit(X.flip(0), Y.flip(0))


def two_outputs(X: Tensor, Y: Tensor) -> Model:
    return SingleTaskGP(X, torch.cat([Y, -Y], dim=-1))


BAD_FITS: list[tuple[Any, type[Exception], str]] = [
    (lambda X, Y: None, InputDataError, "`fit` must return a fitted.*NoneType"),
    (backwards, InputDataError, "in their order"),
    (variational, UnsupportedError, "exact Gaussian process"),
    (two_outputs, UnsupportedError, "exact Gaussian process with one output"),
    (
        lambda X, Y: CalibratedModel(fit(X, Y), OnlineConformal(0.2)),
        UnsupportedError,
        "must not see censored values",
    ),
]


@pytest.mark.filterwarnings("ignore:Data .* is not")
def test_bad_fits():
    for bad, error, match in BAD_FITS:
        with pytest.raises(error, match=match):
            CensoredDelayModel.from_ledger(make_ledger(), bad, hyperparameters="censored")


def test_bad_arguments():
    with pytest.raises(InputDataError, match="`fit` must return"):
        CensoredDelayModel.from_ledger(make_ledger(), lambda X, Y: None)
    with pytest.raises(InputDataError, match="`hyperparameters`.*'none'"):
        CensoredDelayModel.from_ledger(make_ledger(), fit, hyperparameters="none")
    with pytest.raises(InputDataError, match="`imputation`"):
        CensoredDelayModel.from_ledger(make_ledger(), fit, "guess")
    unbounded = make_ledger(None)
    with pytest.raises(InputDataError, match="`censor_value` is needed"):
        CensoredDelayModel.from_ledger(unbounded, fit)
    with pytest.raises(InputDataError, match="`hyperparameters='censored'` needs.*`censor_value`"):
        CensoredDelayModel.from_ledger(unbounded, fit, "none", "censored")
    for imputation in ("hallucinate", "none"):
        model = CensoredDelayModel.from_ledger(unbounded, fit, imputation)
        assert torch.equal(model.X_pending, QUERIES[PENDING])
