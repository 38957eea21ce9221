"""What BoTorch reads off a model, beside its posterior, is that of the model inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.acquisition.max_value_entropy_search import qLowerBoundMaxValueEntropy
from botorch.acquisition.proximal import ProximalAcquisitionFunction
from botorch.cross_validation import efficient_loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP
from botorch.models.model import ModelList
from botorch.optim.initializers import sample_points_around_best
from botorch.optim.utils import get_X_baseline
from torch.testing import assert_close

from botorch_calib import CalibratedModel, CensoredDelayModel, LocalizedConformal
from tests.gps import DOUBLE, GaussianLaw, make_data, make_gp

X, Y, _ = make_data(transforms=True)
T = torch.tensor([[[-3.0, 1.0]], [[2.0, 4.0]], [[0.5, -4.0]]], **DOUBLE)
NOTHING_PENDING = torch.empty(0, 2, **DOUBLE)

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "calibrated": lambda gp: CalibratedModel(gp, GaussianLaw()),
    "delayed": lambda gp: CensoredDelayModel(gp, NOTHING_PENDING, 0.0),
    "calibrated, delayed": lambda gp: CalibratedModel(
        CensoredDelayModel(gp, NOTHING_PENDING, 0.0), GaussianLaw()
    ),
    "delayed, calibrated": lambda gp: CensoredDelayModel(
        CalibratedModel(gp, GaussianLaw()), NOTHING_PENDING, 0.0
    ),
}
any_wrapper = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


@any_wrapper
def test_transforms_are_those_of_the_base_model(wrap: Callable[[Any], Any]) -> None:
    gp = make_gp(transforms=True)
    model = wrap(gp)
    assert model.input_transform is gp.input_transform
    assert model.outcome_transform is gp.outcome_transform
    bare = wrap(make_gp())
    assert not hasattr(bare, "input_transform") and not hasattr(bare, "outcome_transform")


@any_wrapper
def test_raw_samples_are_around_the_best_points_as_they_were_given(
    wrap: Callable[[Any], Any],
) -> None:
    """In `eval` mode BoTorch keeps transformed inputs in the place of those that were given."""
    gp = make_gp(transforms=True)
    plain, ours = (LogExpectedImprovement(model.eval(), 30.0) for model in (gp, wrap(gp)))
    for acqf in (plain, ours):
        baseline = get_X_baseline(acqf)
        assert baseline is not None
        assert_close(baseline, X)
    bounds = torch.tensor([[-5.0, -5.0], [5.0, 5.0]], **DOUBLE)
    samples = []
    for acqf in (plain, ours):
        torch.manual_seed(0)
        samples.append(
            sample_points_around_best(acqf, n_discrete_points=8, sigma=1e-3, bounds=bounds)
        )
    assert_close(samples[1], samples[0])


@any_wrapper
@pytest.mark.parametrize("transformed", [False, True])
def test_proximity_is_to_the_last_point(wrap: Callable[[Any], Any], transformed: bool) -> None:
    weights = torch.tensor([2.0, 3.0], **DOUBLE)
    gp = make_gp(transforms=True)
    plain, ours = (
        ProximalAcquisitionFunction(
            UpperConfidenceBound(model, 2.0), weights, transformed_weighting=transformed
        )(T)
        for model in (gp, wrap(gp))
    )
    assert_close(ours, plain)
    assert plain.max() > 1e-3


@any_wrapper
def test_modes_are_those_of_the_base_model(wrap: Callable[[Any], Any]) -> None:
    model = wrap(make_gp(transforms=True))
    expected = model.posterior(T).mean
    for switch in (model.train, model.eval, model.train, lambda: model.train(False)):
        switch()
        in_training = model.training
        assert model._has_transformed_inputs != in_training
        assert_close(model.train_inputs[0], X if in_training else model.input_transform(X))
        assert_close(model.posterior(T).mean, expected)


@any_wrapper
def test_what_calls_the_model_takes_the_one_inside(wrap: Callable[[Any], Any]) -> None:
    gp = make_gp(transforms=True)
    model = wrap(gp)
    entropy = [
        qLowerBoundMaxValueEntropy(each, X, num_mv_samples=2, X_pending=X[:1])
        for each in (model, gp)
    ]
    with pytest.raises(UnsupportedError, match="the one inside, `model.model`"):
        entropy[0](T)
    assert entropy[1](T).isfinite().all()
    with pytest.raises(UnsupportedError, match="cross-validation"):
        efficient_loo_cv(model)


@pytest.mark.parametrize("kind", [ModelList, ModelListGP])
@pytest.mark.parametrize("num", [1, 2])
def test_a_list_is_wrapped_one_by_one(kind: Any, num: int) -> None:
    models = kind(*(make_gp() for _ in range(num)))
    with pytest.raises(UnsupportedError, match="CalibratedModelList.from_history"):
        CalibratedModel.from_history(models, LocalizedConformal(0.2))
