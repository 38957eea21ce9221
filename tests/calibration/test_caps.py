"""Calibrators warn if outcomes exceed their widest possible interval too often."""

import warnings
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from botorch_calib import CalibratedModel
from botorch_calib.calibration import (
    Calibrator,
    GaussianScore,
    LocalizedConformal,
    OnlineConformal,
    QuantileRecalibrator,
)
from botorch_calib.exceptions import CalibrationWarning

DOUBLE: dict[str, Any] = {"dtype": torch.double}
KINDS: list[Calibrator] = [
    LocalizedConformal(0.2),
    OnlineConformal(0.05),
    QuantileRecalibrator(),
    QuantileRecalibrator([0.1, 0.9], method="exact", step_size=0.5),
]
pytestmark = pytest.mark.filterwarnings("ignore:Very small noise values detected")


def observations(num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 1, **DOUBLE, generator=generator)
    return X, (6 * X).sin() + 0.3 * torch.randn(num, 1, **DOUBLE, generator=generator)


def overconfident(num: int = 100) -> SingleTaskGP:
    """A model with the noise variance 1e-7 of data with the noise variance 0.3^2."""
    X, Y = observations(num)
    return SingleTaskGP(X, Y, train_Yvar=torch.full_like(Y, 1e-7))


@pytest.mark.parametrize("calibrator", KINDS, ids=lambda kind: type(kind).__name__)
def test_history_beyond_the_cap_is_named(calibrator: Calibrator) -> None:
    gp = overconfident()
    with pytest.warns(CalibrationWarning, match="noise_diagnosis") as caught:
        model = CalibratedModel.from_history(gp, calibrator)
    assert [each.filename for each in caught] == [__file__]
    X, Y = observations(500, seed=1)
    u = model.posterior(X.unsqueeze(-2), observation_noise=True).cdf(Y.unsqueeze(-2))
    assert ((u > 0.1) & (u < 0.9)).double().mean() < 0.3  # nominal: 80 %
    # A fresh copy warns again.
    with pytest.warns(CalibrationWarning, match="noise_diagnosis"):
        CalibratedModel.from_history(gp, model.calibrator.fresh())


def test_it_says_so_once_where_the_cap_is_reached_by_observations() -> None:
    model = CalibratedModel(overconfident(20), LocalizedConformal(0.2))
    rounds = []
    for i, (x, y) in enumerate(zip(*observations(40, seed=1), strict=True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.observe(x.unsqueeze(0), y.unsqueeze(0))
        rounds += [i for each in caught if each.category is CalibrationWarning]
    assert len(rounds) == 1 and rounds[0] > 3


def test_a_narrow_cap_has_a_wider_score() -> None:
    X, z = observations(40)[0], 10 * torch.randn(40, generator=torch.Generator().manual_seed(0))
    with pytest.warns(CalibrationWarning, match="RationalScore"):
        OnlineConformal(0.2, score=GaussianScore()).update(X, z.double())


def test_right_and_mildly_wrong_models_are_left_alone() -> None:
    """No warning in 200 runs: normal residuals, residuals twice as wide, or with heavy tails."""
    kinds = [*KINDS, QuantileRecalibrator([0.9]), LocalizedConformal(0.2, score=GaussianScore())]
    torch.manual_seed(0)
    normal, heavy = torch.distributions.Normal(0.0, 1.0), torch.distributions.StudentT(3.0)
    for i in range(200):
        scale, law = [(1.0, normal), (2.0, normal), (1.0, heavy)][i % 3]
        z = scale * law.sample((60,)).double()
        kinds[i % len(kinds)].fresh().update(torch.rand(60, 2, **DOUBLE), z)
