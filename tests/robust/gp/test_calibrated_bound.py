"""The closed form of calibrated models against the posterior that autograd differentiates."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CensoredDelayModel,
    GaussianScore,
    LocalizedConformal,
    OnlineConformal,
    QuantileRecalibrator,
    RobustUpperConfidenceBound,
)
from botorch_calib.calibration import Calibrator
from botorch_calib.distributions import PiecewisePredictive
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.robust import TotalVariationBall, WassersteinBall
from botorch_calib.robust.contextual_function import ContextualFunction
from botorch_calib.robust.gp import stationary_gp
from botorch_calib.robust.gp.closed_form_bound import confidence_bound, gaussian_process
from botorch_calib.robust.gp.pointwise_function import PointwiseFunction
from botorch_calib.robust.joint_inputs import Columns
from tests.gps import GaussianLaw, make_multitask, make_variational
from tests.robust.gp.test_closed_form_bound import (
    BETA,
    DOUBLE,
    LOW,
    RANGE,
    closed,
    contexts_of,
    decisions,
    generic,
    make_gp,
    plain_gp,
    uniform,
)

LEVELS = [0.05, 0.2, 0.5, 0.8, 0.95]
CALIBRATORS: dict[str, Callable[[], Calibrator]] = {
    "conformal": lambda: OnlineConformal(0.2, step_size=0.1),
    "conformal, normal tails": lambda: OnlineConformal(0.2, step_size=0.1, tails="gaussian"),
    "conformal, p-values": lambda: OnlineConformal(0.2, step_size=0.1, score=GaussianScore()),
    "localized": lambda: LocalizedConformal(0.2, lengthscale=0.5, step_size=0.1),
    "localized, several": lambda: LocalizedConformal(0.2),
    "localized, normal tails": lambda: LocalizedConformal(0.2, lengthscale=0.5, tails="gaussian"),
    "recalibrated": QuantileRecalibrator,
    "recalibrated, localized": lambda: QuantileRecalibrator(LEVELS, lengthscale=0.5),
    "recalibrated, one level": lambda: QuantileRecalibrator([0.3], lengthscale=0.5),
    "recalibrated, exact": lambda: QuantileRecalibrator(LEVELS, 0.5, method="exact"),
}


def calibrated(
    name: str, base: Any = None, denoise: bool = True, excess: str = "noise"
) -> CalibratedModel:
    """A model with a calibrator that has learned widths that differ from point to point."""
    base = make_gp() if base is None else base
    calibrator = CALIBRATORS[name]()
    X = uniform(30, 4, seed=11)
    z = torch.randn(30, **DOUBLE, generator=torch.Generator().manual_seed(12))
    calibrator.update(X, z * (0.5 + 4 * X[:, 0]))
    parameter = next(base.parameters())
    return CalibratedModel(base, calibrator.to(parameter.dtype), denoise=denoise, excess=excess)


def evaluations(bound: ContextualFunction, X: Tensor, C: Tensor, others: Tensor) -> list[Tensor]:
    """Values, the steepness, both without a gradient, and their derivatives."""
    X = X.clone().requires_grad_()
    values, steepness = bound.with_steepness(X, C, others)
    norms = bound.gradient_norms(X, C)
    factors = uniform(*values.shape, seed=9).to(X)
    slopes = [
        torch.autograd.grad(part.sum(), X, retain_graph=True)[0]
        for part in (values * factors, steepness, norms * factors)
    ]
    alone = bound(X.detach(), C), bound.with_steepness(X.detach(), C, others)[1]
    gradients = bound.with_gradients(X, C)[1]
    results = [values, steepness, norms, *slopes, *alone, gradients]
    return [result.detach() for result in results]


def check(model: Any, sign: float = 1.0, tolerance: float = 1e-8) -> None:
    """Both paths agree."""
    columns = Columns(4, 2, [0, -1])
    dtype = next(model.parameters()).dtype
    points = decisions(3, columns), contexts_of(4, columns), contexts_of(3, columns, seed=8)
    arguments = [part.to(dtype) for part in points]
    found = evaluations(closed(model, columns, sign), *arguments)
    expected = evaluations(generic(model, columns, sign), *arguments)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


class TestAgainstThePosterior:
    @pytest.mark.parametrize(
        ("name", "sign"),
        [*((name, 1.0) for name in CALIBRATORS), ("localized", -1.0), ("recalibrated", -1.0)],
    )
    def test_calibrators(self, name, sign):
        model, columns = calibrated(name), Columns(4, 2)
        check(model, sign)
        # Far from the plain bound, and varying with the input.
        X, C = decisions(4, columns), contexts_of(6, columns)
        bound, plain = closed(model, columns)(X, C), closed(make_gp(), columns)(X, C)
        assert (bound - plain).abs().max() > 1e-3 and bound.std() > 0

    @pytest.mark.parametrize("name", ["localized", "recalibrated, localized"])
    @pytest.mark.parametrize(
        "settings", [{"denoise": False}, {"excess": "objective"}], ids=["observation", "objective"]
    )
    def test_what_is_stated(self, name, settings):
        check(calibrated(name, **settings))

    @pytest.mark.parametrize(
        ("kernel", "inputs", "standardize", "fixed_noise"),
        [
            ("scaled rbf", "normalize", True, False),
            ("rbf", "some columns", False, True),
            ("scaled matern 3/2", "chain", True, True),
            ("matern 5/2", "chain", False, False),
        ],
    )
    def test_processes(self, kernel, inputs, standardize, fixed_noise):
        gp = make_gp(kernel, inputs, standardize, fixed_noise)
        check(calibrated("localized", gp), tolerance=1e-7)

    def test_root_of_the_precision(self, monkeypatch):
        monkeypatch.setitem(stationary_gp._TOLERANCE, torch.double, 0.0)
        check(calibrated("localized"))

    @pytest.mark.parametrize("name", ["localized", "recalibrated, localized"])
    def test_single_precision(self, name):
        check(calibrated(name, make_gp(dtype=torch.float32)), tolerance=2e-2)

    @pytest.mark.parametrize("imputation", ["censor", "hallucinate", "none"])
    def test_pending_points(self, imputation):
        pending = LOW + RANGE * uniform(3, 4, seed=9)
        settings: dict[str, Any] = {"censor_value": 20.0, "imputation": imputation}
        inside = CensoredDelayModel(calibrated("localized"), pending, **settings)
        outside = calibrated("localized", CensoredDelayModel(make_gp(), pending, **settings))
        check(inside)
        check(outside)

    def test_vanishing_variance(self):
        gp = make_gp(standardize=False)
        gp.covar_module.outputscale = torch.tensor(1e-11)
        gp.train()
        gp.eval()
        columns = Columns(4, 2)
        X, C = decisions(3, columns).requires_grad_(), contexts_of(4, columns)
        bound = closed(calibrated("localized", gp), columns)
        values, steepness = bound.with_steepness(X, C)
        slopes = torch.autograd.grad(values.sum() + steepness.sum(), X)[0]
        assert values.isfinite().all() and steepness.isfinite().all() and slopes.isfinite().all()
        # The variance is constant there, so only the mean and the thresholds vary.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of GPyTorch, that the variance is least
            expected = generic(calibrated("localized", gp), columns)(X, C)
        assert_close(values, expected, rtol=1e-8, atol=1e-10)

    def test_no_correction_is_the_gaussian_bound(self):
        columns, gp = Columns(4, 2), make_gp()
        model = CalibratedModel(gp, GaussianLaw())
        X, C = decisions(4, columns), contexts_of(6, columns)
        found = evaluations(closed(model, columns), X, C, C[:3])
        for a, b in zip(found, evaluations(closed(gp, columns), X, C, C[:3]), strict=True):
            assert_close(a, b, rtol=1e-9, atol=1e-9)

    def test_distributions_of_ones_own(self):
        calibrator = _OtherPredictive(0.2, lengthscale=0.5)
        calibrator.update(uniform(5, 4), torch.ones(5, **DOUBLE))
        check(CalibratedModel(make_gp(), calibrator))


@pytest.mark.parametrize("name", ["localized, several", "recalibrated, localized"])
def test_finite_differences(name):
    columns = Columns(4, 2)
    bound = closed(calibrated(name, excess="objective"), columns, -1.0)
    X, C = decisions(2, columns).requires_grad_(), contexts_of(3, columns)
    for function in (bound, bound.gradient_norms):
        assert torch.autograd.gradcheck(lambda x: function(x, C), (X,), eps=1e-5, atol=1e-4)  # noqa: B023


def changed_state(model: CalibratedModel) -> None:
    other = calibrated("localized")
    other.calibrator.update(uniform(5, 4, seed=21), torch.full((5,), 30.0, **DOUBLE))
    model.load_state_dict(other.state_dict())


def changed_data(model: CalibratedModel) -> None:
    Z = LOW + RANGE * uniform(3, 4, seed=22)
    model.observe(Z, torch.full((3, 1), 70.0, **DOUBLE))


CHANGES: dict[str, Callable[[CalibratedModel], Any]] = {
    "loaded": changed_state,
    "observed": changed_data,
    "learned": lambda model: model.calibrator.update(
        uniform(5, 4, seed=23), torch.full((5,), 30.0, **DOUBLE)
    ),
    "noise": lambda model: model.model.likelihood.initialize(noise=0.2),
    "denoise": lambda model: setattr(model, "denoise", False),
    "excess": lambda model: setattr(model, "excess", "objective"),
    "calibrator": lambda model: setattr(model, "calibrator", CALIBRATORS["recalibrated"]()),
    "model": lambda model: setattr(model, "model", make_gp("rbf")),
    "training mode": lambda model: model.train(),
}


class TestLife:
    @pytest.mark.parametrize("change", CHANGES)
    def test_follows_the_model(self, change):
        columns = Columns(4, 2)
        contexts, X = contexts_of(5, columns), decisions(3, columns).unsqueeze(-2)
        model = calibrated("localized")
        ambiguity = WassersteinBall(0.05, "lipschitz")
        acqf = RobustUpperConfidenceBound(model, 2.25, ambiguity, contexts)
        before = acqf(X)
        CHANGES[change](model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            found = acqf(X)
            expected = ambiguity.evaluate(generic(model, columns), X.squeeze(-2), acqf.contexts)
        assert_close(found, expected, rtol=1e-8, atol=1e-8)
        assert change == "training mode" or (before - found).abs().max() > 1e-4

    @pytest.mark.parametrize("order", ["inside", "outside"])
    def test_warns_once(self, order):
        columns = Columns(4, 2)
        pending = LOW + RANGE * uniform(2, 4, seed=9)
        if order == "inside":
            inner = CalibratedModel(make_gp(), OnlineConformal(0.2))
            model: Any = CensoredDelayModel(inner, pending, censor_value=20.0)
        else:
            censored = CensoredDelayModel(make_gp(), pending, censor_value=20.0)
            model = CalibratedModel(censored, OnlineConformal(0.2))
        contexts, X = contexts_of(5, columns), decisions(3, columns).unsqueeze(-2)
        acqf = RobustUpperConfidenceBound(model, 2.25, TotalVariationBall(0.1), contexts)
        with pytest.warns(CalibrationWarning, match="has seen 0 residuals"):
            acqf(X)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CalibrationWarning)
            acqf(X)
            model.posterior(LOW.unsqueeze(0))


class TestSupport:
    def test_what_has_a_closed_form(self):
        pending = LOW + RANGE * uniform(2, 4, seed=9)
        gp = make_gp()
        model = CalibratedModel(gp, OnlineConformal(0.2))
        assert gaussian_process(gp) is gp and gaussian_process(model) is gp
        for composed in (
            CensoredDelayModel(model, pending, censor_value=20.0),
            CalibratedModel(
                CensoredDelayModel(gp, pending, censor_value=20.0), OnlineConformal(0.2)
            ),
        ):
            found = gaussian_process(composed)
            assert len(found.train_targets) == len(gp.train_targets) + 2
            assert gaussian_process(composed) is not None

    def test_what_has_not(self):
        columns, calibrator = Columns(4, 2), OnlineConformal(0.2)
        other = plain_gp(covar_module=make_gp().covar_module + make_gp().covar_module)
        for base in (make_variational(), make_multitask(), other):
            model = CalibratedModel(base, calibrator)
            assert gaussian_process(model) is None
            assert isinstance(confidence_bound(model, columns, BETA), PointwiseFunction)
        model = _OtherPosterior(make_gp(), calibrator)
        assert isinstance(confidence_bound(model, columns, BETA), PointwiseFunction)


class _OtherPredictive(LocalizedConformal):
    """Depends on the inputs by more than its learner's thresholds."""

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        return PiecewisePredictive.conformal(
            0.2, half_width=1.0 + X.square().sum(dim=-1, keepdim=True), validate=False
        )


class _OtherPosterior(CalibratedModel):
    def posterior(self, *args: Any, **kwargs: Any) -> Any:
        return super().posterior(*args, **kwargs)
