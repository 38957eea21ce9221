"""`CalibratedPosteriorList`: one posterior of several independent outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.posterior_list import PosteriorList
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, NormalMCSampler, SobolQMCNormalSampler
from torch import Size, Tensor
from torch.quasirandom import SobolEngine

from botorch_calib.distributions.piecewise import WithMoments
from botorch_calib.posteriors.calibrated import CalibratedPosterior
from botorch_calib.posteriors.prediction import Prediction


class CalibratedPosteriorList(WithMoments, PosteriorList):
    """Independent posteriors of one outcome each, sampled together.

    One sampler draws base samples for all outcomes from one sequence, so outcomes are independent
    under quasi-random numbers too. With one sampler for each outcome, as in BoTorch's list,
    outcomes are independent under pseudo-random numbers only [botorch issue 2658].

    Args:
        posteriors: One posterior for each of the ``m`` outcomes, at the same ``batch_shape x q``
            points. Each is the posterior of a calibrated model, or an ``EnsemblePosterior`` with
            one member for an outcome with known values.

    Raises:
        UnsupportedError: If the posteriors have different shapes.

    Example:
        >>> posterior = CalibratedModelList(model, gp).posterior(X)
        >>> quantiles = posterior.quantile(0.9)  # 20 x 2
    """

    posteriors: list[Any]  # not ``Posterior``, which does not declare all attributes

    def __init__(self, *posteriors: Posterior) -> None:
        shapes = [tuple(each._extended_shape()) for each in posteriors]
        if len(set(shapes)) > 1 or shapes[0][-1] != 1:
            raise UnsupportedError(
                "Each outcome needs one value at each of the same points, but the posteriors have "
                f"the shapes {shapes}: give all models the same batch shape, and input transforms "
                "that make equally many points of one."
            )
        super().__init__(*posteriors)

    @property
    def batch_shape(self) -> Size:
        """The t-batch shape."""
        shape: Size = self._extended_shape()[:-2]
        return shape

    # ------------------------------------------------------------ joint samples

    @property
    def base_sample_shape(self) -> Size:
        """``batch_shape x q x 2m``, or less than ``2m`` if a posterior needs fewer than two."""
        return Size([*self._extended_shape()[:-1], sum(self._numbers_of_base_samples)])

    @property
    def batch_range(self) -> tuple[int, int]:
        return (0, -2)

    @property
    def _numbers_of_base_samples(self) -> list[int]:
        """Number of base samples that each outcome needs at a point, in the order of outcomes."""
        num_dims = len(self._extended_shape()) - 1  # dimensions of the t-batch and the points
        return [
            0 if _is_known(each) else each.base_sample_shape[num_dims:].numel()
            for each in self.posteriors
        ]

    def rsample_from_base_samples(self, sample_shape: Size, base_samples: Tensor) -> Tensor:
        """Return differentiable samples, ``sample_shape x batch_shape x q x m``.

        The base samples are standard normal, ``sample_shape x base_sample_shape``.
        """
        parts = base_samples.split(self._numbers_of_base_samples, dim=-1)
        samples = []
        for each, part in zip(self.posteriors, parts, strict=True):
            if _is_known(each):
                samples.append(each.mean.expand(*sample_shape, *each.mean.shape))
                continue
            has_one = len(each.base_sample_shape) < len(self._extended_shape())
            own = part.squeeze(-1) if has_one else part
            samples.append(each.rsample_from_base_samples(sample_shape, own))
        return torch.cat(samples, dim=-1)

    def rsample_from_cached_root(
        self, sample_shape: Size, base_samples: Tensor, baseline_L: list[Tensor]
    ) -> Tensor:
        """Return samples that are joint with earlier samples at baseline points.

        See `CalibratedPosterior.rsample_from_cached_root`. ``baseline_L`` contains one root for
        each outcome. The samples are ``sample_shape x batch_shape x q x m``.
        """
        parts = base_samples.split(self._numbers_of_base_samples, dim=-1)
        samples = [
            each.rsample_from_cached_root(sample_shape, part, root)
            for each, part, root in zip(self.posteriors, parts, baseline_L, strict=True)
        ]
        return torch.cat(samples, dim=-1)

    # ------------------------------------------------------------ marginals

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance, ``batch_shape x q x m`` each."""
        pairs = [
            each.moments() if isinstance(each, Prediction) else (each.mean, each.variance)
            for each in self.posteriors
        ]
        mean, variance = (torch.cat(values, dim=-1) for values in zip(*pairs, strict=True))
        return mean, variance

    def cdf(self, value: Tensor | float) -> Tensor:
        """Return ``P(f <= value)`` of each outcome; values may be ``batch_shape x q x m``."""
        return self._of_each("cdf", value)

    def density(self, value: Tensor | float) -> Tensor:
        """Return the density of each outcome at values that may be ``batch_shape x q x m``."""
        return self._of_each("density", value)

    def quantile(self, value: Tensor | float) -> Tensor:
        """Return quantiles of each outcome, for levels as in `CalibratedPosterior.quantile`."""
        return torch.cat([_stated(each).quantile(value) for each in self.posteriors], dim=-1)

    def _of_each(self, name: str, value: Tensor | float) -> Tensor:
        num = len(self.posteriors)
        values: Sequence[Tensor | float] = [value] * num
        if isinstance(value, Tensor) and value.dim() >= 2:
            values = value.expand(*value.shape[:-1], num).split(1, dim=-1)
        pairs = zip(self.posteriors, values, strict=True)
        return torch.cat([getattr(_stated(each), name)(own) for each, own in pairs], dim=-1)

    @property
    def distribution(self) -> NoReturn:
        """Raise ``UnsupportedError``, since BoTorch expects a multivariate normal here."""
        raise UnsupportedError(
            "The outcomes of a CalibratedModelList are not jointly normal, so their posterior has "
            "no `distribution` and no `mvn`. Use `quantile` for the ends of intervals, and samples "
            "for acquisition functions of several outcomes. Give acquisition functions that need "
            "joint normality, such as entropy search, the Gaussian processes inside, "
            "`model.gaussian_model`."
        )

    mvn = distribution


def _stated(posterior: object) -> Prediction:
    """Return the posterior, or raise ``UnsupportedError`` if it has no quantiles."""
    if not isinstance(posterior, Prediction):
        raise UnsupportedError(
            f"The {type(posterior).__name__} of one of the outcomes has no probabilities and "
            "quantiles: select the other outcomes by `output_indices`, or wrap the model as "
            "`CalibratedModel(model, NoCalibration())` if it is supported."
        )
    return posterior


def _is_known(posterior: Posterior) -> bool:
    """Return whether the outcome has known values, which need no base samples."""
    return isinstance(posterior, EnsemblePosterior) and not isinstance(posterior, Prediction)


@GetSampler.register((CalibratedPosterior, CalibratedPosteriorList))
def _get_sampler_calibrated(
    posterior: CalibratedPosterior | CalibratedPosteriorList,
    sample_shape: Size,
    *,
    seed: int | None = None,
) -> NormalMCSampler:
    """Return a Sobol sampler, or an i.i.d. sampler if there are too many base samples for Sobol."""
    if posterior.base_sample_shape[-2:].numel() > SobolEngine.MAXDIM:
        return IIDNormalSampler(sample_shape=sample_shape, seed=seed)
    return SobolQMCNormalSampler(sample_shape=sample_shape, seed=seed)
