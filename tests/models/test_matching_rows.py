"""Rows that are equal are matched, each once."""

import torch

from botorch_calib.models.matching_rows import RowLookup, first_appearances, matching_rows
from tests.models.delayed_cases import DOUBLE


def test_matching_rows() -> None:
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [0.0, 0.0]], **DOUBLE)
    rows = torch.tensor([[1.0, 2.0], [-0.0, 0.0], [1.0, 2.0], [1.0, 2.0], [9.0, 9.0]], **DOUBLE)
    assert matching_rows(rows, table) == [0, 3, 2, None, None]
    assert matching_rows(rows[:0], table) == []
    assert matching_rows(rows[:1], table[:0]) == [None]


def test_rows_are_looked_up() -> None:
    """Against a comparison of all pairs: grids, repeated rows, signs of zero, any shape."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 5, dtype=torch.double)] * 3)
    random = torch.rand(40, 6, dtype=torch.double, generator=generator)
    repeated = torch.randint(0, 3, (60, 2), generator=generator).double()
    single = torch.rand(7, 1, generator=generator)
    for rows in (grid, random, repeated, single):
        order = torch.randint(0, len(rows), (4, 5), generator=generator)
        X = torch.where(rows[order] == 0, -0.0, rows[order])
        X[0, 0] = torch.stack([column[i % len(rows)] for i, column in enumerate(rows.T)])
        X[0, 1, -1] += 1e-3
        pairs = (X.unsqueeze(-2) == rows).all(dim=-1)
        expected = torch.where(pairs.any(dim=-1), pairs.long().argmax(dim=-1), len(rows))
        assert torch.equal(RowLookup(rows)(X), expected) and (expected == len(rows)).any()
        equal = (rows.unsqueeze(-2) == rows).all(dim=-1)
        assert torch.equal(first_appearances(rows), equal.long().argmax(dim=-1))
