r"""`predict` returns a model's prediction; `history` returns its past predictions of training data.

This is the only module in which the prediction, or the noise of an observation, depends on the kind
of model. *Targets* are outcomes after the outcome transform. Moments are computed in the space of
the targets, and `Prediction` applies the inverse transform. The *process* of a surrogate, such as a
`CalibratedModel`, is the BoTorch model that it wraps. *Members* are the models of an ensemble.

An exact Gaussian process predicts with a cached Cholesky `Factor`. BoTorch evaluates points
``batch_shape x 1 x d`` as a batch of joint posteriors of one point each; here all points are rows
of one matrix. ``model.posterior`` is used in all other cases: for variational models, kernels with
their own prediction strategy, one-to-many input transforms, data that require gradients, such as
fantasies made without ``torch.no_grad``, joint posteriors of batches of models, and so many points
that GPyTorch evaluates the covariance matrix lazily.

Evaluate a model once before several threads share it: the first evaluation sets evaluation mode and
GPyTorch's caches, without a lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from numbers import Integral
from typing import Any, NamedTuple

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import (
    BotorchError,
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.gpytorch import GPyTorchModel, MultiTaskGPyTorchModel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from botorch.utils.transforms import match_batch_shape
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from gpytorch.settings import max_eager_kernel_size
from linear_operator import to_linear_operator
from linear_operator.operators import LinearOperator
from torch import Size, Tensor

from botorch_calib._validation import broadcasts_to
from botorch_calib.calibration import Calibrator
from botorch_calib.distributions.mixture_scores import score_of_members
from botorch_calib.models.cholesky_factor import factor_of, in_space_of_targets, may_serve
from botorch_calib.models.conditioning import learns_in_context, with_context
from botorch_calib.models.noisy_ensemble import NoisyEnsemble
from botorch_calib.models.outcome_transforms import (
    inputs_of_transform,
    outcome_map_of,
    train_data,
)
from botorch_calib.models.process import (
    as_in_training,
    check_fits,
    in_output_task,
    kind_of,
    learned_noise,
    likelihood_of,
    with_task_feature,
)
from botorch_calib.models.requirements import is_to_be_fitted, scalar_affine
from botorch_calib.models.residuals import forecast_history
from botorch_calib.models.spread_likelihood import LearnedSpreadLikelihood
from botorch_calib.models.wrapper import WrapperModel
from botorch_calib.posteriors import CalibratedPosterior, OutcomeMap, normal_scores
from botorch_calib.posteriors.outcome_maps import Affine
from botorch_calib.posteriors.prediction import MEMBER_DIM, MIN_VARIANCE

# If a process provides only a cdf, which may be 0 or 1 at an observation, normal scores are clamped
# to [-38, 38]. Otherwise the score of such an observation would be infinite.
_FARTHEST = 38.0


class Slots(NamedTuple):
    """The parts of a surrogate; a BoTorch model that is not wrapped has only a process."""

    process: Any  # a BoTorch model
    calibrator: Calibrator | None
    objective: bool  # whether posteriors predict the objective instead of observations
    excess: str


def slots_of(model: object, pending: bool = False) -> Slots:
    """Return a model's parts; with ``pending``, its process is conditioned on pending points."""
    if not isinstance(model, WrapperModel):
        return Slots(model, None, True, "noise")
    process = model.gaussian_model if pending else model.model
    return Slots(process, model.calibrator, model.denoise, model.excess)


