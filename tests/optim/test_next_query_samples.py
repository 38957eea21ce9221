"""Samples of the next query, and the loop of conformal Bayesian optimization that they serve."""

import math
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, LogExpectedImprovement, PosteriorMean
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_calib import CalibratedModel, LogCalibratedExpectedImprovement, WeightedConformal
from botorch_calib.calibration import ClassifierDensityRatio
from botorch_calib.models.residuals import prequential_residuals
from botorch_calib.optim import proposal_samples
from tests.gps import X_LOW, X_RANGE, make_gp

BOUNDS = torch.tensor([[0.0, -5.0], [1.0, 15.0]], dtype=torch.double)


class Values(AcquisitionFunction):
    """An acquisition function given by a formula for the first coordinate."""

    def __init__(self, formula: Any) -> None:
        super().__init__(model=make_gp())
        self.formula = formula

    def forward(self, X: Tensor) -> Tensor:
        assert X.shape[-2:] == (1, 2) and not torch.is_grad_enabled()
        return self.formula(X[..., 0, 0])


@pytest.mark.parametrize("eta", [0.0, 1.0, 2.5])
def test_distribution_of_the_samples(eta):
    """Every Sobol point is drawn as often as its weight says, within sampling error."""
    num, raw = 20000, 64
    acqf = Values(lambda x: -100 + 7 * (5 * x).sin())
    samples = proposal_samples(acqf, BOUNDS, num, raw_samples=raw, eta=eta, seed=3)
    assert samples.shape == (num, 2) and samples.dtype == torch.double
    points = draw_sobol_samples(BOUNDS, n=raw, q=1, seed=3).squeeze(-2)
    values = (5 * points[:, 0]).sin()
    odds = (eta * (values - values.mean()) / values.std(unbiased=False)).exp()
    p = odds / odds.sum()
    matches = (samples[:, None] == points).all(dim=-1)
    assert matches.any(dim=-1).all()
    # 4.5 standard errors: 64 frequencies are compared, at 7e-6 each.
    error = (p * (1 - p) / num).sqrt()
    assert ((matches.double().mean(dim=0) - p).abs() <= 4.5 * error).all()


def test_deterministic_and_without_side_effects():
    acqf = Values(lambda x: x)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    samples = proposal_samples(acqf, BOUNDS, 50, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert torch.equal(proposal_samples(acqf, BOUNDS, 50, seed=1), samples)
    assert not torch.equal(proposal_samples(acqf, BOUNDS, 50, seed=2), samples)
    assert (samples >= BOUNDS[0]).all() and (samples <= BOUNDS[1]).all()


def test_impossible_points_and_flat_functions():
    half = Values(lambda x: torch.where(x < 0.5, -math.inf, x))
    assert (proposal_samples(half, BOUNDS, 200)[:, 0] >= 0.5).all()
    flat = proposal_samples(Values(torch.zeros_like), BOUNDS, 200)
    assert len(flat.unique(dim=0)) > 100
    # Differences far below the rounding of a softmax, and far above its overflow.
    steep = proposal_samples(Values(lambda x: 1e30 * x), BOUNDS, 200, eta=1e4)
    assert (steep[:, 0] > 0.99).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision(dtype):
    gp = make_gp(dtype=dtype)
    samples = proposal_samples(PosteriorMean(gp), torch.tensor([[0.0, 0], [1, 1]], dtype=dtype), 9)
    assert samples.dtype == dtype and samples.shape == (9, 2)


GOOD: dict[str, Any] = {"acq_function": Values(lambda x: x), "bounds": BOUNDS, "num_samples": 4}
BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "flat bounds": ({"bounds": BOUNDS[0]}, BotorchTensorDimensionError, "bounds"),
    "columns": ({"bounds": BOUNDS.mT[:1]}, BotorchTensorDimensionError, "bounds"),
    "swapped": ({"bounds": BOUNDS.flip(0)}, InputDataError, "bounds"),
    "infinite": ({"bounds": BOUNDS * math.inf}, InputDataError, "bounds"),
    "no samples": ({"num_samples": 0}, InputDataError, "num_samples"),
    "no points": ({"raw_samples": 0}, InputDataError, "raw_samples"),
    "eta": ({"eta": -1.0}, InputDataError, "eta"),
    "NaN": ({"acq_function": Values(lambda x: x * math.nan)}, InputDataError, "acq_function"),
    "inf": ({"acq_function": Values(lambda x: x + math.inf)}, InputDataError, "acq_function"),
    "-inf": ({"acq_function": Values(lambda x: x - math.inf)}, InputDataError, "acq_function"),
}


@pytest.mark.parametrize(("kwargs", "error", "name"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_validation(kwargs, error, name):
    with pytest.raises(error, match=f"`{name}`"):
        proposal_samples(**{**GOOD, **kwargs})


def test_conformal_bayesian_optimization():
    """One round from end to end, on a model with transforms, against its parts by hand."""
    gp = make_gp(transforms=True, num=16)
    bounds = torch.tensor([[X_LOW] * 2, [X_LOW + X_RANGE] * 2], dtype=torch.double)
    best = 35.0
    acqf = LogExpectedImprovement(gp, best_f=best)
    X_next = gp.transform_inputs(proposal_samples(acqf, bounds, num_samples=256))
    X_past = gp.train_inputs[0]
    ratio = ClassifierDensityRatio(X_past, X_next)
    # Queries to come lie where past ones are rarer.
    assert ratio(X_next).mean() > 1.2 * ratio(X_past).mean()

    template = WeightedConformal(0.2, density_ratio=ratio, continuous=False)
    calibrator = CalibratedModel.from_history(gp, template).calibrator
    assert isinstance(calibrator, WeightedConformal) and template.num_updates == 0
    x = bounds.mean(dim=0)
    sizes, order = prequential_residuals(gp).abs().sort()
    weights, own = ratio(X_past)[order], ratio(gp.transform_inputs(x.unsqueeze(0)))
    covered = weights.cumsum(0) >= 0.8 * (weights.sum() + own)
    width = sizes[covered].min() if covered.any() else sizes.new_tensor(50.0)
    assert calibrator.half_width(gp.transform_inputs(x.unsqueeze(0))).item() == width.item()

    model = CalibratedModel.from_history(gp, WeightedConformal(0.2, density_ratio=ratio))
    calibrated = LogCalibratedExpectedImprovement(model, best_f=best)
    candidate, value = optimize_acqf(calibrated, bounds, q=1, num_restarts=1, raw_samples=64)
    grid = draw_sobol_samples(bounds, n=256, q=1, seed=9)
    with torch.no_grad():
        assert value >= calibrated(grid).max()
    assert candidate.shape == (1, 2)
    observed = model.calibrator.num_updates
    model.observe(candidate, torch.tensor([[30.0]], dtype=torch.double))
    assert model.calibrator.num_updates == observed + 1
