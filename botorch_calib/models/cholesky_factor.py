"""What prediction keeps of an exact process: its Cholesky factor, renewed when the process changes.

With ``K + noise = L L^T`` of the training data, `Factor` holds ``L`` and ``(K + noise)^-1 (y - m)``
and gives the moments at other points. It is kept as long as data and hyperparameters stay the same,
and what GPyTorch keeps of the model is kept in step with it.
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
from torch.nn import Parameter
from torch.utils.weak import WeakTensorKeyDictionary

from botorch_calib.models.cholesky_row_updates import solved
from botorch_calib.models.outcome_transforms import outcome_transform_of
from botorch_calib.models.process import with_task_feature
from botorch_calib.models.radial_kernels import radial_between

# Above this size a parameter is compared by its address and version alone: see `_state_of`.
_MAX_COMPARED = 256


@dataclass(frozen=True, eq=False)
class Factor:
    """What prediction takes of a model's data and hyperparameters."""

    # Where all models of a batch share the first two, these have batch dimensions of size 1.
    inputs: Tensor  # model_batch_shape x n x d, as the kernel sees them
    cholesky: Tensor  # model_batch_shape x n x n, lower factor of K + noise
    weights: Tensor  # model_batch_shape x n x 1, (K + noise)^-1 (y - m)
    # By the tensors of baselines ``r x d``: see `_of_baseline`.
    _baselines: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)

    def moments(
        self, model: Any, inputs: Tensor, joint: bool = False, baseline: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Mean and variance at ``model_batch_shape x b x d``, ``x b x 1``, of the targets.

        With ``joint`` the covariance, ``x b x b``, for any batch of points and a single model; that
        with a ``baseline`` before it.
        """
        prior = model.forward(inputs)
        own = prior.lazy_covariance_matrix
        # GPyTorch's setting `lazily_evaluate_kernels` is global: another thread may have it off.
        if not isinstance(own, LazyEvaluatedKernelTensor):
            return None
        points = self.inputs
        if baseline is not None:
            others, explained_of_others = self._of_baseline(model, baseline)
            points = torch.cat([points, others], dim=-2)
        if joint:  # the kernel among the points is evaluated with it
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
        # From the right, as the kernel lies in rows: LAPACK's columns would be copies, both ways.
        return torch.linalg.solve_triangular(self.cholesky.mT, cross, upper=True, left=False)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _of_baseline(self, model: Any, baseline: Tensor) -> tuple[Tensor, Tensor]:
        """Points as the kernel sees them, and what the data explain of them, ``r x n``."""
        known, state = self._baselines.get(baseline), _state_of(baseline)
        if known is None or known[0] != state:
            inputs = model.transform_inputs(with_task_feature(model, baseline))
            own = model.forward(inputs).lazy_covariance_matrix
            kernel, _ = _kernel_between(self.inputs, own)
            explained = torch.linalg.solve_triangular(self.cholesky, kernel, upper=False).mT
            # A clone, as what is kept must not keep the baseline.
            known = self._baselines[baseline] = state, own.x1.clone(), explained
        points: Tensor
        _, points, explained = known
        return points, explained


def _kernel_between(
    inputs: Tensor, own: LazyEvaluatedKernelTensor
) -> tuple[Tensor, Tensor | float | None]:
    """The kernel of a lazy matrix between others' points and its own, and, if known, its diagonal.

    In this order: GPyTorch centres distances at the mean of the first points, and what is predicted
    at a point must not depend on its neighbours in a batch.
    """
    radial = radial_between(inputs, own)
    if radial is not None:
        return radial
    cross = LazyEvaluatedKernelTensor(
        inputs, own.x1, own.kernel, last_dim_is_batch=own.last_dim_is_batch, **own.params
    )
    return cross.evaluate_kernel().to_dense(), None


class _Known(NamedTuple):
    """A model's factor, None if it cannot be served, and what the factor depends on."""

    factor: Factor | None
    state: ModelState
    strategy: Any  # what GPyTorch kept of the model then


_KNOWN: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def factor_of(model: Any) -> Factor | None:
    """The factor of a model that may be served, from the cache while that is valid."""
    if model.training:
        model.eval()  # which puts transformed inputs in place
    state, known = ModelState(model), _KNOWN.get(model)
    kept = model.prediction_strategy  # which GPyTorch drops in training mode, and when it loads
    if known is None or known.strategy is not kept or known.state != state:
        factor, strategy = _factorise(model)
        if kept is None or not _is_of(kept, factor):
            # BoTorch conditions a model, and predicts jointly, from what it finds here.
            model.prediction_strategy = kept = strategy
        known = _KNOWN[model] = _Known(factor, state, kept)
    return known.factor


def _is_of(strategy: Any, factor: Factor | None) -> bool:
    """Whether what GPyTorch kept may be of the same data and hyperparameters."""
    if factor is None or type(strategy) is not DefaultPredictionStrategy:
        return True
    weights, kept = factor.weights.squeeze(-1), strategy.mean_cache
    return weights.shape == kept.shape and torch.allclose(
        weights, kept, rtol=1e-4, atol=1e-4 * float(weights.abs().max())
    )


def keep_in_step(model: Any) -> None:
    """Renew what GPyTorch keeps of an exact process after an in-place change of hyperparameters."""
    if may_serve(model):
        with gpt_posterior_settings():
            factor_of(model)


def in_space_of_targets(model: Any) -> Any:
    """A copy, for use at once, of a model without its outcome transform: it shares all else.

    It is the model itself if that has none.
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
    """Take over a model's factor, which was made by adding rows to that of another model."""
    if may_serve(model):
        with torch.no_grad(), gpt_posterior_settings():
            covariance = model.forward(*model.train_inputs).lazy_covariance_matrix
        is_lazy = isinstance(covariance, LazyEvaluatedKernelTensor)
        if is_lazy and _tells_its_diagonal(model, covariance):
            factor = Factor(covariance.x1, cholesky, weights)
            _KNOWN[model] = _Known(factor, ModelState(model), model.prediction_strategy)


_POSTERIORS = (
    GPyTorchModel.posterior,
    BatchedMultiOutputGPyTorchModel.posterior,
    MultiTaskGPyTorchModel.posterior,
)
# These ask those above for the posteriors of their members, a batch.
_POSTERIORS_OF_ENSEMBLES = (
    AbstractFullyBayesianSingleTaskGP.posterior,
    EnsembleMapSaasSingleTaskGP.posterior,
    SaasFullyBayesianMultiTaskGP.posterior,
)


def may_serve(model: Any, members: bool = False) -> bool:
    """Whether ``model.posterior`` is that of an exact process, defined by ``model.forward``."""
    kind: Any = type(model)
    served = _POSTERIORS_OF_ENSEMBLES if members else _POSTERIORS
    return bool(
        issubclass(kind, ExactGP)
        and issubclass(kind, GPyTorchModel)
        and any(kind.posterior is known for known in served)
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
    """Data and hyperparameters of a process at one time, to compare with those of another.

    Tensors are compared by identity and version. GPyTorch's ``initialize`` sets hyperparameters
    through ``.data``, which leaves no trace but their values: these are compared, except on a GPU,
    where that would wait for the device at every evaluation. There, as in GPyTorch itself, such a
    change is felt after ``model.train()``.
    """

    def __init__(self, model: Any) -> None:
        # While these tensors are kept, no new tensor can have the identity of one of them.
        self._tensors: list[Tensor] = [*model.parameters()]
        if isinstance(model, ExactGP):
            self._tensors += [model.train_inputs[0], model.train_targets]
            noise = getattr(model.likelihood, "noise_covar", None)
            if isinstance(noise, FixedGaussianNoise):  # which is no parameter
                self._tensors.append(noise.noise)
        self._state = [_state_of(values) for values in self._tensors]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelState) and self._state == other._state


def _state_of(values: Tensor) -> Any:
    if isinstance(values, Parameter) and not values.is_cuda and values.numel() <= _MAX_COMPARED:
        return values.tolist()
    return id(values), values.data_ptr(), 0 if values.is_inference() else values._version


@torch.inference_mode(False)  # else no graph could use what is kept
@torch.no_grad()
def _factorise(model: Any) -> tuple[Factor | None, DefaultPredictionStrategy | None]:
    """The factor, and what GPyTorch keeps; None where the prior is not one of a single kernel."""
    inputs, targets, likelihood = list(model.train_inputs), model.train_targets, model.likelihood
    prior = model.forward(*inputs)
    covariance = prior.lazy_covariance_matrix
    if type(prior) is not MultivariateNormal or not isinstance(
        covariance, LazyEvaluatedKernelTensor
    ):
        return None, None
    strategy = covariance.kernel.prediction_strategy(inputs, prior, targets, likelihood)
    is_usual = type(strategy) in (DefaultPredictionStrategy, LinearPredictionStrategy)
    if not (is_usual and _tells_its_diagonal(model, covariance)):
        return None, strategy
    noisy = likelihood(prior, inputs).lazy_covariance_matrix.to_dense()
    points = covariance.x1.clone() if covariance.x1.is_inference() else covariance.x1
    if noisy.dim() > 2 and points.dim() == noisy.dim():
        first = (slice(1),) * (noisy.dim() - 2)
        if all(bool((each == each[first]).all()) for each in (points, noisy)):
            # Fantasies differ in their targets alone.
            points, noisy = points[first], noisy[first]
    cholesky = psd_safe_cholesky(noisy)
    weights = solved(cholesky, (targets - prior.loc).unsqueeze(-1))
    if type(strategy) is DefaultPredictionStrategy:
        whole = cholesky.expand(*weights.shape[:-2], *cholesky.shape[-2:])
        root = RootLinearOperator(TriangularLinearOperator(whole))
        add_to_cache(strategy.lik_train_train_covar, "root_decomposition", root)
        add_to_cache(strategy, "mean_cache", weights.squeeze(-1), observation_nan_policy.value())
    return Factor(points, cholesky, weights), strategy


def _tells_its_diagonal(model: Any, covariance: LazyEvaluatedKernelTensor) -> bool:
    """Whether the kernel returns only the diagonal when GPyTorch asks for it; some do not."""
    points = model.train_inputs[0][..., :2, :]
    # As `moments` gives them: products of kernels want the batch dimensions of members.
    points = points.expand(*covariance.shape[:-2], *points.shape[-2:])
    own = model.forward(points).lazy_covariance_matrix
    try:
        diagonal: Tensor = own.diagonal(dim1=-1, dim2=-2)
    except RuntimeError:
        return False
    return diagonal.shape == own.shape[:-1]