def predict(
    model: object,
    X: Tensor,
    *,
    observed: bool = False,
    objective: bool | None = None,
    noise: Tensor | None = None,
    baseline: Tensor | None = None,
    sole_values: str | None = None,
) -> CalibratedPosterior:
    """Return a model's posterior at ``X``, ``batch_shape x q x d``, which is joint if ``q > 1``.

    The posterior is differentiable in ``X``, but not in hyperparameters and data.

    Args:
        model: A surrogate, or any BoTorch model that a `CalibratedModel` accepts.
        X: Points; for a multi-task model the task column may be omitted.
        observed: Whether to ignore pending points, as is done to score observations and to evaluate
            constraints.
        objective: Whether to predict the objective (True) or observations (default: the model's
            setting ``denoise``).
        noise: Noise variance of observations in the space of the targets, which can be
            broadcast to ``batch_shape x q x 1`` (default: the model's noise).
        baseline: Points ``r x d``. The posterior then contains the covariance of the objective at
            ``X`` with the objective at the baseline. What depends on the baseline alone is cached
            for each tensor.
        sole_values: The subject of the error that is raised if the input transform turns each point
            into several points (default: no error).

    Raises:
        UnsupportedError: If the model does not predict the objective, or its posterior is not
            supported; with ``sole_values``, also if there are several values for each point.
        BotorchTensorDimensionError, InputDataError: If ``X`` has a wrong width or precision.
    """
    process, calibrator, denoise, excess = slots_of(model, pending=not observed)
    objective = denoise if objective is None else objective
    # Without a calibrator the objective's posterior does not need the noise of an observation.
    needs_noise = calibrator is not None or not objective
    with _naming_misfits(process, X):
        prediction = _uncalibrated(process, X, objective, noise, needs_noise, baseline)
    if sole_values is not None:
        check_one_value_each(prediction.target_mean.shape[-2], X, sole_values)
    if calibrator is not None:
        if prediction.predictive is not None:
            raise UnsupportedError(f"This {type(process).__name__} is calibrated already.")
        prediction.predictive = calibrator.predictive(inputs_of_calibrator(prediction))
        prediction.excess = excess
    return prediction


def outcome_posterior(model: Any, X: Tensor) -> Any:
    """Return the posterior of observations at ``X``, ``batch_shape x q x d``, of any model.

    BoTorch's posterior of a transformed outcome, such as a logarithm, has neither a cdf nor
    quantiles. GPyTorch raises small variances to a limit that would depend on the unit of the
    outcome. In place of both posteriors a `CalibratedPosterior` is returned.
    """
    posterior = model.posterior(X, observation_noise=True)
    is_plain = isinstance(model, GPyTorchModel) and type(posterior) is GPyTorchPosterior
    is_normal = is_plain and posterior.mean.shape == (*X.shape[:-1], 1)
    if is_normal or isinstance(posterior, TransformedPosterior):
        return predict(model, X, objective=False)
    return posterior


def check_one_value_each(num: int, X: Tensor, subject: str) -> None:
    """Raise ``UnsupportedError`` unless there are as many values, ``num``, as points ``X``.

    ``X`` is ``batch_shape x q x d``. ``subject`` is the subject of the error.
    """
    if num != X.shape[-2]:
        raise UnsupportedError(
            f"{subject} needs one value for each point, and the input transform of `model` turns "
            f"each point into {num // X.shape[-2]}: use a Monte Carlo acquisition function whose "
            "`objective` is a risk measure of `botorch.acquisition.risk_measures`, or a model of "
            "the same data without the transform."
        )


@contextmanager
def _naming_misfits(process: object, X: Tensor) -> Iterator[None]:
    """Return a context in which errors due to a wrong width or precision of ``X`` are explained."""
    # Check only after an error. A check in advance would slow every call, and refuse inputs in
    # single precision that a model in double precision can use.
    try:
        yield
    except (RuntimeError, IndexError, BotorchTensorDimensionError):
        check_fits(process, X)
        raise


def inputs_of_calibrator(prediction: CalibratedPosterior) -> Tensor:
    """Return a prediction's points in the form that calibrators take, ``batch_shape x q x d``.

    These are transformed inputs, averaged over members, which may warp inputs differently.
    """
    inputs = prediction.inputs
    assert inputs is not None
    return inputs.mean(dim=MEMBER_DIM) if prediction.members else inputs


def _uncalibrated(
    process: Any,
    X: Tensor,
    objective: bool,
    noise: Tensor | None,
    needs_noise: bool,
    baseline: Tensor | None,
) -> CalibratedPosterior:
    """Return the posterior of a process, without calibration; for arguments see `predict`.

    ``needs_noise`` tells whether to compute the noise of observations if ``noise`` is None.
    """
    if process.training:  # in training mode an input transform would learn from `X`
        process.eval()
    X, kind = with_task_feature(process, X), kind_of(process)
    if kind == "cdf":
        return _of_distribution(process, X, objective, noise)
    members = kind == "members"
    targets = _targets_at(process, X, members, baseline)
    outcome_map = outcome_map_of(process, X)
    if noise is not None:
        noise = noise.unsqueeze(MEMBER_DIM) if members and noise.dim() == X.dim() > 2 else noise
        if not broadcasts_to(noise.shape, targets.mean.shape):
            raise BotorchTensorDimensionError(
                f"`observation_noise` of shape {tuple(noise.shape)} does not broadcast to the "
                f"shape of the mean, {tuple(targets.mean.shape)}."
            )
    elif needs_noise:
        noise = noise_at(process, targets.inputs)
        noise = _added_noise(process, X, targets, members) if noise is None else noise
    if members:
        targets, noise, outcome_map = _in_common_units(targets, noise, outcome_map)
    prediction = CalibratedPosterior.of_targets(
        targets.mean,
        targets.variance,
        noise,
        targets.inputs,
        outcome_map,
        members=members,
        objective=objective,
        # Members of a `NoisyEnsemble` have almost no variance.
        of_order_one=not isinstance(process, NoisyEnsemble),
    )
    prediction.covariance = targets.covariance
    prediction.with_baseline = targets.with_baseline
    return prediction


