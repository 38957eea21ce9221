"""Outcomes that come back rounded, or as stand-ins, are counted once."""

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP

from botorch_calib.decisions import ChanceConstraint
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models import stand_ins


def data(num):
    X = torch.rand(num, 2, dtype=torch.double, generator=torch.Generator().manual_seed(num))
    return X, (X.sum(dim=-1, keepdim=True) * 3.0).sin()


def test_values_in_single_precision_are_told_again():
    X, Y = data(9)
    constraint = ChanceConstraint(SingleTaskGP(X[:8], Y[:8]), upper=0.8)
    with pytest.warns(CalibrationWarning, match="8 of 9 outcomes were recorded before"):
        constraint.observe(X.float().double(), Y.float().double())
    assert constraint.num_decisions == 1


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_refit_to_rounded_values_or_stand_ins_is_noticed(is_bound):
    X, Y = data(10)
    constraint = ChanceConstraint(SingleTaskGP(X[:9], Y[:9]), upper=0.8)
    beyond = torch.zeros_like(Y)
    beyond[9:] = float(is_bound)
    told = stand_ins(constraint.model, X, Y, beyond) if is_bound else Y.float().double()
    constraint = constraint.with_model(SingleTaskGP(X, told))
    with pytest.raises(InputDataError, match="hindsight"):
        constraint.observe(X[9:], Y[9:], beyond=beyond[9:])
