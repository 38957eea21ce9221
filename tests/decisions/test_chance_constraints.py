"""`ChanceConstraint`: its margin, what it learns from, and the bound on its violations."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CensoredDelayModel,
    ChanceConstraint,
    LocalizedConformal,
    QuantileRecalibrator,
    joint_chance_constraints,
)
from botorch_calib.decisions import joint_level
from tests.gps import make_data, make_gp, make_multitask

LIMITS: list[dict[str, Any]] = [{"upper": 0.8}, {"lower": -0.5}, {"upper": 1.2, "lower": -0.9}]


def points(num: int, dtype: torch.dtype = torch.double, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num, 1, 2, dtype=torch.double, generator=generator).to(dtype)


def constraint(dtype: torch.dtype = torch.double, **kwargs: Any) -> ChanceConstraint:
    return ChanceConstraint.from_history(make_gp(dtype=dtype), **{"upper": 0.8, **kwargs})


def set_constants(tested: ChanceConstraint, values: list[float]) -> None:
    """Set the tracker's thresholds by hand."""
    tracker: Any = tested.calibrator.get_submodule("tracker")
    tracker.constants = torch.tensor(values).to(tracker.constants)


def tracked(tested: ChanceConstraint) -> Tensor:
    tracker: Any = tested.calibrator.get_submodule("tracker")
    constants: Tensor = tracker.constants
    return constants.clone()


# ------------------------------------------------------------ the margin


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("transforms", [False, True])
def test_the_margin_is_the_distance_of_a_learned_quantile_from_the_limit(
    limits: dict[str, Any], transforms: bool
) -> None:
    gp, X = make_gp(transforms=transforms), points(7)
    scale, shift = (7.0, 30.0) if transforms else (1.0, 0.0)
    limits = {name: scale * limit + shift for name, limit in limits.items()}
    X = 10 * X - 5 if transforms else X
    tested = ChanceConstraint.from_history(gp, **limits, level=0.85)
    noisy = gp.posterior(X, observation_noise=True)
    quantiles = tested.calibrator.score.knots(tracked(tested))  # type: ignore[operator, union-attr]
    expected = torch.full((7,), torch.inf, dtype=torch.double)
    deviation = noisy.variance.sqrt()
    if "upper" in limits:
        upper = noisy.mean + deviation * quantiles[-1]
        expected = torch.minimum(expected, (limits["upper"] - upper).view(-1))
    if "lower" in limits:
        lower = noisy.mean + deviation * quantiles[0]
        expected = torch.minimum(expected, (lower - limits["lower"]).view(-1))
    assert_close(tested.margin(X), expected)
    assert torch.equal(tested.certified(X), expected >= 0)


def test_without_corrections_it_is_the_gaussian_chance_constraint() -> None:
    gp, X = make_gp(), points(200)
    fresh = QuantileRecalibrator([0.9])
    model = CalibratedModel(gp, fresh, denoise=False)
    tested = ChanceConstraint(model, upper=0.8, level=0.9)
    noisy = gp.posterior(X, observation_noise=True)
    probability = torch.distributions.Normal(noisy.mean, noisy.variance.sqrt()).cdf(
        torch.tensor(0.8, dtype=torch.double)
    )
    assert 0 < tested.certified(X).sum() < 200
    assert torch.equal(tested.certified(X), probability.view(-1) >= 0.9)


def test_any_calibrator_gives_a_margin() -> None:
    gp, X = make_gp(), points(5)
    for calibrator in (
        LocalizedConformal(0.2),
        QuantileRecalibrator(),
        QuantileRecalibrator([0.9]),
    ):
        model = CalibratedModel.from_history(gp, calibrator, denoise=False)
        level = torch.tensor(0.83, dtype=torch.double)
        expected = (0.8 - model.posterior(X).quantile(level)).view(-1)
        assert_close(ChanceConstraint(model, upper=0.8, level=0.83).margin(X), expected)


@pytest.mark.parametrize("limits", LIMITS)
def test_the_margin_has_the_gradient_of_finite_differences(limits: dict[str, Any]) -> None:
    calibrator = QuantileRecalibrator(
        ChanceConstraint.tracked_levels(limits.get("upper"), limits.get("lower"), 0.9),
        lengthscale=0.4,
        regularization=0.01,
    )
    tested = ChanceConstraint.from_history(make_gp(), **limits, calibrator=calibrator)
    assert torch.autograd.gradcheck(tested.margin, points(4).requires_grad_())


def test_single_precision_and_batches() -> None:
    X = points(6)
    reference = constraint().margin(X)
    single = constraint(torch.float)
    assert_close(single.margin(X.float()).double(), reference, rtol=1e-3, atol=1e-3)
    assert single.margin(X.float()).dtype == torch.float
    assert_close(constraint().margin(X.view(2, 3, 1, 2)), reference.view(2, 3))


