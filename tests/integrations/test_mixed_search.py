"""The search in mixed spaces finds what enumeration finds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from botorch.acquisition import PosteriorMean
from botorch.exceptions.errors import InfeasibilityError
from botorch.models import SingleTaskGP
from torch import Tensor

from botorch_calib import ChanceConstraint
from botorch_calib.asynchronous.designs import with_features
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place
from botorch_calib.integrations._mixed_search import MixedSpace

# A float, an integer, a choice of three as weights.
BOUNDS = [(0.0, 1.0), (0, 6), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)]
NONE = -9.0  # a value worse than any
LINEAR = [(torch.tensor([0, 1]), torch.tensor([-6.0, -1.0], dtype=torch.double), -7.0)]


def rounded(X: Tensor) -> Tensor:
    """Round as Ax does: the largest weight wins, and integers are rounded."""
    best = X[..., 2:].argmax(dim=-1)
    weights = torch.nn.functional.one_hot(best, 3).to(X)
    return torch.cat([X[..., :1], X[..., 1:2].round(), weights], dim=-1)


def models(bounds: Any, seed: int) -> tuple[SingleTaskGP, ChanceConstraint]:
    torch.manual_seed(seed)
    ends = torch.tensor(bounds, dtype=torch.double).mT
    X = ends[0] + (ends[1] - ends[0]) * torch.rand(25, len(bounds), dtype=torch.double)
    units = (X - ends[0]) / (ends[1] - ends[0])
    made = []
    for _ in range(2):
        Y = (2.0 * units @ torch.randn(len(bounds), 1, dtype=torch.double)).sin()
        gp = SingleTaskGP(X, Y, torch.full_like(Y, 1e-2), outcome_transform=None)
        gp.covar_module.lengthscale = (ends[1] - ends[0]).clone()
        made.append(gp.eval())
    return made[0], ChanceConstraint(made[1], upper=0.5)


def space_of(
    bounds: Any, values: Any, linear: Any = None, fixed: Any = None, rounding: Any = None
) -> MixedSpace:
    ends = with_features(torch.tensor(bounds, dtype=torch.double).mT, fixed or {})
    return MixedSpace(Place(ends, None, None, linear), values, rounding)


@torch.no_grad()
def best_of(X: Tensor, objective: Any, margin: LeastMargin) -> float:
    values = torch.where(
        margin(X.unsqueeze(-2)) > 0, PosteriorMean(objective)(X.unsqueeze(-2)), NONE
    )
    return float(values.max())


pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")


@torch.no_grad()
@pytest.mark.parametrize("linear", [None, LINEAR])
@pytest.mark.parametrize(("fixed", "seed"), [({}, 0), ({}, 1), ({1: 4.0}, 2), ({0: 0.3}, 0)])
def test_mixed(seed: int, linear: Any, fixed: dict[int, float]) -> None:
    objective, constraint = models(BOUNDS, seed)
    margin = LeastMargin(constraint)
    space = space_of(BOUNDS, {1: range(7)}, linear=linear, rounding=rounded, fixed=fixed)
    assert space.discrete == {1, 2, 3, 4}
    point, certified = space.best(PosteriorMean(objective), margin)
    assert torch.equal(space.rounded(point), point)
    assert all(float(point[0, column]) == value for column, value in fixed.items())
    a = torch.linspace(0, 1, 101).tolist() if 0 not in fixed else [fixed[0]]
    b = range(7) if 1 not in fixed else [fixed[1]]
    grid = [(x, i, *row) for x, i, row in itertools.product(a, b, torch.eye(3).tolist())]
    X = torch.tensor(grid, dtype=torch.double)
    if linear:
        X = X[6 * X[:, 0] + X[:, 1] <= 7.0]
        assert 6 * point[0, 0] + point[0, 1] <= 7.0 + 1e-6
    best = best_of(X, objective, margin)
    assert certified == bool(margin(point.unsqueeze(-2)) > 0.0) and certified == (best > NONE)
    assert not certified or float(PosteriorMean(objective)(point)) >= best - 1e-3


@torch.no_grad()
@pytest.mark.parametrize("seed", range(2))
def test_discrete(seed: int) -> None:
    """The space has 1089 points, about as many as are drawn at first."""
    bounds = [(0, 32), (0.0, 32.0)]
    objective, constraint = models(bounds, seed)
    margin = LeastMargin(constraint)
    space = space_of(bounds, {0: range(33), 1: [float(i) for i in range(33)]})
    point, certified = space.best(PosteriorMean(objective), margin)
    X = torch.tensor(list(itertools.product(range(33), range(33))), dtype=torch.double)
    best = best_of(X, objective, margin)
    assert certified and float(PosteriorMean(objective)(point)) >= best - 0.01
    assert torch.equal(point, point.round())


@pytest.mark.parametrize("fixed", [{}, {0: 2.0}])
def test_few_combinations_are_all_compared(fixed: dict[int, float]) -> None:
    """Even combinations with values that are the nearest to few points of the box."""
    values = [0.0, 1e-4, 1e-3, 1.0, 2.0]
    space = space_of([(0.0, 2.0)] * 3, dict.fromkeys(range(3), values), fixed=fixed)
    found = {
        tuple(point) for point in space.points(torch.zeros(0, 1, 3, dtype=torch.double)).tolist()
    }
    axes = [[fixed[i]] if i in fixed else values for i in range(3)]
    assert found == {*itertools.product(*axes)}


class _Uncountable(Sequence[float]):
    """Odd numbers up to two trillion; a loop over them raises an error."""

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, place: Any) -> Any:
        return range(1, 2 * 10**12, 2)[place]

    def __iter__(self) -> Any:
        raise AssertionError("all values are listed")


@pytest.mark.parametrize("linear", [None, LINEAR])
def test_the_number_of_values_does_not_matter(linear: Any) -> None:
    bounds = [(0.0, 1.0), (1.0, 2e12 - 1.0)]
    linear = linear and [(torch.tensor([1]), -torch.ones(1, dtype=torch.double), -1e12)]
    objective, constraint = models([(0.0, 1.0), (1.0, 2e12)], 0)
    space = space_of(bounds, {1: _Uncountable()}, linear=linear)
    point, _ = space.best(PosteriorMean(objective), LeastMargin(constraint))
    assert float(point[0, 1]) % 2.0 == 1.0
    assert len(space.points(point.unsqueeze(-2))) > 512


def test_constraints_that_nothing_meets() -> None:
    objective, constraint = models(BOUNDS, 0)
    never = [(torch.tensor([1]), torch.ones(1, dtype=torch.double), 5.5)]
    space = space_of(BOUNDS, {1: [0, 1, 2, 3, 4]}, linear=never, rounding=rounded)
    with pytest.raises(InfeasibilityError, match="parameter constraints"):
        space.best(PosteriorMean(objective), LeastMargin(constraint))


def test_points_can_be_run_if_a_column_has_two_digits() -> None:
    """The search treats a column with digits as continuous, and rounds its result."""

    def to_digits(X: Tensor) -> Tensor:
        return torch.cat([X[..., :1].mul(100).round() / 100, X[..., 1:]], dim=-1)

    bounds = [(0.0, 1.0), (0.0, 2.0)]
    objective, constraint = models(bounds, seed=0)
    space = space_of(bounds, {1: range(3)}, rounding=to_digits)
    assert space.free == [0]
    point, _ = space.best(PosteriorMean(objective), LeastMargin(constraint))
    assert torch.equal(to_digits(point), point)
    stated = space.recommended(objective, constraint, confidence=0.8, maximize=True)
    assert torch.equal(to_digits(stated.candidate), stated.candidate)
