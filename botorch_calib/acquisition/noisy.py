r"""Noisy expected improvement and hypervolume improvement with a cached root.

BoTorch's noisy acquisition functions compare new points to samples at all points evaluated so far.
They factor the joint covariance at the latter once, and an evaluation only adds the rows of the
new points [Daulton2021nehvi]. A `CalibratedPosterior` is not normal, but its joint samples are
functions of two paths of the Gaussian posterior beneath it, whose root is kept here.

.. [Ament2023logei]
    S. Ament, S. Daulton, D. Eriksson, M. Balandat and E. Bakshy. Unexpected improvements to
    expected improvement for Bayesian optimization. NeurIPS 36, 2023.

.. [Daulton2021nehvi]
    S. Daulton, M. Balandat and E. Bakshy. Parallel Bayesian optimization of multiple noisy
    objectives with expected hypervolume improvement. NeurIPS 34, 2021.
"""

from __future__ import annotations

import warnings
from typing import Any

from botorch.acquisition.cached_cholesky import CachedCholeskyMCSamplerMixin, supports_cache_root
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.model import Model, ModelList
from botorch.models.model_list_gp_regression import ModelListGP
from botorch.posteriors import Posterior, PosteriorList
from botorch.sampling.base import MCSampler
from botorch.sampling.list_sampler import ListSampler
from botorch.sampling.normal import NormalMCSampler
from botorch.utils.low_rank import sample_cached_cholesky
from botorch.utils.transforms import is_ensemble
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from botorch_calib._validation import check_finite, check_tensor
from botorch_calib.models import CalibratedModel
from botorch_calib.models.inspection import predicting_part
from botorch_calib.posteriors import CalibratedPosterior


def keeps_roots(model: Model) -> bool:
    """Whether all outcomes of a model have a root to keep: calibrated ones and BoTorch's own."""
    model = predicting_part(model)
    if is_ensemble(model):
        return False
    if isinstance(model, CalibratedModel):
        return True
    if isinstance(model, ModelList) and not isinstance(model, ModelListGP):
        return all(keeps_roots(part) for part in model.models)  # type: ignore[arg-type]
    return bool(supports_cache_root(model))


class _CachedRoots(CachedCholeskyMCSamplerMixin):
    """BoTorch's cached root, one for each posterior that is part of the model's."""

    _root_is_kept: bool
    _baseline_L: Any  # a tensor in BoTorch's classes

    def _decide(
        self, model: Model, cache_root: bool | None, X_baseline: Tensor, **kwargs: Any
    ) -> None:
        """Check arguments and decide whether to keep roots, before BoTorch's constructor."""
        for name, X in (("X_baseline", X_baseline), ("X_pending", kwargs.get("X_pending"))):
            if X is not None:
                check_finite(name, check_tensor(name, X))
        if isinstance(model, ModelList) and not isinstance(model, ModelListGP):
            check_for_list(kwargs.get("sampler"), kwargs.get("posterior_transform"))
        possible = keeps_roots(model)
        if cache_root and not possible:
            warnings.warn(
                "`cache_root` needs calibrated models or those of which BoTorch keeps the root, "
                f"got {type(model).__name__}: samples are drawn without it.",
                BotorchWarning,
                stacklevel=3,
            )
        self._root_is_kept = possible and cache_root is not False

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Set the points under evaluation, ``n x d`` and finite, or None to clear them."""
        if X_pending is not None:  # no root survives others
            check_finite("X_pending", check_tensor("X_pending", X_pending))
        super().set_X_pending(X_pending)  # type: ignore[misc]

    @property
    def _cache_root(self) -> bool:
        return self._root_is_kept

    @_cache_root.setter
    def _cache_root(self, value: bool) -> None:
        """Ignore BoTorch's choice, as it knows its own models alone."""

    def _compute_root_decomposition(self, posterior: Posterior) -> Any:
        roots = []
        for part in _parts(posterior):
            base = part.path_posterior if isinstance(part, CalibratedPosterior) else part
            roots.append(super()._compute_root_decomposition(base))
        return roots

    def _get_f_X_samples(self, posterior: Posterior, q_in: int) -> Tensor:
        if self._cache_root and hasattr(self, "_baseline_L"):
            try:
                return self._samples_from_roots(posterior, q_in)
            except (NanError, NotPSDError):
                warnings.warn(
                    "The cached root could not be extended, as the covariance of the new points "
                    "is ill-conditioned or NaN: samples are drawn without it.",
                    BotorchWarning,
                    stacklevel=3,
                )
        return self.get_posterior_samples(posterior)[..., -q_in:, :]

    def _samples_from_roots(self, posterior: Posterior, q_in: int) -> Tensor:
        """Samples at the last ``q_in`` points, ``sample_shape x batch_shape x q_in x m``."""
        sampler: Any = self.sampler
        samplers = sampler.samplers if isinstance(sampler, ListSampler) else [sampler]
        samples = []
        for part, root, sampler in zip(_parts(posterior), self._baseline_L, samplers, strict=True):
            arguments: dict[str, Any] = {
                "sample_shape": sampler.sample_shape,
                "base_samples": sampler.base_samples,
                "baseline_L": root,
                "q": q_in,
            }
            if isinstance(part, CalibratedPosterior):
                samples.append(part.rsample_from_cached_root(**arguments))
            else:
                samples.append(sample_cached_cholesky(part, **arguments))
        if isinstance(posterior, PosteriorList):
            joined: Tensor = posterior._reshape_and_cat(samples)
            return joined
        return samples[0]


