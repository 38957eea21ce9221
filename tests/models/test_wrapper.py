"""Attributes that BoTorch reads from a model, besides its posterior, come from its process."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.acquisition.max_value_entropy_search import qLowerBoundMaxValueEntropy
from botorch.cross_validation import efficient_loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.transforms.input import InputPerturbation, Warp
from botorch.optim.initializers import sample_points_around_best
from botorch.optim.utils import get_X_baseline
from botorch_community.acquisition.augmented_multisource import AugmentedUpperConfidenceBound
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from torch.testing import assert_close

from botorch_calib import CalibratedModel, CensoredDelayModel
from tests.gps import DOUBLE, GaussianLaw, make_data, make_gp, make_variational

X, Y, _ = make_data(transforms=True)
T = torch.tensor([[[-3.0, 1.0]], [[2.0, 4.0]], [[0.5, -4.0]]], **DOUBLE)
NOTHING_PENDING = torch.empty(0, 2, **DOUBLE)

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "calibrated": lambda gp: CalibratedModel(gp, GaussianLaw()),
    "delayed": lambda gp: CensoredDelayModel(gp, NOTHING_PENDING, 0.0),
    "both": lambda gp: CensoredDelayModel(CalibratedModel(gp, GaussianLaw()), NOTHING_PENDING, 0.0),
}
any_wrapper = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


@any_wrapper
def test_parts_are_those_of_the_base_model(wrap: Callable[[Any], Any]) -> None:
    gp = make_gp(transforms=True)
    model = wrap(gp)
    assert model.input_transform is gp.input_transform
    assert model.outcome_transform is gp.outcome_transform
    assert model.covar_module is gp.covar_module and model.mean_module is gp.mean_module
    bare = wrap(make_gp())
    assert not hasattr(bare, "input_transform") and not hasattr(bare, "outcome_transform")


@any_wrapper
def test_models_of_several_sources_keep_them(wrap: Callable[[Any], Any]) -> None:
    gp: Any = make_gp(transforms=True)
    with pytest.raises(UnsupportedError, match="multi-source"):
        AugmentedUpperConfidenceBound(wrap(gp), {}, best_f=0.0, beta=2.0)
    gp.models = [make_gp(transforms=True), make_gp()]  # as in a SingleTaskAugmentedGP
    of_source = torch.cat([T, torch.tensor([[[0.0]], [[1.0]], [[0.0]]], **DOUBLE)], dim=-1)
    values = [
        AugmentedUpperConfidenceBound(model, {0: 1.0, 1: 0.5}, best_f=0.0, beta=2.0)(of_source)
        for model in (gp, wrap(gp))
    ]
    assert_close(values[1], values[0])


@any_wrapper
def test_raw_samples_are_around_the_best_points_as_they_were_given(
    wrap: Callable[[Any], Any],
) -> None:
    """In `eval` mode BoTorch replaces the training inputs by transformed inputs."""
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
    with pytest.raises(UnsupportedError, match="the Gaussian process inside, `model.model`"):
        entropy[0](T)
    assert entropy[1](T).isfinite().all()
    with pytest.raises(UnsupportedError, match="cross-validation"):
        efficient_loo_cv(model)


# ------------------------------------------------------------ replaced parts


def other_input_transform(gp: Any) -> None:
    gp.input_transform = Normalize(2, bounds=torch.tensor([[-9.0, -7.0], [9.0, 7.0]], **DOUBLE))


def other_kernel(gp: Any) -> None:
    gp.covar_module = RBFKernel(ard_num_dims=2).double()
    gp.covar_module.lengthscale = 0.3


def other_likelihood(gp: Any) -> None:
    gp.likelihood = GaussianLikelihood().double()
    gp.likelihood.noise = 0.4


def other_mean(gp: Any) -> None:
    gp.mean_module = ConstantMean().double()
    gp.mean_module.initialize(constant=-1.5)


REPLACED = (other_input_transform, other_kernel, other_likelihood, other_mean)


@any_wrapper
@pytest.mark.parametrize("replace", REPLACED)
def test_a_part_that_is_replaced_is_that_of_the_base_model(
    wrap: Callable[[Any], Any], replace: Callable[[Any], None]
) -> None:
    gp, other = make_gp(transforms=True), make_gp(transforms=True)
    other.train()  # nothing has been transformed or cached
    replace(other)
    model = wrap(gp)
    before = model.posterior(T).mean
    replace(model)
    assert not set(dict(model.named_children())) & {"input_transform", "likelihood", "covar_module"}
    expected, got = other.eval().posterior(T), model.posterior(T)
    assert_close(got.mean, expected.mean)
    assert_close(got.variance, expected.variance)
    assert (got.mean - before).abs().max() > 1e-3
    copied = deepcopy(model)
    assert_close(copied.posterior(T).mean, expected.mean)


@any_wrapper
def test_pending_points_and_risk_measures_see_a_replaced_input_transform(
    wrap: Callable[[Any], Any],
) -> None:
    """As in BoTorch's tutorials on risk measures: the transform is set after the fit."""
    gp, shifts = make_gp(), torch.tensor([[0.0, 0.0], [0.3, -0.2], [-0.3, 0.1]], **DOUBLE)
    points = torch.rand(3, 2, 2, **DOUBLE)
    model = wrap(gp)
    model.posterior(points)
    model.input_transform = InputPerturbation(shifts).eval()
    perturbed = (points.unsqueeze(-2) + shifts).flatten(-3, -2)
    assert_close(model.posterior(points).mean, make_gp().posterior(perturbed).mean)


@any_wrapper
def test_what_cannot_be_replaced_is_refused(wrap: Callable[[Any], Any]) -> None:
    model = wrap(make_gp(transforms=True))
    with pytest.raises(UnsupportedError, match="outcome_transform.*make and fit a new model"):
        model.outcome_transform = Standardize(1)
    with pytest.raises(UnsupportedError, match="has no `covar_module`"):
        CalibratedModel(make_variational(), GaussianLaw()).covar_module = RBFKernel()


def warped(concentration: float) -> SingleTaskGP:
    warp = Warp(2, indices=[0, 1], bounds=torch.tensor([[-5.0] * 2, [5.0] * 2], **DOUBLE))
    gp = SingleTaskGP(X, Y, input_transform=warp.double())
    parts: Any = warp
    parts.concentration0.data.fill_(concentration)
    parts.concentration1.data.fill_(1.0 / concentration)
    return gp


@any_wrapper
@pytest.mark.parametrize("keep_transforms", [False, True])
def test_a_state_is_loaded_after_a_prediction(
    wrap: Callable[[Any], Any], keep_transforms: bool
) -> None:
    """The training inputs are warped again (botorch issue 1471)."""
    source, target = wrap(warped(2.5)), wrap(warped(0.7))
    before = target.posterior(T).mean
    target.load_state_dict(source.state_dict(), keep_transforms=keep_transforms)
    assert_close(target.posterior(T).mean, source.posterior(T).mean)
    assert (before - target.posterior(T).mean).abs().max() > 0.1
