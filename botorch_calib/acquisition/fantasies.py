"""Fantasies of the outcomes at pending points, by which closed forms average over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.sampling import draw_sobol_normal_samples
from torch import Tensor

from botorch_calib._autograd import outside_inference_mode
from botorch_calib._validation import check_inputs, check_precision
from botorch_calib.models.inspection import (
    innermost,
    raw_train_inputs,
    raw_width,
    with_task_feature,
)


@outside_inference_mode()
@torch.no_grad()
def fantasy_models(models: Sequence[Any], X_pending: Tensor, num_fantasies: int) -> list[Any]:
    """Models conditioned on a fixed set of outcomes at pending points, drawn from themselves.

    The outcomes of all models come from one quasi-random sequence, and those of different models
    are independent. Sequences of their own would not be, whatever their seeds: scrambling keeps the
    order of the points, and two of them, point by point, correlate by 0.3 to 0.9.

    Args:
        models: Models with one output and without batch dimensions.
        X_pending: Points under evaluation, ``n x d``.
        num_fantasies: Number of fantasies, the batch dimension of the results.

    Raises:
        UnsupportedError: If a model has batch dimensions, or cannot be conditioned.
        BotorchTensorDimensionError: If the points have not the models' number of columns.
        InputDataError: If the points hold NaN or infinite values, or are more precise than a model.
    """
    points = [_checked(model, X_pending) for model in models]
    posteriors = [
        model.posterior(X, observation_noise=True) for model, X in zip(models, points, strict=True)
    ]
    shapes = [posterior.base_sample_shape for posterior in posteriors]
    sizes = [shape.numel() for shape in shapes]
    draws = draw_sobol_normal_samples(sum(sizes), num_fantasies, dtype=torch.double, seed=0)
    conditioned = []
    for model, X, posterior, shape, draw in zip(
        models, points, posteriors, shapes, draws.split(sizes, dim=-1), strict=True
    ):
        sampler = SobolQMCNormalSampler(torch.Size([num_fantasies]))
        sampler.register_buffer("base_samples", draw.reshape(-1, *shape).to(posterior.mean))
        conditioned.append(model.fantasize(X, sampler))
    return conditioned


def _checked(model: Any, X_pending: Tensor) -> Tensor:
    """The points with all columns of a model, the task included, which it can be conditioned at."""
    if model.batch_shape:
        raise UnsupportedError("`X_pending` needs a model without batch dimensions.")
    if not hasattr(model, "fantasize"):
        raise UnsupportedError(
            f"`X_pending` needs models that can be conditioned on observations, which a "
            f"{type(model).__name__} cannot: use an exact GP such as SingleTaskGP."
        )
    base = innermost(model)
    X = check_inputs("X_pending", with_task_feature(base, X_pending), raw_width(base))
    inputs = raw_train_inputs(base)
    # Single-precision points of a model in double are good enough.
    if inputs is not None and torch.promote_types(X.dtype, inputs.dtype) != inputs.dtype:
        check_precision("X_pending", X, inputs.dtype)
    return X.detach()