def _of_distribution(
    process: Any, X: Tensor, objective: bool, noise: Tensor | None
) -> CalibratedPosterior:
    """Return the posterior of a process whose posterior provides only a cdf.

    The targets are standard normal, and the outcome map applies the posterior's quantile function
    to the cdf of a target. For arguments see `predict`.
    """
    posterior = process.posterior(X) if objective else _posterior_of_observations(process, X)
    if isinstance(posterior, CalibratedPosterior):  # a user's model may return this class
        is_objective = objective and posterior.objective
        return posterior._with(objective=is_objective, inputs=process.transform_inputs(X))
    if objective:
        raise observations_only(process)
    if noise is not None:
        raise UnsupportedError(
            f"The predictions of a {type(process).__name__} include noise: pass neither `Yvar` nor "
            "a tensor as `observation_noise`."
        )
    zero = X.new_zeros(*X.shape[:-1], 1)
    outcome_map = normal_scores(posterior)
    inputs = process.transform_inputs(X)
    return CalibratedPosterior.of_targets(
        zero, torch.ones_like(zero), None, inputs, outcome_map, objective=False
    )


def _posterior_of_observations(process: Any, X: Tensor) -> Any:
    """Return the posterior with noise, or without this argument if the process refuses it."""
    # A prior-fitted network always includes noise, and would log that it ignores the argument.
    if not learns_in_context(process):
        with suppress(TypeError, ValueError, NotImplementedError, BotorchError):
            return process.posterior(X, observation_noise=True)
    return process.posterior(X)


def observations_only(process: object) -> UnsupportedError:
    """Return an error to raise for a process that predicts only observations."""
    return UnsupportedError(
        f"A {type(process).__name__} predicts observations only, not the objective without noise: "
        "make the CalibratedModel with `denoise=False`."
    )


# ------------------------------------------------------------ moments of the targets


class Targets(NamedTuple):
    """Moments of the objective in the space of the targets, without noise.

    For an ensemble of ``S`` members, the shapes are ``batch_shape x S x ...``.
    """

    mean: Tensor  # batch_shape x q x 1
    variance: Tensor  # variance of the objective, batch_shape x q x 1
    inputs: Tensor  # transformed inputs, batch_shape x q x d
    covariance: Tensor | LinearOperator | None = None  # batch_shape x q x q, if joint
    with_baseline: Tensor | None = None  # covariance with the baseline, batch_shape x q x r


def _targets_at(process: Any, X: Tensor, members: bool, baseline: Tensor | None = None) -> Targets:
    """Return moments at ``X``, which includes any task column, by the cached factor if possible.

    ``members`` tells whether the process is an ensemble.
    """
    kept = moments_by_factor(process, X, members, baseline)
    if kept is not None:
        return kept
    if baseline is not None:
        return _targets_with_baseline(process, X, members, baseline)
    posterior = in_space_of_targets(process).posterior(X)
    if not isinstance(posterior, GPyTorchPosterior):
        raise UnsupportedError(
            f"The posterior of {type(process).__name__} is a {type(posterior).__name__}, not "
            "Gaussian in the space of its targets: apply transforms to the observations "
            "beforehand, or register it by `normal_scores.register`."
        )
    normal = posterior.distribution
    operator, shape = normal.lazy_covariance_matrix, normal.batch_shape + normal.event_shape
    # Means of a batch may share one covariance matrix, so expand the variances.
    variance = operator.diagonal(dim1=-1, dim2=-2).expand(shape).unsqueeze(-1)
    inputs = process.transform_inputs(X.unsqueeze(MEMBER_DIM) if members else X)
    # Whether the posterior is joint depends on the number of values: a one-to-many input transform
    # turns one point into several points.
    return Targets(posterior.mean, variance, inputs, operator if shape[-1] > 1 else None)


