"""What a model states of its data beforehand, against its kernel and noise written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP

from botorch_calib.models.training_prior import training_prior
from tests.gps import (
    CONSTANT,
    DOUBLE,
    LENGTHSCALES,
    NOISE,
    make_data,
    make_gp,
    make_multitask,
    make_variational,
)


@pytest.mark.parametrize("fixed_noise", [False, True])
@pytest.mark.parametrize("transforms", [False, True])
def test_prior_is_the_kernel_and_the_noise(fixed_noise: bool, transforms: bool) -> None:
    gp: Any = make_gp(fixed_noise, transforms)
    X, Y, Yvar = make_data(transforms=transforms)
    variances = Yvar if fixed_noise else torch.full_like(Y, NOISE)
    if transforms:
        X = gp.input_transform(X)
        variances = Yvar / Y.var() if fixed_noise else variances
        Y = (Y - Y.mean()) / Y.std()
    gaps = (X[:, None] - X[None]) / torch.tensor(LENGTHSCALES, **DOUBLE)
    for train_mode in (False, True):
        gp.train(train_mode)
        prior = training_prior(gp)
        assert gp.training is train_mode
        torch.testing.assert_close(prior.inputs, X)
        torch.testing.assert_close(prior.covariance, (-0.5 * gaps.square().sum(dim=-1)).exp())
        torch.testing.assert_close(prior.noise, variances.squeeze(-1), rtol=1e-9, atol=0.0)
        torch.testing.assert_close(prior.deviation, Y.squeeze(-1) - CONSTANT)


@pytest.mark.parametrize("fixed_noise", [False, True])
def test_single_precision_model_in_double(fixed_noise: bool) -> None:
    """No more than the rounding of its data and parameters is left: the kernel itself is double."""
    single = make_gp(fixed_noise, dtype=torch.float)
    state = {name: value.clone() for name, value in single.state_dict().items()}
    prior = training_prior(single, torch.double)
    expected = training_prior(make_gp(fixed_noise, dtype=torch.float).double())
    for value, other in zip(prior, expected, strict=True):
        assert value.dtype == torch.double
        torch.testing.assert_close(value, other, rtol=1e-14, atol=1e-14)
    assert training_prior(single).covariance.dtype == torch.float
    for name, value in single.state_dict().items():
        assert value.dtype == state[name].dtype and torch.equal(value, state[name])
    assert single.train_inputs[0].dtype == torch.float


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # from the multi-task kernel
def test_noise_that_depends_on_the_prior_and_on_the_task() -> None:
    X, Y, _ = make_data()
    robust: Any = RobustRelevancePursuitSingleTaskGP(X, Y)
    robust.likelihood.noise_covar.expand_support([4])
    robust.likelihood.noise_covar.raw_rho.data.fill_(0.9)
    noise = training_prior(robust.eval()).noise
    # Of a share 0.9 of the total variance, at the outlier: of 1 + its other noise.
    others = torch.cat([noise[:4], noise[5:]])
    torch.testing.assert_close(others, others[:1].expand(11))
    torch.testing.assert_close(noise[4], others[0] + (1 + others[0]) * 0.9 / 0.1)
    assert training_prior(make_multitask()).noise.shape == (12,)


def test_unsupported_models() -> None:
    with pytest.raises(UnsupportedError, match="Variational"):
        training_prior(make_variational())
    gp: Any = make_gp()
    gp.set_train_data(torch.empty(0, 2, **DOUBLE), torch.empty(0, **DOUBLE), strict=False)
    with pytest.raises(InputDataError, match="no training data"):
        training_prior(gp)
