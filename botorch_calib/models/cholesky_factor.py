"""Cached Cholesky factors of exact Gaussian processes, for fast predictions.

Let ``y`` be the training targets, ``m`` the prior mean, and ``K + noise = L L^T`` the covariance of
``y``. With ``k = k(X_train, x)`` and ``w = L^{-1} k``, the posterior of the objective at ``x`` is

    ``mean = m(x) + k^T (K + noise)^{-1} (y - m)``, ``covariance = k(x, x') - w^T w'``,

where ``w'`` is ``w`` at ``x'``. A `Factor` stores ``L`` and the weights ``(K + noise)^{-1} (y -
m)``. When data or hyperparameters have changed, the factor and GPyTorch's caches of the model are
renewed together. The model's own modules evaluate mean and kernel. The kernel must support
rectangular matrices and diagonals, as most kernels do. Triangular solves, instead of an inverse,
preserve the digits of small variances.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from botorch.models.fully_bayesian import AbstractFullyBayesianSingleTaskGP
from botorch.models.fully_bayesian_multitask import SaasFullyBayesianMultiTaskGP
from botorch.models.gpytorch import (
    BatchedMultiOutputGPyTorchModel,
    GPyTorchModel,
    MultiTaskGPyTorchModel,
)
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.utils import gpt_posterior_settings
from botorch.settings import propagate_grads
from gpytorch.distributions import MultivariateNormal
from gpytorch.lazy import LazyEvaluatedKernelTensor
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import (
    DefaultPredictionStrategy,
    LinearPredictionStrategy,
)
from gpytorch.settings import lazily_evaluate_kernels, observation_nan_policy, prior_mode
from gpytorch.utils.memoize import add_to_cache
from linear_operator.operators import RootLinearOperator, TriangularLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from botorch_calib.models.outcome_transforms import outcome_transform_of
from botorch_calib.models.process import with_task_feature
from botorch_calib.models.radial_kernels import radial_between

# When states are compared, a parameter or buffer with at most this many elements is compared by
# value. Larger ones are compared by identity and version, since reading all values would take too
# long.
_MAX_COMPARED = 256


@dataclass(frozen=True, eq=False)
class Factor:
    """Cholesky factor ``L`` and weights of the mean, with the notation of the module docstring."""

    # If all models of a batch have equal inputs and factors, the batch dimensions of these two
    # tensors have size 1.
    inputs: Tensor  # model_batch_shape x n x d, transformed
    cholesky: Tensor  # model_batch_shape x n x n, lower factor of K + noise
    weights: Tensor  # model_batch_shape x n x 1, (K + noise)^-1 (y - m)
    # Results of `_of_baseline`; the keys are baseline tensors.
    _baselines: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)

    def moments(
        self, model: ExactGP, inputs: Tensor, joint: bool = False, baseline: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Return the posterior mean and variance at ``inputs``, without noise.

        ``inputs``, ``model_batch_shape x b x d``, are transformed. The results, ``model_batch_shape
        x b x 1``, are in the space of the targets, after the outcome transform. The result is None
        if GPyTorch does not evaluate the kernel lazily.

        With ``joint``, the model must have no batch dimensions, but ``inputs`` may have any batch
        shape. The second tensor is then the covariance matrix, ``batch_shape x b x b``. With
        ``joint`` and a ``baseline`` of raw points ``r x d``, the second tensor is ``batch_shape x b
        x (r + b)``, and its first ``r`` columns are the covariance with the baseline.
        """
        prior = model.forward(inputs)
        own = prior.lazy_covariance_matrix
        # GPyTorch's setting `lazily_evaluate_kernels` is global, so another thread may have turned
        # it off since `may_serve` checked it.
        if not isinstance(own, LazyEvaluatedKernelTensor):
            return None
        points = self.inputs
        if baseline is not None:
            others, explained_of_others = self._of_baseline(model, baseline)
            points = torch.cat([points, others], dim=-2)
        if joint:  # also evaluate the kernel between pairs of `inputs`
            points = torch.cat([points.expand(*inputs.shape[:-2], -1, -1), own.x1], dim=-2)
        kernel, prior_variance = _kernel_between(points, own)
        kernel = kernel.mT
        cross = kernel[..., : self.cholesky.shape[-1]]
        if joint:
            mean = prior.loc.unsqueeze(-1) + cross @ self.weights
            explained = self._explained(cross.reshape(-1, cross.shape[-1]))
            shared = explained.view_as(cross)
            shared = shared @ shared.mT
            if baseline is not None:
                with_others = (explained @ explained_of_others.mT).view(*cross.shape[:-1], -1)
                shared = torch.cat([with_others, shared], dim=-1)
            return mean, kernel[..., cross.shape[-1] :] - shared
        if prior_variance is None:
            prior_variance = own.diagonal(dim1=-1, dim2=-2)
        variance = prior_variance - self._explained(cross).square().sum(dim=-1)
        return prior.loc.unsqueeze(-1) + cross @ self.weights, variance.unsqueeze(-1)

    def _explained(self, cross: Tensor) -> Tensor:
        # Solve from the right: a solution from the left would copy the row-major kernel twice.
        return torch.linalg.solve_triangular(self.cholesky.mT, cross, upper=True, left=False)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _of_baseline(self, model: ExactGP, baseline: Tensor) -> tuple[Tensor, Tensor]:
        """Return the transformed baseline, ``r x d``, and ``k L^{-T}``, ``r x n``, from a cache.

        ``k`` is the kernel between the baseline and the ``n`` training inputs.
        """
        known, state = self._baselines.get(baseline), _state_of(baseline)
        if known is None or known[0] != state:
            inputs = model.transform_inputs(with_task_feature(model, baseline))
            own = model.forward(inputs).lazy_covariance_matrix
            kernel, _ = _kernel_between(self.inputs, own)
            explained = torch.linalg.solve_triangular(self.cholesky, kernel, upper=False).mT
            # Without an input transform `own.x1` may be the baseline itself. The cache has weak
            # keys and must not hold a reference to the baseline, so store a clone.
            known = self._baselines[baseline] = state, own.x1.clone(), explained
        return known[1], known[2]


