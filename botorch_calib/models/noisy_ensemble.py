"""`NoisyEnsemble`: an ensemble of point predictions with observation noise."""

from __future__ import annotations

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import InputDataError, UnsupportedError
from botorch.models.ensemble import EnsembleModel
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_calib._validation import check_numbers, check_variances
from botorch_calib.models.wrapper import check_output_indices

# Variance of a member's value, as a fraction of the noise variance. The value has no variance, but
# a Gaussian posterior needs a positive variance.
_LEAST = 1e-10


class NoisyEnsemble(Model):
    """An ``EnsembleModel`` whose members predict observations ``N(value, noise variance)``.

    Forests and deep ensembles predict only values, not a distribution of observations that a
    calibrator could correct. With a noise variance they predict a mixture of normal distributions,
    like a fully Bayesian model. A `CalibratedModel` of a `NoisyEnsemble` needs ``denoise=False``,
    since the calibrator corrects the distribution of observations, not the distribution of the
    objective. Update the `CalibratedModel` by its method ``observe`` with ``condition=False``.
    After a refit, pass the new `NoisyEnsemble` to `CalibratedModel.with_model`.

    Args:
        model: An ensemble with one output and equal weights. It may have an input transform and an
            outcome transform.
        noise_variance: Positive variance of the observation noise, in squared units of the outcome:
            a number, or a tensor with one number for each member.

    Raises:
        UnsupportedError: If ``model`` is not an ensemble with one output and equal weights.
        InputDataError: If a noise variance is not positive.

    Example:
        >>> class Forest(EnsembleModel):
        ...     num_outputs = 1
        ...
        ...     def forward(self, X):  # batch_shape x members x n x 1
        ...         trees = [X.sum(dim=-1, keepdim=True) + shift for shift in (-0.1, 0.1)]
        ...         return torch.stack(trees, dim=-3)
        >>> ensemble = NoisyEnsemble(Forest(), noise_variance=0.1)
        >>> model = CalibratedModel(ensemble, OnlineConformal(0.2), denoise=False)
        >>> model.observe(X, Y, condition=False)
    """

    _is_ensemble = True

    def __init__(self, model: EnsembleModel, noise_variance: Tensor | float) -> None:
        super().__init__()
        if not isinstance(model, EnsembleModel) or model.num_outputs != 1:
            raise UnsupportedError(
                "`model` must be a `botorch.models.ensemble.EnsembleModel` with one output, got "
                f"{type(model).__name__}."
            )
        weights = model.ensemble_weights
        if weights is not None and not (weights == weights.reshape(-1)[0]).all():
            raise UnsupportedError(
                "`model` has weights, and the members of a NoisyEnsemble have equal weights: "
                "repeat members with larger weights in its `forward`."
            )
        noise = torch.atleast_1d(check_numbers("noise_variance", noise_variance))
        noise = noise if noise.is_floating_point() else noise.double()
        if not (check_variances("noise_variance", noise) > 0.0).all():
            raise InputDataError("`noise_variance` must be positive.")
        self.model = model
        noise = noise.unsqueeze(-1) if noise.numel() > 1 else noise.reshape(1)
        bound = GreaterThan(0.0)
        likelihood = GaussianLikelihood(batch_shape=noise.shape[:-1], noise_constraint=bound)
        self.likelihood = likelihood.to(noise).requires_grad_(False)
        self.likelihood.noise = noise
        self.eval()

    @property
    def num_outputs(self) -> int:
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape, which is empty, since it excludes the dimension of members."""
        return torch.Size()

    def transform_inputs(self, X: Tensor, input_transform: torch.nn.Module | None = None) -> Tensor:
        return self.model.transform_inputs(X, input_transform)

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior:
        """Return the members' posteriors, ``batch_shape x num_members x q x 1``.

        ``X`` is ``batch_shape x q x d``. With ``observation_noise`` the result is the posterior of
        observations. Otherwise it is the posterior of the members' values, and its variances are
        almost 0.
        """
        check_output_indices(output_indices)
        values = self.model.posterior(X).values.squeeze(-1)
        noise = self.likelihood.noise.to(values)
        variances = noise * (1.0 if observation_noise else _LEAST)
        normal = MultivariateNormal(values, DiagLinearOperator(variances.expand_as(values)))
        posterior = GPyTorchPosterior(normal)
        return posterior if posterior_transform is None else posterior_transform(posterior, X=X)
