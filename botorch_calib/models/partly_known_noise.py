"""`PartlyKnownNoiseGP`: a process that uses known noise variances and fits the unknown variance."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.likelihoods.noise_models import FixedGaussianNoise, HomoskedasticNoise
from gpytorch.means import Mean
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.nn import Module


class PartlyKnownNoiseLikelihood(FixedNoiseGaussianLikelihood):
    """Gaussian noise with known variances for some rows, and a learned variance for all others.

    As in a ``FixedNoiseGaussianLikelihood``, ``noise_covar.noise`` contains the given variances
    after the outcome transform, and calls of the likelihood accept ``noise=`` for other points. NaN
    in either tensor stands for the learned variance. The attribute ``noise`` is the learned
    variance, repeated for each row: BoTorch uses the mean of this attribute as the noise of *new*
    observations, in predictions and fantasies.

    Args:
        noise: Variances ``batch_shape x n`` after the outcome transform, NaN if unknown. If the
            model standardizes its outcome, divide the variances by the squared ``stdvs`` of
            ``Standardize``; `PartlyKnownNoiseGP` does this itself.
        unknown: A likelihood whose variance, prior and constraint are used for unknown noise
            (default: the likelihood of BoTorch's models). Its noise module is shared, not copied.

    Example:
        >>> noise = torch.full((20,), 0.01, dtype=torch.double)
        >>> noise[::2] = torch.nan  # unknown
        >>> gp = SingleTaskGP(X, Y, likelihood=PartlyKnownNoiseLikelihood(noise))
    """

    def __init__(self, noise: Tensor, unknown: GaussianLikelihood | None = None) -> None:
        super().__init__(noise=noise)
        if unknown is None:
            unknown = get_gaussian_likelihood_with_lognormal_prior(batch_shape=noise.shape[:-1])
        # Take the variances from `noise_covar`, where the constructor above has raised them to
        # GPyTorch's minimum.
        self.noise_covar: Any = _PartlyKnownNoise(self.noise_covar.noise, unknown.noise_covar)
        self.to(noise)

    @property
    def noise(self) -> Tensor:
        """Noise variance of a new observation, repeated for each row: ``batch_shape x n``."""
        learned, given = self.noise_covar.unknown.noise, self.noise_covar.noise
        return learned.expand(torch.broadcast_shapes(learned.shape, given.shape))

    def get_fantasy_likelihood(self, **kwargs: Any) -> PartlyKnownNoiseLikelihood:
        """Return a likelihood with rows for new observations, whose variances may be NaN.

        The keyword ``noise``, ``batch_shape x n'``, contains the variances of the new observations.
        """
        likelihood = super().get_fantasy_likelihood(**kwargs)
        learned = deepcopy(self.noise_covar.unknown)
        likelihood.noise_covar = _PartlyKnownNoise(likelihood.noise_covar.noise, learned)
        return likelihood


class _PartlyKnownNoise(FixedGaussianNoise):
    """Given noise variances; a learned variance replaces NaN, and is the noise at new points."""

    def __init__(self, noise: Tensor, unknown: HomoskedasticNoise) -> None:
        super().__init__(noise)
        self.unknown = unknown

    def forward(
        self,
        *params: Any,
        shape: torch.Size | None = None,
        noise: Tensor | None = None,
        **kwargs: Any,
    ) -> DiagLinearOperator:
        if noise is None:
            if shape is None:
                X = params[0] if isinstance(params[0], Tensor) else params[0][0]
                shape = X.shape[:-1]
            noise = self.noise  # as in GPyTorch, `n` points are assumed to be the training points
            if shape[-1] != noise.shape[-1]:
                noise = noise.new_full(shape, torch.nan)
        return DiagLinearOperator(torch.where(noise.isnan(), self.unknown.noise, noise))


class PartlyKnownNoiseGP(SingleTaskGP):
    """A ``SingleTaskGP`` of observations with known and with unknown noise variances.

    Rows with NaN in ``train_Yvar`` share one noise variance, which is fitted together with the
    hyperparameters. New observations have this variance, too, unless
    ``condition_on_observations(X, Y, noise=...)`` or ``CalibratedModel.observe(X, Y, Yvar)`` gives
    another variance; NaN in ``noise`` or ``Yvar`` means unknown as well. If all variances are
    known, or ``train_Yvar`` is None, the model equals ``SingleTaskGP``. ::

        gp = PartlyKnownNoiseGP(X, Y, Yvar)  # n x 1, NaN if unknown
        fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))

    Args:
        train_X: Training inputs ``batch_shape x n x d``.
        train_Y: Training outcomes ``batch_shape x n x m``.
        train_Yvar: Noise variances ``batch_shape x n x m`` in squared units of ``train_Y``, NaN if
            unknown.
        likelihood: The ``GaussianLikelihood`` of observations with unknown noise (default: the
            likelihood of ``SingleTaskGP``).
        covar_module, mean_module, outcome_transform, input_transform: See ``SingleTaskGP``.

    Raises:
        InputDataError: If a variance is negative or infinite, or if some variances are unknown and
            ``likelihood`` is not a ``GaussianLikelihood``.

    Example:
        >>> Yvar = torch.full_like(Y, 0.01)
        >>> Yvar[::2] = torch.nan  # unknown
        >>> gp = PartlyKnownNoiseGP(X, Y, Yvar)
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: GaussianLikelihood | None = None,
        covar_module: Module | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
    ) -> None:
        parts = covar_module, mean_module, outcome_transform, input_transform
        if train_Yvar is not None and ((train_Yvar < 0.0) | train_Yvar.isinf()).any():
            raise InputDataError("`train_Yvar` must hold variances, or NaN if unknown.")
        if train_Yvar is None or not train_Yvar.isnan().any():
            super().__init__(train_X, train_Y, train_Yvar, likelihood, *parts)
            return
        if likelihood is not None and not isinstance(likelihood, GaussianLikelihood):
            raise InputDataError(
                "`likelihood` must be the GaussianLikelihood of observations with unknown noise, "
                f"got a {type(likelihood).__name__}."
            )
        self._validate_tensor_args(X=train_X, Y=train_Y, Yvar=train_Yvar)
        # BoTorch refuses NaN, so make the model without variances, and set its likelihood below.
        super().__init__(train_X, train_Y, None, likelihood, *parts)
        Yvar: Any
        Y, Yvar = train_Y, train_Yvar
        if hasattr(self, "outcome_transform"):
            with torch.no_grad():
                inputs = self.transform_inputs(train_X)
            Y, Yvar = self.outcome_transform(Y, Yvar, X=inputs)
        Yvar = self._transform_tensor_args(X=train_X, Y=Y, Yvar=Yvar)[2]
        self.likelihood = PartlyKnownNoiseLikelihood(Yvar, self.likelihood)
        places: dict[str, int] = getattr(self, "_subset_batch_dict", {})
        if (place := places.pop("likelihood.noise_covar.raw_noise", None)) is not None:
            places["likelihood.noise_covar.unknown.raw_noise"] = place

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load the state of a model, which may have other data, as in cross-validation.

        If this model has no `PartlyKnownNoiseLikelihood`, for example as all of its variances are
        known, the learned variance in ``state_dict`` is ignored.
        """
        if not isinstance(self.likelihood, PartlyKnownNoiseLikelihood):
            learned = "likelihood.noise_covar.unknown."
            state_dict = {k: v for k, v in state_dict.items() if not k.startswith(learned)}
        return super().load_state_dict(state_dict, *args, **kwargs)

    def condition_on_observations(  # type: ignore[override]  # as BoTorch's own overrides
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Model:
        """Return the model conditioned on observations, as in ``SingleTaskGP``.

        ``noise``, with the same shape as ``Y``, contains variances after the outcome transform. NaN
        or None means unknown noise, which has the learned variance.

        Raises:
            InputDataError: If ``noise`` contains NaN and all variances of the model were given.
        """
        if isinstance(self.likelihood, PartlyKnownNoiseLikelihood):
            noise = torch.full_like(Y, torch.nan) if noise is None else noise
        elif isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            if noise is not None and noise.isnan().any():
                raise InputDataError(
                    "`noise` must not be NaN: all variances of this model were given, so it has no "
                    "learned variance."
                )
        if noise is not None:
            kwargs["noise"] = noise
        return super().condition_on_observations(X, Y, **kwargs)
