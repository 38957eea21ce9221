"""Rows that are equal are matched, each once."""

import torch

from botorch_calib.models.matching_rows import matching_rows
from tests.models.delayed_cases import DOUBLE


def test_matching_rows() -> None:
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [0.0, 0.0]], **DOUBLE)
    rows = torch.tensor([[1.0, 2.0], [-0.0, 0.0], [1.0, 2.0], [1.0, 2.0], [9.0, 9.0]], **DOUBLE)
    assert matching_rows(rows, table) == [0, 3, 2, None, None]
    assert matching_rows(rows[:0], table) == []
    assert matching_rows(rows[:1], table[:0]) == [None]
