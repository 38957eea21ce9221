"""Conformity scores: monotone maps of residuals in predictive deviations to [0, 1] and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from botorch.exceptions.errors import InputDataError
from botorch.utils.probability.utils import ndtr
from torch import Tensor
from torch.nn.functional import hardtanh, softsign

from botorch_calib._validation import check_open_unit, check_positive
from botorch_calib.distributions.piecewise import MIN_HALF_WIDTH

_SQRT_HALF = math.sqrt(0.5)


def pit(z: Tensor) -> Tensor:
    """Probability integral transform ``Phi(z)`` of residuals of any shape, same shape.

    Uniform on [0, 1] if the model is calibrated. The upper tail is resolved as numbers near 1 are.

    Example:
        >>> pit(torch.tensor([0.0]))
        tensor([0.5000])
    """
    return ndtr(z)


def two_sided_p_value(z: Tensor) -> Tensor:
    """Conformity score ``2 Phi(-|z|)`` (LOCBO eq. 26) of residuals of any shape, same shape.

    Accurate however far out ``z`` is. Conforming observations have large ones: LOCBO's set keeps
    ``s >= lambda`` (eq. 25), though its text calls it a score of non-conformity.

    Example:
        >>> two_sided_p_value(torch.tensor([0.0]))
        tensor([1.])
    """
    return 2.0 * ndtr(-z.abs())


@dataclass(frozen=True)
class Score(ABC):
    """A monotone map between residuals ``z`` and [0, 1], for intervals and for quantiles.

    The online guarantee holds for any score with values in [0, 1]; the choice decides how finely a
    threshold resolves wide intervals. Intervals track one quantile of the score of ``|z|``, at
    `two_sided_level`, for `half_width`; recalibration tracks the score of ``z`` at each level, for
    `knots`. Outside [0, 1] raw thresholds have the width or knot at its bound, with zero gradient.

    Args:
        max_width: Largest half-width and largest absolute knot, in predictive standard
            deviations, greater than 1e-3. Coverage is lost where residuals exceed it.
    """

    max_width: float
    #: Whether the two-sided score grows with surprise, as ``|z|`` does; a p-value falls.
    grows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if check_positive("max_width", self.max_width) <= MIN_HALF_WIDTH:
            raise InputDataError(
                f"`max_width` must exceed {MIN_HALF_WIDTH}, got {self.max_width!r}."
            )

    @abstractmethod
    def two_sided(self, z: Tensor) -> Tensor:
        """Score of ``|z|`` in [0, 1], of the shape of ``z``."""

    def two_sided_level(self, alpha: float) -> float:
        """Level at which the tracker follows the two-sided score for miscoverage ``alpha``."""
        check_open_unit("alpha", alpha)
        return 1.0 - alpha if self.grows else alpha

    def initial_two_sided(self, alpha: float) -> float:
        """Threshold at which the Gaussian model itself has coverage ``1 - alpha``."""
        width = NormalDist().inv_cdf(0.5 * check_open_unit("alpha", alpha))
        return float(self.two_sided(torch.tensor(width, dtype=torch.double)))

    @abstractmethod
    def signed(self, z: Tensor) -> Tensor:
        """Score of ``z`` in [0, 1], increasing, of the shape of ``z``."""

    def initial_signed(self, levels: Tensor) -> Tensor:
        """Thresholds at which the Gaussian model's own quantiles lie, of ``levels``' shape."""
        return self.signed(torch.special.ndtri(levels))

    @abstractmethod
    def half_width(self, theta: Tensor) -> Tensor:
        """Half-widths of intervals with raw thresholds ``theta``, of the same shape.

        They lie in ``[MIN_HALF_WIDTH, max_width]``, with zero gradient at the bounds.
        """

    @abstractmethod
    def knots(self, theta: Tensor) -> Tensor:
        """Quantiles at raw signed thresholds ``theta``, of the same shape.

        They increase with it and lie in ``+-max_width``, with zero gradient at the bounds.
        """


@dataclass(frozen=True)
class GaussianScore(Score):
    """The papers' scores: two-sided p-value (LOCBO eq. 26) and PIT (OCBO).

    Far out it saturates: thresholds near 0 jump from a half-width of 2.6 to the cap, so a badly
    overconfident model is better served by `RationalScore`.

    Args:
        max_width: As of `Score`; the default is the papers'.

    Example:
        >>> published = LocalizedConformal(0.2, lengthscale=0.25, score=GaussianScore())
    """

    max_width: float = 3.4
    grows = False

    def two_sided(self, z: Tensor) -> Tensor:
        """``2 Phi(-|z|)``, tracked at ``alpha``: an observation at or below is a miss."""
        return two_sided_p_value(z)

    def signed(self, z: Tensor) -> Tensor:
        """The PIT ``Phi(z)``."""
        return pit(z)

    def half_width(self, theta: Tensor) -> Tensor:
        """``-Phi^-1(theta / 2)`` within its bounds, see `Score.half_width`."""
        # Phi^-1 near 0 keeps all digits, where Phi^-1(1 - theta / 2) would have none left.
        return -_normal_quantile(0.5 * theta, -self.max_width, -MIN_HALF_WIDTH)

    def knots(self, theta: Tensor) -> Tensor:
        """``Phi^-1(theta)`` within its bounds, see `Score.knots`."""
        return _normal_quantile(theta, -self.max_width, self.max_width)


@dataclass(frozen=True)
class RationalScore(Score):
    """``|z| / (1 + |z|)`` and its signed form ``(1 + z / (1 + |z|)) / 2``.

    The score keeps its resolution at any width: near a half-width ``w`` a threshold step
    ``d`` changes it by ``d (1 + w)^2``. It grows with surprise, so the tracked level of
    intervals is ``1 - alpha``.

    Args:
        max_width: As of `Score`.

    Example:
        >>> RationalScore().two_sided(torch.tensor([0.0, 1.0, 3.0]))
        tensor([0.0000, 0.5000, 0.7500])
    """

    max_width: float = 50.0

    def two_sided(self, z: Tensor) -> Tensor:
        """``|z| / (1 + |z|)``, tracked at ``1 - alpha``: an observation at or below is covered."""
        return _softsign(z.abs())

    def signed(self, z: Tensor) -> Tensor:
        """``(1 + z / (1 + |z|)) / 2``, tracked at the quantile level itself."""
        return 0.5 * (1.0 + _softsign(z))

    def half_width(self, theta: Tensor) -> Tensor:
        """``theta / (1 - theta)`` within its bounds, see `Score.half_width`."""
        return _inverse_softsign(theta, 1.0, MIN_HALF_WIDTH, self.max_width)

    def knots(self, theta: Tensor) -> Tensor:
        """``c / (1/2 - |c|)``, ``c = theta - 1/2``, within its bounds, see `Score.knots`."""
        return _inverse_softsign(theta - 0.5, 0.5, -self.max_width, self.max_width)


#: The score of calibrators that are not given one.
DEFAULT_SCORE = RationalScore()


def _softsign(z: Tensor) -> Tensor:
    """``z / (1 + |z|)``, also for infinite ``z``."""
    # An infinite z would give inf / inf; the largest finite one rounds to 1 already.
    limit = torch.finfo(z.dtype).max
    return softsign(z.clamp(-limit, limit))


def _inverse_softsign(c: Tensor, most: float, low: float, high: float) -> Tensor:
    """``c / (most - |c|)``, held within bounds."""
    # At the least denominator the quotient is beyond its bound. Derivatives of these clamps are
    # single operations.
    least = most * min(torch.finfo(c.dtype).eps, 0.5 / high)
    return hardtanh(c / hardtanh(most - c.abs(), least, most), low, high)


def _normal_quantile(p: Tensor, low: float, high: float) -> Tensor:
    """``Phi^-1(p)``, held within bounds.

    ``p`` is clamped first, so that neither values nor gradients are infinite beyond the bounds.
    """
    first, last = (0.5 * math.erfc(-_SQRT_HALF * end) for end in (low, high))
    info = torch.finfo(p.dtype)
    value = torch.special.ndtri(p.clamp(max(first, info.tiny), min(last, 1.0 - info.eps)))
    value = torch.where(p <= first, low, value)
    return torch.where(p >= last, high, value)
