"""Models inside models: what each of the peeling functions drops and what it keeps."""

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize

from botorch_calib.calibration import OnlineConformal
from botorch_calib.models import CalibratedModel, CensoredDelayModel
from botorch_calib.models.inspection import (
    as_calibrated,
    gaussian_part,
    innermost,
    observed_part,
    outcome_scale,
    predicting_part,
    raw_train_inputs,
    stated_moments,
)

X = torch.rand(6, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
Y = (X.sum(dim=-1, keepdim=True) - X.sum(dim=-1).mean()) / X.sum(dim=-1).std()
PENDING = torch.tensor([[0.2, 0.7]], dtype=torch.double)


def make_gp(Y=Y, outcome_transform=None, **kwargs) -> SingleTaskGP:
    return SingleTaskGP(X, Y, outcome_transform=outcome_transform, **kwargs).eval()


def calibrated(model) -> CalibratedModel:
    return CalibratedModel(model, OnlineConformal(0.2))


def delayed(model) -> CensoredDelayModel:
    return CensoredDelayModel(model, PENDING, censor_value=0.0)


def num_data(model) -> int:
    return innermost(model).train_targets.shape[-1]


def test_a_plain_model_is_left_as_it_is():
    gp = make_gp()
    for peel in (observed_part, predicting_part, gaussian_part, innermost):
        assert peel(gp) is gp


def test_pending_points_are_dropped_or_kept():
    gp = make_gp()
    model = delayed(gp)
    assert observed_part(model) is gp is gaussian_part(observed_part(model))
    assert num_data(predicting_part(model)) == 7
    assert gaussian_part(model) is model  # it is Gaussian, pending points and all


def test_calibration_in_either_order():
    gp = make_gp()
    inner = calibrated(gp)
    outside, inside = calibrated(delayed(gp)), delayed(inner)
    assert innermost(outside) is gp is innermost(inside)
    # A calibrator outside is one layer, and what is below it still knows the pending points.
    assert gaussian_part(outside) is outside.model
    assert observed_part(gaussian_part(outside)) is gp
    # One inside stays around the model of observed data, and around the one that predicts.
    assert observed_part(inside) is inner
    assert isinstance(predicting_part(inside), CalibratedModel)
    assert num_data(gaussian_part(predicting_part(inside))) == 7


def test_raw_inputs_and_the_scale_of_outcomes():
    plain = make_gp()
    units = make_gp(5.0 + 3.0 * Y, input_transform=Normalize(2), outcome_transform=Standardize(1))
    assert not torch.equal(units.train_inputs[0], X)
    for gp in (plain, units, units.train()):
        torch.testing.assert_close(raw_train_inputs(gp), X)
    assert outcome_scale(plain) == 1
    assert outcome_scale(units).item() == pytest.approx(3.0)
    assert outcome_scale(units, squared=True).item() == pytest.approx(9.0)
    assert outcome_scale(make_gp(Y.exp(), outcome_transform=Log())) is None


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_as_calibrated_corrects_nothing(dtype):
    """A Gaussian posterior by the methods of a calibrated one, whose digits reach far out."""
    gp = SingleTaskGP(X.to(dtype), 1e-7 * Y.to(dtype), outcome_transform=Standardize(1)).eval()
    at = torch.rand(3, 1, 2, dtype=dtype, generator=torch.Generator().manual_seed(1))
    for model in (gp, delayed(gp)):
        posterior = as_calibrated(model, model.posterior(at))
        mean, deviation = stated_moments(model, model.posterior(at))
        assert deviation.max() < 2e-7  # not what GPyTorch states at the least, in any units
        torch.testing.assert_close(posterior.mean, mean)
        torch.testing.assert_close(posterior.variance, deviation.square())
        normal = torch.distributions.Normal(mean.double(), deviation.double())
        for score in (-6.0, 0.3, 6.0):
            value = normal.mean + score * normal.stddev
            expected = normal.cdf(value).to(dtype)
            torch.testing.assert_close(posterior.cdf(value), expected, rtol=1e-4, atol=0)
        quantile = normal.icdf(torch.tensor(0.9, dtype=torch.double)).to(dtype)
        torch.testing.assert_close(posterior.quantile(0.9), quantile)


def test_as_calibrated_takes_calibrated_and_gaussian_posteriors_alone():
    model = calibrated(make_gp())
    posterior = model.posterior(X)
    assert as_calibrated(model, posterior) is posterior
    gp = make_gp(Y.exp(), outcome_transform=Log())
    with pytest.raises(UnsupportedError, match="SingleTaskGP gave a TransformedPosterior"):
        as_calibrated(gp, gp.posterior(X))
