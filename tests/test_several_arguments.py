"""Where one or several are expected, anything else is an error that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import BotorchError
from botorch.models import SingleTaskGP

from botorch_calib import ChanceConstraint
from botorch_calib.acquisition import qLogCalibratedNoisyExpectedHypervolumeImprovement
from botorch_calib.decisions import (
    CertifiedSetExpansion,
    joint_chance_constraints,
    optimize_chance_constrained,
    recommend,
)
from botorch_calib.diagnostics import report_from_pits

BOUNDS = torch.tensor([[0.0], [1.0]], dtype=torch.double)
X = torch.linspace(0.0, 1.0, 8, dtype=torch.double).unsqueeze(-1)
GP = SingleTaskGP(X, X.sin()).eval()
TWO = SingleTaskGP(X, torch.cat([X.sin(), X.cos()], dim=-1)).eval()


def search(constraints: Any = None, **linear: Any) -> Any:
    if linear:
        constraints = ChanceConstraint(GP, upper=1.0)
    acqf = UpperConfidenceBound(GP, 4.0)
    return optimize_chance_constrained(acqf, constraints, BOUNDS, 1, 8, **linear)


CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "models": ("model", lambda given: joint_chance_constraints(given, [(None, 1.0)])),
    "limits": ("limits", lambda given: joint_chance_constraints([GP], given)),
    "records": ("records", lambda given: ChanceConstraint.from_records(GP, given, upper=1.0)),
    "joint records": (
        "records",
        lambda given: joint_chance_constraints([GP], [(None, 1.0)], records=given),
    ),
    "expansion": ("constraints", CertifiedSetExpansion),
    "search": ("constraints", search),
    "recommendation": ("constraints", lambda given: recommend(GP, given, BOUNDS)),
    "inequalities": (
        "inequality_constraints",
        lambda given: search(inequality_constraints=given),
    ),
    "equations": ("equality_constraints", lambda given: search(equality_constraints=given)),
    "levels": ("levels", lambda given: report_from_pits(X.flatten(), levels=given)),
    "reference": (
        "ref_point",
        lambda given: qLogCalibratedNoisyExpectedHypervolumeImprovement(TWO, given, X),
    ),
    "baseline": (
        "X_baseline",
        lambda given: qLogCalibratedNoisyExpectedHypervolumeImprovement(TWO, [0.0, 0.0], given),
    ),
}
WRONG: dict[str, Any] = {"number": 5, "None": None, "list of text": ["a"]}
# What is of use: a single ratio, and None for no records or no linear constraints.
ALLOWED = {
    ("ratios", "number"),
    ("records", "None"),
    ("joint records", "None"),
    ("inequalities", "None"),
    ("equations", "None"),
}


@pytest.mark.parametrize(("call", "given"), sorted({*product(CALLS, WRONG)} - ALLOWED))
def test_anything_else(call: str, given: str) -> None:
    name, function = CALLS[call]
    with pytest.raises(BotorchError, match=f"`{name}"):
        function(WRONG[given])


@pytest.mark.parametrize("call", ["models", "limits", "expansion", "search", "levels"])
def test_none_at_all(call: str) -> None:
    name, function = CALLS[call]
    with pytest.raises(BotorchError, match=f"`{name}"):
        function([])
