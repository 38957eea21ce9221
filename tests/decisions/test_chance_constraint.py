"""`ChanceConstraint`: its margin, its decisions, and the bound on its violations."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import random
import warnings
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Log, Standardize
from botorch.optim import optimize_acqf
from botorch.posteriors import Posterior, TorchPosterior
from scipy.optimize import brentq
from torch import Tensor
from torch.distributions import Laplace
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    CensoredDelayModel,
    ChanceConstraint,
    LocalizedConformal,
    OnlineConformal,
    QuantileRecalibrator,
)
from botorch_calib.decisions.budget import Account
from botorch_calib.decisions.rows import decision_of
from botorch_calib.decisions.widening import leave_one_out_factor, width
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models import loo_residuals
from botorch_calib.models.predict import predict
from tests.gps import make_data, make_gp, make_multitask

LIMITS: list[dict[str, Any]] = [{"upper": 0.8}, {"lower": -0.5}, {"upper": 1.2, "lower": -0.9}]
#: Outcomes that are late on purpose take the budget.
LATE = pytest.mark.filterwarnings("ignore:The outcomes of .* certified points are pending")
# Everything is certified, and nothing violates unless it is told to.
WIDE: dict[str, Any] = {"upper": 100.0}


def points(num: int, dtype: torch.dtype = torch.double, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num, 1, 2, dtype=torch.double, generator=generator).to(dtype)


def constraint(dtype: torch.dtype = torch.double, **kwargs: Any) -> ChanceConstraint:
    return ChanceConstraint(make_gp(dtype=dtype), **{"upper": 0.8, **kwargs})


def value(y: float, num: int = 1) -> Tensor:
    return torch.full((num, 1), y, dtype=torch.double)


def decide(constraint: ChanceConstraint, X: Tensor) -> list[bool]:
    """Whether points are certified, once they are decided about."""
    return [row["certified"] for row in constraint.decide(X)]


def outcomes(constraint: ChanceConstraint) -> list[Any]:
    """Those of a constraint on one outcome."""
    return [row["outcomes"]["y"] for row in constraint.decisions]


def ends(row: dict[str, Any]) -> list[float]:
    """The quantiles of a row, without those that there are not."""
    return [q for pair in row["quantiles"].values() for q in pair if q is not None]


def factor_of_scores(z: Tensor, level: float, sign: float = 1.0) -> float:
    """The factor of leave-one-out scores, from the definition."""
    normal, scores = NormalDist(), [sign * score for score in z.tolist()]

    def excess(q: float) -> float:
        own = sum(normal.cdf((score - q) / 0.15) for score in scores)
        return 8 * normal.cdf(-q) + own - (1 - level) * (8 + len(scores))

    return float(brentq(excess, 0.0, 12.0, xtol=1e-12)) / normal.inv_cdf(level)


def expected_factor(gp: Any, level: float, sign: float = 1.0) -> float:
    """The factor of a process's own data."""
    return factor_of_scores(loo_residuals(gp), level, sign)


def expected_margin(
    gp: Any, X: Tensor, limits: dict[str, Any], level: float, k: float, factor: bool = True
) -> Tensor:
    """The margin from the plain posterior, made ``k`` times as wide, and by its data's factor."""
    noisy = gp.posterior(X, observation_noise=True)
    mean, deviation = noisy.mean.flatten(), noisy.variance.sqrt().flatten()
    rooms, reaches = [], []
    for name, sign in (("upper", 1.0), ("lower", -1.0)):
        if name in limits:
            rooms.append(sign * (limits[name] - mean))
            reaches.append(k * (expected_factor(gp, level, sign) if factor else 1.0) * deviation)
    parts = expected_parts(level, [a / b for a, b in zip(rooms, reaches, strict=True)])
    each = [a + torch.special.ndtri(p) * b for a, p, b in zip(rooms, parts, reaches, strict=True)]
    return torch.stack(each).amin(dim=0)


def expected_parts(level: float, scores: list[Tensor]) -> list[Tensor]:
    """Parts of ``1 - level`` for limits with these normal scores: 2 % of it is shared equally."""
    p = [torch.special.ndtr(-score) for score in scores]
    if len(p) == 1:
        return [torch.full_like(p[0], 1 - level)]
    return [(1 - level) * (0.98 * each / sum(p) + 0.02 / len(p)) for each in p]


# ------------------------------------------------------------ the margin


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("transforms", [False, True])
def test_the_margin_is_the_distance_of_a_wider_quantile_from_the_limit(
    limits: dict[str, Any], transforms: bool
) -> None:
    gp, X = make_gp(transforms=transforms), points(7)
    scale, shift = (7.0, 30.0) if transforms else (1.0, 0.0)
    limits = {name: scale * limit + shift for name, limit in limits.items()}
    X = 10 * X - 5 if transforms else X
    tested = ChanceConstraint(gp, **limits, level=0.85)
    expected = expected_margin(gp, X, limits, 0.85, 1.05)
    assert_close(tested.margin(X), expected)
    assert torch.equal(tested.certified(X), expected >= 0)
    plain = ChanceConstraint(gp, **limits, level=0.85, width=1.0)
    assert_close(plain.margin(X), expected_margin(gp, X, limits, 0.85, 1.0, factor=False))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_factor_is_the_quantile_of_leave_one_out_scores(sign: float) -> None:
    """With the model's own distribution; levels of which the data say little are drawn in."""
    gp, normal = make_gp(), NormalDist()
    for level, taken in ((0.9, 0.9), (0.94, 0.94), (0.3, normal.cdf(1.0)), (0.999, 1 - 1 / 20)):
        expected = expected_factor(gp, taken, sign)
        assert leave_one_out_factor(gp, level, sign) == pytest.approx(expected, rel=1e-9)
    # Far too little noise: no more than 12 deviations; no data of its own: the model's quantile
    certain = make_gp()
    certain.likelihood.noise, certain.covar_module.lengthscale = 1e-6, 5.0
    assert 3.0 < leave_one_out_factor(certain, 0.9, sign) <= 12 / normal.inv_cdf(0.9)
    assert leave_one_out_factor(LaplaceModel(), 0.9, sign) == 1.0
    assert leave_one_out_factor(CalibratedModel.from_history(gp, OnlineConformal(0.2))) == 1.0


def test_violations_widen_the_quantile_and_hits_narrow_it() -> None:
    """By the factor of the account; the model is left as it is. A miss may keep the limit."""
    gp, X = make_gp(), points(5)
    tested, x = ChanceConstraint(gp, **WIDE), points(1).squeeze(1)
    for y, excess in ((101.0, 0.9), (50.0, 0.8), (-50.0, 0.7), (101.0, 1.6)):
        tested.decide(x)
        tested.observe(x, value(y), condition=False)
        k = 1.05 * math.exp(0.2 * excess)
        assert_close(tested.margin(X), expected_margin(gp, X, WIDE, 0.9, k))
    assert (tested.num_certified, tested.num_violations) == (4, 2)
    for number in range(40):
        tested.observe(x, value(-51.0 - number), condition=False)
    least = 1.05 * math.exp(0.2 * -2.0)
    assert_close(tested.margin(X), expected_margin(gp, X, WIDE, 0.9, least))


