"""Chance constraints with contexts: the worst case of a probability, and the bound.

The oracles are convex programs from the definition of each set, plain posteriors, and constraints
without contexts.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from statistics import NormalDist
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CensoredDelayModel,
    ChanceConstraint,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    RobustUpperConfidenceBound,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
    optimize_chance_constrained,
)
from botorch_calib.decisions import CertifiedSetExpansion
from botorch_calib.decisions.widening import GAIN, START, leave_one_out_factor
from botorch_calib.decisions.worst_contexts import WorstContexts
from botorch_calib.robust import AmbiguitySet, RadiusSchedule
from tests.decisions.test_chance_constraint import LaplaceModel, decide, ends, outcomes, stored
from tests.gps import DOUBLE, far_from_gaussian, make_gp
from tests.models.ensembles import make_ensemble
from tests.robust.programs import solve

CONTEXTS = torch.tensor([[0.1], [0.35], [0.6], [0.9]], **DOUBLE)
CENTRE = ContextDistribution.discrete(CONTEXTS, torch.tensor([0.1, 0.2, 0.3, 0.4], **DOUBLE))
SETS: list[AmbiguitySet] = [
    TotalVariationBall(0.3),
    WassersteinBall(0.15),
    ChiSquaredBall(0.2),
    KLBall(0.1),
    ConditionalValueAtRisk(0.5),
    WorstCase(),
]
LIMITS: list[dict[str, Any]] = [{"upper": 0.8}, {"lower": -0.5}, {"upper": 1.2, "lower": -0.9}]
DECISIONS = torch.tensor([[0.13], [0.48], [0.77]], **DOUBLE).unsqueeze(-2)
BALL: dict[str, Any] = {"ambiguity": TotalVariationBall(0.3), "contexts": CENTRE}
Z = NormalDist().inv_cdf(0.9)


def pairs(X: Tensor, contexts: Tensor = CONTEXTS) -> Tensor:
    """All pairs of decisions ``b x 1 x 1`` and contexts, ``b x M x 1 x 2``."""
    shape = (len(X), len(contexts))
    columns = X.expand(*shape, 1), contexts.squeeze(-1).expand(*shape).unsqueeze(-1)
    return torch.cat(columns, dim=-1).unsqueeze(-2)


def censored(model: Any) -> CensoredDelayModel:
    return CensoredDelayModel(model, torch.tensor([[0.3, 0.5], [0.7, 0.2]], **DOUBLE), -5.0)


def calibrated(model: Any) -> CalibratedModel:
    return CalibratedModel(model, far_from_gaussian(), denoise=False)


# ------------------------------------------------------------ the quantile that decides


@pytest.mark.parametrize("z", [-4.0, 1.3, 6.0, 9.0, 20.0])
def test_a_level_next_to_one_has_its_own_quantile(z: float) -> None:
    """Outcomes of deviation 1 about three means; a share of 0.15 moves to the greatest one."""
    mean, weights = torch.tensor([[[0.0, 0.7, 1.5], [0.35, 0.3, 0.35]]], **DOUBLE).unbind(1)
    contexts = ContextDistribution.discrete(CONTEXTS[:3], torch.tensor([0.5, 0.3, 0.2]).double())
    model = make_gp()
    worst = WorstContexts(TotalVariationBall(0.3), contexts, model)
    t = worst.quantile(torch.tensor([z], **DOUBLE), model, lambda t: t - mean, mean + z)
    log_p = torch.special.log_ndtr(mean - t.unsqueeze(-1)) + weights.log()
    expected = torch.special.log_ndtr(torch.tensor(-z, **DOUBLE))
    assert_close(log_p.logsumexp(dim=-1).squeeze(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("apart", [3.0, 10.0, 30.0, 1000.0])
@pytest.mark.parametrize("ambiguity", [TotalVariationBall(0.0), TotalVariationBall(0.2)], ids=repr)
def test_a_level_that_is_the_share_of_contexts_far_apart(
    ambiguity: TotalVariationBall, apart: float
) -> None:
    """Any quantile between the contexts has the level 0.9, up to rounding: the slope is tiny."""
    worst_share = 0.1 - ambiguity.radius / 2  # the ball moves the rest of 0.1
    shares = torch.tensor([1.0 - worst_share, worst_share], **DOUBLE)
    contexts = ContextDistribution(CONTEXTS[:2], shares)
    model, mean = make_gp(), torch.tensor([[0.0, apart], [0.5, 0.5 + apart]], **DOUBLE)
    worst = WorstContexts(ambiguity, contexts, model)
    z = torch.tensor([[Z]], **DOUBLE)
    t = worst.quantile(z, model, lambda t: 10 * (t - mean), mean + 0.1 * Z)
    assert ((t >= mean[:, 0]) & (t <= mean[:, 1])).all()
    kept = torch.special.ndtr(10 * (t.unsqueeze(-1) - mean)) @ torch.tensor([0.9, 0.1], **DOUBLE)
    assert_close(kept, torch.full((2,), 0.9, **DOUBLE))


@pytest.mark.parametrize(
    ("ambiguity", "limits"),
    [*zip(SETS, itertools.cycle(LIMITS), strict=False), (SETS[0], LIMITS[2])],
    ids=repr,
)
def test_at_the_deciding_quantile_the_worst_probability_is_the_level(
    ambiguity: AmbiguitySet, limits: dict[str, Any]
) -> None:
    """By the definition of the set, and the model's posterior made wider."""
    gp = make_gp()
    tested = ChanceConstraint(gp, **limits, ambiguity=ambiguity, contexts=CENTRE)
    margin = tested.margin(DECISIONS)
    rows = [ends(row) for row in tested.decide(DECISIONS.squeeze(1))]
    noisy = gp.posterior(pairs(DECISIONS), observation_noise=True)
    mean, deviation = (v[..., 0, 0].detach() for v in (noisy.mean, noisy.variance.sqrt()))
    k = {sign: START * leave_one_out_factor(gp, 0.9, sign) for sign in (-1, 1)}
    sides = [(sign, limits[name]) for name, sign in (("lower", -1), ("upper", 1)) if name in limits]
    for i, quantiles in enumerate(rows):

        def worst(sign: int, end: float, i: int = i) -> float:
            kept = torch.special.ndtr(sign * (end - mean[i]) / (k[sign] * deviation[i]))
            return solve(ambiguity, kept.numpy(), CENTRE)

        dangers = [1.0 - worst(*side) for side in sides]
        for (sign, _), danger, end in zip(sides, dangers, quantiles, strict=True):
            part = 0.1 * (0.98 * danger / sum(dangers) + 0.02 / len(sides))
            level = 0.9 if len(sides) == 1 else 1.0 - part
            assert worst(sign, end) == pytest.approx(level, abs=1e-6)
    # So the margin tells whether the worst probability of keeping the limits reaches the level.
    deciding = torch.tensor(rows, **DOUBLE)
    distances = [limits["upper"] - deciding[:, -1]] if "upper" in limits else []
    distances += [deciding[:, 0] - limits["lower"]] if "lower" in limits else []
    assert_close(margin, torch.stack(distances).amin(dim=0))


