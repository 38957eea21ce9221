"""Samples of the next query, and the loop of conformal Bayesian optimization that they serve."""

import math
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, LogExpectedImprovement
from botorch.exceptions.errors import InputDataError
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from benchmarks.baselines import ClassifierDensityRatio, WeightedConformal, proposal_samples
from botorch_calib import CalibratedModel
from botorch_calib.models.residuals import prequential_residuals
from tests.gps import X_LOW, X_RANGE, make_gp

BOUNDS = torch.tensor([[0.0, -5.0], [1.0, 15.0]], dtype=torch.double)


class Values(AcquisitionFunction):
    """An acquisition function given by a formula for the first coordinate."""

    def __init__(self, formula: Any) -> None:
        super().__init__(model=make_gp())
        self.formula = formula

    def forward(self, X: Tensor) -> Tensor:
        return self.formula(X[..., 0, 0])


@pytest.mark.parametrize("eta", [0.0, 1.0, 2.5])
def test_distribution_of_the_samples(eta):
    """Every Sobol point is drawn as often as its weight says, within sampling error."""
    num, raw = 20000, 64
    acqf = Values(lambda x: -100 + 7 * (5 * x).sin())
    samples = proposal_samples(acqf, BOUNDS, num, raw_samples=raw, eta=eta, seed=3)
    points = draw_sobol_samples(BOUNDS, n=raw, q=1, seed=3).squeeze(-2)
    values = (5 * points[:, 0]).sin()
    odds = (eta * (values - values.mean()) / values.std(unbiased=False)).exp()
    p = odds / odds.sum()
    matches = (samples[:, None] == points).all(dim=-1)
    assert matches.any(dim=-1).all()
    # 4.5 standard errors: 64 frequencies are compared, at 7e-6 each.
    error = (p * (1 - p) / num).sqrt()
    assert ((matches.double().mean(dim=0) - p).abs() <= 4.5 * error).all()


def test_impossible_points():
    half = Values(lambda x: torch.where(x < 0.5, -math.inf, x))
    assert (proposal_samples(half, BOUNDS, 200)[:, 0] >= 0.5).all()
    with pytest.raises(InputDataError, match="`acq_function`"):
        proposal_samples(Values(lambda x: x * math.nan), BOUNDS, 4)


def test_half_width_of_conformal_bayesian_optimization():
    """On a model with transforms, against its parts by hand."""
    gp = make_gp(transforms=True, num=16)
    bounds = torch.tensor([[X_LOW] * 2, [X_LOW + X_RANGE] * 2], dtype=torch.double)
    acqf = LogExpectedImprovement(gp, best_f=35.0)
    X_next = gp.transform_inputs(proposal_samples(acqf, bounds, num_samples=256))
    X_past = gp.train_inputs[0]
    ratio = ClassifierDensityRatio(X_past, X_next)
    # Queries to come lie where past ones are rarer.
    assert ratio(X_next).mean() > 1.2 * ratio(X_past).mean()
    template = WeightedConformal(0.2, density_ratio=ratio, continuous=False)
    calibrator = CalibratedModel.from_history(gp, template).calibrator
    assert isinstance(calibrator, WeightedConformal) and template.num_updates == 0
    x = gp.transform_inputs(bounds.mean(dim=0, keepdim=True))
    sizes, order = prequential_residuals(gp).abs().sort()
    weights = ratio(X_past)[order]
    covered = weights.cumsum(0) >= 0.8 * (weights.sum() + ratio(x))
    width = sizes[covered].min() if covered.any() else sizes.new_tensor(50.0)
    assert calibrator.half_width(x).item() == width.item()
