"""Rows that are equal are matched, each once."""

import torch

from botorch_calib.models.matching_rows import first_appearances, matching_rows
from tests.models.delayed_cases import DOUBLE


def test_matching_rows() -> None:
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [0.0, 0.0]], **DOUBLE)
    rows = torch.tensor([[1.0, 2.0], [-0.0, 0.0], [1.0, 2.0], [1.0, 2.0], [9.0, 9.0]], **DOUBLE)
    assert matching_rows(rows, table) == [0, 3, 2, None, None]
    assert matching_rows(rows[:0], table) == []
    assert matching_rows(rows[:1], table[:0]) == [None]


def test_first_of_equal_rows() -> None:
    """Against a comparison of all pairs: grids, repeated rows, signs of zero."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.cartesian_prod(*[torch.tensor([-0.0, 0.0, 1.0])] * 3)
    random = torch.rand(40, 6, dtype=torch.double, generator=generator)
    repeated = torch.randint(0, 3, (60, 2), generator=generator).double()
    for rows in (grid, random, repeated):
        equal = (rows.unsqueeze(-2) == rows).all(dim=-1)
        assert torch.equal(first_appearances(rows), equal.long().argmax(dim=-1))