@pytest.mark.parametrize(
    ("limits", "level"), [(LIMITS[0], 0.3), (LIMITS[1], 0.9), (LIMITS[2], 0.6), (LIMITS[2], 0.999)]
)
def test_a_single_context_is_a_fixed_feature(limits: dict[str, Any], level: float) -> None:
    gp, one = make_gp(), CONTEXTS[1:2]
    tested = ChanceConstraint(gp, **limits, level=level, ambiguity=KLBall(0.5), contexts=one)
    plain = ChanceConstraint(gp, **limits, level=level)
    for more in range(2):
        Z = pairs(DECISIONS, one).squeeze(1)
        for confidence in (None, 0.95):
            assert_close(tested.margin(DECISIONS, confidence), plain.margin(Z, confidence))
        assert_close(tested.optimism(DECISIONS), plain.optimism(Z))
        far = 99.0 + more
        miss = torch.full((1, 1), far if "upper" in limits else -far, **DOUBLE)
        for each in (tested, plain):  # more cautious now
            each.observe(Z[0], miss, condition=False)
    assert tested.num_violations == plain.num_violations


def test_columns_of_contexts_and_float32() -> None:
    X = make_gp().train_inputs[0].flip(-1)
    turned = SingleTaskGP(X, make_gp().train_targets.unsqueeze(-1), outcome_transform=None)
    turned.load_state_dict(make_gp().state_dict(), strict=False)
    turned.covar_module.lengthscale = make_gp().covar_module.lengthscale.flip(-1)
    expected = ChanceConstraint(make_gp(), upper=0.8, **BALL).margin(DECISIONS)
    first = {**BALL, "contexts": CENTRE.with_indices([0])}
    assert_close(ChanceConstraint(turned.eval(), upper=0.8, **first).margin(DECISIONS), expected)
    single = ChanceConstraint(make_gp(dtype=torch.float), upper=0.8, **BALL)
    found = single.margin(DECISIONS.float())
    assert found.dtype == torch.float
    assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
    batched = ChanceConstraint(make_gp(), upper=0.8, **BALL).margin(DECISIONS.expand(2, 3, 1, 1))
    assert_close(batched, expected.expand(2, 3))


