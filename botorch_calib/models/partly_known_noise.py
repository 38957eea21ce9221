"""`PartlyKnownNoiseGP`: known variances of the noise are used, and unknown ones are fitted."""

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
    """Gaussian noise whose variance is known for some training rows, and one for all others.

    As for any ``FixedNoiseGaussianLikelihood``, ``noise_covar.noise`` holds what was given, in the
    space of the targets, and ``noise=`` states that of other points. NaN stands in both for the
    learned variance. ``noise`` is that of a *new* observation at each row, the learned one: BoTorch
    takes its mean for predictions and fantasies.

    Args:
        noise: ``batch_shape x n``, NaN where a variance is not known, in units of the targets: of a
            model that standardizes its outcome, divide it by the square of its ``stdvs``, which
            `PartlyKnownNoiseGP` does by itself.
        unknown: The likelihood with the variance, prior and constraint of unknown noise (default:
            the likelihood of BoTorch's models). It is shared, not copied.

    Example:
        >>> noise = torch.full((20,), 0.01, dtype=torch.double)
        >>> noise[::2] = torch.nan  # not known
        >>> gp = SingleTaskGP(X, Y, likelihood=PartlyKnownNoiseLikelihood(noise))
    """

    def __init__(self, noise: Tensor, unknown: GaussianLikelihood | None = None) -> None:
        super().__init__(noise=noise)
        if unknown is None:
            unknown = get_gaussian_likelihood_with_lognormal_prior(batch_shape=noise.shape[:-1])
        # Known values are raised to the least that GPyTorch takes: once, here.
        given: Any = self.noise_covar
        self.noise_covar: Any = _PartlyKnownNoise(given.noise, unknown.noise_covar)
        self.to(noise)

    @property
    def noise(self) -> Tensor:
        """Variance of the noise of a new observation, ``batch_shape x n``, all equal."""
        learned, given = self.noise_covar.unknown.noise, self.noise_covar.noise
        return learned.expand(torch.broadcast_shapes(learned.shape, given.shape))

    def get_fantasy_likelihood(self, **kwargs: Any) -> PartlyKnownNoiseLikelihood:
        """GPyTorch's, with further rows whose variances are ``noise``, NaN where not known."""
        likelihood: Any = super().get_fantasy_likelihood(**kwargs)
        learned = deepcopy(self.noise_covar.unknown)
        likelihood.noise_covar = _PartlyKnownNoise(likelihood.noise_covar.noise, learned)
        return likelihood


class _PartlyKnownNoise(FixedGaussianNoise):
    """Given variances, with a learned one in place of NaN and for rows that are not in training."""

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
            noise = self.noise  # of as many points as there are rows, as GPyTorch has it
            if shape[-1] != noise.shape[-1]:
                noise = noise.new_full(shape, torch.nan)
        return DiagLinearOperator(torch.where(noise.isnan(), self.unknown.noise, noise))


class PartlyKnownNoiseGP(SingleTaskGP):
    """A ``SingleTaskGP`` of observations with and without a known error, in one data set.

    The noise of a row has the variance in ``train_Yvar`` where that is known. All others share one
    variance, which is fitted with the hyperparameters, and which a new observation has, too, unless
    its noise is stated: in ``condition_on_observations(X, Y, noise=...)`` and in
    ``CalibratedModel.observe(X, Y, Yvar)``, NaN again where it is not known. Where all variances
    are known, or ``train_Yvar`` is None, it is BoTorch's model. ::

        gp = PartlyKnownNoiseGP(X, Y, Yvar)  # n x 1, NaN where an error is not known
        fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))

    Args:
        train_X: ``batch_shape x n x d``.
        train_Y: ``batch_shape x n x m``.
        train_Yvar: ``batch_shape x n x m``, variances in squared units of ``train_Y``, or NaN.
        likelihood: The ``GaussianLikelihood`` of observations whose error is not known.
        covar_module, mean_module, outcome_transform, input_transform: As of ``SingleTaskGP``.

    Raises:
        InputDataError: If a variance is negative or infinite, or ``likelihood`` another one.

    Example:
        >>> Yvar = torch.full_like(Y, 0.01)
        >>> Yvar[::2] = torch.nan  # not known
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
            raise InputDataError("`train_Yvar` must hold variances, or NaN where not known.")
        if train_Yvar is None or not train_Yvar.isnan().any():
            super().__init__(train_X, train_Y, train_Yvar, likelihood, *parts)
            return
        if likelihood is not None and not isinstance(likelihood, GaussianLikelihood):
            raise InputDataError(
                "`likelihood` must be the GaussianLikelihood of observations whose error is not "
                f"known, got a {type(likelihood).__name__}."
            )
        self._validate_tensor_args(X=train_X, Y=train_Y, Yvar=train_Yvar)
        # BoTorch refuses NaN, so the model is made without variances.
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
        """BoTorch's, of a model of other data too: as in the folds of a cross-validation.

        Where all variances are known, none is learned, and that of ``state_dict`` is left out.
        """
        if not isinstance(self.likelihood, PartlyKnownNoiseLikelihood):
            learned = "likelihood.noise_covar.unknown."
            state_dict = {k: v for k, v in state_dict.items() if not k.startswith(learned)}
        return super().load_state_dict(state_dict, *args, **kwargs)

    def condition_on_observations(  # type: ignore[override]  # BoTorch's differ themselves
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Model:
        """BoTorch's, in which ``noise`` may be left out, or NaN, where it is not known."""
        if isinstance(self.likelihood, PartlyKnownNoiseLikelihood):
            noise = torch.full_like(Y, torch.nan) if noise is None else noise
        elif isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            if noise is not None and noise.isnan().any():
                raise InputDataError(
                    "`noise` must be known: all variances of this model were given, and none is "
                    "learned in place of NaN."
                )
        if noise is not None:
            kwargs["noise"] = noise
        conditioned: Model = super().condition_on_observations(X, Y, **kwargs)
        return conditioned
