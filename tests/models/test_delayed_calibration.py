"""`CensoredDelayModel` and `CalibratedModel` in both orders: equal, and learning from data only."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedPosterior,
    LocalizedConformal,
    OnlineConformal,
    QuantileRecalibrator,
)
from botorch_calib.acquisition import DelayedUpperConfidenceBound
from botorch_calib.calibration import Calibrator
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models import CensoredDelayModel
from tests.contracts import ModelContract
from tests.gps import far_from_gaussian
from tests.models.delayed_cases import DOUBLE, Setting

PLAIN, GIVEN = Setting(), Setting(fixed_noise=True, transforms=True)
settings = pytest.mark.parametrize(
    "setting", [PLAIN, GIVEN], ids=["plain", "fixed noise, transforms"]
)
orders = pytest.mark.parametrize("order", ["inside", "outside"])
# Every step weighs heavily, so that a wrong order or residual would show.
TEMPLATE: dict[str, Any] = {"alpha": 0.3, "lengthscale": 0.4, "step_size": 0.1}


def compose(
    setting: Setting = PLAIN,
    calibrator: Calibrator | None = None,
    imputation: str = "censor",
    num_pending: int = 5,
    denoise: bool = True,
) -> Any:
    """A calibrated model with pending points."""
    calibrator = far_from_gaussian() if calibrator is None else calibrator
    calibrator = calibrator.to(setting.dtype)
    pending = setting.pending(num_pending).to(setting.dtype)
    calibrated = CalibratedModel(setting.gp(), calibrator, denoise=denoise)
    return CensoredDelayModel(calibrated, pending, setting.censor_value, imputation)


def grid(setting: Setting, num: int = 7) -> Tensor:
    return setting.points(num, seed=21).to(setting.dtype)


def thresholds(calibrator: Any, setting: Setting) -> Tensor:
    X: Any = setting.gp().transform_inputs(grid(setting))
    theta: Tensor = calibrator.tracker.threshold(X)
    return theta


def assert_same_law(result: Any, expected: Any, rtol: float = 1e-7) -> None:
    assert type(result) is type(expected) is CalibratedPosterior
    best = expected.mean.detach().max()
    for name in ("mean", "variance"):
        assert_close(getattr(result, name), getattr(expected, name), rtol=rtol, atol=1e-9)
    for name in ("cdf", "density", "log_expected_improvement"):
        assert_close(getattr(result, name)(best), getattr(expected, name)(best), rtol=rtol, atol=0)
    samplers = [SobolQMCNormalSampler(torch.Size([3]), seed=0) for _ in range(2)]
    assert_close(samplers[0](result), samplers[1](expected), rtol=rtol, atol=1e-7)


class TestCalibratedOutside(ModelContract):
    def make_model(self, dtype: torch.dtype) -> CalibratedModel:
        delayed = Setting(dtype=dtype).model(3)
        return CalibratedModel.from_history(delayed, LocalizedConformal(**TEMPLATE))


class TestHallucinatedAfterObservation(ModelContract):
    def make_model(self, dtype: torch.dtype) -> CensoredDelayModel:
        setting = Setting(noise=0.1, dtype=dtype)
        model: CensoredDelayModel = compose(setting, imputation="hallucinate")
        model.observe(model.X_pending[:2], torch.tensor([[1.0], [-0.5]], dtype=dtype))
        return model


# ------------------------------------------------------------------ one posterior, two orders


@pytest.mark.parametrize(
    ("setting", "imputation", "denoise"),
    [(PLAIN, "censor", False), (GIVEN, "hallucinate", False), (GIVEN, "none", True)],
)
@orders
def test_both_orders_are_the_calibrated_conditioned_gp(setting, imputation, order, denoise):
    calibrator = far_from_gaussian()
    model = compose(setting, calibrator, imputation, denoise=denoise)
    if order == "outside":
        model = CalibratedModel(setting.model(5, imputation), calibrator, denoise=denoise)
    gp = setting.model(5, imputation).gaussian_model
    expected = CalibratedModel(gp, calibrator, denoise=denoise)
    X = grid(setting)
    given = torch.tensor([[0.3]], **DOUBLE)
    for noise in (False, True, given):
        result = model.posterior(X, observation_noise=noise)
        assert_same_law(result, expected.posterior(X, observation_noise=noise))
    assert calibrator.num_updates == 30


@settings
def test_hallucination_keeps_the_mean_of_the_process(setting):
    """Even if the calibrated mean differs: imputing it would shift it again."""
    calibrator = QuantileRecalibrator([0.1, 0.5, 0.9], step_size=0.3)
    z = torch.linspace(-0.2, 2.0, 20, **DOUBLE)
    calibrator.update(torch.zeros(20, 2, **DOUBLE), z)
    model = compose(setting, calibrator, "hallucinate")
    X, gp = grid(setting), setting.gp()
    posterior = model.posterior(X)
    scale = setting.units()[-1]
    assert ((posterior.mean - gp.posterior(X).mean).abs() > 0.01 * scale).any()
    assert_close(posterior.corrected(None).mean, gp.posterior(X).mean, rtol=0, atol=1e-9 * scale)
    assert_close(model.Y_imputed, gp.posterior(model.X_pending).mean.detach())


# ------------------------------------------------------------------ calibrators learn from data


@pytest.mark.parametrize(
    ("setting", "imputation", "residuals"),
    [(PLAIN, "censor", "loo"), (GIVEN, "hallucinate", "prequential")],
)
@orders
def test_history(setting, imputation, order, residuals):
    """The observed data are replayed, with any pending points and any imputation."""
    template = LocalizedConformal(**TEMPLATE)
    alone = CalibratedModel.from_history(setting.gp(), template, 4, residuals=residuals)
    if order == "inside":
        model: Any = CensoredDelayModel(alone, setting.pending(5), setting.censor_value, imputation)
    else:
        delayed = setting.model(5, imputation)
        model = CalibratedModel.from_history(delayed, template, 4, residuals=residuals)
        assert model.model is delayed.model
    calibrator = model.calibrator
    assert calibrator.num_updates == alone.calibrator.num_updates == setting.num - 4
    assert torch.equal(thresholds(calibrator, setting), thresholds(alone.calibrator, setting))
    assert template.num_updates == 0
    X = grid(setting)
    conditioned = setting.model(5, imputation).gaussian_model
    reference = CalibratedModel(conditioned, alone.calibrator)
    assert_same_law(model.posterior(X), reference.posterior(X))


@pytest.mark.parametrize(
    ("setting", "imputation", "train_mode"),
    [(PLAIN, "hallucinate", False), (GIVEN, "censor", True), (GIVEN, "none", False)],
)
def test_observation(setting, imputation, train_mode):
    """Values are scored by the model of observed data, twice in a row, and pending no longer."""
    calibrators = [LocalizedConformal(**TEMPLATE) for _ in range(2)]
    model = compose(setting, calibrators[0], imputation)
    alone = CalibratedModel(setting.gp(), calibrators[1])
    pending = setting.pending(5)
    if train_mode:
        model.train()
    for rows in ([3, 2], [4]):
        X, Y = pending[rows], setting.values(pending[rows]) + 0.5 * setting.units()[-1]
        model.observe(X, Y)
        alone.observe(X, Y)
    calibrator = model.calibrator
    assert calibrator is calibrators[0] and calibrator.num_updates == 3
    assert_close(
        thresholds(calibrator, setting), thresholds(calibrators[1], setting), rtol=0, atol=1e-12
    )
    # Rows 0, 1 and 4 are equal, and an observation of row 4 removes the first of them.
    assert torch.equal(model.X_pending, pending[[1, 4]])
    assert model.train_targets.shape == alone.train_targets.shape == (setting.num + 3,)
    X = grid(setting)
    expected = CensoredDelayModel(alone.model, pending[[1, 4]], setting.censor_value, imputation)
    reference = CalibratedModel(expected.gaussian_model, calibrator)
    assert_same_law(model.posterior(X), reference.posterior(X))


@settings
def test_observation_without_conditioning(setting):
    """For models about to be refitted: scored and learned from, but still pending."""
    model = compose(setting)
    X, Y = setting.pending(5)[:2], setting.values(setting.pending(5)[:2])
    model.observe(X, Y, condition=False)
    assert model.calibrator.num_updates == 32 and len(model.X_pending) == 5
    assert model.train_targets.shape == (setting.num,)


def test_warning_of_a_calibrator_that_has_seen_little():
    """It is shown once, although the conditioned model is another object."""
    model = compose(PLAIN, OnlineConformal(0.2))
    with pytest.warns(CalibrationWarning, match="has seen 0 residuals"):
        model.posterior(grid(PLAIN))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.posterior(grid(PLAIN))


# ------------------------------------------------------------------ acquisition functions


def test_noisy_improvement_of_botorch():
    """It equals the improvement of the calibrated model of all queries, for equal base samples."""
    calibrator, values = far_from_gaussian(), []
    expected = CalibratedModel(PLAIN.model(5).gaussian_model, calibrator)
    for model in (compose(calibrator=calibrator), expected):
        sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
        acqf = qLogNoisyExpectedImprovement(model, PLAIN.data()[0], sampler, prune_baseline=False)
        values.append(acqf(grid(PLAIN).unsqueeze(-2)))
    assert_close(*values)


@pytest.mark.parametrize(
    "options",
    [{"denoise": False}, {"excess": "objective"}, {}],
    ids=["noisy", "objective", "default"],
)
def test_further_pending_points_keep_what_is_calibrated(options):
    """Whether it is the objective, and whose the excess of spread is."""
    delayed = PLAIN.model(5)
    points, more = grid(PLAIN, 10).unsqueeze(-2), grid(PLAIN, 2)
    known = delayed.with_pending(more)
    acqf, expected = (
        DelayedUpperConfidenceBound(CalibratedModel(model, far_from_gaussian(), **options))
        for model in (delayed, known)
    )
    acqf.set_X_pending(more)
    posterior = expected.model.posterior(points)
    deviation = posterior.variance.sqrt().reshape(-1)
    assert_close(acqf(points), posterior.mean.reshape(-1) + acqf.nu * deviation)
    for changed in ({"denoise": True}, {"excess": "noise"}):
        other = CalibratedModel(known, far_from_gaussian(), **{**options, **changed})
        is_other = bool(options.keys() & changed.keys())
        difference = other.posterior(points).variance.sqrt().reshape(-1) - deviation
        assert (difference.abs().max() > 1e-3) == is_other


@settings
def test_states_and_copies(setting):
    """States load across numbers of pending points and of residuals; copies are independent."""
    source, X = compose(setting), grid(setting)
    empty = LocalizedConformal(0.3, lengthscale=0.5, step_size=0.1)
    target = compose(setting, empty, num_pending=2)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(0.2)
        source.train()
        target.posterior(X)
    target.load_state_dict(source.state_dict())
    expected = source.posterior(X)
    assert_same_law(target.posterior(X), expected)
    for twin in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert_same_law(twin.posterior(X), expected)
        twin.observe(X[:1], setting.values(X[:1]))
        assert (twin.calibrator.num_updates, source.calibrator.num_updates) == (31, 30)
    assert_same_law(source.posterior(X), expected)


def test_another_model_brings_its_pending_points_and_its_calibrator() -> None:
    """With their settings; slots that the other model lacks do not change."""
    calibrated, delayed = CalibratedModel(PLAIN.gp(), far_from_gaussian()), PLAIN.model(5)
    expected = CalibratedModel(delayed, calibrated.calibrator).posterior(grid(PLAIN))
    for model in (calibrated.with_model(delayed), delayed.with_model(calibrated)):
        assert_same_law(model.posterior(grid(PLAIN)), expected)
        assert_same_law(model.with_model(PLAIN.gp()).posterior(grid(PLAIN)), expected)
    with pytest.raises(UnsupportedError, match="`calibrator` must be a calibrator"):
        calibrated.with_model(PLAIN.gp(), calibrator=5)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="takes no pending points"):
        calibrated.with_pending(grid(PLAIN))


def test_a_change_in_place_reaches_the_model_of_pending_points() -> None:
    model = compose()
    before = model.posterior(grid(PLAIN)).mean
    model.covar_module.lengthscale = 0.3
    fresh = copy.deepcopy(model)
    assert_same_law(model.posterior(grid(PLAIN)), fresh.posterior(grid(PLAIN)))
    assert not torch.allclose(model.posterior(grid(PLAIN)).mean, before)