def test_confidence_widens_the_noise_free_part_in_each_context() -> None:
    gp, c = make_gp(), NormalDist().inv_cdf(0.95)
    tested = ChanceConstraint(gp, upper=0.8, width=1.0, **BALL)
    end = 0.8 - tested.margin(DECISIONS, confidence=0.95)
    plain = gp.posterior(pairs(DECISIONS))
    noisy = gp.posterior(pairs(DECISIONS), observation_noise=True)
    mean, own, whole = (v[..., 0, 0] for v in (plain.mean, plain.variance, noisy.variance))
    shift = Z * (whole - own).sqrt() + c * own.sqrt() - Z * whole.sqrt()
    kept = torch.special.ndtr((end.unsqueeze(-1) - shift - mean) / whole.sqrt()).detach()
    assert_close(BALL["ambiguity"].worst_case(kept, CENTRE), torch.full((3,), 0.9, **DOUBLE))


MODELS: dict[str, Any] = {
    "plain": make_gp,
    "pending": lambda: censored(make_gp()),
    "calibrated": lambda: calibrated(make_gp()),
    "Bayesian": make_ensemble,
    "any distribution": LaplaceModel,
    "pending, calibrated": lambda: calibrated(censored(make_gp())),
    "Bayesian, calibrated": lambda: calibrated(make_ensemble()),
}


@pytest.mark.parametrize("kind", MODELS)
def test_any_model_in_any_context(kind: str) -> None:
    """Against the distribution function of its posterior without pending points; gradients."""
    model = MODELS[kind]()
    tested = ChanceConstraint(model, upper=2.0, width=1.0, **BALL)
    end = (2.0 - tested.margin(DECISIONS))[:, None, None, None].detach()
    bare = {"pending": "plain", "pending, calibrated": "calibrated"}.get(kind, kind)
    Z = pairs(DECISIONS)
    if kind == "any distribution":
        kept = MODELS[bare]().posterior(Z).distribution.cdf(end)
    elif "calibrated" in kind:
        kept = MODELS[bare]().posterior(Z, observation_noise=True).cdf(end)
    else:
        noisy = MODELS[bare]().posterior(Z, observation_noise=True)  # members come third
        mean, deviation = (v.reshape(3, 4, -1) for v in (noisy.mean, noisy.variance.sqrt()))
        kept = torch.special.ndtr((end[..., 0] - mean) / deviation).mean(dim=-1)
    kept = kept.reshape(3, 4).detach()
    assert_close(
        BALL["ambiguity"].worst_case(kept, CENTRE),
        torch.full((3,), 0.9, **DOUBLE),
        rtol=0,
        atol=1e-6,
    )
    X = DECISIONS[:2].clone().requires_grad_()
    for function in (tested.margin, lambda X: tested.margin(X, 0.95), tested.optimism):
        assert torch.autograd.gradcheck(function, X, atol=1e-4)


@pytest.mark.parametrize("limits", [(-20.0, -10.0), (10.0, 20.0), (-1e6, 1e6)])
def test_limits_far_off_in_all_contexts_have_gradients(limits: tuple[float, float]) -> None:
    """Where each outcome violates a limit for sure, or none does."""
    lower, upper = limits
    X = DECISIONS.clone().requires_grad_()
    for model in (make_gp(), calibrated(make_gp())):
        margin = ChanceConstraint(model, upper=upper, lower=lower, **BALL).margin(X)
        (slope,) = torch.autograd.grad(margin.sum(), X)
        assert margin.isfinite().all() and slope.isfinite().all()
        assert ((margin < 0.0) == (upper < 1e3)).all()