def test_a_calibrated_model_states_its_own_quantile() -> None:
    """At the level of the wider score; its calibrator has the residuals already."""
    gp, X = make_gp(), points(5)
    level = NormalDist().cdf(1.05 * NormalDist().inv_cdf(0.87))
    for calibrator in (
        LocalizedConformal(0.2),
        OnlineConformal(0.2),
        QuantileRecalibrator(),
        QuantileRecalibrator([0.9]),
    ):
        model = CalibratedModel.from_history(gp, calibrator, denoise=False)
        expected = (0.8 - model.posterior(X).quantile(level)).flatten()
        tested = ChanceConstraint(model, upper=0.8, level=0.87)
        assert_close(tested.margin(X), expected)
        made = ChanceConstraint.from_history(gp, 0.8, level=0.87, calibrator=calibrator)
        assert_close(made.margin(X), expected)
        assert tested.calibrator is model.calibrator and calibrator.num_updates == 0
    assert constraint().calibrator is None


class LaplaceModel(Model):
    """Outcomes with a Laplace distribution of scale 0.5 around ``x_1 + x_2``, noise included.

    Any model whose posterior has a cdf and its inverse will do.
    """

    num_outputs = 1

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> Posterior:
        """Around the sum of ``X``, ``b x 1 x 2``."""
        return TorchPosterior(Laplace(X.sum(dim=-1, keepdim=True), torch.tensor(0.5).to(X)))


@pytest.mark.parametrize("limits", [{"upper": 2.0}, {"upper": 3.0, "lower": -1.5}])
def test_any_model_with_quantiles_will_do(limits: dict[str, Any]) -> None:
    X, level = points(9), 0.9
    total = X.sum(dim=-1).flatten()
    rooms = [limits["upper"] - total]
    rooms += [total - limits["lower"]] if "lower" in limits else []
    scores = [-torch.special.ndtri(0.5 * (-room / 0.5).exp()) / 1.05 for room in rooms]
    ends = []
    for room, part in zip(rooms, expected_parts(level, scores), strict=True):
        beyond = torch.special.ndtr(1.05 * torch.special.ndtri(part))
        ends.append(room + 0.5 * (2 * beyond).log())  # the reach of a Laplace distribution
    tested = ChanceConstraint(LaplaceModel(), **limits, level=level)
    assert_close(tested.margin(X), torch.stack(ends).amin(dim=0), rtol=1e-6, atol=1e-6)
    # A standard deviation is as far as Phi(1) is from one half; what is noise is not said.
    deviation = -0.5 * math.log(2 * (1 - NormalDist().cdf(1.0)))
    ends = [limits["upper"] - total + deviation]
    ends += [total + deviation - limits["lower"]] if "lower" in limits else []
    assert_close(tested.optimism(X), torch.stack(ends).amin(dim=0), rtol=1e-6, atol=1e-6)
    assert torch.autograd.gradcheck(tested.margin, X[:3].requires_grad_())
    x = X[tested.margin(X).argmax()]
    tested.observe(x, value(100.0), condition=False)
    assert tested.num_violations == tested.num_certified == 1
    assert tested.margin(X).isfinite().all()


@pytest.mark.parametrize("k", [1e-6, 1e3])
def test_a_width_beyond_all_bounds_leaves_numbers(k: float) -> None:
    for model in (LaplaceModel(), make_gp(), make_gp(dtype=torch.float)):
        dtype = torch.float if getattr(model, "train_targets", None) is None else None
        X = points(4, dtype or model.train_targets.dtype)  # type: ignore[arg-type]
        margin = ChanceConstraint(model, upper=1.0, width=k).margin(X)
        assert not margin.isnan().any()


def test_confidence_is_about_what_is_known_of_the_point() -> None:
    """Noise keeps its quantile; the noise-free value gets one of its own."""
    gp, X = make_gp(), points(6)
    plain, noisy = gp.posterior(X), gp.posterior(X, observation_noise=True)
    noise = (noisy.variance - plain.variance).sqrt()
    z, c = (NormalDist().inv_cdf(p) for p in (0.9, 0.95))
    k = 1.1 * expected_factor(gp, 0.9)
    upper = plain.mean + k * (z * noise + c * plain.variance.sqrt())
    tested = ChanceConstraint(gp, upper=0.8)
    assert_close(tested.margin(X, confidence=0.95), (0.8 - upper).flatten())
    mirrored = ChanceConstraint(make_gp(sign=-1.0), lower=-0.8)
    assert_close(mirrored.margin(X, 0.95), tested.margin(X, 0.95))
    # Much more is asked for where nothing is known, and next to nothing more where all is.
    assert (tested.margin(X, 0.95) < tested.margin(X)).all()
    repeated = gp.condition_on_observations(X[0].repeat(1000, 1), value(0.0, 1000))
    tested = ChanceConstraint(repeated, upper=0.85)
    width = 1.1 * expected_factor(repeated, 0.9)
    stated = ChanceConstraint(repeated, upper=0.85, width=width, rows=())
    assert_close(tested.margin(X[:1], 0.95), stated.margin(X[:1]), atol=0.02, rtol=0)
    # Rounds that went well make the rounds' quantile narrower, and not that of a point.
    tested = ChanceConstraint(gp, upper=50.0, rows=())
    before = tested.margin(X), tested.margin(X, 0.95)
    for _ in range(20):
        tested.decide(X[0])
        tested.observe(X[0], value(-9.0), condition=False)
    assert (tested.margin(X) > before[0]).all()
    assert torch.equal(tested.margin(X, 0.95), before[1])
    for confidence in (0.0, 1.0, "high"):
        with pytest.raises(InputDataError, match="confidence"):
            tested.margin(X, confidence)  # type: ignore[arg-type]


def test_the_margin_has_the_gradient_of_finite_differences() -> None:
    X, limits = points(4).requires_grad_(), LIMITS[2]
    localized = QuantileRecalibrator(lengthscale=0.4, regularization=0.01)
    model = CalibratedModel.from_history(make_gp(), localized, denoise=False)
    for tested in (ChanceConstraint(make_gp(), **limits), ChanceConstraint(model, **limits)):
        assert torch.autograd.gradcheck(tested.margin, X)
        assert torch.autograd.gradcheck(lambda X, t=tested: t.margin(X, 0.95), X)
        assert torch.autograd.gradcheck(tested.optimism, X)


def test_single_precision_and_batches() -> None:
    X = points(6)
    reference = constraint().margin(X)
    single = constraint(torch.float)
    assert_close(single.margin(X.float()).double(), reference, rtol=1e-3, atol=1e-3)
    assert single.margin(X.float()).dtype == torch.float
    assert_close(constraint().margin(X.view(2, 3, 1, 2)), reference.view(2, 3))