@gpt_posterior_settings()
def moments_by_factor(
    process: Any, X: Tensor, members: bool = False, baseline: Tensor | None = None
) -> Targets | None:
    """Return moments at ``X`` by the cached Cholesky factor; None if this is not supported.

    ``X``, ``batch_shape x q x d``, includes any task column. ``members`` tells whether the process
    is an ensemble. The posterior is joint if ``q > 1`` or a ``baseline``, ``r x d``, is given.
    """
    is_joint = X.shape[-2] > 1 or baseline is not None
    if not X.numel() or not may_serve(process, members) or (is_joint and members):
        return None
    factor = factor_of(process)
    if factor is None or (is_joint and factor.cholesky.dim() > 2):
        return None
    if is_joint:
        num = X.shape[-2] + process.train_inputs[0].shape[-2]
        if baseline is None and num > max_eager_kernel_size.value():
            return None
        inputs = process.transform_inputs(X)
        if inputs.shape[-2] != X.shape[-2] or (baseline is not None and baseline.dim() != 2):
            return None
        moments = factor.moments(process, inputs, joint=True, baseline=baseline)
        if moments is None:
            return None
        mean, rows = moments
        known, own = rows[..., : -X.shape[-2]], rows[..., -X.shape[-2] :]
        variance = own.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        return Targets(mean, variance, inputs, own, known)
    points, lead = _points_last(
        X.unsqueeze(MEMBER_DIM) if members else X, factor.cholesky.dim() - 2
    )
    inputs = process.transform_inputs(points)
    moments = factor.moments(process, inputs) if inputs.shape[-2] == points.shape[-2] else None
    if moments is None:
        return None
    mean, variance, inputs = (_points_first(values, lead) for values in (*moments, inputs))
    return Targets(mean, variance.expand_as(mean), inputs.expand(*mean.shape[:-1], -1))


def _targets_with_baseline(process: Any, X: Tensor, members: bool, baseline: Tensor) -> Targets:
    """Return moments at ``X`` and covariances with a baseline, without the cached factor.

    Both are taken from one joint posterior. For arguments see `moments_by_factor`.
    """
    baseline = match_batch_shape(with_task_feature(process, baseline), X)
    together = torch.cat([baseline, X], dim=-2)
    mean, variance, inputs, operator, _ = _targets_at(process, together, members)
    # The last `num` values belong to `X`. A one-to-many input transform turns each point into the
    # same number of points.
    num = mean.shape[-2] * X.shape[-2] // (baseline.shape[-2] + X.shape[-2])
    assert operator is not None
    rows = operator[..., -num:, :]
    rows = rows.to_dense() if isinstance(rows, LinearOperator) else rows
    mean, variance, inputs = (values[..., -num:, :] for values in (mean, variance, inputs))
    return Targets(mean, variance, inputs, rows[..., -num:], rows[..., :-num])


def _points_last(X: Tensor, batch_dims: int) -> tuple[Tensor, Size]:
    """Return single points ``X``, ``batch_shape x 1 x d``, as rows of one matrix for each model.

    The matrices are ``model_batch_shape x num_points x d``, where the model has ``batch_dims``
    batch dimensions. They are the last dimensions of ``batch_shape``, if ``X`` has them, and else
    of size 1. The other dimensions of ``batch_shape`` are the second result.
    """
    lead = X.shape[: max(X.dim() - 2 - batch_dims, 0)]
    rows = X.squeeze(-2)[(None,) * (batch_dims - (X.dim() - 2 - len(lead)))]
    return rows.reshape(-1, *rows.shape[len(lead) :]).movedim(0, -2), lead


def _points_first(values: Tensor, lead: Size) -> Tensor:
    """Undo `_points_last` for values ``model_batch_shape x num_points x k``.

    ``lead`` is its second result. The values are returned as ``lead x model_batch_shape x 1 x k``.
    """
    values = values.movedim(-2, 0)
    return values.reshape(*lead, *values.shape[1:-1], 1, values.shape[-1])


