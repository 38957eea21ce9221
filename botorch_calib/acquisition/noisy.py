r"""Noisy expected improvement and hypervolume improvement with cached roots of covariances.

BoTorch's noisy acquisition functions compare samples at new points with samples at the baseline,
which contains all points evaluated so far. They compute a root (Cholesky factor) of the covariance
at the baseline once, and each evaluation only adds the rows of the new points [Daulton2021nehvi].

A `CalibratedPosterior` is not normal, but its joint samples are functions of two independent sample
paths of one Gaussian posterior: the uncalibrated objective, and a path in the role of the noise.
The classes in this module cache the root of the covariance of this Gaussian posterior. The outcomes
of a `CalibratedModelList` are independent, and each outcome has its own root.

.. [Ament2023logei]
    S. Ament, S. Daulton, D. Eriksson, M. Balandat and E. Bakshy. Unexpected improvements to
    expected improvement for Bayesian optimization. NeurIPS 36, 2023.

.. [Daulton2021nehvi]
    S. Daulton, M. Balandat and E. Bakshy. Parallel Bayesian optimization of multiple noisy
    objectives with expected hypervolume improvement. NeurIPS 34, 2021.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from botorch.acquisition import utils
from botorch.acquisition.cached_cholesky import CachedCholeskyMCSamplerMixin, supports_cache_root
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.model import Model, ModelList
from botorch.posteriors import Posterior
from botorch.sampling import MCSampler
from botorch.sampling.normal import NormalMCSampler
from botorch.utils.transforms import is_ensemble, match_batch_shape
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from botorch_calib._validation import check_finite, check_numbers
from botorch_calib.exceptions import warn
from botorch_calib.models import CalibratedModelList
from botorch_calib.models.predict import slots_of
from botorch_calib.models.process import kind_of
from botorch_calib.models.wrapper import WrapperModel
from botorch_calib.optim.random_seeds import random_stream
from botorch_calib.posteriors import CalibratedPosterior, CalibratedPosteriorList

# A private function of BoTorch that estimates the value for infeasible points. If it exists, it is
# replaced below by `_of_same_draws`.
_NAME = "_estimate_objective_lower_bound"
_of_new_draws: Any = getattr(utils, _NAME, None)


def _of_same_draws(*args: Any, **named: Any) -> Any:
    """BoTorch's value for infeasible points; for models of this package, with the same draws.

    Without a cached root, BoTorch's classes estimate this value from new draws in each evaluation,
    so a search would follow the noise of the estimate. The function itself is replaced, since no
    argument or method of these classes overrides the estimate.
    """
    is_ours = isinstance(named.get("model"), (WrapperModel, CalibratedModelList))
    with random_stream(0, named["X"].device) if is_ours else nullcontext():
        return _of_new_draws(*args, **named)


if _of_new_draws is not None:
    setattr(utils, _NAME, _of_same_draws)


def keeps_roots(model: Model) -> bool:
    """Whether the covariance roots at a baseline can be cached for all outcomes of a model."""
    if is_ensemble(model):
        return False
    if isinstance(model, CalibratedModelList):
        return all(keeps_roots(part) for part in model.models)
    process, calibrator, *_ = slots_of(model, pending=True)
    if calibrator is not None:
        return kind_of(process) != "cdf"
    return bool(supports_cache_root(process))


class _CachedRoots(CachedCholeskyMCSamplerMixin):
    """Mixin that extends BoTorch's cached root to the Gaussian posteriors of calibrated models."""

    _root_is_kept: bool
    # Whether the cached root belongs to a calibrated posterior, so that `_samples_from_root` must
    # extend it to new points. BoTorch's own methods extend the roots of Gaussian posteriors.
    _root_is_ours = False
    _baseline_L: Any  # the cached root, or a list with one root per outcome
    model: Any
    q_in: int
    sampler: MCSampler
    X_baseline: Tensor

    def __init__(
        self, model: Model, X_baseline: Tensor, *, cache_root: bool | None = None, **kwargs: Any
    ) -> None:
        # BoTorch's constructor uses both kinds of points before the call of `set_X_pending`, so
        # both are checked here.
        if check_finite("X_baseline", X_baseline).dim() < 2:
            raise BotorchTensorDimensionError(
                f"`X_baseline` must have shape r x d, got {tuple(X_baseline.shape)}."
            )
        if (X_pending := kwargs.get("X_pending")) is not None:
            check_finite("X_pending", X_pending)
        if type(model) is ModelList and any(isinstance(m, WrapperModel) for m in model.models):
            raise UnsupportedError(
                "`model` is BoTorch's ModelList, which uses a separate sampler for each outcome: "
                "give `CalibratedModelList(*model.models)`, or use BoTorch's own acquisition "
                "function if some of the models are not supported there."
            )
        # A ListSampler has separate base samples for each outcome; a StochasticSampler has none.
        sampler = kwargs.get("sampler")
        keeps_samples = isinstance(sampler, NormalMCSampler) and len(sampler.sample_shape) == 1
        possible = keeps_roots(model) and (sampler is None or keeps_samples)
        if cache_root and not possible:
            warn(
                "`cache_root` needs calibrated models, or models whose root BoTorch caches, and "
                "one sampler of base samples whose `sample_shape` has one dimension, got "
                f"{type(model).__name__} and {type(sampler).__name__}: samples are drawn without "
                "a cached root.",
                BotorchWarning,
            )
        self._root_is_kept = possible and cache_root is not False
        super().__init__(model=model, X_baseline=X_baseline, **kwargs)  # type: ignore[call-arg]

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Set the points under evaluation, ``n x d`` and finite, or None to clear them."""
        if X_pending is not None:  # the root cannot be extended to NaN or infinite points
            check_finite("X_pending", X_pending)
        super().set_X_pending(X_pending)  # type: ignore[misc]

    @property
    def _cache_root(self) -> bool:
        return self._root_is_kept

    @_cache_root.setter
    def _cache_root(self, value: bool) -> None:
        """Ignore the value, because BoTorch enables the cache for its own types of models only."""

    def _compute_root_decomposition(self, posterior: Posterior) -> Any:
        root = super()._compute_root_decomposition
        self._root_is_ours = isinstance(posterior, (CalibratedPosterior, CalibratedPosteriorList))
        if isinstance(posterior, CalibratedPosteriorList):
            return [root(part.path_posterior) for part in posterior.posteriors]
        if isinstance(posterior, CalibratedPosterior):
            return root(posterior.path_posterior)
        return root(posterior)

    def _samples_from_root(self, X: Tensor) -> Tensor:
        """Samples ``sample_shape x batch_shape x q x m`` of all outcomes, from the extended root.

        ``X`` are the new points, ``batch_shape x q x d``.
        """
        sampler, baseline = self.sampler, self.X_baseline
        # The class for hypervolumes has no posterior transform.
        transform = getattr(self, "posterior_transform", None)
        posterior_of = partial(self.model.posterior, posterior_transform=transform)

        def joint_posterior() -> Any:
            return posterior_of(torch.cat([match_batch_shape(baseline, X), X], dim=-2))

        posterior = posterior_of(X, baseline=baseline)
        q_in = posterior._extended_shape()[-2]  # more than q with a one-to-many input transform
        if self.q_in != q_in:
            self._set_sampler(q_in, joint_posterior())
        # The base samples have as many t-batch dimensions, all of size 1, as earlier points had.
        ones = [1] * (len(posterior._extended_shape()) - 2)
        base_samples: Any = sampler.base_samples
        if base_samples.dim() != len(ones) + 3:
            shape = *sampler.sample_shape, *ones, *base_samples.shape[-2:]
            sampler.base_samples = base_samples.view(shape)
        try:
            samples: Tensor = posterior.rsample_from_cached_root(
                sampler.sample_shape, sampler.base_samples, self._baseline_L
            )
        except (NanError, NotPSDError):
            warn(
                "The cached root could not be extended, as the covariance of the new points "
                "is ill-conditioned or NaN: samples are drawn without the root.",
                BotorchWarning,
            )
            samples = self.get_posterior_samples(joint_posterior())[..., -q_in:, :]
        return samples


class qLogCalibratedNoisyExpectedImprovement(_CachedRoots, qLogNoisyExpectedImprovement):
    r"""Log noisy expected improvement of calibrated models, with cached roots, by sampling.

    The value is ``log E[max_j f~(x_j) - max_i f~(x_i)]+`` for ``q`` new points ``x_j`` and the
    points ``x_i`` evaluated so far (or pending, unless ``incremental=False``). The expectation is
    over joint samples of the objective ``f~`` from the calibrated posterior, and the objective is
    maximised. Arguments, and values for the same samples, are the same as in BoTorch's
    ``qLogNoisyExpectedImprovement`` [Ament2023logei].

    The root (Cholesky factor) of the covariance at the points ``x_i`` is cached, and each
    evaluation extends it to the new points. BoTorch's class caches roots for BoTorch's own models
    only; for other models it factors the joint covariance in each evaluation. If the root cannot be
    extended, a ``BotorchWarning`` is issued, and samples are drawn without the root.

    Args:
        model: A fitted `CalibratedModel`, a `CalibratedModelList` (for outcome constraints and
            objectives of several outcomes), or a BoTorch model.
        X_baseline: Points evaluated so far, ``r x d``. If the root is cached, values have no
            gradients with respect to these points.
        cache_root: Whether to cache the root (default: True if the models of all outcomes and the
            sampler support it). If True but unsupported, a ``BotorchWarning`` is issued.
        kwargs: Other arguments of BoTorch's class.

    Raises:
        InputDataError: If baseline or pending points are not finite.
        UnsupportedError: If ``model`` is a ``ModelList`` with calibrated models.

    Example:
        >>> acqf = qLogCalibratedNoisyExpectedImprovement(model, X_baseline=X)
        >>> values = acqf(torch.rand(5, 2, 2, dtype=torch.double))  # of five pairs of points
    """

    def _init_baseline(self, *args: Any, **kwargs: Any) -> None:
        # BoTorch would warn that it does not support the model, although this class does.
        super()._init_baseline(*args, **{**kwargs, "cache_root": None})

    def _get_samples_and_objectives(self, X: Tensor) -> tuple[Tensor, Tensor]:
        if not self._root_is_ours:
            return super()._get_samples_and_objectives(X)
        samples = self._samples_from_root(X)
        return samples, self.objective(samples, X=X)


class qLogCalibratedNoisyExpectedHypervolumeImprovement(  # type: ignore[misc]
    _CachedRoots, qLogNoisyExpectedHypervolumeImprovement
):
    r"""Log noisy expected hypervolume improvement of calibrated models, with cached roots.

    The value is the logarithm of the expected increase, due to the new points, of the hypervolume
    that the evaluated points dominate above a reference point. The expectation is over joint
    samples of the posteriors. All objectives are maximised. Arguments, and values for the same
    samples, are the same as in BoTorch's ``qLogNoisyExpectedHypervolumeImprovement``
    [Daulton2021nehvi, Ament2023logei]. `qLogCalibratedNoisyExpectedImprovement` explains cached
    roots, and lists further errors.

    Args:
        model: A `CalibratedModelList`, or a BoTorch model.
        ref_point: The reference point of the ``m`` objectives, in their units.
        X_baseline, cache_root: See `qLogCalibratedNoisyExpectedImprovement`.
        kwargs: Other arguments of BoTorch's class. ``cache_pending=False``, which fails in BoTorch,
            raises ``InputDataError``; with ``max_iep=n`` up to ``n`` pending points are evaluated
            together with the new points instead.

    Example:
        >>> gps = SingleTaskGP(X, torch.cat([Y, -Y], dim=-1))
        >>> model = CalibratedModelList.from_history(gps, LocalizedConformal(0.2))
        >>> acqf = qLogCalibratedNoisyExpectedHypervolumeImprovement(model, [-2.0, -2.0], X)
    """

    def __init__(
        self,
        model: Model,
        ref_point: list[float] | Tensor,
        X_baseline: Tensor,
        *,
        cache_root: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if not kwargs.get("cache_pending", True):
            raise InputDataError(
                "`cache_pending=False` fails in BoTorch: give `max_iep=n` to evaluate `n` pending "
                "points together with the new points."
            )
        point = check_numbers("ref_point", ref_point)
        if point.dim() != 1 or len(point) < 2:
            raise BotorchTensorDimensionError(
                "`ref_point` must contain one number for each of at least two objectives, got "
                f"{ref_point!r}."
            )
        super().__init__(model, X_baseline, cache_root=cache_root, ref_point=ref_point, **kwargs)

    def _compute_posterior_samples_and_concat_pending(self, X: Tensor) -> tuple[Tensor, Tensor]:
        if not self._root_is_ours:
            return super()._compute_posterior_samples_and_concat_pending(X)
        if self.X_pending is not None:
            baseline, observed = self.X_baseline, self.get_buffer("_X_baseline")
            uncached = self.X_pending[baseline.shape[-2] - observed.shape[-2] :]
            X = torch.cat([X, match_batch_shape(uncached, X)], dim=-2)
        return self._samples_from_root(X), X