def check_for_list(
    sampler: MCSampler | None, posterior_transform: PosteriorTransform | None
) -> None:
    """Raise ``UnsupportedError`` unless these apply to a list of posteriors, of a ``ModelList``.

    BoTorch's tutorials give a single sampler, and a transform, to a ``ModelListGP``, whose
    posterior is one normal distribution.
    """
    if posterior_transform is not None:
        raise UnsupportedError(
            "`posterior_transform` needs outcomes that are jointly normal, and those of a "
            "ModelList are not: give `objective=LinearMCObjective(weights)`, say."
        )
    if isinstance(sampler, NormalMCSampler):
        raise UnsupportedError(
            f"`sampler` {type(sampler).__name__} is for one posterior, and a ModelList has a list "
            "of them: leave it out, or give "
            f"`get_sampler(model.posterior(X_baseline), {sampler.sample_shape})`, of "
            "`botorch.sampling.get_sampler`."
        )
    if isinstance(sampler, ListSampler):
        seeds = [part.seed for part in sampler.samplers if isinstance(part, NormalMCSampler)]
        if len(set(seeds)) < len(seeds):
            warnings.warn(
                f"`sampler` has equal seeds for several outcomes, {seeds}, whose samples are then "
                "the same but for mean and scale: give each outcome a seed of its own, as "
                "`get_sampler` does where it is given none.",
                BotorchWarning,
                stacklevel=4,
            )


def _parts(posterior: Posterior) -> list[Any]:
    """Posteriors of groups of outcomes, which are independent of one another."""
    return posterior.posteriors if isinstance(posterior, PosteriorList) else [posterior]


class qLogCalibratedNoisyExpectedImprovement(_CachedRoots, qLogNoisyExpectedImprovement):
    r"""Log noisy expected improvement of calibrated models, with cached roots, by sampling.

    ``log E[max_j f~(x_j) - max_i f~(x_i)]+`` of ``q`` new points over the points evaluated so far,
    under joint samples of the calibrated posterior; maximised. Arguments and, given the same
    samples, values are those of BoTorch's ``qLogNoisyExpectedImprovement`` [Ament2023logei]. That
    one factors the joint covariance anew at each evaluation of a model that is not BoTorch's.

    Incremental pending points extend the root. Where it cannot be extended, samples are drawn
    without it, with a warning.

    Args:
        model: A fitted `CalibratedModel`, a ``ModelList`` of such and other models (for outcome
            constraints and objectives of several outcomes), or a model of BoTorch.
        X_baseline: Points evaluated so far, ``r x d``.
        cache_root: Whether to keep the root; by default where all parts of the model allow it.
        kwargs: As of BoTorch's class: ``sampler``, ``objective``, ``posterior_transform``,
            ``X_pending``, ``constraints``, ``eta``, ``fat``, ``prune_baseline``, ``tau_max``,
            ``tau_relu``, ``marginalize_dim`` and ``incremental``.

    Raises:
        InputDataError: If baseline or pending points are not finite.
        UnsupportedError: If ``model`` is a ``ModelList`` and ``sampler`` is for a single posterior
            or a ``posterior_transform`` is given.

    Warns:
        BotorchWarning: If ``cache_root`` is True and part of the model has no root to keep, or
            samplers of several outcomes have equal seeds.
    """

    def __init__(
        self, model: Model, X_baseline: Tensor, *, cache_root: bool | None = None, **kwargs: Any
    ) -> None:
        self._decide(model, cache_root, X_baseline, **kwargs)
        super().__init__(model=model, X_baseline=X_baseline, **kwargs)

    def _init_baseline(self, *args: Any, **kwargs: Any) -> None:
        # BoTorch would warn that it does not know the model.
        super()._init_baseline(*args, **{**kwargs, "cache_root": None})


class qLogCalibratedNoisyExpectedHypervolumeImprovement(  # type: ignore[misc]
    _CachedRoots, qLogNoisyExpectedHypervolumeImprovement
):
    r"""Log noisy expected hypervolume improvement of calibrated models, with cached roots.

    The expected growth of the hypervolume that the evaluated points dominate beyond a reference
    point, under joint samples of the calibrated posteriors; all objectives are maximised. Arguments
    and, given the same samples, values are those of BoTorch's
    ``qLogNoisyExpectedHypervolumeImprovement`` [Daulton2021nehvi, Ament2023logei]; see
    `qLogCalibratedNoisyExpectedImprovement`.

    Args:
        model: A ``ModelList`` of calibrated and other models, or a model of BoTorch.
        ref_point: The reference point, of ``m`` objectives, in their units.
        X_baseline: Points evaluated so far, ``r x d``.
        cache_root: Whether to keep the roots; by default where all parts of the model allow it.
        kwargs: As of BoTorch's class: ``sampler``, ``objective``, ``constraints``, ``X_pending``,
            ``eta``, ``prune_baseline``, ``alpha``, ``cache_pending``, ``max_iep``,
            ``incremental_nehvi``, ``tau_relu``, ``tau_max``, ``fat`` and ``marginalize_dim``.

    Example:
        >>> models, ref_point = ModelList(calibrated_cost, calibrated_time), [-10.0, -5.0]
        >>> acqf = qLogCalibratedNoisyExpectedHypervolumeImprovement(models, ref_point, X)
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
        self._decide(model, cache_root, X_baseline, **kwargs)
        super().__init__(model=model, ref_point=ref_point, X_baseline=X_baseline, **kwargs)