def _kernel_between(
    inputs: Tensor, own: LazyEvaluatedKernelTensor
) -> tuple[Tensor, Tensor | float | None]:
    """Return the kernel between ``inputs`` and the points of ``own``, and the kernel's variance.

    For ``inputs`` ``... x n x d`` and a lazily evaluated kernel ``own`` of ``m`` points, the kernel
    is ``... x n x m``. The variance, at distance 0, is None unless the kernel is radial.
    """
    radial = radial_between(inputs, own)
    if radial is not None:
        return radial
    # GPyTorch centres distances at the mean of the first argument. `inputs`, which start with the
    # training inputs, come first, so that a prediction depends on no other point of a batch.
    cross = LazyEvaluatedKernelTensor(
        inputs, own.x1, own.kernel, last_dim_is_batch=own.last_dim_is_batch, **own.params
    )
    return cross.evaluate_kernel().to_dense(), None


class _Known(NamedTuple):
    """A model's factor (None for an unsupported kernel), and the state for which it is valid."""

    factor: Factor | None
    state: ModelState
    strategy: DefaultPredictionStrategy | None  # the model's prediction strategy at that time


_KNOWN: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def factor_of(model: ExactGP) -> Factor | None:
    """Return the `Factor` of a model for which `may_serve` is true.

    The result is None if the model's kernel is not supported. The factor is cached until the
    model's data or hyperparameters change. If the model's prediction strategy is missing or
    outdated, it is replaced.
    """
    if model.training:
        model.eval()  # transforms the training inputs
    state, known = ModelState(model), _KNOWN.get(model)
    kept = model.prediction_strategy  # None in training mode, and after a state is loaded
    if known is None or known.strategy is not kept or known.state != state:
        factor, strategy = _factorise(model)
        if kept is None or not _agrees(kept, factor):
            # BoTorch uses the prediction strategy for conditioning and for predictions that do not
            # use a factor, so renew it as well.
            model.prediction_strategy = kept = strategy
        known = _KNOWN[model] = _Known(factor, state, kept)
    return known.factor


def _agrees(strategy: DefaultPredictionStrategy, factor: Factor | None) -> bool:
    """Whether a prediction strategy has the weights of the factor, up to rounding.

    The result is True if they cannot be compared.
    """
    if factor is None or type(strategy) is not DefaultPredictionStrategy:
        return True
    weights, kept = factor.weights.squeeze(-1), strategy.mean_cache
    return weights.shape == kept.shape and torch.allclose(
        weights, kept, rtol=1e-4, atol=1e-4 * float(weights.abs().max())
    )


