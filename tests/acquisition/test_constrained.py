"""Constrained acquisition functions compared with quadrature, BoTorch's functions and samples."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import (
    LogConstrainedExpectedImprovement,
    LogProbabilityOfFeasibility,
)
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import ModelList, ModelListGP, SingleTaskGP
from botorch.models.model import Model
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, LocalizedConformal, QuantileRecalibrator
from botorch_calib.acquisition import (
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
)
from botorch_calib.acquisition.pending_points import fantasy_models
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.predict import predict
from tests.contracts import AcquisitionContract
from tests.gps import make_multitask, make_variational
from tests.random_numbers import normal, uniform

CONSTRAINTS = {1: (None, 0.9), 2: (0.1, 0.4)}


def make_gps(dtype: torch.dtype = torch.double, sign: float = 1.0) -> list[SingleTaskGP]:
    generator = torch.Generator().manual_seed(0)
    X = uniform(25, 2, generator=generator)
    noise = normal(25, 3, generator=generator)
    outcomes = [torch.sin(5 * X).sum(dim=-1), X.sum(dim=-1), X.prod(dim=-1)]
    return [
        SingleTaskGP(X.to(dtype), sign * (f + 0.2 * noise[:, i]).unsqueeze(-1).to(dtype)).eval()
        for i, f in enumerate(outcomes)
    ]


def make_models(gps: list[SingleTaskGP]) -> list[Model]:
    """A plain model, one of the objective behind the noise and one of the outcome."""
    return [
        gps[0],
        CalibratedModel.from_history(gps[1], LocalizedConformal(0.2)),
        CalibratedModel.from_history(gps[2], QuantileRecalibrator(), denoise=False),
    ]


@cache
def models_of(dtype: torch.dtype) -> list[Model]:
    return make_models(make_gps(dtype))


class TestContract(AcquisitionContract):
    def make_acquisition(self, dtype: torch.dtype, maximize: bool = True) -> AcquisitionFunction:
        return LogCalibratedConstrainedExpectedImprovement(
            ModelList(*models_of(dtype)), 0.3, 0, CONSTRAINTS, maximize
        )

    def make_negated_acquisition(self, dtype: torch.dtype) -> AcquisitionFunction:
        models = ModelList(make_gps(dtype, sign=-1.0)[0], *models_of(dtype)[1:])
        return LogCalibratedConstrainedExpectedImprovement(models, -0.3, 0, CONSTRAINTS)


class TestContractOfFeasibility(AcquisitionContract):
    def make_acquisition(self, dtype: torch.dtype, maximize: bool = True) -> AcquisitionFunction:
        model = ModelList(*models_of(dtype))
        return LogCalibratedProbabilityOfFeasibility(model, CONSTRAINTS)


def points(num: int, dtype: torch.dtype = torch.double) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(num, 1, 2, dtype=torch.double, generator=generator).to(dtype)


@pytest.fixture(scope="module")
def gps() -> list[SingleTaskGP]:
    return make_gps()


@pytest.fixture(scope="module")
def models() -> list[Model]:
    return models_of(torch.double)


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("limits", [(None, 0.875), (0.75, None), (0.5, 0.625)])
def test_plain_models_give_botorchs_values(
    gps: list[SingleTaskGP], maximize: bool, limits: Any
) -> None:
    # Limits without rounding, since BoTorch keeps them in single precision.
    X, constraints = points(9), {1: limits, 2: (0.125, 0.375)}
    theirs = LogConstrainedExpectedImprovement(ModelListGP(*gps), 0.25, 0, constraints, maximize)
    ours = LogCalibratedConstrainedExpectedImprovement(
        ModelList(*gps), 0.25, 0, constraints, maximize
    )
    assert_close(ours(X), theirs(X), rtol=1e-10, atol=1e-10)
    feasible = LogProbabilityOfFeasibility(ModelListGP(*gps), constraints)
    assert_close(
        LogCalibratedProbabilityOfFeasibility(ModelList(*gps), constraints)(X),
        feasible(X),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize("pending", [False, True])
def test_values_do_not_depend_on_the_units_of_plain_models(
    gps: list[SingleTaskGP], pending: bool
) -> None:
    """GPyTorch's least standard deviation is 1e-5 in any unit."""
    unit, X = 2.0**-22, points(9)
    inputs = gps[0].train_inputs[0]
    outcomes = [raw_train_targets(gp) for gp in gps]

    def values(unit: float) -> Tensor:
        scaled: list[Model] = [SingleTaskGP(inputs, unit * Y).eval() for Y in outcomes]
        if pending:
            scaled = [CensoredDelayModel(gp, points(3).squeeze(-2), 0.0) for gp in scaled]
        acqf = LogCalibratedConstrainedExpectedImprovement(
            ModelList(*scaled), 0.3 * unit, 0, {1: (None, 0.6 * unit), 2: (0.1 * unit, None)}
        )
        return acqf(X)

    assert_close(values(unit), values(1.0) + math.log(unit), rtol=1e-9, atol=1e-9)


