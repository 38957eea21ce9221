"""Pending points that are assigned, as BoTorch's wrappers do, count like those that are set."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import ModelList
from botorch.optim import optimize_acqf_discrete
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedUpperConfidenceBound,
    CensoredDelayModel,
    ChanceConstraint,
    ContextDistribution,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    RobustUpperConfidenceBound,
    TotalVariationBall,
)
from botorch_calib.acquisition import CalibratedExpectedShortfall
from botorch_calib.decisions import CertifiedSetExpansion
from tests.gps import DOUBLE, make_gp, make_model

FIXED = 0.4
PENDING = torch.tensor([[0.3], [0.8]], **DOUBLE)
X = torch.tensor([[0.1], [0.35], [0.7]], **DOUBLE).unsqueeze(-2)


def full(points: Tensor) -> Tensor:
    return torch.cat([points, torch.full_like(points, FIXED)], dim=-1)


def delayed() -> CensoredDelayModel:
    return CensoredDelayModel(make_gp(), censor_value=-2.0)


ACQUISITIONS: dict[str, Callable[..., Any]] = {
    "EI": lambda **k: CalibratedExpectedImprovement(make_model(), 0.6, **k),
    "logEI": lambda **k: LogCalibratedExpectedImprovement(make_model(), 0.6, **k),
    "quantile": lambda **k: CalibratedUpperConfidenceBound(make_model(), **k),
    "shortfall": lambda **k: CalibratedExpectedShortfall(make_model(), **k),
    "constrained": lambda **k: LogCalibratedConstrainedExpectedImprovement(
        ModelList(make_model(), make_gp()), 0.6, 0, {1: (None, 0.5)}, **k
    ),
    "feasibility": lambda **k: LogCalibratedProbabilityOfFeasibility(
        make_model(), {0: (None, 0.5)}, **k
    ),
    "delayed UCB": lambda **k: DelayedUpperConfidenceBound(delayed(), **k),
    "draw": lambda **k: DelayedThompsonSampling(delayed(), **k),
    "expansion": lambda **k: CertifiedSetExpansion(
        ChanceConstraint.from_history(make_gp(), upper=0.5), **k
    ),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_pending_points_with_a_fixed_column(name: str) -> None:
    fixed = FixedFeatureAcquisitionFunction(ACQUISITIONS[name](), 2, [1], [FIXED])
    without = fixed(X).detach()
    fixed.set_X_pending(PENDING)
    expected = ACQUISITIONS[name](X_pending=full(PENDING))(full(X))
    assert_close(fixed(X), expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(fixed(X), without)
    fixed.set_X_pending(None)
    assert_close(fixed(X), without, rtol=1e-9, atol=1e-12)


def test_a_batch_with_a_fixed_column() -> None:
    """With a fixed column, a batch accounts for its own points as without the wrapper."""
    acqf = ACQUISITIONS["logEI"]()
    fixed = FixedFeatureAcquisitionFunction(ACQUISITIONS["logEI"](), 2, [1], [FIXED])
    grid = torch.linspace(0.0, 1.0, 21, **DOUBLE).unsqueeze(-1)
    batch, _ = optimize_acqf_discrete(fixed, q=3, choices=grid)
    expected, _ = optimize_acqf_discrete(acqf, q=3, choices=full(grid))
    assert torch.equal(full(batch), expected)
    alone = acqf(full(grid).unsqueeze(-2)).topk(3).indices
    assert not torch.equal(batch, grid[alone])


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_what_cannot_be_accounted_for_changes_nothing(name: str) -> None:
    acqf = ACQUISITIONS[name](X_pending=full(PENDING))
    before = acqf(full(X))
    with pytest.raises(InputDataError, match="`X_pending`"):
        acqf.X_pending = full(PENDING) * torch.nan
    assert_close(acqf(full(X)), before, rtol=0, atol=0)
    assert torch.equal(acqf.X_pending, full(PENDING))


def test_robust_functions_refuse_them_either_way() -> None:
    contexts = ContextDistribution.empirical(PENDING)
    acqf = RobustUpperConfidenceBound(make_gp(), 2.0, TotalVariationBall(0.1), contexts)
    for refuse in (acqf.set_X_pending, lambda points: setattr(acqf, "X_pending", points)):
        with pytest.raises(
            UnsupportedError, match="`X_pending`, which lacks the contexts.*Censored"
        ):
            refuse(PENDING)
        refuse(PENDING[:0])
        assert acqf.X_pending is None
    acqf.X_pending = None