def _added_noise(process: object, X: Tensor, targets: Targets, members: bool) -> Tensor:
    """Return the noise variance of new observations at ``X``, with the same shape as the means.

    It is the difference between the posterior variances with and without noise. ``members`` tells
    whether the process is an ensemble.
    """
    if not members:  # an ensemble adds the dimension of members itself
        X = X.expand(*targets.mean.shape[:-2], *X.shape[-2:])
    normal = in_space_of_targets(process).posterior(X, observation_noise=True).distribution
    noisy = normal.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2).unsqueeze(-1)
    return (noisy - targets.variance).clamp(min=0.0)


def _in_common_units(
    targets: Targets, noise: Tensor | None, outcome_map: OutcomeMap
) -> tuple[Targets, Tensor | None, OutcomeMap]:
    """Express the moments and noise of all members in the units of the first member's targets.

    The members may have different ``Standardize`` transforms. The third result is the first
    member's outcome map, which then holds for all members.
    """
    if not isinstance(outcome_map, Affine):
        return targets, noise, outcome_map
    weight, offset = outcome_map.weight, outcome_map.offset
    if isinstance(weight, float) or weight.dim() < 3 or weight.shape[MEMBER_DIM] == 1:
        return targets, noise, outcome_map
    assert isinstance(offset, Tensor)
    first = Affine(weight[..., 0, :, :], offset[..., 0, :, :])
    ratio = weight / weight[..., :1, :, :]
    shift = (offset - offset[..., :1, :, :]) / weight[..., :1, :, :]
    covariance = targets.covariance
    targets = targets._replace(
        mean=shift + ratio * targets.mean,
        variance=ratio.square() * targets.variance,
        covariance=None if covariance is None else covariance * ratio.square(),
    )
    return targets, None if noise is None else ratio.square() * noise, first


# ------------------------------------------------------------ noise of observations


def noise_at(process: Any, inputs: Tensor) -> Tensor | None:
    """Return the noise variance of new observations in the space of the targets.

    ``inputs``, ``... x q x d``, are transformed points, including any task column; for an ensemble,
    ``...`` ends with a dimension of members. The result can be broadcast to ``... x q x 1``; it is
    None if only BoTorch can compute the noise. (BoTorch's posteriors differ: they add given noise
    twice if part of the noise is learned, and do not add the noise of an outlier-robust model.)
    """
    if isinstance(process, MultiTaskGPyTorchModel):  # each task may have different noise
        return _given_noise_by_task(process, inputs)
    if isinstance(process.likelihood, LearnedSpreadLikelihood):
        return process.likelihood.variances(inputs).unsqueeze(-1)
    return constant_noise(process.likelihood)


def constant_noise(likelihood: Likelihood) -> Tensor | None:
    """Return the noise variance of new observations, ``batch_shape x 1 x 1``, or None.

    It is the variance of a ``GaussianLikelihood``, the base variance of an outlier-robust
    likelihood, or the mean of given variances. Other likelihoods, whose noise need not be constant,
    give None.
    """
    if type(likelihood) is GaussianLikelihood:
        return likelihood.noise.unsqueeze(-1)
    if type(likelihood) is SparseOutlierGaussianLikelihood:
        noise = likelihood.noise_covar.base_noise.noise
    elif isinstance(likelihood, FixedNoiseGaussianLikelihood):
        noise = likelihood.noise
    else:
        return None
    return noise.mean(dim=-1, keepdim=True).unsqueeze(-1)


def _given_noise_by_task(model: Any, inputs: Tensor) -> Tensor | None:
    """Return, for each row of ``inputs``, the mean of the noise variances given for its task.

    ``inputs`` are as in `noise_at`. The result is ``... x q x 1``, or None if the noise is learned.
    BoTorch's posteriors contain the same noise, with two exceptions up to version 0.18.1: a model
    that is conditioned on batches raises an error, and the noise of a task without observations is
    NaN. Here the noise of such a task is the mean over the observations of all tasks.
    """
    if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        return None
    # A posterior has been evaluated before, so `train_inputs` are transformed, as the points are.
    own, seen = (Z[..., model._task_feature].round() for Z in (inputs, model.train_inputs[0]))
    same = (own.unsqueeze(-1) == seen.unsqueeze(-2)).to(inputs)
    noise = model.likelihood.noise.unsqueeze(-1)
    count = same.sum(dim=-1, keepdim=True)
    own_mean = (same @ noise) / count.clamp_min(1.0)
    return torch.where(count > 0.0, own_mean, noise.mean(dim=-2, keepdim=True))


# ------------------------------------------------------------ as BoTorch's posteriors


