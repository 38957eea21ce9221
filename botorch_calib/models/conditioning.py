"""Condition models on noisy observations, with errors that explain failures."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.models.model import Model
from botorch.settings import propagate_grads
from botorch.utils.transforms import is_ensemble
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from gpytorch.settings import detach_test_caches, observation_nan_policy
from gpytorch.utils.memoize import add_to_cache
from linear_operator.operators import TriangularLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_calib.models.cholesky_factor import keep_in_step, remember_factor, solved
from botorch_calib.models.outcome_transforms import check_takes, inputs_of_transform
from botorch_calib.models.partly_known_noise import PartlyKnownNoiseLikelihood
from botorch_calib.models.process import (
    as_in_training,
    check_fits,
    learned_noise,
    likelihood_of,
    observed_process,
    with_task_feature,
)
from botorch_calib.models.wrapper import WrapperModel


def conditioned_on(model: Any, X: Tensor, Y: Tensor, **kwargs: Any) -> Model:
    """Return a model conditioned on observations; ``model`` is unchanged, even after an error.

    ``X``, ``batch_shape x n' x d``, and ``Y``, ``batch_shape' x n' x 1``, are not transformed yet;
    input transforms act as on training inputs. The task column of a multi-task model may be omitted
    in ``X``. The keyword ``noise``, if given, has the shape of ``Y`` and is the total noise
    variance after the outcome transform, including any learned part. If the model learns one noise
    variance, the result has a `PartlyKnownNoiseLikelihood`. For an exact Gaussian process, rows are
    added to the Cholesky factor of the training covariance.
    If ``X`` or ``Y`` requires gradients, the predictions of the result are differentiable in ``X``
    and ``Y``, even if GPyTorch's setting ``detach_test_caches`` is on.

    Raises:
        UnsupportedError: If the model cannot be conditioned.
    """
    if isinstance(model, WrapperModel):  # the method calls this function with the process inside
        return model.condition_on_observations(X, Y, **kwargs)
    X = with_task_feature(model, X)
    check_takes(model, X, Y)
    try:
        with as_in_training(model):
            return _conditioned(model, X, Y, **kwargs)
    except (RuntimeError, AttributeError, TypeError, NotImplementedError) as error:
        # GPyTorch's errors mention internal sizes, or missing methods of a model. Raise an error
        # that names the cause in terms of the arguments, or else a remedy.
        check_fits(model, X)
        reason = str(error).partition(". ")[0].rstrip(".")
        raise UnsupportedError(
            f"{type(model).__name__} cannot be conditioned on observations ({reason}). Use an "
            "exact GP such as SingleTaskGP. Or, to calibrate only, call `observe` with "
            "`condition=False` and refit; and pass pending points to a Monte Carlo acquisition "
            "function."
        ) from error


def _conditioned(model: Any, X: Tensor, Y: Tensor, **kwargs: Any) -> Model:
    likelihood = likelihood_of(model)
    if isinstance(likelihood, SparseOutlierGaussianLikelihood):
        # The likelihood would lose the variances that it learned for single observations when the
        # next Cholesky factor is computed, so the model is refused.
        raise NotImplementedError("its likelihood has learned a noise variance of each observation")
    noise: Any = kwargs.get("noise")
    if noise is None and isinstance(likelihood, PartlyKnownNoiseLikelihood):
        kwargs["noise"] = noise = torch.full_like(Y, torch.nan)
    has_one_variance = type(likelihood) is GaussianLikelihood
    takes_noise = has_one_variance or isinstance(likelihood, FixedNoiseGaussianLikelihood)
    if noise is not None and isinstance(likelihood, _GaussianLikelihoodBase) and not takes_noise:
        raise NotImplementedError("its likelihood learns the noise, and takes no given `noise`")
    if isinstance(getattr(likelihood, "noise_covar", None), HeteroskedasticNoise):
        return _with_data_added(model, X, Y)
    keeps_graph = X.requires_grad or Y.requires_grad
    keep_in_step(model)
    # BoTorch's exact GPs can be conditioned only after an evaluation, so evaluate the model.
    if hasattr(model, "prediction_strategy") and (
        model.training or model.prediction_strategy is None
    ):
        with torch.no_grad():
            model.posterior(X)
    strategy: Any = getattr(model, "prediction_strategy", None)
    # Subclasses of the strategy (interpolated, sparse) do not cache a Cholesky factor to extend.
    has_factor = type(strategy) is DefaultPredictionStrategy
    if keeps_graph and has_factor:
        _drop_graph_of_parameters(model)
    learned = None if noise is None else learned_noise(model)
    if learned is not None:
        # For new data GPyTorch adds `noise` twice, in place of the given part and in place of the
        # learned part, so pass half of it.
        kwargs["noise"] = noise / 2
    # GPyTorch temporarily removes data and likelihood from the model that it conditions. Condition
    # a shallow copy, so that an error in the meantime cannot leave `model` without them.
    twin = copy(model)
    twin._modules = dict(model._modules)
    if noise is not None and has_one_variance and strategy is not None:
        # This likelihood has one variance for all observations, and would forget given variances.
        unknown = torch.full_like(model.train_targets, torch.nan)
        twin.likelihood = PartlyKnownNoiseLikelihood(unknown, likelihood)
        twin.prediction_strategy = strategy = copy(strategy)
        strategy.likelihood = twin.likelihood
    update = _RowUpdate(strategy) if has_factor and not torch.is_grad_enabled() else None
    if update is not None:
        twin.prediction_strategy = update
    with detach_test_caches(detach_test_caches.on() and not keeps_graph):
        conditioned = twin.condition_on_observations(X, Y, **kwargs)
        strategy = getattr(conditioned, "prediction_strategy", None)
        if learned is not None:
            rows = conditioned.likelihood.noise_covar.noise[..., likelihood.noise.shape[-1] :]
            rows.copy_((noise.squeeze(-1) - learned).detach())
            if keeps_graph:
                strategy.likelihood = conditioned.likelihood
            else:
                conditioned.prediction_strategy = None  # was computed with half of the noise
        if keeps_graph and strategy is not None:
            # Compute the weights of the mean, (K + noise)^-1 (y - m), here with their graph.
            # GPyTorch writes the weights to its cache under one name and reads another name, so the
            # first prediction would compute the weights again, and detach them.
            _ = strategy.mean_cache
    if update is not None and update.factor is not None:
        remember_factor(conditioned, *update.factor)
    return conditioned


def _with_data_added(model: ExactGP, X: Tensor, Y: Tensor) -> Model:
    """Return a copy of a model with ``X`` and ``Y`` added to its training data, without a refit.

    The model has a likelihood with ``HeteroskedasticNoise``: another model predicts its noise.
    """
    model.eval()  # so that its training inputs are transformed
    twin = copy(model)
    twin._modules = dict(model._modules)
    inputs = torch.cat([*model.train_inputs, model.transform_inputs(X)], dim=-2)
    if hasattr(model, "outcome_transform"):
        Y, _ = model.outcome_transform(Y, **inputs_of_transform(model, X))
    targets = torch.cat([model.train_targets, Y.squeeze(-1)], dim=-1)
    twin.set_train_data(inputs, targets, strict=False)
    if model._original_train_inputs is not None:
        twin._original_train_inputs = torch.cat([model._original_train_inputs, X], dim=-2)
    return twin


def _drop_graph_of_parameters(model: ExactGP) -> None:
    """Detach the cached Cholesky factor from the model's hyperparameters.

    The factor keeps its graph if the training data require gradients or ``propagate_grads`` is on.
    """
    # Otherwise a first backward pass through a conditioned model would free the graph of the cached
    # factor, and a second pass would fail.
    data = *model.train_inputs, model.train_targets
    if propagate_grads.on() or any(values.requires_grad for values in data):
        return
    covariance = model.prediction_strategy.lik_train_train_covar
    for name in ("root_decomposition", "root_inv_decomposition"):
        factor = getattr(covariance, name)()
        if factor.requires_grad:
            add_to_cache(covariance, name, factor.detach())


class _RowUpdate:
    """A substitute for a model's prediction strategy while GPyTorch conditions the model.

    Let ``K + noise = L L^T`` be the covariance of ``n`` training observations. For ``k`` new
    observations it gains the rows ``[B, D]``, where ``B``, ``k x n``, is their covariance with the
    training observations, and ``D``, ``k x k``, is their own covariance. Then ``L`` gains the rows
    ``[V^T, C]`` with ``V = L^{-1} B^T`` and ``C C^T = D - V^T V``, in ``O(n^2 k)`` operations.
    GPyTorch's update takes ``O(n^3)`` operations, and loses digits by explicit inverses. With
    GPyTorch's update, a proposal after 1000 failed trials takes 6.6 times as long.
    """

    def __init__(self, strategy: DefaultPredictionStrategy) -> None:
        self._strategy = strategy
        # The extended factor, (n + k) x (n + k), and the weights of the mean, (n + k) x 1, which
        # are (K + noise)^{-1} (y - m) of all observations. None if GPyTorch's update is used.
        self.factor: tuple[Tensor, Tensor] | None = None
        self.train_prior_dist = strategy.train_prior_dist

    def get_fantasy_strategy(
        self,
        inputs: list[Tensor],
        targets: Tensor,
        full_inputs: list[Tensor],
        full_targets: Tensor,
        full_output: MultivariateNormal,
        **kwargs: Any,
    ) -> DefaultPredictionStrategy:
        """Return the strategy after the new data are added; for arguments see GPyTorch's method."""
        old = self._strategy
        # The factor L of K + noise, from the strategy's cache if it has been computed.
        factor = old.lik_train_train_covar.root_decomposition().root
        if (
            full_targets.dim() != 1
            or full_inputs[0].dim() != 2
            or type(full_output) is not MultivariateNormal
            or not isinstance(factor, TriangularLinearOperator)
        ):
            return old.get_fantasy_strategy(
                inputs, targets, full_inputs, full_targets, full_output, **kwargs
            )
        # The first n rows of the prior are for the old points, the last rows for the new points.
        n = old.num_train
        covariance = full_output.lazy_covariance_matrix
        prior = MultivariateNormal(full_output.mean[n:], covariance[n:, n:])
        # A fixed-noise likelihood takes the noise of the new points from `kwargs`.
        noisy = old.likelihood.get_fantasy_likelihood(**kwargs)
        block = noisy(prior, inputs, **kwargs).covariance_matrix
        root = _extended(factor.to_dense(), covariance[n:, :n].to_dense(), block)
        new = DefaultPredictionStrategy(
            train_inputs=full_inputs,
            train_prior_dist=full_output,
            train_labels=full_targets,
            likelihood=noisy,
            root=TriangularLinearOperator(root),
        )
        # Cache the weights (K + noise)^-1 (y - m), which GPyTorch would otherwise compute again.
        weights = solved(root, (full_targets - full_output.mean).unsqueeze(-1))
        self.factor = root, weights
        add_to_cache(new, "mean_cache", weights.squeeze(-1), observation_nan_policy.value())
        return new


