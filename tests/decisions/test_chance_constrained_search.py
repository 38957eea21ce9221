"""`optimize_chance_constrained`: it returns the best certified point, or says there is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.exceptions.errors import (
    BotorchError,
    BotorchTensorDimensionError,
    InfeasibilityError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor
from torch.testing import assert_close

import botorch_calib.decisions.chance_constrained_search as search_module
from botorch_calib import (
    CensoredDelayModel,
    ChanceConstraint,
    optimize_chance_constrained,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.decisions import CertifiedSetExpansion
from botorch_calib.decisions.chance_constraint import spread_of
from botorch_calib.exceptions import NotCertifiedWarning
from tests.models.ensembles import make_ensemble

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


class Linear(AcquisitionFunction):
    """``w x``: where the limit allows it, the maximum is on the border of the certified set."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__(model=make_gp())
        self.weights = weights

    def forward(self, X: Tensor) -> Tensor:
        return (X @ self.weights.to(X)).squeeze(-1)


def make_gp(
    width: int = 2,
    dtype: torch.dtype = torch.double,
    peak: float | None = None,
    factor: float = 1.0,
) -> SingleTaskGP:
    """A precise model of ``x_1 + ... + x_d``, or of a squared distance from ``peak``."""
    X = draw_sobol_samples(torch.tensor([[0.0] * width, [1.0] * width]), n=40, q=1, seed=3)
    X = X.squeeze(-2).to(dtype)
    Y = X.sum(dim=-1, keepdim=True) if peak is None else 10 * (X - peak).square().sum(-1, True)
    Y, Yvar = factor * Y, torch.full_like(Y, 1e-4 * factor**2)
    gp = SingleTaskGP(X, Y, train_Yvar=Yvar, outcome_transform=Standardize(1))
    gp.covar_module.lengthscale = 1.0
    return gp.eval()


def constraint(**kwargs: Any) -> ChanceConstraint:
    gp = make_gp(
        **{name: kwargs.pop(name) for name in ("width", "dtype", "peak") if name in kwargs}
    )
    return ChanceConstraint(gp, **{"upper": 1.0, **kwargs})


