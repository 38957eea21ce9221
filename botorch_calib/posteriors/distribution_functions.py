r"""`normal_scores`: normal scores under any predictive distribution, computed from its cdf ``F``.

A calibrator only needs the normal scores ``z = Phi^-1(F(y))`` of observations ``y`` and the inverse
map ``y = F^-1(Phi(z))``. To support another kind of posterior, register a function that returns
both maps as an `OutcomeMap`::

    @normal_scores.register(MyPosterior)
    def _(posterior: MyPosterior) -> OutcomeMap:
        return MyMap(...)
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors import GPyTorchPosterior, TorchPosterior
from botorch.utils.probability.utils import ndtr
from botorch_community.posteriors.bll_posterior import BLLPosterior
from botorch_community.posteriors.riemann import BoundedRiemannPosterior
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, StudentT

from botorch_calib.distributions.mixture_scores import score_of_tails
from botorch_calib.distributions.student_t import student_t_quantile, student_t_score
from botorch_calib.posteriors.outcome_maps import OutcomeMap

# Least distance of a probability from 0 and 1. Most of PyTorch's formulas resolve no smaller one.
_NEAREST = torch.finfo(torch.double).eps
_LEAST_SHARE = 1e-300


@singledispatch
def normal_scores(posterior: object) -> OutcomeMap:
    """Return the map from normal scores to observations under a posterior of observations.

    Supported are a ``TorchPosterior`` of a ``StudentT`` or of any distribution with ``cdf`` and
    ``icdf``, and the posteriors of botorch_community's prior-fitted networks and variational
    Bayesian last layers. Posteriors must include the observation noise. Functions for other kinds
    can be registered (see the module docstring).

    Raises:
        UnsupportedError: If this kind of posterior is not registered.

    Example:
        >>> posterior = TorchPosterior(StudentT(4.0, torch.zeros(3, 1), torch.ones(3, 1)))
        >>> z = normal_scores(posterior).latent(torch.ones(3, 1))
    """
    raise UnsupportedError(
        f"No distribution function of observations is registered for {type(posterior).__name__}: "
        "register one by `botorch_calib.posteriors.normal_scores.register`."
    )


@normal_scores.register
def _of_torch_posterior(posterior: TorchPosterior) -> OutcomeMap:
    return _of_distribution(posterior.distribution)


@normal_scores.register
def _of_gaussian(posterior: GPyTorchPosterior) -> OutcomeMap:
    raise UnsupportedError(
        f"The noise of observations is unknown for a {type(posterior).__name__} of a model without "
        "a Gaussian likelihood: let the model return a TorchPosterior of Normal distributions, "
        "noise included, or register the posterior by "
        "`botorch_calib.posteriors.normal_scores.register`."
    )


normal_scores.register(BLLPosterior, lambda p: _LocationScale(p.mean, p.variance.sqrt()))
normal_scores.register(BoundedRiemannPosterior, lambda p: _Histogram(p.borders, p.probabilities))


@singledispatch
def _of_distribution(distribution: Distribution) -> OutcomeMap:
    for method in ("cdf", "icdf"):
        if getattr(type(distribution), method) is getattr(Distribution, method):
            raise UnsupportedError(
                f"{type(distribution).__name__} has no `{method}`, which normal scores need: "
                "register the posterior by `botorch_calib.posteriors.normal_scores.register`."
            )
    return _Inverted(distribution)


_of_distribution.register(Independent, lambda d: _of_distribution(d.base_dist))
_of_distribution.register(Normal, lambda d: _LocationScale(d.loc, d.scale))
_of_distribution.register(StudentT, lambda d: _StudentT(d.loc, d.scale, d.df))


class _LocationScale(OutcomeMap):
    """The map for a normal distribution."""

    def __init__(self, location: Tensor, scale: Tensor) -> None:
        self._location, self._scale = location.double(), scale.double()

    def outcome(self, latent: Tensor) -> Tensor:
        return self._location + self._scale * latent

    def latent(self, outcome: Tensor) -> Tensor:
        return (outcome - self._location) / self._scale


class _StudentT(_LocationScale):
    """The map for Student's t distribution."""

    def __init__(self, location: Tensor, scale: Tensor, df: Tensor) -> None:
        super().__init__(location, scale)
        self._df = df.double()

    def outcome(self, latent: Tensor) -> Tensor:
        return super().outcome(student_t_quantile(latent, self._df))

    def latent(self, outcome: Tensor) -> Tensor:
        return student_t_score(super().latent(outcome), self._df)


