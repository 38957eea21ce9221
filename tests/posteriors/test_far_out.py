"""Numbers too far out to be squared, infinities included."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from gpytorch.constraints import Positive

from botorch_calib import CalibratedModel, LocalizedConformal, OnlineConformal, QuantileRecalibrator
from botorch_calib.calibration import Calibrator
from tests.gps import make_gp
from tests.long_grids import mostly_slow

CALIBRATORS: list[Calibrator] = [
    LocalizedConformal(0.2, 0.25),
    OnlineConformal(0.2, tails="gaussian"),
    QuantileRecalibrator(),
]
PRECISIONS = [*product([False, True], [torch.double, torch.float])]


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize(("denoise", "dtype"), mostly_slow(PRECISIONS, PRECISIONS[1:3]))
def test_values_are_their_limits(calibrator: Calibrator, denoise: bool, dtype: torch.dtype) -> None:
    X = torch.rand(3, 1, 2, dtype=dtype, requires_grad=True)
    model = CalibratedModel.from_history(make_gp(dtype=dtype), calibrator, denoise=denoise)
    posterior = model.posterior(X)
    for far in (1e20, 1e300, math.inf):
        assert (posterior.cdf(torch.tensor(far)) == 1.0).all() and (
            posterior.cdf(torch.tensor(-far)) == 0.0
        ).all()
        assert (posterior.density(torch.tensor(far)) == 0.0).all() and (
            posterior.density(torch.tensor(-far)) == 0.0
        ).all()
        # Masses of many pieces sum to 1 up to rounding.
        above = posterior.probability_of_improvement(-far)
        torch.testing.assert_close(above, torch.ones_like(above), atol=4e-16, rtol=0)
        assert (posterior.probability_of_improvement(far) == 0.0).all()
        above = posterior.log_expected_improvement(-far)
        expected = torch.full_like(above, math.log(far) if far < math.inf else math.inf)
        torch.testing.assert_close(above, expected)
        assert (posterior.log_expected_improvement(far) <= -1e29).all()
        everything = posterior.log_probability_between(-far, far)
        torch.testing.assert_close(everything, torch.zeros_like(everything), atol=1e-7, rtol=0)
        one_sided = posterior.log_probability_between(None, 0.5)
        torch.testing.assert_close(posterior.log_probability_between(-far, 0.5), one_sided)
        for value in (above, posterior.log_probability_between(-far, 0.5)):
            (gradient,) = torch.autograd.grad(value.sum(), X, retain_graph=True)
            assert gradient.isfinite().all()


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: type(c).__name__)
def test_gradients_are_no_nan_where_noise_is_small(calibrator: Calibrator) -> None:
    """In units of noise of 1e-12 the third power of 1e100 is what overflows."""
    gp = make_gp()
    gp.likelihood.noise_covar.register_constraint("raw_noise", Positive())
    gp.likelihood.noise = torch.tensor([1e-12], dtype=torch.double)
    X = torch.rand(3, 1, 2, dtype=torch.double, requires_grad=True)
    posterior = CalibratedModel.from_history(gp, calibrator).posterior(X)
    for best_f in (1e89, 1e99, math.inf, -math.inf):
        for value in (
            posterior.probability_of_improvement(best_f),
            posterior.expected_improvement(max(best_f, -1e99)),
            posterior.log_expected_improvement(best_f),
        ):
            (gradient,) = torch.autograd.grad(value.sum(), X, retain_graph=True)
            assert not gradient.isnan().any()