def test_feasibility_is_the_integral_of_the_density(models: list[Model]) -> None:
    X = points(3)
    value = LogCalibratedProbabilityOfFeasibility(ModelList(*models), CONSTRAINTS)(X)
    total = torch.zeros(3, dtype=torch.double)
    for i, (lower, upper) in CONSTRAINTS.items():
        posterior: Any = models[i].posterior(X)
        # The grid starts far in the lower tail, and is fine, as the density jumps at the knots.
        grid = torch.linspace(-4.0 if lower is None else lower, upper, 100_001, dtype=torch.double)
        density = torch.cat([posterior.density(part) for part in grid.split(20_001)])
        total += torch.trapezoid(density.squeeze(-1).squeeze(-1), grid, dim=0).log()
    assert_close(value, total, rtol=0, atol=2e-4)


def test_value_is_the_sum_of_its_parts(models: list[Model]) -> None:
    X = points(8)
    calibrated = [
        CalibratedModel.from_history(make_gps()[0], LocalizedConformal(0.2)),
        *models[1:],
    ]
    model = ModelList(*calibrated)
    value = LogCalibratedConstrainedExpectedImprovement(model, 0.3, 0, CONSTRAINTS)(X)
    log_ei = LogCalibratedExpectedImprovement(calibrated[0], 0.3)(X)
    log_pf = LogCalibratedProbabilityOfFeasibility(model, CONSTRAINTS)(X)
    assert_close(value, log_ei + log_pf, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "limits", [(None, -50.0), (40.0, None), (40.0, 40.125), (0.5, 0.5 + 2**-20), (-(2.0**20), 2e6)]
)
def test_plain_models_give_botorchs_values_far_out(gps: list[SingleTaskGP], limits: Any) -> None:
    values, X = [], points(7).requires_grad_()
    for acqf in (
        LogConstrainedExpectedImprovement(ModelListGP(*gps), 0.25, 0, {1: limits}),
        LogCalibratedConstrainedExpectedImprovement(ModelList(*gps), 0.25, 0, {1: limits}),
    ):
        value = acqf(X)
        values.append((value, torch.autograd.grad(value.sum(), X)[0]))
    assert_close(*values, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("i", [0, 1, 2])
@pytest.mark.parametrize(("center", "width"), [(0.4, 1e-5), (0.8, 1e-7), (0.4, 1e-9)])
def test_narrow_limits(models: list[Model], i: int, center: float, width: float) -> None:
    """The density times the width, with its gradient."""
    X = points(12).requires_grad_()
    value = LogCalibratedProbabilityOfFeasibility(
        ModelList(*models), {i: (center - width / 2, center + width / 2)}
    )(X)
    posterior = predict(models[i], X)
    expected = (posterior.density(torch.tensor(center)) * width).log().flatten()
    assert_close(value, expected, rtol=0, atol=1e-5)
    gradients = [torch.autograd.grad(v.sum(), X)[0] for v in (value, expected)]
    assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_gradients_where_feasibility_underflows() -> None:
    """Gradients are correct if the probability of feasibility underflows in either precision."""
    far, results = {1: (None, -60.0), 2: (40.0, 40.1)}, []
    for dtype in (torch.float, torch.double):
        X = points(5, dtype).requires_grad_()
        acqf = LogCalibratedProbabilityOfFeasibility(ModelList(*models_of(dtype)), far)
        log_p = acqf(X)
        (gradient,) = torch.autograd.grad(log_p.sum(), X)
        assert gradient.isfinite().all() and (gradient.abs().amax(dim=-1) > 0).all()
        assert (log_p < -700).all() and (log_p < -1e4).any()
        results.append((log_p.double(), gradient.double()))
    assert_close(*results, rtol=5e-3, atol=0)
    step = 1e-6
    shift = torch.zeros_like(X)
    shift[..., 0] = step
    with torch.no_grad():
        slope = (acqf(X + shift) - acqf(X - shift)) / (2 * step)
    assert_close(gradient[..., 0].squeeze(-1), slope, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_a_probability_is_never_above_one(dtype: torch.dtype) -> None:
    model = ModelList(*models_of(dtype))
    for limits in ((-1e6, 1e6), (None, 1e6), (-1e6, None)):
        acqf = LogCalibratedProbabilityOfFeasibility(model, dict.fromkeys((1, 2), limits))
        X = points(30, dtype).requires_grad_()
        value = acqf(X)
        assert (value <= 0).all() and (value > -1e-6).all()
        assert torch.autograd.grad(value.sum(), X)[0].isfinite().all()


def noise_free_gps(dtype: torch.dtype = torch.double) -> list[Any]:
    """An objective and a constrained outcome, observed almost without noise."""
    X = points(5, dtype).squeeze(-2)
    outcomes = [torch.sin(5 * X).sum(dim=-1, keepdim=True), torch.cos(4 * X[:, :1]) + X[:, 1:]]
    gps = [SingleTaskGP(X, Y, train_Yvar=torch.full_like(Y, 1e-5)).eval() for Y in outcomes]
    for gp in gps:
        gp.covar_module.lengthscale = 0.4
    return gps


@pytest.mark.parametrize(("maximize", "limits"), [(True, (None, 1.0)), (False, (0.7, 1.1))])
def test_pending_points_against_sampling(maximize: bool, limits: Any) -> None:
    """The improvement on whatever feasible value the pending points turn out to have."""
    gps, num, sign = noise_free_gps(), 400_000, 1.0 if maximize else -1.0
    X = torch.tensor([[0.3, 0.5], [0.2, 0.2], [0.6, 0.9], [0.9, 0.6]], dtype=torch.double)
    X, X_pending = X.unsqueeze(-2), torch.tensor([[0.35, 0.55], [0.1, 0.1]], dtype=torch.double)
    best = 0.5 if maximize else 1.0
    acqf = LogCalibratedConstrainedExpectedImprovement(
        ModelList(*gps), best, 0, {1: limits}, maximize, X_pending, num_fantasies=4096
    )
    together = torch.cat([X, X_pending.expand(4, 2, 2)], dim=-2)
    torch.manual_seed(0)
    with torch.no_grad():
        f, y = (gp.posterior(together).rsample(torch.Size([num])).squeeze(-1) for gp in gps)
    feasible = (y <= limits[1]) & (y >= (-torch.inf if limits[0] is None else limits[0]))
    f = sign * f
    found = f[..., 1:].masked_fill(~feasible[..., 1:], -torch.inf).amax(dim=-1)
    for incumbent, right in ((found, True), (torch.full_like(found, sign * best), False)):
        gain = (f[..., 0] - incumbent.clamp(min=sign * best)).clamp(min=0.0) * feasible[..., 0]
        # Five standard errors, for the quasi-random fantasies have one as well.
        gap, error = (acqf(X).exp() - gain.mean(dim=0)).abs(), gain.std(dim=0) / num**0.5
        assert (gap <= 5 * error + 1e-6).all() == right


def test_fantasies_of_different_outcomes_are_independent(gps: list[SingleTaskGP]) -> None:
    """Scramblings of one quasi-random sequence are not, whatever their seeds."""
    num, X_pending = 1024, points(1).squeeze(-2)
    fantasies = fantasy_models([gps[0]] * 4, X_pending, num)
    outcomes = torch.stack([model.train_targets[:, -1] for model in fantasies])
    correlation = outcomes.corrcoef().fill_diagonal_(0.0)
    assert correlation.abs().max() < 4 / num**0.5


def test_pending_points_of_a_plain_model_of_several_tasks() -> None:
    """Without the column of the task, which BoTorch's model does not add when it is conditioned."""
    model, X, X_pending = make_multitask(), points(4), points(2).squeeze(-2)
    constraints = {0: (None, 0.5)}
    acqf = LogCalibratedProbabilityOfFeasibility(model, constraints, X_pending)
    with_task = torch.cat([X_pending, torch.zeros(2, 1).to(X_pending)], dim=-1)
    expected = LogCalibratedProbabilityOfFeasibility(model, constraints, with_task)
    assert_close(acqf(X), expected(X), rtol=0, atol=0)
    alone = LogCalibratedProbabilityOfFeasibility(model, constraints)
    assert not torch.allclose(acqf(X), alone(X))


@pytest.mark.parametrize("maximize", [True, False])
def test_pending_points_of_other_tasks_are_no_incumbents(maximize: bool) -> None:
    """They are informative, and their values are not values of the output task."""
    model, X = CalibratedModel.from_history(make_multitask(), LocalizedConformal(0.2)), points(4)
    X_pending, task = points(2).squeeze(-2), torch.ones(2, 1, dtype=torch.double)
    other, own = (torch.cat([X_pending, t], dim=-1) for t in (task, 0.0 * task))
    best = -9.0 if maximize else 9.0
    acqf = LogCalibratedExpectedImprovement(model, best, None, maximize, other)
    (fantasies,) = fantasy_models([model], other, 16)
    mean = fantasies.posterior(X.unsqueeze(-3)).mean
    assert_close(acqf(X).exp(), (mean - best).abs().mean(dim=(1, 2, 3)), rtol=1e-4, atol=0)
    assert (LogCalibratedExpectedImprovement(model, best, None, maximize, own)(X) < acqf(X)).all()


def test_pending_points_that_do_not_fit_a_model() -> None:
    X_pending, (gp, *_) = points(2).squeeze(-2), make_gps(torch.float)
    for plain in (gp, CalibratedModel.from_history(gp, LocalizedConformal(0.2))):
        with pytest.raises(InputDataError, match=r"`X_pending` must have the precision .*float32"):
            LogCalibratedProbabilityOfFeasibility(plain, {0: (None, 0.5)}, X_pending)
    with pytest.raises(UnsupportedError, match="`X_pending` .* SingleTaskVariationalGP cannot"):
        LogCalibratedProbabilityOfFeasibility(make_variational(), {0: (None, 0.5)}, X_pending)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({}, "no limit"),
        ({1: (1.0, 0.0)}, "less than"),
        ({7: (0.0, None)}, "outcome 7 of 3"),
        ({1: (0.0, None), -2: (None, 1.0)}, "outcome 1 twice"),
        ({0: (0.0, None)}, "holds the objective"),
        ({1: 0.5}, "pairs"),
        ({1: ("low", None)}, r"`constraints\[1\]` must be a number"),
        ({"cost": (0.0, None)}, "`constraints` must be a sequence of integers"),
    ],
)
def test_bad_constraints(models: list[Model], constraints: Any, message: str) -> None:
    with pytest.raises(InputDataError, match=message):
        LogCalibratedConstrainedExpectedImprovement(ModelList(*models), 0.3, 0, constraints)


def test_bad_arguments(models: list[Model], gps: list[SingleTaskGP]) -> None:
    model = ModelList(*models)
    for best_f in (float("nan"), None):
        with pytest.raises(InputDataError, match="best_f"):
            LogCalibratedConstrainedExpectedImprovement(model, best_f, 0, CONSTRAINTS)  # type: ignore[arg-type]
    for index in (3, 1.5, None):
        with pytest.raises(InputDataError, match="objective_index"):
            LogCalibratedConstrainedExpectedImprovement(model, 0.0, index, CONSTRAINTS)  # type: ignore[arg-type]
    inputs = gps[0].train_inputs[0]
    several = SingleTaskGP(inputs, torch.cat([inputs, inputs], dim=-1))
    with pytest.raises(UnsupportedError, match="one model per outcome"):
        LogCalibratedProbabilityOfFeasibility(several, {0: (0.0, None)})