class Function(AcquisitionFunction):
    """An acquisition function from a function of points ``b x 1 x d``."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model=make_gp())
        self.function = function

    def forward(self, X: Tensor) -> Tensor:
        return self.function(X)


def right() -> Linear:
    return Linear(torch.tensor([1.0, 0.5]))


def test_the_maximum_on_the_border_is_found_and_is_inside() -> None:
    tested = constraint()
    candidate, value, certified = optimize_chance_constrained(right(), tested, BOUNDS)
    assert candidate.shape == (1, 2) and value.shape == () and certified is True
    margin = tested.margin(candidate.unsqueeze(0)).item()
    assert 0.0 <= margin < 1e-3
    grid = draw_sobol_samples(BOUNDS, n=4096, q=1, seed=0)
    inside = grid[tested.certified(grid)]
    assert value >= right()(inside).max() - 1e-6
    assert_close(value, right()(candidate.unsqueeze(0)).squeeze())


def test_noisy_improvement_may_be_evaluated_where_it_was_before() -> None:
    """The search starts from known points too: not one warning of what their covariance needs."""
    gp = make_gp()
    known = gp.train_inputs[0]
    acqf = qLogCalibratedNoisyExpectedImprovement(gp, known, prune_baseline=False)
    with pytest.warns(NumericalWarning, match="added jitter"):
        acqf(known.unsqueeze(-2))
    candidate, _, certified = optimize_chance_constrained(acqf, constraint(), BOUNDS)
    assert certified and candidate.shape == (1, 2)
    optimize_chance_constrained(acqf, constraint(), None, choices=known)


def test_a_tiny_certified_set_is_found() -> None:
    """A disc of 0.4 % of the box."""
    tested = constraint(peak=0.83, upper=0.0)
    grid = draw_sobol_samples(BOUNDS, n=2**14, q=1, seed=0)
    tested = constraint(peak=0.83, upper=0.0127 - tested.margin(grid).max().item())
    share = tested.certified(grid).double().mean().item()
    assert 0.003 < share < 0.005
    for seed in range(2):
        torch.manual_seed(seed)
        candidate, value, certified = optimize_chance_constrained(
            right(), tested, BOUNDS, raw_samples=64
        )
        assert certified and tested.certified(candidate.unsqueeze(0)).all()
        assert value >= right()(grid[tested.certified(grid)]).max() - 1e-3


def test_a_known_point_may_be_all_that_is_certified() -> None:
    gp = make_gp(width=6, peak=0.5)
    bounds = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.double)
    tested = ChanceConstraint(gp, upper=0.0)
    known = gp.train_inputs[0].unsqueeze(-2)
    upper = -tested.margin(known).topk(2).values.mean().item()  # one of them is certified
    tested = ChanceConstraint(gp, upper=upper)
    result = optimize_chance_constrained(Linear(torch.ones(6)), tested, bounds, raw_samples=16)
    assert result.certified and tested.certified(result.candidate.unsqueeze(0)).all()


def test_without_a_certified_point_the_most_promising_one_is_returned_and_a_warning_given() -> None:
    tested = constraint(upper=-5.0)
    with pytest.warns(NotCertifiedWarning, match="without any guarantee") as caught:
        candidate, value, certified = optimize_chance_constrained(right(), tested, BOUNDS)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert certified is False
    grid = draw_sobol_samples(BOUNDS, n=1024, q=1, seed=0)
    assert tested.optimism(candidate.unsqueeze(0)) >= tested.optimism(grid).max() - 1e-6
    assert_close(value, right()(candidate.unsqueeze(0)).squeeze())


def test_a_spent_budget_is_named() -> None:
    tested = constraint(upper=50.0, budget=0.5)
    x = torch.full((1, 2), 0.5, dtype=torch.double)
    tested.observe(x, torch.full((1, 1), 51.0, dtype=torch.double))
    with pytest.warns(NotCertifiedWarning, match="the budget of violations is spent"):
        assert not optimize_chance_constrained(right(), tested, BOUNDS).certified
    with pytest.warns(NotCertifiedWarning, match="spent"):
        optimize_chance_constrained(right(), tested, None, choices=x)


def test_everything_certified_is_a_search_without_constraints() -> None:
    candidate, _, certified = optimize_chance_constrained(right(), constraint(upper=50.0), BOUNDS)
    assert certified
    assert_close(candidate, BOUNDS[1:], atol=1e-5, rtol=0)


def test_limits_of_several_outcomes_are_met_together() -> None:
    models = {"a": constraint().model, "b": constraint(peak=0.2).model}
    both = ChanceConstraint(models, limits={"a": (None, 1.0), "b": (None, 2.0)}, rows=())
    candidate, _, certified = optimize_chance_constrained(right(), both, BOUNDS)
    assert certified
    assert 0.0 <= both.margin(candidate.unsqueeze(0)).item() < 1e-3
    impossible = ChanceConstraint(models, limits={"a": (None, 1.0), "b": (None, -5.0)}, rows=())
    with pytest.warns(NotCertifiedWarning):
        assert not optimize_chance_constrained(right(), impossible, BOUNDS).certified


def test_two_sided_limits_and_minus_the_acquisition() -> None:
    tested = constraint(lower=0.6)
    for sign in (1.0, -1.0):
        acqf = Linear(sign * torch.ones(2))
        candidate, _, certified = optimize_chance_constrained(acqf, tested, BOUNDS)
        assert certified and tested.certified(candidate.unsqueeze(0)).all()
        near = candidate.sum() < 0.7 if sign < 0 else candidate.sum() > 0.9
        assert near


def test_fixed_features_stay_and_linear_constraints_hold() -> None:
    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double)
    tested = constraint(width=3, upper=1.5)  # x + y + z is at most about 1.5
    candidate, value, certified = optimize_chance_constrained(
        Linear(torch.tensor([0.2, 0.5, 1.0])),
        tested,
        bounds,
        fixed_features={-2: 0.25},
        inequality_constraints=[(torch.tensor([0, 2]), torch.tensor([1.0, -1.0]).double(), 0.2)],
    )
    assert certified and tested.certified(candidate.unsqueeze(0)).all()
    x, y, z = candidate.squeeze(0).tolist()
    assert y == 0.25 and x - z >= 0.2 - 1e-8 and value > 0.75


def test_discrete_columns_have_one_of_their_combinations() -> None:
    bounds = torch.tensor([[0.0] * 3, [1.0, 1.0, 2.0]], dtype=torch.double)
    tested = constraint(width=3, upper=1.5)  # x + y + z is at most about 1.5
    acqf = Linear(torch.tensor([0.2, 0.5, 1.0]))
    several = [{2: 0.0}, {2: 1.0}, {-1: 2.0}]
    search = partial(optimize_chance_constrained, acqf, tested, bounds)
    found = search(fixed_features_list=several)
    assert found.certified and found.candidate[0, 2] == 1.0
    for fixed in several[:2]:
        with torch.no_grad():
            assert found.value >= search(fixed_features=fixed).value - 1e-4
    assert search().candidate[0, 2] not in (0.0, 1.0, 2.0)
    # Combinations without a point are left out, unless no other is there.
    low = [(torch.tensor([2]), -torch.ones(1, dtype=torch.double), -0.5)]
    found = search(fixed_features_list=several, inequality_constraints=low)
    assert found.certified and found.candidate[0, 2] == 0.0
    with pytest.raises(InfeasibilityError):
        search(fixed_features_list=several[1:], inequality_constraints=low)


@pytest.mark.parametrize(("with_others", "scale"), [(False, 1e4), (True, 1.0)])
def test_linear_equations_hold(with_others: bool, scale: float) -> None:
    """The optimum of a linear function on a plane is at a corner, which is known."""
    weights = torch.tensor([0.2, 0.5, 1.0])
    equal = [(torch.arange(3), torch.full((3,), scale).double(), scale)]  # x_0 + x_1 + x_2 = 1
    others: dict[str, Any] = {}
    corner = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.double)
    if with_others:  # x_2 <= 0.6
        others["fixed_features"] = {1: 0.25}
        others["inequality_constraints"] = [(torch.tensor([2]), -torch.ones(1).double(), -0.6)]
        corner = torch.tensor([[0.15, 0.25, 0.6]], dtype=torch.double)
    tested = constraint(width=3, upper=1.5)
    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double)
    candidate, _, certified = optimize_chance_constrained(
        Linear(weights), tested, bounds, raw_samples=64, equality_constraints=equal, **others
    )
    assert certified and tested.certified(candidate.unsqueeze(0)).all()
    assert abs(candidate.sum().item() - 1.0) < 1e-8
    assert_close(candidate, corner, atol=1e-5, rtol=0)
    with pytest.raises(InfeasibilityError, match="linear constraints|polytope appears empty"):
        optimize_chance_constrained(
            Linear(weights), tested, bounds, equality_constraints=[(*equal[0][:2], 4.0 * scale)]
        )


def test_fixed_features_leave_the_border_within_reach() -> None:
    """BoTorch 0.18 shows a nonlinear constraint other points than those it fixes."""
    tested, bounds = constraint(width=3, upper=1.5), torch.tensor([[0.0] * 3, [1.0] * 3]).double()
    acqf = Linear(torch.tensor([0.1, 1.0, 0.3]))
    candidate, _, certified = optimize_chance_constrained(
        acqf, tested, bounds, fixed_features={0: 0.3, 2: 0.6}
    )
    assert certified and candidate[0, [0, 2]].tolist() == [0.3, 0.6]
    assert tested.margin(candidate.unsqueeze(0)).item() < 1e-6


def test_a_value_is_fixed_in_the_precision_of_the_bounds() -> None:
    bounds = torch.tensor([[0.1, 0.0], [1.0, 1.0]])  # 0.1 in single precision is above 0.1
    tested = constraint(dtype=torch.float)
    result = optimize_chance_constrained(right(), tested, bounds, fixed_features={0: 0.1})
    assert result.certified and result.candidate[0, 0] == bounds[0, 0]


@pytest.mark.parametrize(("linear", "scale"), [(False, 1e-8), (True, 1e6)])
def test_units_of_the_acquisition_do_not_matter(scale: float, linear: bool) -> None:
    """SLSQP has absolute tolerances; from large values it ends far outside of every constraint."""
    tested = constraint(width=3, upper=1.5)
    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double)
    weights = torch.tensor([5.0, -7.0, 9.0], dtype=torch.double)
    lines = [(torch.arange(3), weights.sign(), 0.4)] if linear else None

    def found(factor: float) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        acqf = Function(lambda X: factor * (X * weights).sin().sum(dim=-1).squeeze(-1))
        candidate, value, certified = optimize_chance_constrained(
            acqf, tested, bounds, raw_samples=32, inequality_constraints=lines
        )
        assert certified and tested.certified(candidate.unsqueeze(0)).all()
        assert not linear or (candidate @ weights.sign()).item() >= 0.4 - 1e-8
        return candidate, value / factor

    for ours, reference in zip(found(scale), found(1.0), strict=True):
        assert_close(ours, reference, rtol=0, atol=1e-4)


def to_the_left(beyond: float, X: Tensor) -> Tensor:
    """``x_1 + x_2`` for ``x_1`` up to 0.3."""
    return torch.where(X[..., 0, 0] > 0.3, beyond, X.sum((-1, -2)))


def test_infinite_and_undefined_values_of_the_acquisition_are_the_last_choice() -> None:
    tested = constraint()
    for worst in (-torch.inf, torch.nan):
        candidate, value, certified = optimize_chance_constrained(
            Function(partial(to_the_left, worst)), tested, BOUNDS, num_restarts=1
        )
        assert certified and candidate[0, 0] <= 0.3 and value > 0.8
    infinite = Function(partial(to_the_left, torch.inf))
    assert optimize_chance_constrained(infinite, tested, BOUNDS, 1).value == torch.inf
    nowhere = Function(lambda X: X.sum((-1, -2)) * 0.0 - torch.inf)
    assert optimize_chance_constrained(nowhere, tested, BOUNDS, 1).certified


def test_choices_are_all_that_is_considered() -> None:
    tested, choices = constraint(), torch.rand(300, 2, dtype=torch.double)
    candidate, _, certified = optimize_chance_constrained(right(), tested, None, choices=choices)
    inside = choices[tested.certified(choices.unsqueeze(-2))]
    best = inside[(inside @ torch.tensor([1.0, 0.5]).double()).argmax()]
    assert certified and torch.equal(candidate.squeeze(0), best)
    outside = choices[~tested.certified(choices.unsqueeze(-2))]
    with pytest.warns(NotCertifiedWarning):
        candidate, _, certified = optimize_chance_constrained(
            right(), tested, None, choices=outside
        )
    assert not certified
    assert torch.equal(
        candidate.squeeze(0), outside[tested.optimism(outside.unsqueeze(-2)).argmax()]
    )


def test_single_precision_points_outside_training_and_plain_acquisitions() -> None:
    tested = constraint(dtype=torch.float)
    acqf = UpperConfidenceBound(make_gp(dtype=torch.float), beta=4.0)
    candidate, value, certified = optimize_chance_constrained(acqf, tested, BOUNDS.float(), 1)
    assert candidate.dtype == value.dtype == torch.float
    assert certified and tested.certified(candidate.unsqueeze(0)).all()


@pytest.mark.parametrize("num", [3, 4])  # the ensemble has 4 members
def test_the_boundary_of_an_ensemble_is_that_of_its_mixture(num: int) -> None:
    model = make_ensemble()
    tested, X = ChanceConstraint(model, upper=30.0), 10.0 * torch.rand(num, 1, 2).double() - 5.0
    sigma = model.posterior(X).mixture_variance.sqrt().flatten()
    stated, (margin,) = tested.stated_margins(X)
    (outcome,), (unit,) = stated.values(), tested.typical_deviations()
    expected = (sigma / unit).log() - 0.5 * (margin / spread_of(outcome).deviation).square()
    assert_close(CertifiedSetExpansion(tested)(X), expected)


def test_a_share_of_the_rounds_expands() -> None:
    tested, expanded = constraint(), []
    at_border = CertifiedSetExpansion(tested)
    for _ in range(10):
        candidate, value, certified = optimize_chance_constrained(
            Linear(-torch.ones(2)), tested, BOUNDS, 1, 64, expansion_share=0.3
        )
        assert certified
        assert_close(value, -candidate.sum())
        expanded.append(bool(candidate.sum() > 0.5))
        tested.decide(candidate)  # the same corner each time, without noise
        tested.observe(candidate, candidate.sum(-1, keepdim=True), condition=False)
    assert sum(expanded) == 3 and expanded[1]
    grid = draw_sobol_samples(BOUNDS, n=512, q=1, seed=1)
    grid = grid[tested.certified(grid)]
    assert grid[at_border(grid).argmax()].sum() > 0.5


def test_rounds_of_several_points_expand_as_often() -> None:
    assert sum(search_module.expands(0.25, 4 * num) for num in range(8)) == 2


def test_expansion_prefers_the_border_and_what_is_not_known() -> None:
    tested = constraint()
    acqf = CertifiedSetExpansion(tested)
    X = torch.tensor([[0.45, 0.45], [0.1, 0.1]], dtype=torch.double).unsqueeze(-2)
    border, inside = acqf(X)
    assert border > inside
    known = torch.tensor([[[0.4, 0.5]]], dtype=torch.double)
    before = acqf(known)
    tested.observe(known.squeeze(0), torch.tensor([[0.9]]).double())
    assert acqf(known) < before
    assert torch.autograd.gradcheck(acqf, X.requires_grad_())
    several: Any = [tested]
    with pytest.raises(InputDataError, match="got list"):
        CertifiedSetExpansion(several)


def test_expansion_moves_away_from_pending_points() -> None:
    """They count as observed, whatever their outcomes; margins do not change."""
    tested = constraint()
    acqf = CertifiedSetExpansion(tested)
    X = draw_sobol_samples(BOUNDS, n=64, q=1, seed=0)
    before = acqf(X)
    pending = torch.tensor([[0.4, 0.5], [0.6, 0.3]], dtype=torch.double)
    acqf.set_X_pending(pending)
    gp = tested.model
    outcomes = torch.tensor([[7.0], [-7.0]]).double()
    known = gp.condition_on_observations(
        pending, outcomes, noise=gp.likelihood.noise.mean().expand(2, 1)
    )
    log_sigma = 0.5 * (known.posterior(X).variance / gp.posterior(X).variance).log()
    assert_close(acqf(X), before + log_sigma.squeeze(-1).squeeze(-1), rtol=1e-6, atol=1e-6)
    assert_close(CertifiedSetExpansion(tested, X_pending=pending)(X), acqf(X))
    assert torch.autograd.gradcheck(acqf, X[:3].requires_grad_())
    after = acqf(X)
    with pytest.raises(BotorchTensorDimensionError, match="X_pending"):
        acqf.set_X_pending(pending[:, :1])
    assert_close(acqf(X), after, rtol=0, atol=0)  # an error changes nothing
    acqf.set_X_pending(None)
    assert_close(acqf(X), before)
    picks, _ = optimize_acqf(acqf, BOUNDS, q=2, num_restarts=1, raw_samples=32, sequential=True)
    assert (picks[0] - picks[1]).norm() > 0.05
    with pytest.raises(BotorchTensorDimensionError, match="X_pending"):
        acqf.set_X_pending(pending[0])
    with pytest.raises(InputDataError, match="`X_pending` must be a tensor, got ndarray"):
        acqf.set_X_pending(pending.numpy())  # type: ignore[arg-type]


def test_pending_points_stay_so_when_others_are_observed() -> None:
    tested, pending = constraint(), torch.tensor([[0.4, 0.5], [0.6, 0.3]], dtype=torch.double)
    acqf = CertifiedSetExpansion(tested, X_pending=pending)
    X = draw_sobol_samples(BOUNDS, n=16, q=1, seed=0)
    tested.observe(X[0], torch.ones(1, 1, dtype=torch.double))
    after = CertifiedSetExpansion(tested, X_pending=pending)
    after.units = acqf.units  # those of the time when each was made
    assert torch.equal(acqf(X), after(X))
    with torch.no_grad():
        tested.observe(X[1], torch.ones(1, 1, dtype=torch.double))
        acqf(X)
    assert torch.autograd.gradcheck(acqf, X[2:4].requires_grad_())


def test_pending_points_of_the_model_and_further_ones_add_up() -> None:
    X = draw_sobol_samples(BOUNDS, n=16, q=1, seed=0)
    pending = torch.tensor([[0.4, 0.5], [0.6, 0.3]], dtype=torch.double)

    def expansion(first: Tensor, further: Tensor | None, imputation: str) -> Tensor:
        model = CensoredDelayModel(make_gp(), first, 0.0, imputation)
        tested = ChanceConstraint(model, upper=1.0)
        return CertifiedSetExpansion(tested, X_pending=further)(X)

    together = expansion(pending, None, "censor")
    for imputation in ("censor", "hallucinate"):
        assert_close(expansion(pending[:1], pending[1:], imputation), together)
    assert_close(expansion(pending[:1], pending, "none"), together)


def test_bad_arguments_are_named() -> None:
    tested: Any = constraint()
    wide = torch.tensor([[0.0] * 3, [1.0] * 3]).double()
    single = constraint(dtype=torch.float)
    beyond = [(torch.tensor([0, 1]), torch.ones(2, dtype=torch.double), 3.0)]

    def refused(
        error: Any, match: str | None, limits: Any = tested, bounds: Any = BOUNDS, **more: Any
    ) -> None:
        with pytest.raises(error, match=match):
            optimize_chance_constrained(more.pop("acqf", right()), limits, bounds, **more)

    def no_choices(error: Any, match: str, choices: Any, **more: Any) -> None:
        refused(error, match, bounds=None, choices=choices, **more)

    shape = BotorchTensorDimensionError
    refused(shape, "`bounds` must have 2 columns", bounds=wide)
    refused(InputDataError, "`bounds` must have the precision", single)
    refused(InputDataError, "`constraint`", [tested])
    refused(UnsupportedError, "`acq_function`.*NoneType", acqf=None)
    refused(InputDataError, "`bounds`", bounds=BOUNDS.flip(0))
    refused(InputDataError, "names column 2", fixed_features={2: 0.5})
    refused(InputDataError, "outside of its bounds", fixed_features={0: 1.5})
    refused(InputDataError, "every column", fixed_features={0: 0.5, 1: 0.5})
    refused(InputDataError, "at least one dictionary", fixed_features_list=[])
    both: dict[str, Any] = {"fixed_features": {0: 0.5}, "fixed_features_list": [{1: 0.5}]}
    refused(InputDataError, "excludes `fixed_features`", **both)
    refused(InfeasibilityError, None, inequality_constraints=beyond)
    for name in ("inequality_constraints", "equality_constraints"):
        for lines in (5, ["a"]):
            refused(BotorchError, f"`{name}", **{name: lines})
    refused(InputDataError, "expansion_share", expansion_share=1.0)
    for name in ("num_restarts", "raw_samples"):
        refused(InputDataError, name, **{name: 0})
        no_choices(InputDataError, name, BOUNDS, **{name: 0})
    refused(InputDataError, "excludes", choices=torch.rand(3, 2))
    no_choices(InputDataError, "empty", torch.rand(0, 2))
    no_choices(shape, "`choices` must have 2 columns", wide)
    no_choices(InputDataError, "`choices`", torch.full((2, 2), torch.nan))


class InWidths(AcquisitionFunction):
    """``w x`` of points in units of their own, which it divides by these."""

    def __init__(self, weights: list[float], units: Tensor, offset: Tensor) -> None:
        super().__init__(model=make_gp())
        self.weights, self.units, self.offset = torch.tensor(weights).double(), units, offset

    def forward(self, X: Tensor) -> Tensor:
        return ((X - self.offset) / self.units @ self.weights).squeeze(-1)


@pytest.mark.parametrize(
    ("kind", "units", "offset"),
    [
        ("box", (1e-6, 1e-6), 3.0),
        ("linear", (1e5, 1e-5), 3.0),
        ("fixed", (1e5, 1e-5), 3.0),
    ],
)
def test_the_point_does_not_depend_on_the_units_of_the_inputs(
    kind: str, units: tuple[float, float], offset: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    U = torch.rand(20, 2, generator=generator, dtype=torch.double)

    def found(width: Tensor) -> tuple[Tensor, Tensor, bool]:
        start = offset * width
        bounds = torch.stack([start, start + width])
        gp = SingleTaskGP(
            start + U * width,
            U.sum(dim=-1, keepdim=True),
            input_transform=Normalize(2, bounds=bounds),
            outcome_transform=Standardize(1),
        )
        gp.covar_module.lengthscale = 0.5
        limit = ChanceConstraint(gp.eval(), upper=1.0, level=0.9)
        settings: dict[str, Any] = {}
        if kind == "linear":  # the second coordinate is at most twice the first, in widths
            coefficients = torch.tensor([2.0, -1.0]).to(width) / width
            settings["inequality_constraints"] = [
                (torch.tensor([0, 1]), coefficients, float(coefficients @ start))
            ]
        if kind == "fixed":
            settings["fixed_features"] = {0: float(start[0] + 0.25 * width[0])}
        acqf = InWidths([0.5, 1.0], width, start)
        torch.manual_seed(0)
        x, value, certified = optimize_chance_constrained(
            acqf, limit, bounds, raw_samples=32, **settings
        )
        return (x - start) / width, value, certified

    expected, value, certified = found(torch.ones(2, dtype=torch.double))
    assert certified
    x, own, certified = found(torch.tensor(units, dtype=torch.double))
    assert certified
    assert_close(x, expected, rtol=0.0, atol=1e-4)
    assert_close(own, value, rtol=0.0, atol=1e-5)


def test_expansion_conditions_a_model_of_pending_points_once(monkeypatch: Any) -> None:
    X = torch.rand(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    model = CensoredDelayModel(make_gp(), X[:2], censor_value=-3.0)
    acqf = CertifiedSetExpansion(ChanceConstraint(model, upper=1.0))
    expected = acqf(X[2:].unsqueeze(-2))

    def refuse(*_: Any) -> None:
        raise AssertionError("It has been conditioned on its pending points.")

    monkeypatch.setattr("botorch_calib.models.surrogate.with_observations", refuse)
    assert torch.equal(acqf(X[2:].unsqueeze(-2)), expected)
