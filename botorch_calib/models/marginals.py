r"""Posteriors of an exact Gaussian process, for all points at once.

BoTorch evaluates ``batch_shape x 1 x d`` as that many joint posteriors of one point each. Here all
points are rows of one matrix. With ``K + noise = L L^T`` factorised once,

    ``k = k(X_train, x)``, ``w = L^{-1} k``,
    ``mean = m(x) + k^T (K + noise)^{-1} (y - m)``, ``covariance = k(x, x') - w^T w'``,

and then the outcome transform. Joint posteriors have that covariance among the points of a batch,
single points a variance each. Mean, kernel and input transform are the model's own modules, so any
that GPyTorch evaluates on rectangles and diagonals are served: mixed and multi-task inputs, learned
warps, custom kernels. Triangular solves, not an inverse, keep the digits of small variances.

The package calls `posterior_at`. What the engine does not serve comes from ``model.posterior``:
variational models, kernels with a prediction strategy of their own, input transforms that make
several points of each, and data that require gradients, as those of fantasies do unless they are
made under ``torch.no_grad``; of joint posteriors those of batches of models, and those at so many
points that GPyTorch does not evaluate the covariance matrix before it is asked for.

Evaluate a model once before several threads share it: the first evaluation puts it into evaluation
mode and sets what GPyTorch keeps of it, and neither is guarded by a lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchError
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.utils.transforms import match_batch_shape
from gpytorch.distributions import MultivariateNormal
from gpytorch.settings import max_eager_kernel_size
from linear_operator import to_linear_operator
from torch import Size, Tensor

from botorch_calib.models.cholesky_factor import factor_of, may_serve
from botorch_calib.models.inspection import with_task_feature
from botorch_calib.models.requirements import check_fits
from botorch_calib.models.wrapper import WrapperModel
from botorch_calib.posteriors.single_points import SinglePointPosterior, is_gaussian, raw_variance

# See `beside`.
_BASELINE: ContextVar[Tensor | None] = ContextVar("baseline", default=None)


@contextmanager
def beside(baseline: Tensor) -> Iterator[None]:
    """Context in which the posteriors of Gaussian processes know their covariance with others.

    In their attribute ``rows``, ``batch_shape x q x (r + q)``, the covariance with the objective at
    the ``baseline``, ``r x d``, precedes that at their own points. What depends on the baseline
    alone is computed once for each such tensor.
    """
    token = _BASELINE.set(baseline)
    try:
        yield
    finally:
        _BASELINE.reset(token)


def posterior_at(
    model: Any,
    X: Tensor,
    observation_noise: bool | Tensor = False,
    posterior_transform: PosteriorTransform | None = None,
    members: bool = False,
) -> Posterior:
    """``model.posterior(X)``, for all points at once.

    Arguments are those of ``model.posterior``. With ``members`` the model is an ensemble, whose
    members' Gaussian posteriors are wanted, ``batch_shape x num_members x q x 1``. A wrong shape or
    precision of ``X`` is an error that says so.
    """
    try:
        served: Posterior | None = None
        baseline = _BASELINE.get()
        if baseline is not None and not isinstance(model, WrapperModel):
            return _posterior_beside(model, X, baseline)
        if observation_noise is False and (members or X.shape[-2] == 1):
            served = single_point_posterior(model, X.unsqueeze(-3) if members else X, members)
        elif observation_noise is False:
            served = joint_posterior(model, X)
        if served is not None:
            return served if posterior_transform is None else posterior_transform(served, X=X)
        observation_noise = _once(model, X, observation_noise)
        return model.posterior(
            X, observation_noise=observation_noise, posterior_transform=posterior_transform
        )
    except (RuntimeError, IndexError) as error:
        if isinstance(error, BotorchError):
            raise
        # GPyTorch speaks of sizes and precisions inside. Looking beforehand would cost every call,
        # and refuse single-precision inputs of a model in double, which are good enough.
        check_fits(model, with_task_feature(model, X))
        raise


def _posterior_beside(model: Any, X: Tensor, baseline: Tensor) -> Posterior:
    """Joint posterior of the objective with the attribute ``rows``: see `beside`."""
    served = joint_posterior(model, X, baseline)
    if served is not None:
        return served
    # Predictors add the column of the task to X, and users need not add it to either.
    X, baseline = (with_task_feature(model, points) for points in (X, baseline))
    together = torch.cat([match_batch_shape(baseline, X), X], dim=-2)
    joint: Any = joint_posterior(model, together) or model.posterior(together)
    # A one-to-many input transform makes equally many points of each.
    num = joint.mean.shape[-2] * X.shape[-2] // together.shape[-2]
    rows = joint.distribution.lazy_covariance_matrix[..., -num:, :].to_dense()
    return _with_rows(joint.mean[..., -num:, :], rows)


def _with_rows(mean: Tensor, rows: Tensor) -> Any:
    own = to_linear_operator(rows[..., -mean.shape[-2] :])
    posterior: Any = GPyTorchPosterior(MultivariateNormal(mean.squeeze(-1), own))
    posterior.rows = rows
    return posterior


def _once(model: Any, X: Tensor, noise: bool | Tensor) -> bool | Tensor:
    """Half of ``noise`` where BoTorch adds it for a given and for a learned part: see GPyTorch."""
    likelihood: Any = getattr(model, "likelihood", None)
    is_plain = noise is False or isinstance(model, WrapperModel)
    if is_plain or getattr(likelihood, "second_noise_covar", None) is None:
        return noise
    return X.new_ones(*X.shape[:-1], 1) * (likelihood.noise.mean() if noise is True else noise) / 2


def single_point_posterior(
    model: Any, X: Tensor, members: bool = False
) -> SinglePointPosterior | None:
    """Posterior of the objective at ``batch_shape x 1 x d``, in the units of the outcome.

    None where the engine does not serve the model or ``X``. It is differentiable in ``X`` as often
    as the kernel is, and, as in BoTorch by default, not in hyperparameters and data. An ensemble is
    served as a batch of models if its ``members`` are asked for: in the last dimension of
    ``batch_shape``.
    """
    if X.dim() < 2 or X.shape[-2] != 1 or not X.numel() or not may_serve(model, members):
        return None
    with gpt_posterior_settings():
        factor = factor_of(model)
        if factor is None:
            return None
        X = with_task_feature(model, X)
        rows, lead = _points_last(X, len(factor.cholesky.shape) - 2)
        inputs = model.transform_inputs(rows)
        if inputs.shape[-2] != rows.shape[-2]:  # one-to-many
            return None
        moments = factor.moments(model, inputs)
        if moments is None:
            return None
    mean, variance, inputs = (_points_first(values, lead) for values in (*moments, inputs))
    inputs = inputs.expand(*mean.shape[:-1], -1)
    return in_outcome_units(model, X, mean, variance.expand_as(mean), inputs)


def in_outcome_units(
    model: Any, X: Tensor, mean: Tensor, variance: Tensor, inputs: Tensor
) -> SinglePointPosterior | None:
    """The posterior of given moments of the targets; None where it is not Gaussian.

    Arguments after ``X``, ``batch_shape x 1 x d``, are those of `SinglePointPosterior`.
    """
    transform = getattr(model, "outcome_transform", None)
    if type(transform) is Standardize:
        # `untransform_posterior` without its detour through linear operators
        mean, variance = transform.means + transform.stdvs * mean, transform._stdvs_sq * variance
    elif transform is not None:
        normal = SinglePointPosterior(mean, variance, inputs).distribution
        posterior = transform.untransform_posterior(GPyTorchPosterior(normal), X=X)
        if not is_gaussian(posterior):  # a nonlinear transform
            return None
        mean, variance = posterior.mean, raw_variance(posterior)
    return SinglePointPosterior(mean, variance, inputs)


def joint_posterior(model: Any, X: Tensor, baseline: Tensor | None = None) -> Posterior | None:
    """As `single_point_posterior`, at ``batch_shape x q x d``, with any outcome transform.

    None for a batch of models. With a Matern kernel it takes two thirds of the time of
    ``model.posterior``. With a ``baseline`` it has the attribute ``rows``, see `beside`; None then
    for baselines in batches and for outcome transforms other than ``Standardize``.
    """
    if X.dim() < 2 or not X.numel() or not may_serve(model):
        return None
    with gpt_posterior_settings():
        factor = factor_of(model)
        if factor is None or factor.cholesky.dim() > 2:
            return None
        num = X.shape[-2] + model.train_inputs[0].shape[-2]
        transform: Any = getattr(model, "outcome_transform", None)
        if baseline is None:
            is_served = num <= max_eager_kernel_size.value()
        else:
            is_served = baseline.dim() == 2 and type(transform) in (Standardize, type(None))
        if not is_served:
            return None
        X = with_task_feature(model, X)
        inputs = model.transform_inputs(X)
        if inputs.shape[-2] != X.shape[-2]:  # one-to-many
            return None
        moments = factor.moments(model, inputs, joint=True, baseline=baseline)
        if moments is None:
            return None
    mean, rows = moments
    if type(transform) is Standardize:
        mean, rows = transform.means + transform.stdvs * mean, transform._stdvs_sq * rows
        transform = None
    posterior = _with_rows(mean, rows)
    posterior.inputs = inputs  # as a `SinglePointPosterior` has them
    return posterior if transform is None else transform.untransform_posterior(posterior, X=X)


def _points_last(X: Tensor, batch_dims: int) -> tuple[Tensor, Size]:
    """``X`` as ``model_batch_shape x (number of points) x d``, and the shape of the points.

    The model's batch dimensions are the last ones of the batch shape of ``X``, which may lack them.
    """
    lead = X.shape[: max(X.dim() - 2 - batch_dims, 0)]
    rows = X.squeeze(-2)[(None,) * (batch_dims - (X.dim() - 2 - len(lead)))]
    return rows.reshape(-1, *rows.shape[len(lead) :]).movedim(0, -2), lead


def _points_first(values: Tensor, lead: Size) -> Tensor:
    """``model_batch_shape x (number of points) x k`` as ``batch_shape x 1 x k``."""
    values = values.movedim(-2, 0)
    return values.reshape(*lead, *values.shape[1:-1], 1, values.shape[-1])