def _extended(L: Tensor, cross: Tensor, block: Tensor) -> Tensor:
    """Extend a lower Cholesky factor ``L``, ``n x n``, to ``(n + k) x (n + k)``.

    ``cross``, ``k x n``, is the covariance of the new points with the old points. ``block``,
    ``k x k``, is the covariance of the new points with each other, including noise.
    """
    # `block - V.mT @ V` is the posterior covariance of the new observations. If rounding errors
    # make it indefinite, for example at repeated points, `psd_safe_cholesky` adds jitter.
    V = torch.linalg.solve_triangular(L, cross.mT, upper=False)
    n, size = len(L), len(L) + len(block)
    root = L.new_zeros(size, size)
    root[:n, :n], root[n:, :n], root[n:, n:] = L, V.mT, psd_safe_cholesky(block - V.mT @ V)
    return root


def given_noise(model: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> dict[str, Tensor]:
    """Return the keyword ``noise`` of `conditioned_on`, for a model with given noise variances.

    For other models the result is empty. ``X``, ``n x d``, ``Y`` and ``Yvar``, ``n x 1``, are not
    transformed. The noise is ``Yvar`` after the outcome transform, plus the variance that the model
    learns in addition. ``Yvar`` is NaN if unknown (default: all NaN). NaN is replaced with the mean
    of the model's noise, but remains for a `PartlyKnownNoiseLikelihood`, which accepts NaN.
    """
    likelihood = likelihood_of(model)
    if not isinstance(likelihood, FixedNoiseGaussianLikelihood):
        return {}
    if Yvar is None:
        Yvar = torch.full_like(Y, torch.nan)
    model.eval()  # in training mode `Standardize` would learn its moments from `Y`
    if hasattr(model, "outcome_transform"):
        strata = inputs_of_transform(model, with_task_feature(model, X))
        Yvar = model.outcome_transform(Y, Yvar, **strata)[1]
    if isinstance(likelihood, PartlyKnownNoiseLikelihood):
        return {"noise": Yvar}
    Yvar = Yvar + likelihood.second_noise
    return {"noise": torch.where(Yvar.isnan(), likelihood.noise.mean(), Yvar)}


def with_observations(model: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Model:
    """Return a model conditioned on observations ``X``, ``n x d``, and ``Y``, ``n x 1``.

    ``Yvar``, ``n x 1``, contains their noise variances, as in `given_noise`. For an ensemble, ``Y``
    may have different values for each member, ``num_members x n x 1``. ``model`` does not change.
    """
    process = observed_process(model)
    if learns_in_context(process):
        context = torch.cat([process.train_X, X]), torch.cat([process.train_Y, Y])
        return with_context(process, *context)
    if not is_ensemble(process) or not process.batch_shape:  # a `NoisyEnsemble` has none
        return conditioned_on(model, X, Y, **given_noise(process, X, Y, Yvar))
    shape = *process.batch_shape, *Y.shape[-2:]
    noise = given_noise(process, X, Y.expand(shape)[0], Yvar)
    noise = {name: values.expand(shape) for name, values in noise.items()}
    return conditioned_on(model, X.expand(*shape[:-1], X.shape[-1]), Y.expand(shape), **noise)


def learns_in_context(model: object) -> bool:
    """Whether a model is a prior-fitted network (PFN) of botorch_community.

    A PFN learns in context: its network is not fitted to the data, and each prediction takes all
    training data as an input of the network.
    """
    return all(hasattr(model, name) for name in ("pfn", "train_X", "train_Y"))


def with_context(model: Any, X: Tensor, Y: Tensor) -> Any:
    """Return a copy of a PFN (see `learns_in_context`) with the same network and other data.

    ``X``, ``n x d``, and ``Y``, ``n x 1``, replace its training data.
    """
    other = copy(model)
    other.train_X, other.train_Y, other.train_Yvar = X, Y, torch.zeros_like(Y)
    other.transformed_X = model.transform_inputs(X)
    return other