def test_a_schedule_follows_the_model() -> None:
    schedule = WassersteinBall(RadiusSchedule(0.3))
    tested = ChanceConstraint(make_gp(), upper=0.8, ambiguity=schedule, contexts=CENTRE)
    for num in (12, 20):
        tested = tested.with_model(make_gp(num=num))
        fixed = ChanceConstraint(
            make_gp(num=num), upper=0.8, ambiguity=schedule.at(num), contexts=CENTRE
        )
        assert_close(tested.margin(DECISIONS), fixed.margin(DECISIONS))


# ------------------------------------------------------------ decisions, and what comes of them


def test_a_decision_waits_for_its_context() -> None:
    """It is found by the decision alone; kind contexts do not narrow the quantile."""
    tested = ChanceConstraint(make_gp(), upper=100.0, **BALL)
    before = tested.margin(DECISIONS)
    X = DECISIONS.squeeze(1)
    assert decide(tested, X) == [True] * 3 and tested.num_outstanding == 3
    joint = torch.cat([X, torch.tensor([[0.2], [0.5], [0.7]], **DOUBLE)], dim=-1)
    tested.observe(joint[[2, 0]], torch.tensor([[-50.0], [-50.0]], **DOUBLE), condition=False)
    assert outcomes(tested) == [-50.0, None, -50.0]
    assert [r["point"] for r in tested.decisions] == X.tolist()
    assert_close(tested.margin(DECISIONS), before)
    tested.observe(joint[1:2], torch.tensor([[101.0]], **DOUBLE))
    assert (tested.num_violations, tested.num_outstanding) == (1, 0)
    assert tested.model.train_inputs[0].shape == (13, 2)
    more = ChanceConstraint(make_gp(), upper=100.0, **BALL)
    more.observe(joint[1:2], torch.tensor([[101.0]], **DOUBLE), condition=False)
    k = math.exp(GAIN * 0.9) * START * float(leave_one_out_factor(make_gp()))
    wide = ChanceConstraint(make_gp(), upper=100.0, width=k, **BALL)
    assert_close(more.margin(DECISIONS), wide.margin(DECISIONS))


@pytest.mark.filterwarnings("ignore:Residuals exceed 50 predictive standard deviations")
@pytest.mark.filterwarnings("ignore:The outcomes of .* certified points are pending")
@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("plain", {"upper": 90.0, "lower": -90.0}),
        ("pending, calibrated", {"lower": -90.0}),
        ("Bayesian", {"upper": 90.0}),
    ],
)
def test_violations_stay_within_the_bound_whatever_contexts_come(
    kind: str, limits: dict[str, Any]
) -> None:
    """Contexts far outside of the set, outcomes that violate by spite, late ones, restarts."""
    rng, tested = random.Random(0), ChanceConstraint(MODELS[kind](), **limits, **BALL)
    beyond = limits["upper"] + 1e-6 if "upper" in limits else limits["lower"] - 1e-6
    told: list[bool] = []
    waiting: list[tuple[Tensor, Tensor]] = []
    for t in range(30):
        X = torch.rand(rng.randrange(1, 4), 1, generator=torch.Generator().manual_seed(t)).double()
        certified = torch.tensor(decide(tested, X))
        spite = torch.tensor([[rng.random() < (0.9 if t % 20 < 10 else 0.05)] for _ in X])
        Y = torch.where(spite, torch.tensor(beyond, **DOUBLE), 0.0)
        for violated in tested.violated(Y)[certified].tolist():
            told.append(violated)
            assert sum(told) <= tested.violation_bound(len(told))
        joint = torch.cat([X, torch.full_like(X, rng.choice([-3.0, 0.1, 5.0]))], dim=-1)
        waiting += zip(joint.split(1), Y.split(1), strict=True)
        rng.shuffle(waiting)
        while len(waiting) > 4:
            tested.observe(*waiting.pop(), condition=False)
        if t % 15 == 14:
            rows = stored(tested.decisions)
            again = ChanceConstraint(tested.model, rows=rows, **limits, **BALL)
            assert torch.equal(again.margin(DECISIONS), tested.margin(DECISIONS))
            assert again.decisions == tested.decisions
            tested = again
    assert len(told) == tested.num_certified > 10 and tested.num_violations > 5


