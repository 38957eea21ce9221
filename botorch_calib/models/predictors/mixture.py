"""`MixturePredictor`: the mixture of an ensemble's Gaussian predictions."""

from __future__ import annotations

from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors import Posterior
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from torch import Tensor

from botorch_calib.distributions.mixture_scores import mixture_score, score_of_members
from botorch_calib.models.inspection import in_output_task
from botorch_calib.models.outcome_transforms import check_increasing, transform_name
from botorch_calib.models.predictors.gaussian import GaussianPredictor
from botorch_calib.models.residuals import forecast_history
from botorch_calib.posteriors.mixture import MEMBER_DIM, CalibratedMixturePosterior


class MixturePredictor(GaussianPredictor):
    """An ensemble with one output, Gaussian likelihoods and no or an affine outcome transform."""

    is_ensemble = True
    posterior_class = CalibratedMixturePosterior

    def check(self) -> None:
        model, name = self.observed, type(self.observed).__name__
        if model.num_outputs != 1:
            raise UnsupportedError(
                f"{name} has {model.num_outputs} outputs: use one CalibratedModel per outcome in a "
                "ModelList, each around an ensemble of that outcome or output task alone."
            )
        likelihood = getattr(model, "likelihood", None)
        if not (isinstance(likelihood, _GaussianLikelihoodBase) or self._is_to_be_fitted):
            raise UnsupportedError(
                f"{name} states no noise of its observations, which a calibrated model needs: give "
                "it as `NoisyEnsemble(model, noise_variance)`."
            )
        if not getattr(getattr(model, "outcome_transform", None), "_is_linear", True):
            raise UnsupportedError(
                f"{name} has the nonlinear outcome transform {transform_name(model)}, and the "
                "predictions of its members are Gaussian only before it: apply it to the "
                "observations beforehand, and let the model have Standardize or no transform."
            )
        check_increasing(model)

    def inputs(self, X: Tensor, posterior: Posterior | None = None) -> Tensor:
        """Transformed points, those of members with warps of their own averaged."""
        return super().inputs(X.unsqueeze(MEMBER_DIM), posterior).mean(dim=MEMBER_DIM)

    def scores(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Tensor:
        """Normal scores under the mixture of the members' predictions, ``n``."""
        moments = self.moments(X.unsqueeze(-2), Yvar)
        mean, deviation = (values.movedim(MEMBER_DIM, 0) for values in moments)
        return mixture_score(Y.unsqueeze(-1), mean, deviation).reshape(-1)

    def history(self, residuals: str) -> tuple[Tensor, Tensor]:
        """Inputs and scores of the training data, of the output task, by one factor per member."""
        if self._is_to_be_fitted:
            raise UnsupportedError(
                f"{type(self.observed).__name__} has no draws of its hyperparameters yet: fit it "
                "by `fit_fully_bayesian_model_nuts`, or load them by `load_mcmc_samples`."
            )
        self.observed.eval()  # in training mode fully Bayesian models have no draws
        X, t, _ = forecast_history(self.observed, residuals, members=True)
        own = in_output_task(self.observed, X)
        return X[own], score_of_members(t)[own]

    @property
    def _is_to_be_fitted(self) -> bool:
        """Whether a fully Bayesian model has no draws, and so no likelihood, yet."""
        is_bayesian = getattr(self.observed, "_is_fully_bayesian", False)
        return is_bayesian and self.observed.covar_module is None
