"""Checks of arguments: what passes is returned, what does not is named."""

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_calib._validation import check_columns, check_count, check_one_of


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3)])
def test_integers_of_any_kind_are_counts(value):
    count = check_count("num_points", value, least=3)
    assert count == 3 and type(count) is int


@pytest.mark.parametrize("value", [2, -1, 3.0, np.float64(3), True, "3", None, np.nan])
def test_other_values_are_no_counts(value):
    with pytest.raises(InputDataError, match=r"`num_points` must be an integer of at least 3, got"):
        check_count("num_points", value, least=3)


def test_a_count_may_be_zero_where_that_is_said():
    assert check_count("seed", 0, least=0) == 0
    with pytest.raises(InputDataError, match="at least 1"):
        check_count("seed", 0)


def test_one_of_a_few():
    assert check_one_of("tails", "gaussian", ("gaussian", "stretched")) == "gaussian"
    with pytest.raises(InputDataError, match="`tails` must be one of 'gaussian', 'stretched', got"):
        check_one_of("tails", "heavy", ("gaussian", "stretched"))


@pytest.mark.parametrize("columns", [[0.7], "1", [True], 0, None])
def test_columns_are_integers(columns):
    with pytest.raises(InputDataError, match="`indices`"):
        check_columns("indices", columns)


def test_columns():
    assert check_columns("indices", [0, -1]) == (0, -1)
    assert check_columns("indices", torch.tensor([2, 1])) == (2, 1)