def test_several_outcomes_in_the_same_contexts() -> None:
    models = {"a": make_gp(), "b": make_gp(num=9)}
    limits = {"a": (None, 100.0), "b": (-100.0, None)}
    tested = ChanceConstraint(models, limits=limits, budget=3.0, **BALL)
    X = DECISIONS.squeeze(1)
    assert decide(tested, X) == [True] * 3
    joint = torch.cat([X, X], dim=-1)
    tested.observe(joint, torch.zeros(3, 2, **DOUBLE))
    assert tested.budget_left == pytest.approx(3.3)
    assert [len(model.train_targets) for model in tested.models.values()] == [15, 12]


# ------------------------------------------------------------ the search


@pytest.mark.parametrize("kind", ["plain", "pending, calibrated"])
def test_the_search_chooses_decisions(kind: str) -> None:
    tested = ChanceConstraint(MODELS[kind](), upper=0.9, **BALL)
    acqf = RobustUpperConfidenceBound(make_gp(), 4.0, **BALL)
    bounds = torch.tensor([[0.0], [1.0]], **DOUBLE)
    candidate, value, certified = optimize_chance_constrained(acqf, tested, bounds)
    assert candidate.shape == (1, 1) and certified
    assert bool(tested.certified(candidate.unsqueeze(0)))
    grid = torch.linspace(0, 1, 2001, **DOUBLE).view(-1, 1, 1)
    with torch.no_grad():
        best = acqf(grid)[tested.certified(grid)].max()
    assert value >= best - 1e-3
    chosen = optimize_chance_constrained(acqf, tested, None, choices=grid.squeeze(1))
    assert_close(chosen.value, best)


def test_expansion_of_the_certified_set() -> None:
    tested = ChanceConstraint(make_gp(), upper=0.9, **BALL)
    single = ChanceConstraint(make_gp(), upper=0.9, ambiguity=WorstCase(), contexts=CONTEXTS[1:2])
    plain = ChanceConstraint(make_gp(), upper=0.9)
    Z = pairs(DECISIONS, CONTEXTS[1:2]).squeeze(1)
    assert_close(CertifiedSetExpansion(single)(DECISIONS), CertifiedSetExpansion(plain)(Z))
    pending = torch.tensor([[0.5, 0.4]], **DOUBLE)
    before, after = (CertifiedSetExpansion(tested, p)(DECISIONS) for p in (None, pending))
    assert (after < before).all()


def test_bad_arguments_are_named() -> None:
    gp = make_gp()

    def refused(error: Any, match: str, **kwargs: Any) -> None:
        with pytest.raises(error, match=match):
            ChanceConstraint(gp, upper=0.8, **kwargs)

    refused(InputDataError, "both of `ambiguity` and `contexts`", contexts=CENTRE)
    refused(InputDataError, "both of `ambiguity` and `contexts`", ambiguity=WorstCase())
    refused(InputDataError, "must be an AmbiguitySet", ambiguity=0.1, contexts=CENTRE)
    refused(InputDataError, "leave no decision", ambiguity=WorstCase(), contexts=torch.rand(3, 2))
    lipschitz = WassersteinBall(0.1, "lipschitz")
    refused(UnsupportedError, "worst distribution", ambiguity=lipschitz, contexts=CENTRE)
    tested = ChanceConstraint(gp, upper=0.8, **BALL)
    with pytest.raises(BotorchTensorDimensionError, match="1 columns of decisions alone"):
        tested.margin(torch.zeros(3, 1, 2, **DOUBLE))
    with pytest.raises(BotorchTensorDimensionError, match="1 columns of decisions alone"):
        tested.decide(torch.zeros(3, 2, **DOUBLE))
    with pytest.raises(BotorchTensorDimensionError, match="must have 2 columns"):
        tested.observe(torch.zeros(3, 1, **DOUBLE), torch.zeros(3, 1, **DOUBLE))
    assert copy.deepcopy(tested).num_contexts == 4
    plain = ChanceConstraint(gp, upper=0.8)
    rows = plain.decide(torch.zeros(1, 2, **DOUBLE))
    with pytest.raises(InputDataError, match=r"`rows\[0\]\['point'\]` .* decisions alone, got 2"):
        ChanceConstraint(gp, upper=0.8, rows=rows, **BALL)