@pytest.mark.parametrize(("limits", "theta"), [({"upper": 1e6}, 1.01), ({"lower": -1e6}, -0.01)])
def test_a_quantile_at_its_cap_certifies_nothing(limits: dict[str, Any], theta: float) -> None:
    tested = ChanceConstraint.from_history(make_gp(), **limits)
    assert tested.certified(points(20)).all()
    set_constants(tested, [theta])
    X = points(20).requires_grad_()
    margin = tested.margin(X)
    assert (margin < 0).all()
    (gradient,) = torch.autograd.grad(margin.sum(), X)
    assert gradient.isfinite().all()


def test_pending_points_do_not_certify() -> None:
    gp, X = make_gp(), points(5)
    model = CensoredDelayModel(gp, X_pending=torch.full((3, 2), 0.5).double(), censor_value=-5.0)
    tested = ChanceConstraint.from_history(model, upper=0.8)
    assert_close(tested.margin(X), ChanceConstraint.from_history(gp, upper=0.8).margin(X))


class Nearness(AcquisitionFunction):
    """How near points are to one that is not certified: the optimum is on the border."""

    def __init__(self, model: Model, target: Tensor) -> None:
        super().__init__(model=model)
        self.target = target

    def forward(self, X: Tensor) -> Tensor:
        """Values ``b`` at ``b x 1 x d``."""
        return -(X - self.target).square().sum(dim=-1).squeeze(-1)


@pytest.mark.filterwarnings("ignore:Optimization failed in `gen_candidates_scipy`")
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e-2])
@pytest.mark.parametrize("seed", range(4))
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


# ------------------------------------------------------------ what is learned


def test_only_certified_rows_teach_and_all_condition() -> None:
    tested = constraint(level=0.8, integral_gain=0.0)
    X = points(60)
    certified = tested.certified(X)
    inside, outside = X[certified][0, 0], X[~certified][0, 0]
    before = tracked(tested)
    tested.observe(outside.unsqueeze(0), torch.tensor([[5.0]]).double())
    assert torch.equal(tracked(tested), before)
    assert (tested.num_observed, tested.num_certified, tested.num_violations) == (1, 0, 0)
    assert len(tested.model.train_targets) == 13
    # The conditioned model may certify other points, so the row is chosen anew.
    inside = X[tested.certified(X)][0, 0]
    tested.observe(inside.unsqueeze(0), torch.tensor([[5.0]]).double())
    assert_close(tracked(tested), before + 0.05 * 0.8)
    assert (tested.num_observed, tested.num_certified, tested.num_violations) == (2, 1, 1)
    assert "violations=1" in repr(tested)


def test_rows_of_one_call_are_compared_with_the_same_quantiles() -> None:
    tested = constraint(upper=100.0, integral_gain=0.0)
    X = points(3)
    mean, deviation = tested.model.observation_moments(X)
    quantile = mean + deviation * tested.calibrator.quantile(X, 0.9)
    # Just above the quantile: after a first miss had raised it, the others would be covered.
    before = tracked(tested)
    tested.observe(X.squeeze(1), (quantile + 1e-6).detach().view(3, 1))
    assert_close(tracked(tested), before + 3 * 0.05 * 0.9)


def test_a_failed_call_changes_nothing() -> None:
    tested = constraint(upper=100.0)
    before = tracked(tested)
    for X, Y in (
        (points(2), torch.zeros(2, 1)),
        (points(2).squeeze(1), torch.full((2, 1), torch.nan)),
        (points(2).squeeze(1), torch.zeros(2, 2)),
    ):
        with pytest.raises((InputDataError, BotorchTensorDimensionError)):
            tested.observe(X, Y.double())
    assert torch.equal(tracked(tested), before)
    assert tested.num_observed == 0


def test_after_a_while_rounds_without_a_certified_point_bring_a_threshold_back() -> None:
    tested = constraint(upper=-100.0)  # nothing can be certified
    before, X = tracked(tested), points(1).squeeze(1)
    for _ in range(3):
        tested.observe(X, torch.tensor([[-1e6]]).double(), condition=False)
    assert torch.equal(tracked(tested), before)
    spare = float(before) + 0.05 * 0.1  # above the lower end of its interval
    for _ in range(400):
        tested.observe(X, torch.tensor([[-1e6]]).double(), condition=False)
    assert float(before - tracked(tested)) <= spare + 1e-12
    assert float(before - tracked(tested)) >= min(spare, 400 * 0.005) - 0.006
    # Several at once: as many as there is something to spare for.
    tested = constraint(upper=-100.0)
    before, X = tracked(tested), points(100).squeeze(1)
    for _ in range(4):
        tested.observe(X, torch.full((100, 1), -1e6).double(), condition=False)
    assert float(before - tracked(tested)) == pytest.approx(100 * 0.005)
    tested.observe(X, torch.full((100, 1), -1e6).double(), condition=False)
    spare = float(before) + 0.005 + 99 * 0.005  # by 100 at a time it may come down as much further
    assert float(before - tracked(tested)) == pytest.approx(min(2 * 100 * 0.005, spare), abs=0.005)