def keep_in_step(model: object) -> None:
    """Renew GPyTorch's caches of an exact process after an in-place change of hyperparameters."""
    if may_serve(model):
        with gpt_posterior_settings():
            factor_of(model)


def in_space_of_targets(model: Any) -> Any:
    """Return a shallow copy of a model without its outcome transform, to predict targets.

    Use the copy at once: it shares data and caches with the model, which may change. A model that
    has no outcome transform is returned itself.
    """
    if outcome_transform_of(model) is None:
        return model
    if model.training:
        model.eval()
    keep_in_step(model)
    bare = copy(model)
    bare._modules = {k: v for k, v in model._modules.items() if k != "outcome_transform"}
    if (known := _KNOWN.get(model)) is not None:
        _KNOWN[bare] = known
    return bare


def remember_factor(model: Any, cholesky: Tensor, weights: Tensor) -> None:
    """Cache a model's factor, which was computed by adding rows to another model's factor.

    ``cholesky``, ``n x n``, and ``weights``, ``n x 1``, are attributes of the new `Factor`.
    """
    if may_serve(model):
        with torch.no_grad(), gpt_posterior_settings():
            covariance = model.forward(*model.train_inputs).lazy_covariance_matrix
        is_lazy = isinstance(covariance, LazyEvaluatedKernelTensor)
        if is_lazy and _supports_diagonal(model, covariance):
            factor = Factor(covariance.x1, cholesky, weights)
            _KNOWN[model] = _Known(factor, ModelState(model), model.prediction_strategy)


_POSTERIORS = (
    GPyTorchModel.posterior,
    BatchedMultiOutputGPyTorchModel.posterior,
    MultiTaskGPyTorchModel.posterior,
)
# Ensembles' methods `posterior`, which call one of the methods above for the batch of all members
_POSTERIORS_OF_ENSEMBLES = (
    AbstractFullyBayesianSingleTaskGP.posterior,
    EnsembleMapSaasSingleTaskGP.posterior,
    SaasFullyBayesianMultiTaskGP.posterior,
)


def may_serve(model: Any, members: bool = False) -> bool:
    """Whether a `Factor` can replace ``model.posterior``.

    The model must be an exact Gaussian process with one output, whose ``posterior`` is a method of
    BoTorch; with ``members`` it must be an ensemble of such processes. The training data must not
    require gradients. GPyTorch's settings ``observation_nan_policy``, ``prior_mode`` and
    ``lazily_evaluate_kernels`` and BoTorch's ``propagate_grads`` must have their default values.
    """
    kind: Any = type(model)
    served = _POSTERIORS_OF_ENSEMBLES if members else _POSTERIORS
    return bool(
        issubclass(kind, ExactGP)
        and issubclass(kind, GPyTorchModel)
        and kind.posterior in served
        and kind.__call__ is ExactGP.__call__
        and kind._get_test_prior_mean_and_covariances
        is ExactGP._get_test_prior_mean_and_covariances
        and model.num_outputs == 1
        and model.train_inputs is not None
        and len(model.train_inputs) == 1
        and not model.train_targets.requires_grad
        and not model.train_inputs[0].requires_grad
        and observation_nan_policy.value() == "ignore"
        and not prior_mode.on()
        and propagate_grads.off()
        and lazily_evaluate_kernels.on()
    )


class ModelState:
    """A record of a process's data and hyperparameters, for comparison with a later record.

    Tensors are compared by identity and version. GPyTorch's ``initialize`` sets hyperparameters
    through ``.data``, which changes their values but not their versions. Therefore small parameters
    and buffers are compared by value, except on a GPU, where the host would wait for the device at
    each evaluation. On a GPU, as in GPyTorch itself, a change through ``.data`` has no effect until
    ``model.train()`` is called.
    """

    def __init__(self, model: Any) -> None:
        own: list[Tensor | None] = []
        data: list[Tensor] = []
        for name, part in model.named_modules():
            own += part._parameters.values()
            # The training inputs are transformed already, and `InputPerturbation` replaces its
            # buffer at each prediction.
            if "input_transform" not in name:
                own += part._buffers.values()
            if isinstance(part, FixedGaussianNoise):
                data.append(part.noise)  # may contain NaN, which does not equal itself
        if isinstance(model, ExactGP):
            data += [model.train_inputs[0], model.train_targets]
        # Keep references to the tensors, as a new tensor may get the `id` of a deleted tensor.
        compared = [values for values in own if values is not None]
        self._tensors = [*compared, *data]
        self._state = [*map(_value_or_state_of, compared), *map(_state_of, data)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelState) and self._state == other._state


