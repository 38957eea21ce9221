"""The search for feasible points, of plain functions whose best points are known."""

from __future__ import annotations

import math

import pytest
import torch
from botorch.exceptions.errors import InfeasibilityError
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.optim import feasible_search
from botorch_calib.optim.feasible_search import (
    FeasibleSet,
    _first_feasible,
    best_among,
    best_in_regions,
    clearance,
    evaluated,
    known_points,
)
from botorch_calib.optim.region import Region

SQUARE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def region(bounds: Tensor = SQUARE, **linear: float) -> Region:
    """A box, in which ``x_0 <= most`` if it is given."""
    rows = [(torch.tensor([0]), -torch.ones(1).to(bounds), -most) for most in linear.values()]
    return Region.checked(bounds, None, rows or None, None)


def total(X: Tensor) -> Tensor:
    return X.sum(dim=(-2, -1))


def circle(radius: float, x: float = 0.5, y: float = 0.5) -> FeasibleSet:
    """The feasible set is a circle, and its centre is the most promising point."""

    def margin(X: Tensor) -> Tensor:
        square = (X - X.new_tensor([x, y])).square().sum(dim=(-2, -1))
        return radius - square / abs(radius)

    return FeasibleSet(margin, margin)


def found(feasible: FeasibleSet, *regions: Region) -> tuple[Tensor, bool]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return best_in_regions(total, feasible, regions or [region()], 4, 256)


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
@pytest.mark.parametrize("radius", [0.3, 0.02])
def test_the_best_point_of_a_circle(radius: float, dtype: torch.dtype) -> None:
    """Even of one that few samples hit."""
    feasible = circle(radius)
    point, is_feasible = found(feasible, region(SQUARE.to(dtype)))
    assert is_feasible and point.dtype == dtype and feasible.contains(point.unsqueeze(0)).all()
    assert point.sum().item() == pytest.approx(1.0 + radius * math.sqrt(2.0), abs=2e-3)


def test_without_a_margin_all_points_are_feasible() -> None:
    point, is_feasible = found(FeasibleSet())
    assert is_feasible
    assert_close(point, SQUARE[1:], rtol=0, atol=1e-6)


def test_the_most_promising_point_if_none_is_feasible() -> None:
    point, is_feasible = found(circle(-0.1, 0.2, 0.7))
    assert not is_feasible
    assert_close(point, torch.tensor([[0.2, 0.7]], dtype=torch.double), rtol=0, atol=1e-3)


def test_a_known_point_may_be_the_only_feasible_one() -> None:
    """No slope leads to it."""
    point = torch.tensor([[0.123, 0.456]], dtype=torch.double)

    def margin(X: Tensor) -> Tensor:
        is_known = (X - point).abs().amax(dim=(-2, -1)) < 1e-9
        return torch.where(is_known, 1.0, -1.0) + 0.0 * total(X)

    assert not found(FeasibleSet(margin, margin))[1]
    best, is_feasible = found(FeasibleSet(margin, margin, [point, point[:, :1], 2.0 + point]))
    assert is_feasible and torch.equal(best, point)


def test_the_way_back_ends_at_the_start_itself() -> None:
    """To the bit, if no other point of the way is feasible."""
    generator = torch.Generator().manual_seed(0)
    ends, starts = torch.rand(2, 100, 1, 2, dtype=torch.double, generator=generator).square()
    nowhere = FeasibleSet(lambda X: -torch.ones_like(total(X)))
    last, _ = _first_feasible(nowhere, region(), ends, starts, (0.5, 1.0))
    assert torch.equal(last, starts)


def test_the_best_of_several_regions() -> None:
    """Regions without a point are left out, unless all are."""
    empty, half = region(most=-1.0), region(most=0.4)
    for regions in ([half, empty], [empty, half]):
        point, is_feasible = found(FeasibleSet(), *regions)
        assert is_feasible and point[0, 0] <= 0.4 + 1e-8 and point.sum() == pytest.approx(1.4)
    assert found(FeasibleSet(), half, region())[0].sum() == pytest.approx(2.0)
    with pytest.raises(InfeasibilityError, match="No feasible point"):
        found(FeasibleSet(), empty, empty)


def test_ends_of_a_search_that_violate_linear_constraints_are_drawn_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However it ends: at the far corner here."""
    monkeypatch.setattr(feasible_search, "_maximize", lambda value, unit, region, X, *_: X * 0 + 1)
    point, is_feasible = found(circle(0.6), region(most=0.5))
    assert is_feasible and point[0, 0].item() <= 0.5 + 1e-8


def test_without_gradients_around_it() -> None:
    with torch.no_grad():
        assert found(circle(0.3))[1] and found(FeasibleSet())[1] and not found(circle(-0.3))[1]


def test_points_are_evaluated_in_chunks_and_nan_is_never_best() -> None:
    sizes: list[int] = []

    def odd(X: Tensor) -> Tensor:
        sizes.append(len(X))
        return torch.where(X[:, 0, 0] > 0.5, torch.nan, X[:, 0, 0])

    X = torch.linspace(0.0, 1.0, 11).double().view(-1, 1, 1)
    values = evaluated(odd, X, chunk=4)
    assert sizes == [4, 4, 3] and values[-1] == -torch.inf
    sizes.clear()
    point, is_feasible = best_among(odd, FeasibleSet(odd, odd, chunk=5), X)
    assert is_feasible and point.item() == pytest.approx(0.5) and sizes[:3] == [5, 5, 1]


def test_a_margin_below_the_clearance_is_not_feasible() -> None:
    X = torch.tensor([0.0, 0.5, 2.0]).double().view(-1, 1, 1) * clearance(torch.double)
    assert FeasibleSet(total).contains(X).tolist() == [False, False, True]
    assert known_points([X.squeeze(-2)], region()).shape == (0, 1, 2)


def test_an_end_far_outside_is_moved_back_finely(monkeypatch: pytest.MonkeyPatch) -> None:
    """The climb from 0.4 ends at 1, where points up to 0.5 are feasible."""
    half = FeasibleSet(lambda X: 0.5 - X[:, 0, 0])
    starts = torch.tensor([[[0.4, 0.2]], [[0.1, 0.2]]], dtype=torch.double)
    ends = torch.tensor([[[1.0, 0.2]], [[0.5, 0.2]]], dtype=torch.double)
    monkeypatch.setattr(feasible_search, "_maximize", lambda *_: ends)
    found = feasible_search._climb(total, half, ends.new_ones(()), region(), starts)
    assert half.contains(found).all()
    # The first is within a tenth of the way from the last feasible to the first infeasible share.
    assert 0.5 - 0.1 * 0.3 * 0.6 <= found[0, 0, 0] < 0.5
    assert 0.5 - 1e-7 <= found[1, 0, 0] < 0.5 and (found[..., 1] == 0.2).all()


def test_a_start_at_a_bound_stays_in_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the start is feasible. Without care, rounding takes it to 0.9000000000000001."""
    bounds = torch.tensor([[-0.2], [0.9]], dtype=torch.double)
    start, end = bounds[1].view(1, 1, 1), bounds[0].view(1, 1, 1)
    assert end + (start - end) > start
    alone = FeasibleSet(lambda X: torch.where(X[:, 0, 0] >= 0.9 - 1e-9, 1.0, -1.0))
    monkeypatch.setattr(feasible_search, "_maximize", lambda *_: end)
    found = feasible_search._climb(total, alone, start.new_ones(()), region(bounds), start)
    assert torch.equal(found, start)