def at_border(tested: ChanceConstraint, X: Tensor) -> None:
    """Move an upper limit to where the margin at ``X`` (``1 x d``) is 0."""
    mean, deviation = tested.model.observation_moments(X.unsqueeze(0))
    quantile = tested.calibrator.quantile(X, tested.level)
    tested.upper = (mean + deviation * quantile).item()


def relaxed(tested: ChanceConstraint, rounds: int, size: int = 1) -> float:
    """The least threshold met in rounds of extremely good outcomes that are not certified."""
    tested.upper, X = -1e9, points(size).squeeze(1)
    least = math.inf
    for _ in range(rounds):
        tested.observe(X, torch.full((size, 1), -1e10).double(), condition=False)
        least = min(least, float(tracked(tested)))
    return least


def test_misses_that_violate_nothing_pay_for_later_rounds_without_a_certified_point() -> None:
    """By the budget that it had at the start the threshold could come down to 0.13 only."""
    tested, X = constraint(upper=1e3), points(1).squeeze(1)
    for _ in range(3):
        assert tested.certified(X.unsqueeze(0)).all()
        tested.observe(X, torch.tensor([[900.0]]).double(), condition=False)
    assert (tested.num_certified, tested.num_violations) == (3, 0)
    assert relaxed(tested, 300) <= 0.0


def test_violations_pay_for_nothing() -> None:
    """What the threshold may come down by is its height above -0.005 before them."""
    tested, X = constraint(upper=100.0), points(1).squeeze(1)
    for _ in range(3):
        tested.observe(X, torch.tensor([[900.0]]).double(), condition=False)
    assert tested.num_violations == 3
    # Three steps of 0.045 up; the last of 0.005 down is left undone if it would be too much.
    assert 3 * 0.045 - 0.005 - 1e-9 <= relaxed(tested, 300) <= 3 * 0.045 + 1e-9


CONSTRAINED: list[dict[str, Any]] = [{"upper": 3.0}, {"lower": -3.0}, {"upper": 3.0, "lower": -3.0}]
LEARNING: dict[str, dict[str, Any]] = {
    "default": {},
    "large": {"step_size": 0.5},
    "shrinking": {"step_size": 0.4, "step_decay": 0.5},
    "localized": {"lengthscale": 0.3, "scale": 1.0, "regularization": 0.1},
}


def any_sequence() -> Iterator[Any]:
    """All 48 cases: a quarter of them, with each value of each argument, on every run."""
    for i, limits in enumerate(CONSTRAINED):
        for j, (name, settings) in enumerate(LEARNING.items()):
            for k, (size, gain) in enumerate([(1, 0.05), (4, 10.0), (4, 0.05), (1, 10.0)]):
                rest = (i + j + k) % 4 != 0
                yield pytest.param(
                    limits,
                    size,
                    settings,
                    gain,
                    marks=[pytest.mark.slow] if rest else [],
                    id=f"{'-'.join(limits)}-{size}-{name}-{gain}",
                )


