"""Closed-form acquisition functions of a recalibrated model, against brute-force sampling."""

from typing import Any

import pytest
import torch

from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedModel,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
    QuantileRecalibrator,
)
from botorch_calib.testing import AcquisitionContract
from tests.gps import make_gp
from tests.random_numbers import normal, uniform

DOUBLE: dict[str, Any] = {"dtype": torch.double}
NUM_SAMPLES = 200_000
KINDS = {
    "global": {},
    "localized": {"lengthscale": 0.4, "levels": [0.1, 0.4, 0.8]},
    "mixed": {"lengthscale": "auto"},
    "exact": {"method": "exact", "tails": "gaussian"},
}


def make_model(denoise: bool = True, dtype: torch.dtype = torch.double, **settings):
    """A model whose distribution is wide, skewed and not where the Gaussian one is."""
    generator = torch.Generator().manual_seed(5)
    X = uniform(40, 2, generator=generator)
    z = (1.5 * normal(40, generator=generator)).exp() - 1.5
    calibrator = QuantileRecalibrator(**settings)
    calibrator.update(X, z)
    return CalibratedModel(make_gp(dtype=dtype), calibrator.to(dtype), denoise=denoise)


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("denoise", [True, False], ids=["denoised", "observed"])
def test_closed_forms_equal_sampling(settings, denoise):
    model = make_model(denoise, **settings)
    X = torch.rand(5, 1, 2, generator=torch.Generator().manual_seed(6), **DOUBLE)
    torch.manual_seed(0)
    samples = model.posterior(X).rsample(torch.Size([NUM_SAMPLES])).detach().view(NUM_SAMPLES, 5)
    best = samples.median().item()

    def check(value, draws):
        error = draws.std(dim=0) / NUM_SAMPLES**0.5
        assert ((value - draws.mean(dim=0)).abs() <= 5 * error).all()

    gain = (samples - best).clamp(min=0.0)
    ei = CalibratedExpectedImprovement(model, best_f=best)(X)
    check(ei, gain)
    torch.testing.assert_close(LogCalibratedExpectedImprovement(model, best_f=best)(X).exp(), ei)
    check(CalibratedProbabilityOfImprovement(model, best_f=best)(X), (samples > best).double())
    bound = CalibratedUpperConfidenceBound(model, level=0.9)(X)
    below = (samples <= bound).double().mean(dim=0)
    assert (below - 0.9).abs().max() <= 5 * (0.09 / NUM_SAMPLES) ** 0.5


class TestDenoised(AcquisitionContract):
    def make_acquisition(self, dtype, maximize=True):
        model = make_model(dtype=dtype)
        return LogCalibratedExpectedImprovement(model, best_f=0.2, maximize=maximize)


class TestOfObservations(AcquisitionContract):
    def make_acquisition(self, dtype, maximize=True):
        model = make_model(denoise=False, dtype=dtype, lengthscale=0.4)
        return LogCalibratedExpectedImprovement(model, best_f=0.2, maximize=maximize)


class TestBound(AcquisitionContract):
    def make_acquisition(self, dtype, maximize=True):
        model = make_model(dtype=dtype, lengthscale="auto")
        return CalibratedUpperConfidenceBound(model, level=0.8, maximize=maximize)
