"""Conformity scores: monotone maps from residuals, in predictive standard deviations, to [0, 1]."""

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
    """Probability integral transform ``Phi(z)`` of residuals, of the shape of ``z``.

    The transform is uniform on [0, 1] if the model is calibrated. In the upper tail it has only the
    absolute precision of numbers near 1.

    Example:
        >>> pit(torch.tensor([0.0]))
        tensor([0.5000])
    """
    return ndtr(z)


def two_sided_p_value(z: Tensor) -> Tensor:
    """Conformity score ``2 Phi(-|z|)`` (LOCBO eq. 26) of residuals, of the shape of ``z``.

    The score is accurate for large ``|z|`` too. Conforming observations have large scores: LOCBO's
    prediction set is ``s >= lambda`` (eq. 25), although the text of the paper calls ``s`` a score
    of non-conformity.

    Example:
        >>> two_sided_p_value(torch.tensor([0.0]))
        tensor([1.])
    """
    return 2.0 * ndtr(-z.abs())


@dataclass(frozen=True)
class Score(ABC):
    """A monotone map between residuals ``z`` and [0, 1], for intervals and for quantiles.

    The online guarantee holds for any score with values in [0, 1]. The choice of the score
    determines the resolution of wide intervals. Interval methods track one quantile of the score of
    ``|z|``, at the level `two_sided_level`, and convert it to a half-width by `half_width`.
    Recalibration tracks one quantile of the score of ``z`` for each level, and converts these
    quantiles to quantiles of ``z`` by `knots`. For raw thresholds outside [0, 1], half-widths and
    knots are at their bounds, with zero gradient.

    Args:
        max_width: Largest half-width and largest absolute knot, in predictive standard deviations,
            greater than 1e-3. The guarantee is lost if residuals exceed it.
    """

    max_width: float
    #: Whether the two-sided score increases with ``|z|``; a p-value decreases.
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
        """Level of the two-sided score's quantile that is tracked for miscoverage ``alpha``."""
        check_open_unit("alpha", alpha)
        return 1.0 - alpha if self.grows else alpha

    def initial_two_sided(self, alpha: float) -> float:
        """Threshold that corresponds to the Gaussian model's ``1 - alpha`` interval."""
        width = NormalDist().inv_cdf(0.5 * check_open_unit("alpha", alpha))
        return float(self.two_sided(torch.tensor(width, dtype=torch.double)))

    @abstractmethod
    def signed(self, z: Tensor) -> Tensor:
        """Score of ``z`` in [0, 1], increasing, of the shape of ``z``."""

    def initial_signed(self, levels: Tensor) -> Tensor:
        """Thresholds that correspond to the Gaussian model's quantiles at ``levels``."""
        return self.signed(torch.special.ndtri(levels))

    @abstractmethod
    def half_width(self, theta: Tensor) -> Tensor:
        """Half-widths of intervals for raw thresholds ``theta``, of the same shape.

        They are clamped to ``[MIN_HALF_WIDTH, max_width]``, with zero gradient at the bounds.
        """

    @abstractmethod
    def knots(self, theta: Tensor) -> Tensor:
        """Quantiles of ``z`` for raw signed thresholds ``theta``, of the same shape.

        They increase with ``theta`` and are clamped to ``[-max_width, max_width]``, with zero
        gradient at the bounds.
        """