def test_pending_points_do_not_certify() -> None:
    gp, X = make_gp(), points(5)
    model = CensoredDelayModel(gp, X_pending=torch.full((3, 2), 0.5).double(), censor_value=-5.0)
    calibrated = CalibratedModel(model, QuantileRecalibrator([0.9]), denoise=False)
    bare = CalibratedModel(gp, QuantileRecalibrator([0.9]), denoise=False)
    for each, plain in ((model, gp), (calibrated, bare)):
        tested, expected = (ChanceConstraint(m, upper=0.8) for m in (each, plain))
        assert_close(tested.margin(X), expected.margin(X))
    tested = ChanceConstraint(model, upper=0.8)
    tested.observe(torch.full((1, 2), 0.5).double(), value(0.0))
    assert len(tested.model.X_pending) == 2
    assert len(tested.model.train_targets) == 13


class Nearness(AcquisitionFunction):
    """How near points are to one that is not certified: the optimum is on the border."""

    def __init__(self, model: Model, target: Tensor) -> None:
        super().__init__(model=model)
        self.target = target

    def forward(self, X: Tensor) -> Tensor:
        """Values ``b`` at ``b x 1 x d``."""
        return -(X - self.target).square().sum(dim=-1).squeeze(-1)


@pytest.mark.filterwarnings("ignore:Optimization failed in `gen_candidates_scipy`")
@pytest.mark.parametrize(
    ("seed", "scale"),
    [(0, 1.0), (1, 1e4), (2, 1e-2)],
)
def test_where_optimize_acqf_ends_is_certified(seed: int, scale: float) -> None:
    """With the options of the docstring, in whatever unit the outcome is."""
    X, Y, _ = make_data()
    gp = SingleTaskGP(X, scale * Y, outcome_transform=Standardize(1)).eval()
    tested = ChanceConstraint.from_history(gp, upper=0.5 * scale)
    X = points(400, seed=seed)
    certified = tested.certified(X)
    candidate, _ = optimize_acqf(
        Nearness(tested.model, X[~certified][0, 0]),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double),
        q=1,
        num_restarts=1,
        batch_initial_conditions=X[certified][:1],
        nonlinear_inequality_constraints=[tested.nonlinear_inequality_constraint()],
        options={"batch_limit": 1, "maxiter": 100, "ftol": 1e-9},
    )
    assert bool(tested.certified(candidate.unsqueeze(0)))


# ------------------------------------------------------------ decisions and their outcomes


def test_all_rows_condition_and_certified_ones_count() -> None:
    tested, X = constraint(), points(60)
    certified = tested.certified(X)
    inside, outside = X[certified][0, 0], X[~certified][0, 0]
    tested.observe(torch.stack([inside, outside]), value(5.0, 2))
    assert (tested.num_observed, tested.num_certified, tested.num_violations) == (2, 1, 1)
    assert len(tested.model.train_targets) == 14
    # The width of the new model, of its own leave-one-out residuals, and of one violation: the
    # uncertified row missed, which takes nothing off.
    k = 1.05 * math.exp(0.2 * 0.9 - 0.1)
    expected = expected_margin(tested.model, X, {"upper": 0.8}, 0.9, k)
    assert_close(tested.margin(X), expected)
    assert "violations=1" in repr(tested) and "certified=1 of 2" in repr(tested)


def test_a_calibrator_learns_from_what_is_observed() -> None:
    model = CalibratedModel(make_gp(), QuantileRecalibrator([0.9]), denoise=False)
    tested = ChanceConstraint(model, **WIDE)
    tested.observe(points(3).squeeze(1), value(0.0, 3))
    assert model.calibrator.num_updates == 3 and len(model.train_targets) == 15
    refitted = tested.with_model(make_gp(num=10))
    assert refitted.calibrator is model.calibrator and refitted.num_observed == 3


def test_points_are_judged_by_what_decided_about_them() -> None:
    """By the quantile at the time of the decision, whatever the model says when outcomes come."""
    tested, X = constraint(**WIDE), points(3).squeeze(1)
    assert decide(tested, X) == [True] * 3
    assert (tested.num_certified, tested.num_outstanding, tested.num_observed) == (3, 3, 0)
    quantiles = [ends(row)[0] for row in tested.decisions]
    tested = tested.with_model(make_gp(num=5))
    tested.observe(X[2:], value(quantiles[2]), condition=False)  # a tie
    tested.observe(X[:1], value(math.nextafter(quantiles[0], 99.0)), condition=False)
    assert [y is None for y in outcomes(tested)] == [False, True, False]
    assert tested.num_outstanding == 1 and len(tested.decisions) == 3
    # Neither violates the limit.
    k = 1.05 * math.exp(0.2 * -2 * 0.1)
    assert_close(tested.margin(points(4)), expected_margin(make_gp(num=5), points(4), WIDE, 0.9, k))


def test_a_limit_that_is_met_exactly_is_kept() -> None:
    tested = constraint(**WIDE)
    tested.observe(points(1).squeeze(1), value(100.0), condition=False)
    assert tested.num_violations == 0
    tested.decide(points(1).squeeze(1))
    tested.observe(points(1).squeeze(1), value(math.nextafter(100.0, 200.0)), condition=False)
    assert tested.num_violations == 1
    assert tested.violated(value(100.0)).tolist() == [False]
    both = constraint(upper=1.0, lower=-1.0)
    Y = torch.tensor([[-1.1], [-1.0], [1.0], [1.1]]).double()
    assert both.violated(Y).tolist() == [True, False, False, True]
    assert both.violated(torch.full((2, 3, 1), torch.inf)).all()
    assert both.violated(torch.tensor([[0], [2]])).tolist() == [False, True]
    for bad in (torch.tensor([0.0, 5.0]), torch.tensor(0.0), value(math.nan)):
        with pytest.raises(InputDataError, match="`Y` must hold outcomes ... x 1 without NaN"):
            both.violated(bad)


@pytest.mark.parametrize("limit", [0.1, 0.7, -0.8])
@pytest.mark.parametrize("name", ["upper", "lower"])
def test_a_limit_that_is_met_exactly_is_kept_in_single_precision(name: str, limit: float) -> None:
    """Where the number is another one than the limit in double precision, beyond it or within."""
    tested, x = constraint(torch.float, **{"upper": None, name: limit}), points(1, torch.float)[0]
    sign = 1.0 if name == "upper" else -1.0
    tie = torch.tensor([[limit]])
    beyond = torch.nextafter(tie, torch.tensor(sign * torch.inf))
    for y, expected in ((tie, False), (beyond, True)):
        tested.decide(x)
        tested.observe(x, y, condition=False)
        assert tested.violated(y).tolist() == [expected]
        row = tested.decisions[-1] | {"certified": True}
        row["quantiles"] = row["limits"]
        limits: dict[str, Any] = {name: limit}
        rebuilt = ChanceConstraint(make_gp(dtype=torch.float), rows=[row], **limits)
        assert rebuilt.num_violations == expected


