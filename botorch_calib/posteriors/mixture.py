r"""`CalibratedMixturePosterior`: a mixture of Gaussian posteriors with calibrated marginals."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from botorch_calib.distributions.denoised_mixture import DenoisedMixture
from botorch_calib.distributions.mixture_scores import ScoreTable
from botorch_calib.posteriors.calibrated import CalibratedPosterior, check_predictive
from botorch_calib.posteriors.denoised_marginals import growth_of_variance

MEMBER_DIM = -3  # of means and samples, as BoTorch's ensembles have it


class CalibratedMixturePosterior(CalibratedPosterior):
    """Posterior of the objective, or an observation, under a calibrated mixture of predictions.

    Members ``s`` of equal weight, such as the draws of a fully Bayesian model or the models of an
    ensemble, state ``f ~ N(mu_s, v_s)`` and ``y ~ N(mu_s, v_s + n_s)``. With ``F`` the mixture's
    cdf of ``y`` the normal score of an observation is ``z = Phi^-1(F(y))``, and the calibrator
    states the distribution of ``z``, to which ``T`` takes a standard normal number. A calibrated
    draw moves one of a member,

        ``y~ = F^-1(Phi(T(z)))``,  ``f~ = f + a_s (y~ - y)``,  ``a_s = v_s / (v_s + n_s)``.

    For a single member this is `CalibratedPosterior`. A distribution that corrects nothing leaves
    the mixture as it is. Where members have no variance of their own (``v_s = 0``), only
    observations are corrected.

    *The mixture*, ``batch_shape x q x 1``, has the methods of `StatedPosterior`: probabilities,
    quantiles and improvements, in closed form up to quadrature over ``z``, and `moments`,
    `mixture_mean` and `mixture_variance`. *Each member* has `mean`, `variance` and samples,
    ``batch_shape x num_members x q x 1``, as in BoTorch's posteriors of ensembles: its acquisition
    functions average over the members of a model with ``_is_ensemble``. Samples map scores by
    interpolation, within 1e-5 scores where members overlap.

    Coverage, ``excess`` and noise of joint samples are as in `CalibratedPosterior`.

    Args:
        posterior: Gaussian posteriors of ``f`` by the members, without observation noise, in the
            units of the outcome, ``batch_shape x num_members x q x 1``.
        predictive: Distribution of ``z``; its batch shape broadcasts to ``batch_shape x q x 1``.
        noise_variance: Observation noise variances ``n_s``, in squared units of the outcome,
            broadcasting to ``batch_shape x num_members x q x 1``.
        denoise: If False, the posterior of the observation ``y`` itself.
        excess: ``"noise"`` or ``"objective"``, the source of spread in excess of the members'.
        least_variance: Lower bound on the variances of ``f``, broadcasting to ``batch_shape x
            num_members x q x 1`` (default: GPyTorch's setting ``min_variance``).
        validate_args: Whether to check the types of the first two, and the noise.

    Raises:
        UnsupportedError: If ``posterior`` is not of members, or ``predictive`` no
            `PiecewisePredictive`.
        InputDataError: If a noise variance is negative or not finite.

    Example:
        >>> ensemble = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=4)
        >>> model = CalibratedModel.from_history(ensemble, LocalizedConformal(0.2))
        >>> means = model.posterior(X).mixture_mean
    """

    def _check_arguments(self, noise_variance: Any) -> None:
        posterior: Any = self.base_posterior
        if not isinstance(posterior, GPyTorchPosterior) or posterior.mean.dim() < 3:
            raise UnsupportedError(
                "CalibratedMixturePosterior needs as `posterior` a GaussianMixturePosterior, of "
                f"means ... x num_members x q x 1, got {type(posterior).__name__}."
            )
        check_predictive(self.predictive)

    def _set_up_marginals(self, mean: Tensor, variance: Tensor) -> None:
        moments = torch.broadcast_tensors(mean, variance, self.noise_variance)
        mean, variance, noise = (values.double().movedim(MEMBER_DIM, 0) for values in moments)
        growth = None
        if self.denoise and self.excess == "objective":
            growth, _ = growth_of_variance(self.predictive, noise / variance)
        self._mixture = DenoisedMixture(
            mean, variance, noise, self.predictive, self.denoise, growth
        )
        self._distribution: Any = self._mixture
        # It is in the units of the outcome.
        self.location = mean.new_zeros(()).expand(mean.shape[1:])
        self._unit = mean.new_ones(())

    @property
    def mean(self) -> Tensor:
        """Means given the member, ``batch_shape x num_members x q x 1``."""
        return self._of_members(0)

    @property
    def variance(self) -> Tensor:
        """Variances given the member, ``batch_shape x num_members x q x 1``."""
        return self._of_members(1)

    def _of_members(self, moment: int) -> Tensor:
        return self._mixture.moments_of_members()[moment].movedim(0, MEMBER_DIM).to(self.dtype)

    @property
    def mixture_mean(self) -> Tensor:
        """Mean of the mixture, the first of `moments`."""
        return self.moments()[0]

    @property
    def mixture_variance(self) -> Tensor:
        """Variance of the mixture, the second of `moments`."""
        return self.moments()[1]

    # ------------------------------------------------------------ joint samples

    def _transported(self, path: Tensor, other: Tensor) -> Tensor:
        """Samples of the objective from two independent paths of each member."""
        mixture = self._mixture
        mean, variance, noise = self._by_point(mixture)
        f = path.double()
        y = f + (noise / variance).sqrt() * (other - mean)
        moved = self._moved(y, mixture)
        gain, rest = (values.movedim(0, MEMBER_DIM) for values in mixture.gain_and_rest())
        if self.excess == "objective":
            own = variance / (variance + noise)
            f = mean + gain * (y - mean) + (gain / own).sqrt() * (f - mean - own * (y - mean))
        return (f + gain * (moved - y)).to(self.dtype)

    def _observed(self, path: Tensor, eps: Tensor) -> Tensor:
        """Samples of observations from a path of each member and noise."""
        mixture = self._mixture
        _, _, noise = self._by_point(mixture)
        y = path.double() + noise.sqrt() * eps
        return (y if self.predictive.is_standard_normal else self._moved(y, mixture)).to(self.dtype)

    @staticmethod
    def _by_point(mixture: DenoisedMixture) -> list[Tensor]:
        """Means and both variances, ``batch_shape x num_members x q x 1``."""
        members = mixture.mean_of_members, mixture.variance_of_members, mixture.noise
        return [values.movedim(0, MEMBER_DIM) for values in members]

    @staticmethod
    def _moved(y: Tensor, mixture: DenoisedMixture) -> Tensor:
        """``F^-1(Phi(T(z)))`` of observations ``... x num_members x q x 1``."""
        table: ScoreTable = mixture.table
        z = mixture.predictive.transport(table.score(y.movedim(MEMBER_DIM, 0)))
        return table.quantile(z).movedim(0, MEMBER_DIM)