@pytest.mark.parametrize(("limits", "size", "settings", "gain"), list(any_sequence()))
def test_the_inequality_of_the_proof_holds_on_any_sequence(
    limits: dict[str, Any], size: int, settings: dict[str, Any], gain: float
) -> None:
    """Certified and other rounds in any order, with outcomes of any kind, and refits between."""
    random = torch.Generator().manual_seed(0)
    levels = ChanceConstraint.tracked_levels(limits.get("upper"), limits.get("lower"), 0.9)
    tested = ChanceConstraint.from_history(
        make_gp(),
        **limits,
        calibrator=QuantileRecalibrator(levels, **settings),
        integral_gain=gain,
    )
    tracker: Any = tested.calibrator.get_submodule("tracker")
    lowest, highest = (ends.tolist() for ends in tracker.reach(size))
    signs = [s for name, s in (("lower", -1), ("upper", 1)) if name in limits]
    share, violations, num_taught = 0.1 / len(signs), [0] * len(signs), 0
    pool, certifying = points(20), True
    for t in range(150):
        certifying = certifying ^ bool(torch.rand((), generator=random) < 0.1)
        chosen = pool[tested.certified(pool) == certifying]
        chosen = chosen[:size] if len(chosen) else pool[:size]
        certified = tested.certified(chosen)
        values = torch.tensor([-9.0, -2.9, 0.0, 0.0, 0.0, 0.0, 2.9, 9.0]).double()
        Y = values[torch.randint(8, (len(chosen), 1), generator=random)]
        before = tracked(tested)
        tested.observe(chosen.squeeze(1), Y, condition=False)
        num_taught += int(not torch.equal(tracked(tested), before) and not certified.any())
        last = tracker.step_at(tracker.num_updates)
        for i, (sign, limit) in enumerate(zip(signs, sorted(limits.values()), strict=True)):
            violations[i] += int((certified & (sign * (Y.squeeze(-1) - limit) > 0)).sum())
            c = float(tracked(tested)[i])
            height = c - lowest[i] if sign > 0 else highest[i] - c
            # The history is part of the tracker's count, not of T.
            right = share * tested.num_certified + height / last
            assert violations[i] <= right + 1e-9, (t, i)
        if tested.num_certified:
            assert sum(violations) <= tested.violation_bound(tested.num_certified, size)
        if t % 50 == 0:
            tested = tested.with_model(make_gp(num=9 + t // 50))
    assert num_taught > 0 and tested.num_certified > 0


def wrong_model_rounds(tested: ChanceConstraint, factor: float, rounds: int) -> list[bool]:
    """Violations at the border of a model that states ``1 / factor`` times the true deviation."""
    random, violations = torch.Generator().manual_seed(1), []
    for i in range(rounds):
        X = points(1, seed=i).squeeze(1)
        at_border(tested, X)
        assert tested.upper is not None
        tested.upper += 1e-9  # within it, whatever the last digits say
        mean, deviation = tested.model.observation_moments(X.unsqueeze(0))
        noise = factor * torch.randn((), generator=random, dtype=torch.double)
        before = tested.num_violations
        tested.observe(X, (mean + noise * deviation).reshape(1, 1).detach(), condition=False)
        violations.append(tested.num_violations > before)
    assert tested.num_certified == rounds
    return violations


@pytest.mark.parametrize("factor", [0.6, 1.0, 3.0])
def test_what_learning_has_cost_is_made_up_for(factor: float) -> None:
    """A tracker alone keeps ``(c_T - c_1) / eta`` violations too many, or too few, for good."""
    start: dict[str, Any] = {"upper": 100.0, "num_initial": len(make_gp().train_targets)}
    balanced = sum(wrong_model_rounds(constraint(**start), factor, 150))
    tracker = constraint(**start, integral_gain=0.0)
    before = float(tracked(tracker))
    alone = sum(wrong_model_rounds(tracker, factor, 150))
    assert alone - 15 == pytest.approx((float(tracked(tracker)) - before) / 0.05)
    assert abs(balanced - 15) <= 1
    assert factor <= 1.0 or alone - 15 >= 2


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_constant_moves_by_the_stated_amount(sign: float) -> None:
    limits: dict[str, Any] = {"upper": 1e6} if sign > 0 else {"upper": None, "lower": -1e6}
    tested, X = constraint(**limits), points(1).squeeze(1)

    def moved(y: float) -> float:
        before = tracked(tested)
        tested.observe(X, torch.tensor([[sign * y]]).double(), condition=False)
        return sign * float(tracked(tested) - before)

    for t in range(1, 31):
        aim = min(0.05 * 0.1 * t, 0.05)  # more violations are never aimed at than half of 0.1
        assert moved(-1e3) == pytest.approx(0.05 * (-0.1 - aim))
    for t in range(31, 36):
        excess = (t - 30) - 0.1 * t
        assert moved(2e6) == pytest.approx(0.05 * (0.9 + min(max(0.05 * excess, -0.05), 0.05)))
    tested.integral_gain = 10.0  # more than half of 0.1 is never made up for at once
    assert moved(-1e3) == pytest.approx(0.05 * (-0.1 + 0.05))


@pytest.mark.parametrize("limits", [{"upper": 100.0}, {"lower": -100.0, "upper": None}])
def test_misses_count_where_they_violate_nothing(limits: dict[str, Any]) -> None:
    """Rounds well inside the limit, which cannot violate it, are no credit for later ones."""
    tested, sign = constraint(**limits), 1.0 if limits["upper"] else -1.0
    for t in range(1, 61):
        before, X = tracked(tested), points(1, seed=t).squeeze(1)
        missed = t % 10 == 0
        Y = torch.tensor([[50.0 * sign if missed else -50.0 * sign]]).double()
        tested.observe(X, Y, condition=False)
        moved = sign * float(tracked(tested) - before)
        balance = t // 10 - 0.1 * t
        assert moved == pytest.approx(0.05 * (missed - 0.1 + 0.05 * balance))
    assert (tested.num_certified, tested.num_violations) == (60, 0)


def test_a_constant_stays_where_the_proof_needs_it() -> None:
    tested, X = constraint(upper=1e6, integral_gain=10.0), points(1).squeeze(1)
    tracker: Any = tested.calibrator.get_submodule("tracker")
    lowest, highest = (float(end) for end in tracker.reach())
    for y in (-1e3, 2e6, -1e3):
        for _ in range(300):
            tested.observe(X, torch.tensor([[y]]).double(), condition=False)
            assert lowest - 1e-12 <= float(tracked(tested)) <= highest + 1e-12


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_making_up_ends_where_the_tracker_does(sign: float) -> None:
    """An outcome moves the constant almost to its end, and what makes up goes on just to it."""
    limits: dict[str, Any] = {"upper": 1e6} if sign > 0 else {"upper": None, "lower": -1e6}
    X = points(1).squeeze(1)
    for near, y, at_end in ((0.99, 2e6, 1.0 + 0.5 * 0.9), (0.01, -1e3, -0.5 * 0.1)):
        calibrator = QuantileRecalibrator([0.9 if sign > 0 else 0.1], step_size=0.5)
        tested = constraint(**limits, calibrator=calibrator, integral_gain=10.0)
        set_constants(tested, [near if sign > 0 else 1.0 - near])
        tested.observe(X, torch.tensor([[sign * y]]).double(), condition=False)
        expected = at_end if sign > 0 else 1.0 - at_end
        assert tested.num_certified == 1
        assert float(tracked(tested)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("y", "certain"), [(2e6, 0.99), (-1e3, 0.01)])
def test_a_constant_that_a_batch_has_moved_too_far_is_not_pulled_back(
    y: float, certain: float
) -> None:
    tested, X = constraint(upper=1e6), points(4).squeeze(1)
    set_constants(tested, [certain])
    tested.observe(X, torch.full((4, 1), y).double(), condition=False)
    moved = 4 * 0.05 * (0.9 if y > 0 else -0.1)
    assert tested.num_certified == 4
    assert float(tracked(tested)) == pytest.approx(certain + moved)


def test_shrinking_steps_relax_too_and_are_numbered_by_certified_points() -> None:
    calibrator = QuantileRecalibrator([0.9], step_size=0.3, step_decay=0.5)
    tested = ChanceConstraint.from_history(make_gp(), upper=100.0, calibrator=calibrator)
    before, bound = float(tracked(tested)), tested.violation_bound(1000)
    assert relaxed(tested, 60, size=2) < before - 0.1
    assert tested.violation_bound(1000, 1) == bound
    assert tested.calibrator.num_updates == 12


@pytest.mark.parametrize(
    "calibrator",
    [
        QuantileRecalibrator([0.9], lengthscale="auto"),
        QuantileRecalibrator([0.9], lengthscale=0.3),
        QuantileRecalibrator([0.9], method="exact"),
        LocalizedConformal(0.2, lengthscale=0.3, regularization=0.1),
    ],
    ids=["mixed", "never forgets", "exact", "intervals"],
)
def test_without_a_bound_to_keep_one_point_of_each_idle_round_teaches(calibrator: Any) -> None:
    tested = ChanceConstraint.from_history(make_gp(), upper=-1e9, calibrator=calibrator)
    X, Y = points(3).squeeze(1), torch.full((3, 1), -1e6).double()
    start = tested.calibrator.num_updates
    for _ in range(3):
        tested.observe(X, Y, condition=False)
    assert tested.calibrator.num_updates == start
    for _ in range(2):
        tested.observe(X, Y, condition=False)
    assert tested.calibrator.num_updates == start + 2


def test_a_violation_by_the_last_digit_is_learned_as_one() -> None:
    """At a margin of 0, where rounding would take half of them for hits."""
    tested = constraint(
        upper=100.0, calibrator=QuantileRecalibrator([0.9], step_size=1e-3), integral_gain=0.0
    )
    mirrored = constraint(
        upper=None,
        lower=-100.0,
        calibrator=QuantileRecalibrator([0.1], step_size=1e-3),
        integral_gain=0.0,
    )
    for i in range(50):
        X = points(1, seed=i).squeeze(1)
        at_border(tested, X)
        assert tested.upper is not None
        mean, deviation = mirrored.model.observation_moments(X.unsqueeze(0))
        mirrored.lower = (mean + deviation * mirrored.calibrator.quantile(X, 1 - 0.9)).item()
        for each, limit, sign in ((tested, tested.upper, 1), (mirrored, mirrored.lower, -1)):
            assert each.certified(X.unsqueeze(0)).all()
            before = tracked(each)
            Y = torch.tensor([[math.nextafter(limit, sign * math.inf)]], dtype=torch.double)
            each.observe(X, Y, condition=False)
            assert sign * float(tracked(each) - before) == pytest.approx(0.9e-3)
            assert each.num_violations == i + 1


def test_single_precision_learns_violations_as_such() -> None:
    tested, unit = constraint(torch.float, upper=100.0), torch.finfo(torch.float).eps
    for i in range(30):
        X = points(1, torch.float, seed=i).squeeze(1)
        at_border(tested, X)
        assert tested.upper is not None
        before, num_violations = tracked(tested), tested.num_violations
        Y = torch.tensor([[tested.upper + 2 * unit * abs(tested.upper)]])
        tested.observe(X, Y, condition=False)
        if tested.num_violations > num_violations:
            assert tracked(tested) > before
        set_constants(tested, [0.8])
    assert tested.num_violations >= 10


def test_what_was_learned_and_counted_is_saved() -> None:
    """The inequality's ends and counts too: the bound goes on to hold of both parts together."""
    limits: dict[str, Any] = {"upper": 100.0, "lower": -100.0}
    tested = ChanceConstraint.from_history(make_gp(), **limits)
    X = points(3).squeeze(1)
    for y in (101.0, -101.0, 99.0, 0.0):
        tested.observe(X, torch.full((3, 1), y).double(), condition=False)
    buffer = io.BytesIO()
    torch.save(tested.state_dict(), buffer)
    buffer.seek(0)
    twin = ChanceConstraint.from_history(make_gp(num=8), **limits, num_initial=2)
    twin.load_state_dict(torch.load(buffer, weights_only=True))
    assert repr(twin) == repr(tested) and torch.equal(tracked(twin), tracked(tested))
    twin = twin.with_model(tested.model.model)
    for each in (tested, twin):
        each.upper = -1e9
        for _ in range(40):
            each.observe(X, torch.full((3, 1), -50.0).double(), condition=False)
        assert each.violation_bound(500) == tested.violation_bound(500)
    assert torch.equal(tracked(twin), tracked(tested))
    other = ChanceConstraint.from_history(make_gp(), upper=100.0, lower=-99.0)
    with pytest.raises(InputDataError, match="`state_dict`"):
        other.load_state_dict(twin.state_dict())
    large = QuantileRecalibrator([0.05, 0.95], step_size=0.1)
    with pytest.raises(InputDataError, match="`state_dict`"):
        ChanceConstraint.from_history(make_gp(), **limits, calibrator=large).load_state_dict(
            tested.state_dict()
        )


def test_noise_that_is_reported_afterwards_does_not_excuse_a_violation() -> None:
    """The quantile that certified did not know it, so it is not what the outcome is judged by."""
    tested = ChanceConstraint.from_history(make_gp(fixed_noise=True), upper=100.0)
    quiet, loud = copy.deepcopy(tested), copy.deepcopy(tested)
    X, Y = points(1).squeeze(1), torch.tensor([[101.0]]).double()
    quiet.observe(X, Y, Yvar=torch.full((1, 1), 1e-4).double())
    loud.observe(X, Y, Yvar=torch.full((1, 1), 1e8).double())
    assert torch.equal(tracked(quiet), tracked(loud)) and tracked(loud) > tracked(tested)
    # It counts in the model, as it should.
    near = [each.model.observation_moments(points(1))[0] for each in (quiet, loud)]
    assert near[0] > near[1] + 10
    for _ in range(100):
        loud.observe(X, Y, Yvar=torch.full((1, 1), 1e8).double(), condition=False)
    assert loud.num_violations <= loud.violation_bound(loud.num_certified)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_the_column_of_the_output_task_may_be_left_out() -> None:
    X = points(6)
    task = torch.zeros(6, 1, 1, dtype=torch.double)
    for lengthscale in (math.inf, 0.3):
        calibrator = QuantileRecalibrator([0.9], lengthscale, regularization=0.1)
        tested = ChanceConstraint.from_history(make_multitask(), upper=0.8, calibrator=calibrator)
        assert_close(tested.margin(X), tested.margin(torch.cat([X, task], dim=-1)))
        tested.observe(X.squeeze(1), torch.zeros(6, 1).double(), condition=False)


def test_rounds_are_calls_with_points() -> None:
    tested = constraint(upper=100.0)
    tested.observe(points(3).squeeze(1), torch.zeros(3, 1).double())
    tested.observe(torch.zeros(0, 2).double(), torch.zeros(0, 1).double())
    assert (tested.num_rounds, tested.num_observed) == (1, 3)


def test_it_goes_on_with_a_refitted_model() -> None:
    tested = constraint(upper=100.0)
    X, Y = points(2).squeeze(1), torch.tensor([[101.0], [0.0]]).double()
    tested.observe(X, Y)
    carried = tested.with_model(make_gp(num=10))
    assert carried.calibrator is tested.calibrator
    assert (carried.num_certified, carried.num_violations) == (2, 1)
    assert len(carried.model.train_targets) == 10
    assert carried.violation_bound(50) == tested.violation_bound(50)


def test_it_is_copied_and_pickled() -> None:
    tested, X = constraint(), points(3)
    for twin in (copy.deepcopy(tested), pickle.loads(pickle.dumps(tested))):
        assert_close(twin.margin(X), tested.margin(X))
        assert twin.violation_bound(10) == tested.violation_bound(10)


# ------------------------------------------------------------ the guarantee


def test_the_bound_is_that_of_the_design() -> None:
    for eta in (0.02, 0.05):
        calibrator = QuantileRecalibrator([0.9], step_size=eta)
        tested = ChanceConstraint.from_history(make_gp(), upper=0.8, calibrator=calibrator)
        for num in (100, 1000, 100_000):
            expected = min(0.1 * num + (1 + eta) / eta, num)
            assert tested.violation_bound(num) == pytest.approx(expected)
    assert constraint().violation_bound(5) == 5
    both = ChanceConstraint.from_history(make_gp(), upper=1.0, lower=-1.0)
    assert both.violation_bound(1000) == pytest.approx(100 + 2 * 21)
    assert constraint().violation_bound(1000, batch_size=4) == pytest.approx(100 + 24)
    batches = constraint(upper=100.0)
    batches.observe(points(4).squeeze(1), torch.zeros(4, 1).double(), condition=False)
    assert batches.violation_bound(1000) == pytest.approx(100 + 24)
    assert batches.violation_bound(1000, batch_size=5) == pytest.approx(100 + 25)


def test_the_bound_is_an_integer_where_the_arithmetic_says_so() -> None:
    for dtype in (torch.double, torch.float):
        tested = ChanceConstraint.from_history(make_gp(dtype=dtype), upper=100.0)
        bounds = [tested.violation_bound(10 * k) for k in range(1, 400)]
        assert bounds == [min(10 * k, k + 21) for k in range(1, 400)]
    both = ChanceConstraint.from_history(make_gp(), upper=1.0, lower=-1.0, level=0.7)
    assert [both.violation_bound(k) for k in (100, 110, 1000)] == [72, 75, 342]


@pytest.mark.parametrize(
    "calibrator",
    [
        LocalizedConformal(0.2),
        QuantileRecalibrator(lengthscale="auto"),
        QuantileRecalibrator([0.8]),
    ],
)
def test_there_is_no_bound_where_the_quantile_is_not_tracked(calibrator: Any) -> None:
    tested = ChanceConstraint.from_history(make_gp(), upper=0.8, calibrator=calibrator)
    with pytest.raises(UnsupportedError, match="from_history"):
        tested.violation_bound(10)


def test_a_localized_quantile_needs_to_forget() -> None:
    forgets = QuantileRecalibrator([0.9], lengthscale=0.3, regularization=0.1)
    tested = ChanceConstraint.from_history(make_gp(), upper=0.8, calibrator=forgets)
    # The local part reaches m / regularization, 9, on either side.
    assert tested.violation_bound(10_000) == pytest.approx(1000 + (1 + 2 * 9 + 0.05) / 0.05)
    never = QuantileRecalibrator([0.9], lengthscale=0.3)
    tested = ChanceConstraint.from_history(make_gp(), upper=0.8, calibrator=never)
    with pytest.raises(UnsupportedError, match="regularization"):
        tested.violation_bound(10)


def test_there_is_no_bound_where_others_teach_the_calibrator() -> None:
    X, Y = points(1).squeeze(1), torch.zeros(1, 1).double()
    model = CalibratedModel(make_gp(), QuantileRecalibrator([0.9]), denoise=False)
    first, second = (ChanceConstraint(model, upper=upper) for upper in (50.0, 100.0))
    first.observe(X, Y)
    assert first.violation_bound(10) == 10
    with pytest.raises(UnsupportedError, match="elsewhere"):
        second.violation_bound(10)
    first.model.observe(X, Y)
    with pytest.raises(UnsupportedError, match="elsewhere"):
        first.violation_bound(10)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_violations_stay_within_the_bound_under_an_adversary(
    limits: dict[str, Any], batch_size: int
) -> None:
    """It sees the margins and violates a limit wherever it can, or if it must holds its fire."""
    tested = ChanceConstraint.from_history(
        make_gp(), **{name: 20 * limit for name, limit in limits.items()}
    )
    X = points(batch_size).squeeze(1)
    worst = 20 * limits["upper"] + 1e-6 if "upper" in limits else 20 * limits["lower"] - 1e-6
    mean, _ = tested.model.observation_moments(X.unsqueeze(-2))
    for _ in range(150):
        certified = tested.certified(X.unsqueeze(-2))
        Y = torch.where(certified, torch.tensor(worst).double(), mean.view(-1)).unsqueeze(-1)
        tested.observe(X, Y, condition=False)
        if tested.num_certified:
            bound = tested.violation_bound(tested.num_certified, batch_size)
            assert tested.num_violations <= bound
    assert tested.num_violations > 0


# ------------------------------------------------------------ several constraints


def test_several_constraints_share_what_may_fail() -> None:
    assert joint_level(0.9, 4) == pytest.approx(0.975)
    models = [make_gp(), make_gp(num=9)]
    made = joint_chance_constraints(models, [(None, 0.5), (-1.0, 1.0)], level=0.9, num_initial=2)
    assert [each.level for each in made] == pytest.approx([0.95, 0.95])
    assert [(each.lower, each.upper) for each in made] == [(None, 0.5), (-1.0, 1.0)]
    assert made[0].calibrator.num_updates == 10
    listed = joint_chance_constraints(ModelListGP(*models), [(None, 0.5), (-1.0, 1.0)])
    assert [each.lower for each in listed] == [None, -1.0]
    (alone,) = joint_chance_constraints(models[0], [(None, 0.5)], level=0.8)
    assert alone.level == pytest.approx(0.8) and alone.upper == 0.5


# ------------------------------------------------------------ arguments


def test_bad_arguments_are_named() -> None:
    gp = make_gp()
    model = CalibratedModel(gp, QuantileRecalibrator([0.9]), denoise=False)
    with pytest.raises(InputDataError, match="`upper`, `lower`"):
        ChanceConstraint(model)
    with pytest.raises(InputDataError, match="`lower` must be less"):
        ChanceConstraint(model, upper=0.0, lower=1.0)
    with pytest.raises(InputDataError, match="`upper` must be a finite"):
        ChanceConstraint(model, upper=float("nan"))
    for level in (0.0, 1.0, 90):
        with pytest.raises(InputDataError, match="level"):
            ChanceConstraint(model, upper=0.0, level=level)
        with pytest.raises(InputDataError, match="level"):
            ChanceConstraint.from_history(gp, upper=0.0, level=level)
    for gain in (-0.1, math.nan, math.inf):
        with pytest.raises(InputDataError, match="integral_gain"):
            ChanceConstraint.from_history(gp, upper=0.0, integral_gain=gain)
    with pytest.raises(UnsupportedError, match="denoise=False"):
        ChanceConstraint(CalibratedModel(gp, QuantileRecalibrator([0.9])), upper=0.0)
    with pytest.raises(UnsupportedError, match="from_history"):
        ChanceConstraint(gp, upper=0.0)
    with pytest.raises(BotorchTensorDimensionError, match="b x 1 x d"):
        constraint().margin(torch.zeros(3, 2, 2).double())
    for width in (1, 3):
        with pytest.raises(BotorchTensorDimensionError, match="`X` must have 2 columns"):
            constraint().margin(torch.zeros(3, 1, width).double())
        with pytest.raises(BotorchTensorDimensionError, match="`X` must have 2 columns"):
            constraint().observe(torch.zeros(3, width).double(), torch.zeros(3, 1).double())
    for own, other in ((torch.double, torch.float), (torch.float, torch.double)):
        with pytest.raises(InputDataError, match="`X` must have the precision"):
            constraint(own).margin(points(3, other))
        with pytest.raises(InputDataError, match="`X` must have the precision"):
            constraint(own).observe(points(3, other).squeeze(1), torch.zeros(3, 1, dtype=own))
        with pytest.raises(InputDataError, match="`Y` must have the precision"):
            constraint(own).observe(points(3, own).squeeze(1), torch.zeros(3, 1, dtype=other))
    with pytest.raises(InputDataError, match="`X` must be a tensor, got ndarray"):
        constraint().observe(points(3).squeeze(1).numpy(), torch.zeros(3, 1).double())  # type: ignore[arg-type]
    with pytest.raises(InputDataError, match="num_certified"):
        constraint().violation_bound(0)
    with pytest.raises(InputDataError, match="same positive length"):
        joint_chance_constraints([gp], [])
    for limits in ([0.5], [(0.5,)], []):
        with pytest.raises(InputDataError, match="`limits`"):
            joint_chance_constraints([gp], limits)  # type: ignore[arg-type]
    for limit in ("high", torch.zeros(2)):
        with pytest.raises(InputDataError, match="`upper` must be a finite"):
            ChanceConstraint.from_history(gp, upper=limit)  # type: ignore[arg-type]
    calibrated = CalibratedModel(gp, QuantileRecalibrator([0.9]))
    with pytest.raises(UnsupportedError, match="calibrated already"):
        ChanceConstraint.from_history(calibrated, upper=0.0)
    with pytest.raises(UnsupportedError, match="calibrated already"):
        constraint().with_model(calibrated)
    with pytest.raises(InputDataError, match="num_constraints"):
        joint_level(0.9, 0)


def test_one_output_of_an_outcome_in_any_units() -> None:
    """Scaling outcome and limit by a factor scales the margin."""
    X = torch.rand(12, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    Y, margins = X.sum(dim=-1, keepdim=True), []
    for factor in (1.0, 1e-3, 1e6):
        gp = SingleTaskGP(
            X, factor * Y, input_transform=Normalize(2), outcome_transform=Standardize(1)
        )
        margin = ChanceConstraint.from_history(gp.eval(), upper=factor).margin(points(5))
        margins.append(margin / factor)
    assert_close(margins[1], margins[0], rtol=1e-6, atol=1e-8)
    assert_close(margins[2], margins[0], rtol=1e-6, atol=1e-8)