@dataclass(frozen=True)
class GaussianScore(Score):
    """The papers' scores: two-sided p-value (LOCBO eq. 26) and PIT (OCBO).

    The score saturates for large ``|z|``: near a threshold of 0, the half-width jumps from 2.6 to
    the cap. Use `RationalScore` for a badly overconfident model.

    Args:
        max_width: See `Score`; the default is from the papers.

    Example:
        >>> published = LocalizedConformal(0.2, lengthscale=0.25, score=GaussianScore())
    """

    max_width: float = 3.4
    grows = False

    def two_sided(self, z: Tensor) -> Tensor:
        """``2 Phi(-|z|)``, tracked at level ``alpha``: scores up to the threshold are misses."""
        return two_sided_p_value(z)

    def signed(self, z: Tensor) -> Tensor:
        """The PIT ``Phi(z)``."""
        return pit(z)

    def half_width(self, theta: Tensor) -> Tensor:
        """``-Phi^-1(theta / 2)`` within its bounds, see `Score.half_width`."""
        # Phi^-1(theta / 2) keeps all digits for theta near 0; Phi^-1(1 - theta / 2) loses them.
        return -_normal_quantile(0.5 * theta, -self.max_width, -MIN_HALF_WIDTH)

    def knots(self, theta: Tensor) -> Tensor:
        """``Phi^-1(theta)`` within its bounds, see `Score.knots`."""
        return _normal_quantile(theta, -self.max_width, self.max_width)


@dataclass(frozen=True)
class RationalScore(Score):
    """The score ``|z| / (1 + |z|)``, and its signed form ``(1 + z / (1 + |z|)) / 2``.

    The score resolves any width: a change ``d`` of the threshold changes a half-width ``w`` by ``d
    (1 + w)^2``. It increases with ``|z|``, so the tracked level of intervals is ``1 - alpha``.

    Args:
        max_width: See `Score`.

    Example:
        >>> RationalScore().two_sided(torch.tensor([0.0, 1.0, 3.0]))
        tensor([0.0000, 0.5000, 0.7500])
    """

    max_width: float = 50.0

    def two_sided(self, z: Tensor) -> Tensor:
        """``|z| / (1 + |z|)``, tracked at ``1 - alpha``: scores up to the threshold are covered."""
        return _softsign(z.abs())

    def signed(self, z: Tensor) -> Tensor:
        """``(1 + z / (1 + |z|)) / 2``, tracked at the level of the quantile."""
        return 0.5 * (1.0 + _softsign(z))

    def half_width(self, theta: Tensor) -> Tensor:
        """``theta / (1 - theta)`` within its bounds, see `Score.half_width`."""
        return _inverse_softsign(theta, 1.0, MIN_HALF_WIDTH, self.max_width)

    def knots(self, theta: Tensor) -> Tensor:
        """``c / (1/2 - |c|)``, ``c = theta - 1/2``, within its bounds, see `Score.knots`."""
        return _inverse_softsign(theta - 0.5, 0.5, -self.max_width, self.max_width)


#: The default score of calibrators.
DEFAULT_SCORE = RationalScore()


def _softsign(z: Tensor) -> Tensor:
    """``z / (1 + |z|)``, also for infinite ``z``."""
    # An infinite z would give inf / inf. The result for the largest finite number is 1.
    limit = torch.finfo(z.dtype).max
    return softsign(z.clamp(-limit, limit))


def _inverse_softsign(c: Tensor, most: float, low: float, high: float) -> Tensor:
    """``c / (most - |c|)``, clamped to ``[low, high]``."""
    # The quotient at the smallest denominator is beyond its bound. The clamps are `hardtanh`, whose
    # derivative is a single operation.
    least = most * min(torch.finfo(c.dtype).eps, 0.5 / high)
    return hardtanh(c / hardtanh(most - c.abs(), least, most), low, high)


def _normal_quantile(p: Tensor, low: float, high: float) -> Tensor:
    """``Phi^-1(p)``, clamped to ``[low, high]``.

    ``p`` is clamped first, so that values and gradients are finite beyond the bounds.
    """
    first, last = (0.5 * math.erfc(-_SQRT_HALF * end) for end in (low, high))
    info = torch.finfo(p.dtype)
    value = torch.special.ndtri(p.clamp(max(first, info.tiny), min(last, 1.0 - info.eps)))
    value = torch.where(p <= first, low, value)
    return torch.where(p >= last, high, value)
