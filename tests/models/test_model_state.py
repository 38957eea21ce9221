"""Predictions after a change in place are those of a new model with the changed tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import RFFKernel, ScaleKernel
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.models import with_learned_spread
from botorch_calib.models.cholesky_factor import ModelState, factor_of, may_serve
from botorch_calib.models.predict import predict
from tests.gps import MULTI_TASK, NOISE, SINGLE_TASK, make_data, make_gp
from tests.random_numbers import uniform

T = uniform(5, 1, 2, generator=torch.Generator().manual_seed(8))


def learned_spread() -> Any:
    X, Y, _ = make_data(20)
    return with_learned_spread(SingleTaskGP(X, Y)).eval()


def of_features() -> Any:
    """Its kernel keeps random weights."""
    X, Y, _ = make_data()
    torch.manual_seed(0)
    gp = SingleTaskGP(X, Y, covar_module=ScaleKernel(RFFKernel(50, num_dims=2)).double())
    gp.likelihood.noise = NOISE
    return gp.eval()


MODELS: dict[str, Callable[[], Any]] = {
    **SINGLE_TASK,
    **MULTI_TASK,
    "learned spread": learned_spread,
    "random features": of_features,
}


def tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a model that determine predictions, by name.

    Inputs are not transformed again after a change of their transform, in GPyTorch as well.
    """
    yield from model.named_parameters()
    yield from ((name, each) for name, each in model.named_buffers() if "input_tr" not in name)
    yield from {"train targets": model.train_targets, "train inputs": model.train_inputs[0]}.items()
    for name, part in model.named_modules():
        if isinstance(part, FixedGaussianNoise):
            yield f"{name} noise", part.noise


def moments(model: Any) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        stated = predict(model, T, objective=True)
        return stated.target_mean, stated.target_variance


@pytest.mark.parametrize("by_data", [False, True], ids=["in place", "by .data"])
@pytest.mark.parametrize("name", MODELS)
def test_a_change_in_place_is_felt(name: str, by_data: bool) -> None:
    model, felt = MODELS[name](), 0
    before = moments(model)
    for place, each in tensors(model):
        if not each.is_floating_point() or (by_data and " " in place):
            continue  # a change of data by `.data` is not supported
        with torch.no_grad():
            (each.data if by_data else each).add_(0.05)
        fresh = deepcopy(model)
        fresh.prediction_strategy = None
        after = moments(model)
        for own, expected in zip(after, moments(fresh), strict=True):
            assert_close(own, expected, msg=f"{place} is not felt")
        felt += not torch.equal(after[0], before[0])
        before = after
    assert felt >= 2


@pytest.mark.parametrize("name", MODELS)
def test_a_prediction_changes_no_state(name: str) -> None:
    model = MODELS[name]()
    moments(model)
    factor, state = factor_of(model), ModelState(model)
    moments(model)
    assert may_serve(model)
    assert factor_of(model) is factor
    assert ModelState(model) == state


def test_buffers_with_nan_equal_themselves() -> None:
    """As the tasks of a ``MultiTaskGP`` without data for some of ``all_tasks``."""
    model: Any = make_gp()
    model.register_buffer("unknown", torch.tensor([0.0, torch.nan]))
    assert ModelState(model) == ModelState(model)
    before = ModelState(model)
    model.unknown[0] = 1.0
    assert ModelState(model) != before
