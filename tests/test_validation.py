"""Checks of arguments: valid arguments are returned, errors name invalid ones."""

import math
import warnings

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    CalibratedUpperConfidenceBound,
    ChanceConstraint,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
    RobustUpperConfidenceBound,
    TotalVariationBall,
)
from botorch_calib._validation import (
    check_count,
    check_limit,
    check_nonnegative,
    check_number,
    check_numbers,
    check_open_unit,
    check_positive,
    check_precision,
)
from botorch_calib.decisions import recommend
from tests.gps import make_gp


@pytest.mark.parametrize("value", [2, -1, 3.0, np.float64(3), True, "3", None, np.nan])
def test_other_values_are_no_counts(value):
    with pytest.raises(InputDataError, match=r"`num_points` must be an integer of at least 3, got"):
        check_count("num_points", value, least=3)


def test_numbers_become_tensors_in_double_precision():
    assert check_numbers("best_f", 0.1).item() == 0.1
    assert check_numbers("best_f", [0.1, -math.inf]).dtype == torch.double
    given = torch.tensor([0.1])
    assert check_numbers("best_f", given) is given


@pytest.mark.parametrize("value", [None, "1", 1j, math.nan, [], torch.zeros(2, 0), [[0.1], []]])
def test_what_is_no_number_is_named(value):
    with pytest.raises(InputDataError, match="`best_f`"):
        check_numbers("best_f", value)


def test_columns_of_pandas_whose_labels_do_not_begin_at_zero():
    """Torch reads the label 0, which these columns lack."""
    pandas = pytest.importorskip("pandas")
    levels = pandas.Series([0.1, 0.5, 0.9], index=[7, 5, 6])
    assert check_numbers("levels", levels).tolist() == [0.1, 0.5, 0.9]
    model = CalibratedModel(make_gp(), OnlineConformal(0.2))
    X = torch.rand(1, 2, dtype=torch.double)
    posterior = model.posterior(X)
    quantiles = posterior.quantile(levels)
    assert torch.equal(quantiles, posterior.quantile(torch.tensor(levels.to_numpy())))
    with pytest.raises(InputDataError, match=r"`torch.tensor\(Y.to_numpy\(\)\)`") as raised:
        model.observe(X, levels)
    remedy = str(raised.value).split("`")[3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the array may be read-only
        assert eval(remedy, {"torch": torch, "Y": levels}).tolist() == [0.1, 0.5, 0.9]
    # Layouts that torch does not take.
    assert check_numbers("levels", levels[::-1]).tolist() == [0.9, 0.5, 0.1]
    assert check_numbers("levels", levels.to_numpy(">f8")).tolist() == [0.1, 0.5, 0.9]


NUMBERS = [check_limit, check_number, check_nonnegative, check_open_unit, check_positive]


@pytest.mark.parametrize("check", NUMBERS)
def test_numbers(check):
    """One rule for all numbers: no string, even if it contains a number, and no boolean."""
    assert check("level", np.float32(0.5)) == 0.5 and type(check("level", np.float32(0.5))) is float
    for value in ("0.5", True, [0.5], 0.5j, math.nan, torch.tensor([0.5, 0.5])):
        with pytest.raises(InputDataError, match="`level` must be a"):
            check("level", value)


def test_integers_need_no_other_model():
    """The error suggests to refit the model for single precision, but not for integers."""
    for dtype, is_remedy in ((torch.int64, False), (torch.float32, True)):
        with pytest.raises(InputDataError, match=r"pass `X.to\(torch.float64\)`") as error:
            check_precision("X", torch.zeros(1, dtype=dtype), torch.float64)
        assert ("or fit the model to data" in str(error.value)) == is_remedy


def calls_with_flags(flag):
    """Calls by the name of the flag."""
    gp, X = make_gp(), torch.rand(2, 2, dtype=torch.double)
    Y, box = X[:, :1], torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    model = CalibratedModel(gp, OnlineConformal(0.2), denoise=False)
    models, limits = CalibratedModelList(model, model), {1: (None, 0.0)}
    ball, constraint = TotalVariationBall(0.1), ChanceConstraint(gp, upper=9.0)
    maximize = {"maximize": flag}
    yield "maximize", lambda: LogCalibratedExpectedImprovement(model, 0.0, **maximize)
    yield "maximize", lambda: CalibratedUpperConfidenceBound(model, 0.9, **maximize)
    yield (
        "maximize",
        lambda: LogCalibratedConstrainedExpectedImprovement(models, 0.0, 0, limits, **maximize),
    )
    yield "maximize", lambda: DelayedUpperConfidenceBound(gp, **maximize)
    yield "maximize", lambda: DelayedThompsonSampling(gp, **maximize)
    yield "maximize", lambda: RobustUpperConfidenceBound(gp, 4.0, ball, Y, **maximize)
    yield "maximize", lambda: recommend(gp, bounds=box, **maximize)
    yield (
        "observation_noise",
        lambda: CalibratedUpperConfidenceBound(model, 0.9, observation_noise=flag),
    )
    yield "condition", lambda: model.observe(X, Y, condition=flag)
    yield "condition", lambda: models.observe(X, torch.cat([Y, Y], dim=-1), condition=flag)
    yield "condition", lambda: constraint.observe(X, Y, condition=flag)


def test_a_text_is_not_taken_for_true():
    for name, call in calls_with_flags("False"):
        with pytest.raises(InputDataError, match=f"`{name}` must be True or False, got 'False'"):
            call()