def process_posterior(
    process: Any,
    X: Tensor,
    observation_noise: bool | Tensor = False,
    posterior_transform: PosteriorTransform | None = None,
) -> Posterior:
    """Return ``process.posterior(X, ...)``, computed by `moments_by_factor` if possible.

    Unlike BoTorch, it adds the noise once if part of the noise is given and part is learned.
    """
    with _naming_misfits(process, X):
        kept, X = None, with_task_feature(process, X)
        if observation_noise is False and kind_of(process) != "members":
            kept = moments_by_factor(process, X)
        outcome_map = None if kept is None else outcome_map_of(process, X)
        if kept is None or not isinstance(outcome_map, Affine):
            noise = _undoubled_noise(process, X, observation_noise)
            return process.posterior(
                X, observation_noise=noise, posterior_transform=posterior_transform
            )
        covariance = kept.variance if kept.covariance is None else kept.covariance
        mean = outcome_map.outcome(kept.mean).to(kept.mean)
        unit = outcome_map.scaled(torch.ones_like(mean)).to(mean)
        operator = to_linear_operator(covariance * unit * unit.mT)
        posterior = GPyTorchPosterior(MultivariateNormal(mean.squeeze(-1), operator))
        return posterior if posterior_transform is None else posterior_transform(posterior, X=X)


def _undoubled_noise(process: object, X: Tensor, noise: bool | Tensor) -> bool | Tensor:
    """Return the argument ``observation_noise`` with which BoTorch adds the noise once.

    If part of the noise is given and part is learned, BoTorch adds the noise twice. The result is
    then half of ``noise``, or of the mean noise variance if ``noise`` is True.
    """
    if noise is False or learned_noise(process) is None:
        return noise
    variance = likelihood_of(process).noise.mean() if noise is True else noise
    return X.new_ones(*X.shape[:-1], 1) * variance / 2