def test_while_outcomes_are_out_the_budget_lasts_for_few() -> None:
    tested, X = constraint(**WIDE, budget=2.0), points(9).squeeze(1)
    # p (1 - alpha) < 2 up to three points.
    with pytest.warns(
        CalibrationWarning, match="outcomes of 3 certified points are pending.*withdraw"
    ):
        assert decide(tested, X) == [True] * 3 + [False] * 6
    assert tested.summary().endswith("`withdraw` points that were never run.")
    assert tested.budget_left == pytest.approx(2.0 - 3 + 0.3)
    assert (tested.margin(points(4)) < 0).all() and not tested.certified(points(4)).any()
    tested.observe(X[:3], value(0.0, 3), condition=False)
    assert tested.certified(points(4)).all() and tested.budget_left == pytest.approx(2.3)
    # Rows whose decision was not recorded are decided one after the other too.
    # A statement about a point does not depend on what others have spent.
    again = constraint(**WIDE, budget=2.0)
    again.observe(X, value(101.0, 9), condition=False)
    assert again.num_certified == again.num_violations == 3
    assert again.budget_left < 0 and not again.certified(points(4)).any()
    assert (again.margin(points(4), confidence=0.95) > 0).all()


def test_a_point_may_be_decided_about_twice() -> None:
    tested, x = constraint(**WIDE), points(1).squeeze(1)
    tested.decide(x.repeat(2, 1))
    tested.observe(x, value(101.0), condition=False)
    assert (tested.num_observed, tested.num_outstanding) == (1, 1)
    tested.observe(x.repeat(2, 1), value(0.0, 2), condition=False)
    assert outcomes(tested) == [101.0, 0.0, 0.0]


def test_an_outcome_finds_its_decision_up_to_rounding() -> None:
    """Another unit of the inputs and back: else the decision would be out for good."""
    tested = constraint(**WIDE)
    committed = torch.tensor([[0.1, 0.7]]).double()
    came = (committed * 4.7 + 3.0 - 3.0) / 4.7
    assert not torch.equal(came, committed)
    tested.decide(torch.cat([committed, came]))
    tested.observe(came, value(1.0), condition=False)
    assert outcomes(tested) == [None, 1.0]
    tested.observe(came, value(2.0), condition=False)
    assert outcomes(tested) == [2.0, 1.0]
    tested.decide(committed)
    tested.observe(committed + 1e-6, value(1.0), condition=False)
    assert (tested.num_outstanding, tested.num_decisions) == (1, 4)


def test_the_model_that_is_asked_decides() -> None:
    """A constraint on another model, made meanwhile, leaves the decisions of this one alone."""
    tested, X = constraint(**WIDE), points(2)
    gp = make_gp()
    gp.mean_module.constant = 1e3
    other = tested.with_model(gp)
    assert not other.certified(X).any()
    assert tested.certified(X).all() and all(decide(tested, X.squeeze(1)))
    assert not any(decide(other, X.squeeze(1)))
    assert other.num_decisions == 4 and other.decisions == tested.decisions


def test_a_failed_call_changes_nothing() -> None:
    for tested in (
        constraint(**WIDE),
        ChanceConstraint(
            CalibratedModel(make_gp(), QuantileRecalibrator([0.9]), denoise=False), **WIDE
        ),
    ):
        for X, Y, Yvar in (
            (points(2), torch.zeros(2, 1), None),
            (points(2).squeeze(1), torch.full((2, 1), torch.nan), None),
            (points(2).squeeze(1), torch.zeros(2, 2), None),
            (points(2).squeeze(1), torch.zeros(2, 1), torch.zeros(2, 1)),
        ):
            with pytest.raises((InputDataError, BotorchTensorDimensionError, UnsupportedError)):
                tested.observe(X, Y.double(), Yvar)
        assert not tested.decisions and len(tested.model.train_targets) == 12


def test_noise_that_is_reported_afterwards_does_not_excuse_a_violation() -> None:
    """It counts in the model, and judges no outcome."""
    tested = ChanceConstraint(make_gp(fixed_noise=True), **WIDE)
    quiet, loud = copy.deepcopy(tested), copy.deepcopy(tested)
    X, Y = points(1).squeeze(1), value(101.0)
    quiet.observe(X, Y, Yvar=value(1e-4))
    loud.observe(X, Y, Yvar=value(1e8))
    assert quiet.num_violations == loud.num_violations == 1
    near = [each.model.posterior(points(1)).mean.item() for each in (quiet, loud)]
    assert near[0] > near[1] + 10


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_the_column_of_the_output_task_may_be_left_out() -> None:
    X = points(6)
    task = torch.zeros(6, 1, 1, dtype=torch.double)
    gp = make_multitask()
    tested, full = ChanceConstraint(gp, upper=0.8), torch.cat([X, task], dim=-1)
    assert_close(tested.margin(X), tested.margin(full))
    k = 1.05 * factor_of_scores(loo_residuals(gp)[::2], 0.9)
    expected = expected_margin(gp, full, {"upper": 0.8}, 0.9, k, factor=False)
    assert_close(tested.margin(X), expected)
    tested.observe(X.squeeze(1), value(0.0, 6))
    assert len(tested.model.train_targets) == 18
    # In the decision, in the outcome, or in neither of them: it is the same point.
    for decided, came in ((X[0], full[0]), (full[1], X[1]), (X[2], X[2]), (full[3], full[3])):
        tested.decide(decided)
        rebuilt = ChanceConstraint(gp, upper=0.8, rows=stored(tested.decisions))
        for each in (tested, rebuilt):
            each.observe(came, value(0.0), condition=False)
        assert rebuilt.decisions == tested.decisions
        assert rebuilt.num_decisions == rebuilt.num_observed


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_other_tasks_set_no_scale_and_searches_know_points_without_the_column() -> None:
    gp: Any = make_multitask(fixed_noise=True)
    own, others = gp.train_inputs[0][::2], gp.train_inputs[0][1::2]
    gp.likelihood.noise_covar.noise[1::2] = 100.0
    tested = ChanceConstraint(gp, upper=0.8)
    deviation = gp.posterior(own.unsqueeze(-2), observation_noise=True).variance.sqrt().mean()
    assert_close(tested.typical_deviation(), deviation)
    whole, short = tested.known_decisions()
    assert len(whole) == len(own) + len(others) and torch.equal(short, own[:, :2])


def test_it_is_copied_and_pickled() -> None:
    tested, X = constraint(**WIDE), points(3)
    tested.observe(X.squeeze(1), value(50.0, 3))
    for twin in (copy.deepcopy(tested), pickle.loads(pickle.dumps(tested))):
        assert_close(twin.margin(X), tested.margin(X))  # the factor of its model is made anew
        assert twin.decisions == tested.decisions
        twin.decide(X.squeeze(1))
        assert twin.num_outstanding == 3 and tested.num_outstanding == 0


# ------------------------------------------------------------ rows


