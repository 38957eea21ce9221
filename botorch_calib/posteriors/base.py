"""`StatedPosterior`: the interface of calibrated posteriors, with a distribution at each point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NoReturn, Self

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors import Posterior
from torch import Tensor

from botorch_calib.distributions.moments import WithMoments


class StatedPosterior(WithMoments, Posterior, ABC):
    """A posterior of the objective, or an observation, with its distribution at each point.

    Closed forms, chance constraints and reports read these methods, so they take any posterior that
    has them, whatever the base model. Values are in units of the outcome, and have the shape
    ``batch_shape x q x 1``.
    """

    # The error of `distribution`, which names alternatives
    _not_normal: ClassVar[str] = "No normal distribution: ends of intervals are its `quantile`s."

    @property
    def distribution(self) -> NoReturn:
        """Raise ``UnsupportedError``, since BoTorch expects a multivariate normal here."""
        raise UnsupportedError(self._not_normal)

    mvn = distribution

    @property
    @abstractmethod
    def batch_shape(self) -> torch.Size:
        """The t-batch shape."""

    @abstractmethod
    def cdf(self, value: Tensor | float) -> Tensor:
        """``P(f <= value)`` of each marginal.

        Args:
            value: A number or a vector of ``k != 1`` numbers (then the result gains a leading
                dimension), or a tensor of two or more dimensions that broadcasts against
                ``batch_shape x q x 1``.
        """

    @abstractmethod
    def density(self, value: Tensor | float) -> Tensor:
        """Density of each marginal at ``value``, which is as in `cdf`."""

    @abstractmethod
    def quantile(self, value: Tensor | float) -> Tensor:
        """Quantiles of the marginals, differentiable.

        Args:
            value: Levels in (0, 1), of any shape. As in BoTorch, several give the result leading
                dimensions of their shape. A tensor is read back from its device, a number is not.
        """

    @abstractmethod
    def at_score(self, z: Tensor) -> Tensor:
        """Quantiles of the marginals of an observation, ``denoise=False``, differentiable.

        Args:
            z: Normal scores of their levels, which broadcast against ``batch_shape x q x 1``: each
                point may have a level of its own.
        """

    @abstractmethod
    def conditional_mean_below(self, level: float) -> Tensor:
        """``E[f | f <= Q(level)]``, expected shortfall or conditional value at risk, 0 < level < 1.

        That of ``affine(-1.0)`` is minus the mean of the greatest values.
        """

    def log_expected_improvement(self, best_f: Tensor | float) -> Tensor:
        """``log E(f - best_f)+``, ``batch_shape x q x 1``.

        Args:
            best_f: Value to improve upon (maximisation); broadcasts against ``batch_shape x q x
                1``. Minus infinity gives infinity, and infinity gives minus infinity.
        """
        return self._log_improvement(best_f).to(self.dtype)

    def expected_improvement(self, best_f: Tensor | float) -> Tensor:
        """``E(f - best_f)+``; see `log_expected_improvement`."""
        # Not from `log_expected_improvement`, which may have been rounded to single precision
        return self._log_improvement(best_f).exp().to(self.dtype)

    @abstractmethod
    def _log_improvement(self, best_f: Tensor | float) -> Tensor:
        """`log_expected_improvement` in float64."""

    @abstractmethod
    def probability_of_improvement(self, best_f: Tensor | float) -> Tensor:
        """``P(f > best_f)``, ``batch_shape x q x 1``."""

    @abstractmethod
    def log_probability_between(self, lower: float | None, upper: float | None) -> Tensor:
        """``log P(lower <= f <= upper)``, ``batch_shape x q x 1``, accurate in both tails.

        ``lower < upper``; None stands for no limit.
        """

    @abstractmethod
    def affine(self, weight: float, offset: float = 0.0) -> Self:
        """The posterior of ``weight f + offset``, where -1 turns minimisation into maximisation.

        ``weight`` is not 0.
        """