def mean_and_deviation(
    model: Any, X: Tensor, posterior_transform: PosteriorTransform | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of the objective, in units of the outcome.

    Both are ``batch_shape x q x 1``, or ``batch_shape x S x q x 1`` for an ensemble of ``S``
    members. ``model`` is any model with one output whose posterior has a mean and a variance.
    """
    if not isinstance(model, (WrapperModel, GPyTorchModel)):
        posterior = model.posterior(X, posterior_transform=posterior_transform)
        return posterior.mean, posterior.variance.clamp_min(MIN_VARIANCE).sqrt()
    prediction = predict(model, X)
    if posterior_transform is not None:
        prediction = prediction.affine(*scalar_affine(posterior_transform, "a model"))
    mean, variance = (
        (prediction.mean, prediction.variance) if prediction.members else prediction.moments()
    )
    return mean, variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


# ------------------------------------------------------------ observations


def scores_of_observations(
    process: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return inputs for calibrators, ``n x d``, and normal scores ``n`` of observations.

    The normal score of an observation is ``Phi^-1(F)``, where ``F`` is its predicted cdf. ``X`` is
    ``n x d``, and ``Y`` is ``n x 1``. Noise variances ``Yvar``, ``n x 1``, in squared units of the
    outcome, replace the model's noise variance unless they are NaN.
    """
    with as_in_training(process):
        points = X.unsqueeze(-2)
        prediction = predict(
            process, points, objective=False, sole_values="The score of an observation"
        )
        if Yvar is not None and prediction.target_noise is not None:
            prediction.target_noise = _given_noise(process, prediction, X, Y, Yvar)
        z = prediction.own_score(Y.unsqueeze(-1)).reshape(-1)
    z = z.clamp(-_FARTHEST, _FARTHEST) if kind_of(process) == "cdf" else z
    return inputs_of_calibrator(prediction).squeeze(-2), z.to(Y)


def _given_noise(process: Any, prediction: Any, X: Tensor, Y: Tensor, Yvar: Tensor) -> Tensor:
    """Return ``Yvar`` in the space of the targets, with the model's noise in place of NaN.

    ``X`` and ``Y`` are needed if the transform is not affine. Any learned noise is added to
    ``Yvar``. The result broadcasts against the shape of the prediction's noise.
    """
    shape = -1, *[1] * (prediction.target_mean.dim() - 1)
    if isinstance(prediction.outcome_map, Affine):
        given = prediction.outcome_map.scaled(Yvar.double().view(shape), power=-2)
    else:
        strata = inputs_of_transform(process, with_task_feature(process, X))
        given = process.outcome_transform(Y, Yvar, **strata)[1].double().view(shape)
    learned = learned_noise(process)
    if learned is not None:  # the process adds it to given variances
        given = given + learned.unsqueeze(-1)
    return torch.where(given.isnan(), prediction.target_noise, given)


class PastPredictions(NamedTuple):
    """A process's predictions of its training data, each made without the predicted observation."""

    inputs: Tensor  # n x d, for calibrators
    scores: Tensor  # n, normal scores
    raw_inputs: Tensor  # n x d, before any input transform
    outcomes: Tensor  # n x 1
    # The uncalibrated predictions, n x 1; None for a prior-fitted network
    prediction: CalibratedPosterior | None


@torch.no_grad()
def history(process: Any, residuals: str = "prequential", num_initial: int = 0) -> PastPredictions:
    """Return a process's predictions of its training data, each without the observation itself.

    For a multi-task process only data from the output task are predicted. A prior-fitted network
    predicts each observation from the earlier observations, and does not predict the first one.

    Args:
        process: An exact Gaussian process, an ensemble of exact Gaussian processes, or a
            prior-fitted network (see `learns_in_context`). Its training data are in the order in
            which they were observed.
        residuals: ``"prequential"`` to predict each observation from the earlier observations, or
            ``"loo"`` to predict it from all other observations. A prior-fitted network needs
            ``"prequential"``.
        num_initial: Number of initial observations (the design) to skip.

    Raises:
        UnsupportedError: If the process cannot predict its past data.
        InputDataError: If there are no training data, or fewer than ``num_initial``.
    """
    kind = kind_of(process)
    if kind == "cdf":
        return _history_in_context(process, residuals, num_initial)
    members = kind == "members"
    if is_to_be_fitted(process):
        raise UnsupportedError(
            f"{type(process).__name__} has no draws of its hyperparameters yet: fit it by "
            "`fit_fully_bayesian_model_nuts`, or load them by `load_mcmc_samples`."
        )
    if members:
        process.eval()  # in training mode fully Bayesian models have no draws
    inputs, z, deviations = forecast_history(process, residuals, members)
    own = in_output_task(process, inputs).nonzero().squeeze(-1)
    own = own[_checked_num(num_initial, len(own)) :]
    raw, outcomes = (values[own].detach() for values in train_data(process))
    z, deviations, targets = (v[..., own] for v in (z, deviations, process.train_targets))
    mean = (targets - deviations * z).unsqueeze(-1)
    moments = Targets(mean, deviations.square().unsqueeze(-1), inputs[own])
    outcome_map = outcome_map_of(process, raw)
    if members:
        moments, _, outcome_map = _in_common_units(moments, None, outcome_map)
    about = moments.mean, moments.variance, None, moments.inputs, outcome_map
    prediction = CalibratedPosterior.of_targets(*about, objective=False, members=members)
    scores = score_of_members(z) if members else z
    return PastPredictions(moments.inputs, scores, raw, outcomes, prediction)


def _checked_num(num: int, num_observations: int) -> int:
    if not (isinstance(num, Integral) and 0 <= int(num) <= num_observations):
        raise InputDataError(
            "`num_initial` must be an integer between 0 and the number of observations "
            f"{num_observations}, got {num!r}."
        )
    return int(num)


def _history_in_context(process: Any, residuals: str, num_initial: int) -> PastPredictions:
    if not learns_in_context(process):
        raise UnsupportedError(
            f"Past data cannot be replayed by a {type(process).__name__}: calibrate it online, by "
            "calling `CalibratedModel.observe` with each new observation, and judge it on held-out "
            "data."
        )
    if residuals != "prequential":
        raise UnsupportedError(
            f"A {type(process).__name__} predicts each observation from earlier observations: "
            "leave-one-out residuals are for Gaussian processes."
        )
    X, Y = process.train_X, process.train_Y
    z = Y.new_zeros(max(len(X) - 1, 0))
    for i in range(1, len(X)):
        earlier = with_context(process, X[:i], Y[:i])
        z[i - 1 : i] = scores_of_observations(earlier, X[i : i + 1], Y[i : i + 1])[1]
    start, inputs = _checked_num(num_initial, len(z)), process.transform_inputs(X).detach()
    inputs, raw, outcomes = (each[1 + start :] for each in (inputs, X, Y))
    return PastPredictions(inputs, z[start:], raw, outcomes, None)