def stored(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As they come back from a file."""
    result: list[dict[str, Any]] = json.loads(json.dumps(rows))
    return result


def assert_same(rebuilt: ChanceConstraint, carried: ChanceConstraint, X: Tensor) -> None:
    """To the last bit."""
    for confidence in (None, 0.95):
        assert torch.equal(rebuilt.margin(X, confidence), carried.margin(X, confidence))
    assert rebuilt.decisions == carried.decisions and repr(rebuilt) == repr(carried)
    assert rebuilt.budget_left == carried.budget_left
    assert rebuilt.violation_bound(500) == carried.violation_bound(500)


@LATE
@pytest.mark.parametrize(
    ("limits", "seed", "dtype"),
    [
        ({"upper": 1.0}, 0, torch.double),
        ({"lower": -0.8}, 1, torch.float),
        ({"upper": 1.2, "lower": -1.3}, 2, torch.double),
    ],
)
def test_rebuilt_from_rows_it_is_the_one_that_was_carried(
    limits: dict[str, Any], seed: int, dtype: torch.dtype
) -> None:
    """After each round, with outcomes late and out of order, refits, and some that never come."""
    rng, pool = random.Random(seed), points(30, dtype, seed=seed)
    out: list[Tensor] = []
    carried, gp = ChanceConstraint(make_gp(dtype=dtype), **limits), make_gp(dtype=dtype)
    for t in range(40):
        certified = pool[carried.certified(pool)]
        choice = certified if len(certified) and rng.random() < 0.8 else pool
        batch = choice[[rng.randrange(len(choice)) for _ in range(rng.randrange(3))]].squeeze(1)
        carried.decide(batch)
        out.extend(batch)
        rng.shuffle(out)
        while len(out) > 6:
            y = torch.tensor([[rng.gauss(0.0, 1.0)]], dtype=dtype)
            carried.observe(out.pop().unsqueeze(0), y, condition=False)
        if t % 7 == 3:
            gp = make_gp(num=8 + t % 5, dtype=dtype)
            carried = carried.with_model(gp)
        rebuilt = ChanceConstraint(gp, rows=stored(carried.decisions), **limits)
        assert_same(rebuilt, carried, pool)
    assert carried.num_certified >= 10 and carried.num_observed < carried.num_decisions
    # It goes on in the same way.
    for each in (rebuilt, carried):
        each.observe(pool[:3].squeeze(1), torch.zeros(3, 1, dtype=dtype), condition=False)
    assert_same(rebuilt, carried, pool)


def test_malformed_rows_are_named() -> None:
    tested = constraint(**WIDE)
    tested.observe(points(2).squeeze(1), value(0.0, 2), condition=False)
    first, second = tested.decisions
    assert [*first] == ["point", "level", "certified", "limits", "quantiles", "outcomes"]

    def refused(entry: str, match: str, **changed: Any) -> None:
        with pytest.raises(InputDataError, match=rf"`rows\[1\]\['{entry}'\]` must be {match}"):
            ChanceConstraint(make_gp(), rows=[first, second | changed], **WIDE)

    refused("level", "a number in", level=1.0)
    refused("level", "a number in", level="0.9")
    refused("certified", "True or False, got 'False'", certified="False")
    refused("point", "a list of finite numbers", point=[0.5, math.nan])
    refused("point", "a list of finite numbers", point=None)
    for changed in ({}, {"y": [None, None]}, {"y": [None, "2"]}, {"y": [1.0]}, [None, 1.0]):
        refused("limits", "pairs of a number", limits=changed)
        refused("quantiles", "pairs of a number", quantiles=changed)
    refused("quantiles", "pairs of a number", quantiles={"y": [0.0, 1.0]})
    refused("quantiles", "within the limits", certified=True, limits={"y": [None, -50.0]})
    for outcome in ({"y": math.nan}, {"y": "none"}, {}, {"z": 1.0}, None):
        refused("outcomes", "a finite number for each", outcomes=outcome)
    for row in ({"point": [0.0, 0.0]}, None):
        with pytest.raises(InputDataError, match=r"`rows\[0\]` must be a dictionary with the"):
            ChanceConstraint(make_gp(), rows=[row], **WIDE)  # type: ignore[list-item]
    with pytest.raises(InputDataError, match="`rows` must be a list of dictionaries"):
        ChanceConstraint(make_gp(), rows=5, **WIDE)  # type: ignore[arg-type]
    for point in ([0.5], [0.5, 0.5, 0.5]):
        strange = r"`rows\[1\]\['point'\]` must have 2 columns.* got \d. Pass a `model` with"
        with pytest.raises(InputDataError, match=strange):
            ChanceConstraint(make_gp(), rows=[first, second | {"point": point}], **WIDE)
    wide = SingleTaskGP(torch.rand(5, 3).double(), torch.rand(5, 1).double()).eval()
    with pytest.raises(BotorchTensorDimensionError, match="`model` must have 2 inputs.*got 3"):
        tested.with_model(wide)


def test_rows_of_another_statement_are_left_out() -> None:
    """With a warning that says how many; limits may have moved."""
    tested = constraint(**WIDE)
    tested.observe(points(2).squeeze(1), value(101.0, 2), condition=False)
    rows = tested.decisions
    moved = ChanceConstraint(make_gp(), upper=5.0, rows=rows)
    assert moved.account == tested.account and moved.num_violations == 2
    others: list[dict[str, Any]] = [{"level": 0.8}, {"lower": -99.0}, {"upper": None, "lower": 0.0}]
    for other in others:
        with pytest.warns(CalibrationWarning, match="2 of 2 decisions"):
            assert not ChanceConstraint(make_gp(), rows=rows, **{**WIDE, **other}).decisions
    strange = {**rows[1], **{key: {"z": rows[1][key]["y"]} for key in [*rows[1]][3:]}}
    with pytest.warns(CalibrationWarning, match="1 of 2 decisions"):
        assert ChanceConstraint(make_gp(), rows=[rows[0], strange], **WIDE).num_decisions == 1


def test_rows_are_copies_that_may_be_stored() -> None:
    """What others add is left alone."""
    tested = constraint(**WIDE)
    (row,) = tested.decide(points(1).squeeze(1))
    row["outcomes"]["y"] = row["certified"] = 1e6
    tested.decisions[0]["outcomes"]["y"] = 1e6
    assert tested.num_violations == tested.num_observed == 0 and tested.num_certified == 1
    buffer = io.BytesIO()
    torch.save(tested.decisions, buffer)
    buffer.seek(0)
    rows = [{**row, "after": 3} for row in torch.load(buffer, weights_only=True)]
    rebuilt = ChanceConstraint(make_gp(), rows=rows, **WIDE)
    assert rebuilt.decisions == tested.decisions and rows[0]["after"] == 3
    rebuilt.observe(points(1).squeeze(1), value(101.0), condition=False)
    assert rebuilt.num_violations == 1 and rows[0]["outcomes"] == {"y": None}


def test_one_that_is_made_anew_says_that_it_has_forgotten() -> None:
    gp = make_gp()
    model = CalibratedModel(make_gp(), QuantileRecalibrator([0.9]), denoise=False)
    for each in (gp, model):
        ChanceConstraint(each, **WIDE).observe(points(1).squeeze(1), value(0.0), condition=False)
        with pytest.warns(CalibrationWarning, match="rows="):
            ChanceConstraint(each, **WIDE)
        ChanceConstraint(each, upper=99.5)  # another statement, with nothing to forget
        ChanceConstraint(each, rows=[], **WIDE)
    # The calibrator around the next model, and the next model of data that end by a decision.
    with pytest.warns(CalibrationWarning, match="rows="):
        ChanceConstraint(CalibratedModel(make_gp(), model.calibrator, denoise=False), **WIDE)
    x = torch.tensor([[0.123, 0.456]]).double()
    tested = constraint(upper=7.5)
    tested.observe(x, value(0.0))
    X, Y, _ = make_data()
    again = SingleTaskGP(torch.cat([X, x]), torch.cat([Y, value(0.0)]))
    with pytest.warns(CalibrationWarning, match="rows="):
        ChanceConstraint(again.eval(), upper=7.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tested.with_model(again)
        ChanceConstraint(again, upper=7.5, rows=tested.decisions)


# ------------------------------------------------------------ the guarantee

# Each sees the quantiles ``q`` that decided at the last limit, and answers how far beyond them the
# outcomes shall be, or None for just beyond the limit.
Answer = Callable[[random.Random, int, Tensor], Tensor | None]
ENVIRONMENTS: dict[str, Answer] = {
    "violates": lambda rng, t, q: None,
    "just beyond the quantile": lambda rng, t, q: (q.abs() + 1) * 1e-6,
    "ties": lambda rng, t, q: torch.zeros_like(q),
    "wrong units": lambda rng, t, q: torch.full_like(q, 10.0 ** rng.choice([-9, 9])),
    "jumps": lambda rng, t, q: None if (t // 20) % 2 else torch.full_like(q, -1.0),
    "drifts": lambda rng, t, q: torch.full_like(q, 0.5 * t - 5.0),
}


@LATE
@pytest.mark.parametrize(
    ("name", "limits", "dtype"),
    [*zip(ENVIRONMENTS, 2 * LIMITS, 3 * [torch.double, torch.float], strict=True)],
)
def test_violations_stay_within_the_bound(
    name: str, limits: dict[str, Any], dtype: torch.dtype
) -> None:
    """Several at a time, outcomes late or never, and restarts from rows in the middle."""
    limits = {key: 20 * limit for key, limit in limits.items()}
    rng, tested = random.Random(0), ChanceConstraint(make_gp(dtype=dtype), **limits)
    side = 1.0 if "upper" in limits else -1.0
    worst = limits["upper" if side > 0 else "lower"] + side * 1e-5
    told: list[bool] = []  # of certified points, in order, whether they violate
    waiting: list[tuple[Tensor, Tensor]] = []
    for t in range(80):
        X = points(rng.randrange(1, 4), dtype, seed=t).squeeze(1)
        rows = tested.decide(X)
        certified = torch.tensor([row["certified"] for row in rows])
        q = torch.tensor([ends(row)[-1:] for row in rows], dtype=dtype)
        by = ENVIRONMENTS[name](rng, t, q)
        Y = torch.full_like(q, worst) if by is None else q + side * by
        for violated in tested.violated(Y)[certified].tolist():
            told.append(violated)
            assert sum(told) <= tested.violation_bound(len(told))
        waiting += [pair for pair in zip(X.split(1), Y.split(1), strict=True) if rng.random() < 0.9]
        rng.shuffle(waiting)
        while len(waiting) > 6:
            tested.observe(*waiting.pop(), condition=False)
        if t % 20 == 19:
            rows = stored(tested.decisions)
            tested = ChanceConstraint(make_gp(dtype=dtype), rows=rows, **limits)
    assert tested.num_certified == len(told) > 5
    assert sum(told) >= tested.num_violations
    assert tested.num_violations > 0 or name not in ("violates", "wrong units", "jumps")


def test_the_bound_is_that_of_the_design() -> None:
    bounds = [constraint().violation_bound(num) for num in (0, 5, 100, 1000)]
    assert bounds == [0.0, 5.0, 20.9, 110.9]
    both = constraint(lower=-1.0)
    assert both.violation_bound(1000) == 110.9
    assert constraint(level=0.75, budget=3.0).violation_bound(100) == 28.75
    assert constraint(budget=math.inf).violation_bound(100) == 100.0


# ------------------------------------------------------------ several outcomes

PAIR: dict[str, Any] = {"a": (None, 0.9), "b": (-1.2, 1.0)}


def pair(limits: dict[str, Any] = PAIR, **kwargs: Any) -> ChanceConstraint:
    """On two outcomes by name."""
    return ChanceConstraint({"a": make_gp(), "b": make_gp(num=9)}, limits=limits, **kwargs)


def test_models_and_limits_go_by_names() -> None:
    tested = pair({"b": (-1.0, 1.0), "a": (None, 0.5)}, level=np.float64(0.9))
    assert tested.limits == {"b": (-1.0, 1.0), "a": (None, 0.5)} and tested.level == 0.9
    assert [len(model.train_targets) for model in tested.models.values()] == [9, 12]
    assert tested.violation_bound(100) == 20.9
    assert repr(tested).startswith("ChanceConstraint(b lower=-1, b upper=1, a upper=0.5, level=0.9")
    Y = torch.tensor([[0.0, 0.6], [0.0, 0.4], [1.1, 0.0]]).double()
    assert tested.violated(Y).tolist() == [True, False, True]
    alone = ChanceConstraint({"a": make_gp()}, limits={"a": (None, 0.5)}, level=0.8)
    assert_close(alone.margin(points(3)), constraint(upper=0.5, level=0.8).margin(points(3)))


def test_limits_that_hold_together_are_given_parts_by_their_danger() -> None:
    """From the plain posteriors: three sides of two outcomes, each ``k`` times as wide."""
    tested, X = pair(level=0.85), points(40)
    rooms, reaches, deviations = [], [], []
    sides = ([(1, 0.9)], [(-1, -1.2), (1, 1.0)])
    for model, own in zip(tested.models.values(), sides, strict=True):
        noisy = model.posterior(X, observation_noise=True)
        for sign, limit in own:
            rooms.append(sign * (limit - noisy.mean.flatten()))
            k = 1.05 * expected_factor(model, 0.85, sign)
            reaches.append(k * noisy.variance.sqrt().flatten())
        known = model.posterior(model.train_inputs[0].unsqueeze(-2), observation_noise=True)
        deviations.append(known.variance.sqrt().mean())
    scores = [room / reach for room, reach in zip(rooms, reaches, strict=True)]
    each = [
        room + torch.special.ndtri(part) * reach
        for room, part, reach in zip(rooms, expected_parts(0.85, scores), reaches, strict=True)
    ]
    expected = [each[0], torch.minimum(each[1], each[2])]
    for margin, other in zip(tested.margins(X), expected, strict=True):
        assert_close(margin, other)
    in_deviations = [m / d for m, d in zip(expected, deviations, strict=True)]
    assert_close(tested.margin(X), torch.stack(in_deviations).amin(dim=0))
    # Certified is what any distribution with these margins keeps, and nearly all of it.
    certified = tested.certified(X)
    danger = torch.stack([torch.special.ndtr(-score) for score in scores]).sum(dim=0)
    assert (danger[certified] <= 0.15).all() and (danger[~certified] > 0.98 * 0.15).all()
    assert 5 < certified.sum() < 35


def stated_models(dtype: torch.dtype = torch.double) -> dict[str, Any]:
    """Models whose predictive distributions are not normal."""
    X, Y, _ = (values.to(dtype) for values in make_data())
    logarithmic = SingleTaskGP(X, Y.exp(), outcome_transform=Log()).eval()
    localized = QuantileRecalibrator(lengthscale=0.4, regularization=0.01)

    def calibrated(model: Any) -> CalibratedModel:
        return CalibratedModel.from_history(model, localized, denoise=False)

    return {
        "calibrated": calibrated(make_gp(dtype=dtype)),
        "log": logarithmic,
        "log, calibrated": calibrated(logarithmic),
        "ensemble": EnsembleMapSaasSingleTaskGP(X, Y, num_taus=3).eval(),
    }


@pytest.mark.parametrize("kind", stated_models())
def test_quantiles_are_of_each_points_level(kind: str) -> None:
    """Parts follow from the distribution function, and quantiles from the parts, however far."""
    model, X = stated_models()[kind], points(6)
    upper, lower = (4.0, 0.3) if "log" in kind else (1.0, -0.8)
    tested = ChanceConstraint(model, upper=upper, lower=lower, width=1.3)
    rows = tested.decide(X.squeeze(1))
    stated = predict(model, X, observed=True, objective=False)
    with torch.no_grad():
        below = [stated.cdf(limit).flatten() for limit in (lower, upper)]
        scores = [-torch.special.ndtri(below[0]) / 1.3, torch.special.ndtri(below[1]) / 1.3]
        low, high = expected_parts(0.9, scores)
        for i, row in enumerate(rows):
            for sign, part, end in zip((1, -1), (low, high), ends(row), strict=True):
                level = NormalDist().cdf(sign * 1.3 * NormalDist().inv_cdf(float(part[i])))
                quantile = float(stated.quantile(level).flatten()[i])
                assert end == pytest.approx(quantile, rel=1e-6, abs=1e-6)
        far = torch.tensor([-20.0, -11.4, -1.0, 2.0, 8.5, 11.4, 20.0]).double().view(-1, 1)
        again = stated.score(stated.at_score(far.view(-1, 1, 1, 1)))
        assert_close(again.flatten(1), far.expand(-1, 6), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("log", torch.double), ("log, calibrated", torch.float)]
)
def test_a_limit_that_cannot_be_violated_leaves_all_to_the_other(
    kind: str, dtype: torch.dtype
) -> None:
    """A positive outcome is above 1e-6; its upper limit alone certifies hardly more."""
    model, X = stated_models(dtype)[kind], points(400, dtype)
    both = ChanceConstraint(model, upper=2.2, lower=1e-6, width=1.5).certified(X)
    alone = ChanceConstraint(model, upper=2.2, width=1.5, rows=()).certified(X)
    assert 50 < alone.sum() < 350
    assert not (both & ~alone).any()
    assert both.sum() >= 0.98 * alone.sum()


def test_no_points_have_no_margins() -> None:
    for model in stated_models().values():
        assert ChanceConstraint(model, upper=1.0, lower=0.1).margin(points(3)[:0]).shape == (0,)


def test_a_constraint_that_was_replaced_states_its_own_margins() -> None:
    """It shares its decisions with the next one, and nothing else."""
    old, X = pair(), points(5)
    before = old.margin(X)
    models = {"b": make_gp(num=11), "a": make_gp(num=10)}
    new = old.with_model(models)
    assert_close(new.margin(X), ChanceConstraint(models, limits=PAIR, rows=()).margin(X))
    assert_close(old.margin(X), before)
    stated = [PAIR["a"][1] - margin for margin in new.margins(X)[0].tolist()]
    rows = new.decide(X.squeeze(1))
    assert old.decisions == rows
    assert [row["quantiles"]["a"][1] for row in rows] == pytest.approx(stated)


def test_margins_of_several_outcomes_have_gradients_for_any_models() -> None:
    localized = QuantileRecalibrator(lengthscale=0.4, regularization=0.01)
    X, Y, _ = make_data()
    models = {
        "calibrated": CalibratedModel.from_history(make_gp(), localized, denoise=False),
        "Laplace": LaplaceModel(),
        "ensemble": EnsembleMapSaasSingleTaskGP(X, Y, num_taus=3).eval(),
    }
    limits = dict(zip(models, [(None, 1.2), (0.1, None), (-1.5, 1.5)], strict=True))
    tested = ChanceConstraint(models, limits=limits, level=0.8)
    at = points(3).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: tuple(tested.margins(X, 0.95)), at, atol=1e-4)
    assert torch.autograd.gradcheck(lambda X: tuple(tested.margins(X)), at, atol=1e-4)
    assert tested.margin(at).requires_grad and tested.optimism(at).requires_grad
    single = {name: make_gp(dtype=torch.float) for name in PAIR}
    tested = ChanceConstraint(single, limits=PAIR)
    assert tested.margin(points(3, torch.float)).dtype == torch.float


def test_a_budget_counts_points() -> None:
    """A point is a violation if any outcome is, and until all are told."""
    limits = {"a": (None, 100.0), "b": (None, 50.0)}
    tested, X = pair(limits, budget=3.0), points(4).squeeze(1)
    assert decide(tested, X) == [True, True, True, True]
    first, *_ = tested.decisions
    assert first["quantiles"]["a"] != first["quantiles"]["b"]
    assert tested.budget_left == pytest.approx(3 - 4 + 0.4)
    assert not tested.certified(points(2)).any()
    nan = math.nan
    tested.observe(X, torch.tensor([[0.0, nan]] * 4).double(), condition=False)
    assert tested.budget_left == pytest.approx(-0.6)  # the other outcomes are out
    assert (tested.num_observed, tested.num_outstanding) == (0, 4)
    tested = tested.with_model({"a": make_gp(num=10), "b": make_gp(num=9)})
    late = torch.tensor([[nan, 60.0], [nan, 0.0], [nan, 0.0], [nan, 60.0]]).double()
    tested.observe(X, late, condition=False)
    assert tested.budget_left == pytest.approx(3 - 2 + 0.4)
    assert (tested.num_observed, tested.num_violations) == (4, 2)
    assert tested.decisions[0]["outcomes"] == {"a": 0.0, "b": 60.0}
    # Where both are violated it is one point.
    tested.observe(X[:1], torch.tensor([[101.0, 101.0]]).double(), condition=False)
    assert tested.num_decisions == 5 and tested.num_violations == 3
    assert tested.budget_left == pytest.approx(3 - 3 + 0.5)
    assert tested.account == Account.of(map(decision_of, tested.decisions), 1.0 - 0.9, 3.0)
    rebuilt = ChanceConstraint(
        tested.models, limits=limits, budget=3.0, rows=stored(tested.decisions)
    )
    assert_same(rebuilt, tested, points(3))
    for model in ({"a": make_gp()}, make_gp()):
        with pytest.raises(InputDataError, match="`model` must hold models by the names"):
            tested.with_model(model)


def test_any_outcome_makes_a_violation() -> None:
    """One that is out leaves it open, unless another one violates."""
    limits, quantiles = {"a": [None, 1.0], "b": [0.0, 9.0]}, {"a": [None, 0.5], "b": [0.2, 7.0]}
    for a, b, violated, missed in [
        (0.4, 0.3, False, False),
        (0.5, 0.2, False, False),
        (0.4, 0.1, False, True),
        (1.1, 0.3, True, True),
        (1.1, -0.1, True, True),
        (0.4, 9.1, True, True),
        (1.1, None, True, True),
        (0.6, None, None, True),
        (None, 0.3, None, None),
    ]:
        row = {"limits": limits, "quantiles": quantiles, "outcomes": {"a": a, "b": b}}
        for certified in (True, False):
            assert decision_of({**row, "certified": certified}) == (certified, violated, missed)


def test_outcomes_that_come_together_belong_to_one_decision() -> None:
    """About a point that was decided about twice; those that come later find theirs."""
    tested, x = pair({"a": (None, 100.0), "b": (None, 50.0)}), points(1).squeeze(1)
    tested.decide(x.repeat(2, 1))
    for came in ([1.0, math.nan], [2.0, 3.0], [math.nan, 4.0]):
        tested.observe(x, torch.tensor([came]).double(), condition=False)
    assert [[*row["outcomes"].values()] for row in tested.decisions] == [[1.0, 4.0], [2.0, 3.0]]


def test_each_model_learns_from_its_own_outcomes() -> None:
    calibrated = CalibratedModel(make_gp(), QuantileRecalibrator([0.9]), denoise=False)
    models = {"a": make_gp(), "b": calibrated}
    tested, X = ChanceConstraint(models, limits=PAIR), points(3).squeeze(1)
    Y = torch.tensor([[0.5, math.nan], [0.2, 0.1], [math.nan, 0.3]]).double()
    tested.observe(X, Y)
    assert [len(model.train_targets) for model in tested.models.values()] == [14, 14]
    assert torch.equal(tested.models["a"].train_targets[-2:], Y[:2, 0])
    assert tested.models["b"] is calibrated and calibrated.calibrator.num_updates == 2
    for bad in (torch.full((3, 2), math.nan), torch.zeros(3, 1), torch.full((3, 2), math.inf)):
        with pytest.raises((InputDataError, BotorchTensorDimensionError), match="`Y` must h"):
            tested.observe(X, bad.double())
    assert tested.num_decisions == 3 and calibrated.calibrator.num_updates == 2


def test_a_point_that_one_of_several_refuses_is_not_certified() -> None:
    tested = pair({"a": (None, 100.0), "b": (None, -100.0)})
    assert not any(decide(tested, points(3).squeeze(1)))


def test_points_that_violate_any_of_several_stay_within_the_bound() -> None:
    rng = random.Random(0)
    limits = {"a": (None, 30.0), "b": (-30.0, 30.0), "c": (-30.0, None)}
    tested = ChanceConstraint({name: make_gp() for name in limits}, limits=limits, level=0.8)
    X, num, bad = points(1).squeeze(1), 0, 0
    for _ in range(60):
        certified = bool(tested.certified(X.unsqueeze(1)))
        Y = [rng.choice([0.0, 0.0, 50.0 * (upper and 1 or -1)]) for _, upper in limits.values()]
        num, bad = num + certified, bad + (certified and any(Y))
        tested.decide(X)
        tested.observe(X, torch.tensor([Y]).double(), condition=False)
        assert bad <= tested.violation_bound(num)
    assert num > 10 and (num, bad) == (tested.num_certified, tested.num_violations)


# ------------------------------------------------------------ arguments


def test_bad_arguments_are_named() -> None:
    gp = make_gp()
    model = CalibratedModel(gp, QuantileRecalibrator([0.9]), denoise=False)
    with pytest.raises(InputDataError, match="`upper`, `lower`"):
        ChanceConstraint(model)
    with pytest.raises(InputDataError, match="`lower` must be less"):
        ChanceConstraint(model, upper=0.0, lower=1.0)
    for name, number in (("level", 1.0), ("width", 0.0), ("budget", math.nan)):
        with pytest.raises(InputDataError, match=name):
            ChanceConstraint(gp, upper=0.0, **{name: number})  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="denoise=False"):
        ChanceConstraint(CalibratedModel(gp, QuantileRecalibrator([0.9])), upper=0.0)
    for models in (CalibratedModelList(model, model), ModelListGP(gp, gp)):
        with pytest.raises(UnsupportedError, match="dictionary of models .* one of its `models`"):
            ChanceConstraint(models, upper=0.0)
    batched = SingleTaskGP(torch.rand(2, 5, 2).double(), torch.rand(2, 5, 1).double())
    with pytest.raises(UnsupportedError, match="batch of models"):
        ChanceConstraint(batched, upper=0.0)
    with pytest.raises(BotorchTensorDimensionError, match="b x 1 x d"):
        constraint().margin(torch.zeros(3, 2, 2).double())
    for method in (constraint().observe, lambda X, Y: constraint().decide(X)):
        with pytest.raises(BotorchTensorDimensionError, match="`X` must have 2 columns"):
            method(torch.zeros(3, 1).double(), value(0.0, 3))
        with pytest.raises(InputDataError, match="`X` contains NaN"):
            method(torch.full((3, 2), math.nan).double(), value(0.0, 3))
    with pytest.raises(InputDataError, match="`X` must have the precision"):
        constraint().margin(points(3, torch.float))
    with pytest.raises(InputDataError, match="`Y` must have the precision"):
        constraint().observe(points(3).squeeze(1), torch.zeros(3, 1))
    several: list[dict[str, Any]] = [
        {"limits": {"y": (None, 0.5)}},
        {"model": {"a": gp}},
        {"model": {"a": gp}, "limits": {}},
        {"model": {"a": gp}, "limits": {"b": (None, 0.5)}},
        {"model": {"a": gp}, "limits": {"a": 0.5}},
        {"model": {"a": gp}, "limits": {"a": (0.5,)}},
        {"model": {"a": gp}, "limits": {"a": (None, 0.5)}, "upper": 0.5},
    ]
    for arguments in several:
        with pytest.raises(InputDataError, match="`limits"):
            ChanceConstraint(**{"model": gp, **arguments})
    assert width(constraint().account) == 1.05


def test_outcomes_of_one_decision_in_two_rows() -> None:
    gp, X = make_gp(), points(1).squeeze(1)
    both = ChanceConstraint({"a": gp, "b": gp}, limits={"a": (None, 2.5), "b": (-3.0, 3.0)})
    both.decide(X)
    Y = torch.tensor([[1.0, math.nan], [math.nan, 2.0]]).double()
    both.observe(X.repeat(2, 1), Y, condition=False)
    assert both.num_decisions == both.num_observed == 1


def test_a_model_that_is_not_calibrated_is_left_as_it_was() -> None:
    X = points(2).squeeze(1)
    model = CensoredDelayModel(make_gp(), X, censor_value=-3.0)
    tested = ChanceConstraint(model, upper=1.0)
    tested.observe(X[:1], torch.tensor([[0.2]]).double())
    after: Any = tested.model
    assert len(model.X_pending) == 2 and len(after.X_pending) == 1