def _value_or_state_of(values: Tensor) -> Any:
    is_compared = values.is_cpu and not values.is_sparse and values.numel() <= _MAX_COMPARED
    if not is_compared:
        return _state_of(values)
    # Compare bytes, since a buffer may contain NaN, which does not equal itself.
    own = values.detach()
    own = own.float() if own.dtype is torch.bfloat16 else own  # which NumPy lacks
    return own.numpy().tobytes()


def _state_of(values: Tensor) -> tuple[int, int, int]:
    return id(values), values.data_ptr(), 0 if values.is_inference() else values._version


@torch.inference_mode(False)  # autograd cannot save tensors made in inference mode
@torch.no_grad()
def _factorise(model: ExactGP) -> tuple[Factor | None, DefaultPredictionStrategy | None]:
    """Return a model's `Factor` and GPyTorch's prediction strategy, each None if not supported."""
    inputs, targets, likelihood = list(model.train_inputs), model.train_targets, model.likelihood
    prior = model.forward(*inputs)
    covariance = prior.lazy_covariance_matrix
    if type(prior) is not MultivariateNormal or not isinstance(
        covariance, LazyEvaluatedKernelTensor
    ):
        return None, None
    strategy = covariance.kernel.prediction_strategy(inputs, prior, targets, likelihood)
    is_usual = type(strategy) in (DefaultPredictionStrategy, LinearPredictionStrategy)
    if not (is_usual and _supports_diagonal(model, covariance)):
        return None, strategy
    noisy = likelihood(prior, inputs).lazy_covariance_matrix.to_dense()
    points = covariance.x1.clone() if covariance.x1.is_inference() else covariance.x1
    if noisy.dim() > 2 and points.dim() == noisy.dim():
        first = (slice(1),) * (noisy.dim() - 2)
        if all(bool((each == each[first]).all()) for each in (points, noisy)):
            # Models that are conditioned on fantasies differ only in their targets, so factorise
            # the covariance of the first model for all.
            points, noisy = points[first], noisy[first]
    cholesky = psd_safe_cholesky(noisy)
    weights = solved(cholesky, (targets - prior.loc).unsqueeze(-1))
    if type(strategy) is DefaultPredictionStrategy:
        whole = cholesky.expand(*weights.shape[:-2], *cholesky.shape[-2:])
        root = RootLinearOperator(TriangularLinearOperator(whole))
        add_to_cache(strategy.lik_train_train_covar, "root_decomposition", root)
        add_to_cache(strategy, "mean_cache", weights.squeeze(-1), observation_nan_policy.value())
    return Factor(points, cholesky, weights), strategy


def _supports_diagonal(model: ExactGP, covariance: LazyEvaluatedKernelTensor) -> bool:
    """Whether the kernel computes diagonals; some kernels raise or return the whole matrix."""
    points = model.train_inputs[0][..., :2, :]
    # Products of kernels need inputs with the model's batch dimensions; `Factor.moments` gets such
    # inputs, too.
    points = points.expand(*covariance.shape[:-2], *points.shape[-2:])
    own = model.forward(points).lazy_covariance_matrix
    try:
        diagonal = own.diagonal(dim1=-1, dim2=-2)
    except RuntimeError:
        return False
    return diagonal.shape == own.shape[:-1]


def solved(cholesky: Tensor, column: Tensor) -> Tensor:
    """Return ``(L L^T)^-1`` times a column, where ``L`` is the lower factor ``cholesky``.

    The factor is ``... x n x n``, and the column is ``... x n x 1``. At ``n = 2000``,
    `torch.cholesky_solve` takes forty times as long for a single column.
    """
    half = torch.linalg.solve_triangular(cholesky, column, upper=False)
    return torch.linalg.solve_triangular(cholesky.mT, half, upper=True)
