"""Plain Gaussian processes with a nonlinear outcome transform, whose posterior has no mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.exceptions import BotorchWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import Bilog
from botorch.utils.datasets import SupervisedDataset
from torch.testing import assert_close

from botorch_calib import CalibratedModel
from botorch_calib.acquisition import LogCalibratedProbabilityOfFeasibility
from botorch_calib.acquisition.input_constructors import best_feasible_observation
from botorch_calib.acquisition.thompson import draw_jointly
from botorch_calib.calibration import NoCalibration
from tests.random_numbers import uniform

X = uniform(10, 2, generator=torch.Generator().manual_seed(0))
Y = 9.0 * torch.sin(5.0 * X).sum(dim=-1, keepdim=True)
AT = uniform(4, 1, 2, generator=torch.Generator().manual_seed(1))
NAMES = ["objective", "constraint"]
pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")


def make_gp() -> Any:
    return SingleTaskGP(X, Y, outcome_transform=Bilog())


def test_draws_over_choices() -> None:
    mean, draw = draw_jointly(make_gp(), X, seed=0)
    expected = CalibratedModel(make_gp(), NoCalibration()).posterior(X)
    assert_close(mean, expected.mean.squeeze(-1))
    assert (expected.cdf(draw.unsqueeze(-1)) - 0.5).abs().max() < 0.5 - 1e-4


def test_pending_points_are_those_of_the_targets() -> None:
    targets, limit = (Bilog()(y)[0] for y in (Y, torch.tensor([[4.0]]).to(Y)))
    latent = SingleTaskGP(X, targets, outcome_transform=None)
    values = [
        LogCalibratedProbabilityOfFeasibility(gp, {0: (None, upper)}, X_pending=AT[:2, 0])(AT)
        for gp, upper in ((make_gp(), 4.0), (latent, float(limit)))
    ]
    assert_close(*values)


def test_nothing_is_feasible() -> None:
    data = SupervisedDataset(
        X, torch.cat([Y, Y], dim=-1), feature_names=["a", "b"], outcome_names=NAMES
    )
    limits, values = {1: (None, -99.0)}, []
    for objective in (make_gp(), CalibratedModel(make_gp(), NoCalibration())):
        with pytest.warns(BotorchWarning, match="No observation is feasible"):
            values.append(best_feasible_observation([objective, make_gp()], data, 0, limits, True))
    assert values[0] < Y.min()
    assert_close(*values)
