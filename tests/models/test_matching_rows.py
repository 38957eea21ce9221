"""Rows that are equal are matched, each once; points that are the same as one of others."""

import pytest
import torch

from botorch_calib.models.matching_rows import first_appearances, is_any_of, matching_rows
from tests.gps import DOUBLE


def test_matching_rows() -> None:
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [0.0, 0.0]], **DOUBLE)
    rows = torch.tensor([[1.0, 2.0], [-0.0, 0.0], [1.0, 2.0], [1.0, 2.0], [9.0, 9.0]], **DOUBLE)
    assert matching_rows(rows, table) == [0, 3, 2, None, None]
    assert matching_rows(rows[:0], table) == []
    assert matching_rows(rows[:1], table[:0]) == [None]
    assert not is_any_of(rows, table[:0]).any()


def test_first_of_equal_rows() -> None:
    """Against a comparison of all pairs: grids, repeated rows, signs of zero."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.cartesian_prod(*[torch.tensor([-0.0, 0.0, 1.0])] * 3)
    random = torch.rand(40, 6, dtype=torch.double, generator=generator)
    repeated = torch.randint(0, 3, (60, 2), generator=generator).double()
    for rows in (grid, random, repeated):
        equal = (rows.unsqueeze(-2) == rows).all(dim=-1)
        assert torch.equal(first_appearances(rows), equal.long().argmax(dim=-1))


@pytest.mark.parametrize("tolerance", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(7,), (), (2, 3)])
def test_it_is_the_definition(tolerance: float, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(*shape, 2, generator=generator, **DOUBLE)
    others = torch.cat([torch.rand(4, 2, generator=generator, **DOUBLE), points.reshape(-1, 2)[:1]])
    found = is_any_of(points, others, tolerance)
    assert found.shape == shape
    expected = [
        any(max(abs(a - b) for a, b in zip(p, o, strict=True)) <= tolerance for o in others)
        for p in points.reshape(-1, 2)
    ]
    assert found.flatten().tolist() == expected
    assert any(expected)


def test_no_digit_is_lost() -> None:
    """Also far from the origin, where neighbours are one unit in the last place apart."""
    points = torch.tensor([[1e9, 0.1], [1e9 + 2**-23, 0.1]], **DOUBLE)
    assert is_any_of(points, points[:1]).tolist() == [True, False]
    assert is_any_of(points, points[:1], 1e-6).tolist() == [True, True]