class _Inverted(OutcomeMap):
    """The map for a distribution with ``cdf`` and ``icdf``; scores range from -8.1 to 8.1."""

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution

    def outcome(self, latent: Tensor) -> Tensor:
        level = torch.special.ndtr(latent.double())
        return self._distribution.icdf(level.clamp(_NEAREST, 1.0 - _NEAREST))

    def latent(self, outcome: Tensor) -> Tensor:
        support: Any = self._distribution.support
        y = outcome.double()
        inside = support.check(y)
        # Below `least` or above `greatest`, PyTorch's cdf is 0 or 1, or raises an error for some y.
        least, typical, greatest = (
            self._distribution.icdf(torch.full_like(y, level))
            for level in (_NEAREST, 0.5, 1.0 - _NEAREST)
        )
        level = self._distribution.cdf(torch.where(inside, y, typical).clamp(least, greatest))
        score = torch.special.ndtri(level.double().clamp(_NEAREST, 1.0 - _NEAREST))
        return torch.where(inside, score, torch.where(y < typical, -torch.inf, torch.inf))


class _Histogram(OutcomeMap):
    """The map for a histogram, whose bins are the same at all points.

    Values below the median are computed from the probabilities below the bins, and values above the
    median from the probabilities above the bins, so both tails keep their digits.
    """

    def __init__(self, borders: Tensor, probabilities: Tensor) -> None:
        self._borders = borders.double()
        shares = probabilities.double()
        self._shares = shares / shares.sum(dim=-1, keepdim=True)
        zero = torch.zeros_like(self._shares[..., :1])
        self._below = torch.cat([zero, self._shares.cumsum(-1)], dim=-1)
        self._above = torch.cat([self._shares.flip(-1).cumsum(-1).flip(-1), zero], dim=-1)

    def outcome(self, latent: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(latent.shape, (*self._shares.shape[:-1], 1))
        upper = latent.expand(shape) > 0.0
        tail = ndtr(-latent.double().abs()).expand(shape)
        low = self._from_end(tail, self._below, self._shares, self._borders)
        high = self._from_end(
            tail, self._above.flip(-1), self._shares.flip(-1), self._borders.flip(-1)
        )
        return torch.where(upper, high, low)

    def _from_end(self, tail: Tensor, below: Tensor, shares: Tensor, borders: Tensor) -> Tensor:
        """Return the value with the probability ``tail`` between the first border and the value.

        ``shares`` are the probabilities of the bins between successive ``borders``, and ``below``
        are the sums of shares up to each border.
        """
        # Leading dimensions are dimensions of samples. `searchsorted` needs them in the last
        # dimension, one row for each distribution.
        lead = tail.dim() - below.dim()
        first, last = tuple(range(lead)), tuple(range(-lead, 0))
        rows = tail.movedim(first, last).flatten(below.dim() - 1)
        with torch.no_grad():
            index = torch.searchsorted(below[..., 1:].contiguous(), rows.contiguous())
            index = index.clamp(max=shares.shape[-1] - 1)
        share = shares.gather(-1, index).clamp(min=_LEAST_SHARE)
        part = ((rows - below.gather(-1, index)) / share).clamp(0.0, 1.0)
        value = borders[index] + part * (borders[index + 1] - borders[index])
        return value.view(*below.shape[:-1], 1, *tail.shape[:lead]).movedim(last, first)

    def latent(self, outcome: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(outcome.shape, (*self._shares.shape[:-1], 1))
        y, borders = outcome.double().expand(shape), self._borders
        index = torch.searchsorted(borders, y.detach().contiguous()) - 1
        index = index.clamp(0, len(borders) - 2)
        low, high = borders[index], borders[index + 1]

        def at(values: Tensor, place: Tensor) -> Tensor:
            return values.expand(*shape[:-1], values.shape[-1]).gather(-1, place)

        density = at(self._shares, index) / (high - low)
        below = at(self._below, index) + density * (y - low).clamp(min=0.0)
        above = at(self._above, index + 1) + density * (high - y).clamp(min=0.0)
        score = score_of_tails(below, above).masked_fill(y < borders[0], -torch.inf)
        return score.masked_fill(y > borders[-1], torch.inf)
