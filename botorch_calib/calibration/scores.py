"""Conformity scores: monotone maps from residuals, in predictive standard deviations, to [0, 1].

A residual is ``z = (y - mu) / sigma_y``, where the model predicts the mean ``mu`` and the standard
deviation ``sigma_y`` of the observation ``y``. LOCBO is [Kim2024locbo], OCBO is [Deshpande2024].
"""

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
    """Probability integral transform ``Phi(z)`` of residuals, with the same shape as ``z``.

    The residuals ``z`` are in predictive standard deviations. The transform is uniform on [0, 1] if
    the model is calibrated. In the upper tail, ``1 - Phi(z)`` loses digits to rounding.

    Example:
        >>> pit(torch.tensor([0.0]))
        tensor([0.5000])
    """
    return ndtr(z)


def two_sided_p_value(z: Tensor) -> Tensor:
    """Conformity score ``2 Phi(-|z|)`` (LOCBO eq. 26) of residuals, with the same shape as ``z``.

    The residuals ``z`` are in predictive standard deviations. The score is accurate for large
    ``|z|`` too. Conforming observations have large scores: LOCBO's prediction set holds the
    outcomes whose score is at least a threshold (eq. 25), although the text of the paper calls the
    score a score of non-conformity.

    Example:
        >>> two_sided_p_value(torch.tensor([0.0]))
        tensor([1.])
    """
    return 2.0 * ndtr(-z.abs())


@dataclass(frozen=True)
class Score(ABC):
    """A monotone map from residuals ``z`` to [0, 1], for intervals and for quantiles.

    The residuals are in predictive standard deviations. The coverage guarantee of online learners
    holds for any score with values in [0, 1]; the score determines how finely wide intervals are
    resolved. Interval methods track one quantile of the score of ``|z|``, at the level
    `two_sided_level`, and convert it to a half-width by `half_width`. Recalibration tracks one
    quantile of the score of ``z`` for each level, and converts these quantiles to quantiles of
    ``z``, the knots, by `knots`. The tracked quantiles are called thresholds. Raw thresholds, as a
    learner returns them, may be outside [0, 1]. Their half-widths and knots are then at the bounds,
    with zero gradient.

    Args:
        max_width: Largest half-width and largest absolute knot, in predictive standard deviations,
            greater than 1e-3. Coverage is no longer guaranteed if residuals exceed ``max_width``
            more often than the tracked level allows.
    """

    max_width: float
    #: Whether the two-sided score increases with ``|z|``. It decreases if it is a p-value.
    grows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if check_positive("max_width", self.max_width) <= MIN_HALF_WIDTH:
            raise InputDataError(
                f"`max_width` must exceed {MIN_HALF_WIDTH}, got {self.max_width!r}."
            )

    @abstractmethod
    def two_sided(self, z: Tensor) -> Tensor:
        """Score of ``|z|`` in [0, 1], with the same shape as ``z``."""

    def two_sided_level(self, alpha: float) -> float:
        """Level at which quantiles of the two-sided score are tracked for miscoverage ``alpha``."""
        check_open_unit("alpha", alpha)
        return 1.0 - alpha if self.grows else alpha

    def initial_two_sided(self, alpha: float) -> float:
        """Two-sided score at the ends of the central ``1 - alpha`` interval of the normal model.

        A learner starts from this threshold.
        """
        width = NormalDist().inv_cdf(0.5 * check_open_unit("alpha", alpha))
        return float(self.two_sided(torch.tensor(width, dtype=torch.double)))

    @abstractmethod
    def signed(self, z: Tensor) -> Tensor:
        """Score in [0, 1] that increases with ``z``, with the same shape as ``z``."""

    def initial_signed(self, levels: Tensor) -> Tensor:
        """Signed scores of the standard normal quantiles at ``levels``, ``M``.

        A learner starts from these thresholds.
        """
        return self.signed(torch.special.ndtri(levels))

    @abstractmethod
    def half_width(self, theta: Tensor) -> Tensor:
        """Half-widths of intervals for raw thresholds, with the same shape as ``theta``.

        Half-widths are in predictive standard deviations. They are clamped to ``[MIN_HALF_WIDTH,
        max_width]``, with zero gradient at the bounds.
        """

    @abstractmethod
    def knots(self, theta: Tensor) -> Tensor:
        """Quantiles of the residual ``z``, with the same shape as the raw thresholds ``theta``.

        The thresholds are quantiles of the signed score. The quantiles of ``z`` increase with
        ``theta`` and are clamped to ``[-max_width, max_width]``, with zero gradient at the bounds.
        """


@dataclass(frozen=True)
class GaussianScore(Score):
    """The papers' scores: the p-value (LOCBO eq. 26) and the probability integral transform (OCBO).

    The two-sided p-value of a residual ``z`` saturates for large ``|z|``: the half-width is 2.6 at
    a threshold of 0.01, and equals the cap at a threshold of 0, so one step of a learner decides
    between them. Use `RationalScore` for a badly overconfident model.

    Args:
        max_width: See `Score`; the default is from the papers.

    Example:
        >>> published = LocalizedConformal(0.2, lengthscale=0.25, score=GaussianScore())
    """

    max_width: float = 3.4
    grows = False

    def two_sided(self, z: Tensor) -> Tensor:
        """``2 Phi(-|z|)``; residuals with scores up to the threshold are outside the interval."""
        return two_sided_p_value(z)

    def signed(self, z: Tensor) -> Tensor:
        """The probability integral transform ``Phi(z)``."""
        return pit(z)

    def half_width(self, theta: Tensor) -> Tensor:
        """``-Phi^-1(theta / 2)``, clamped to the bounds given in `Score.half_width`."""
        # Phi^-1(theta / 2) keeps all digits for theta near 0; Phi^-1(1 - theta / 2) loses them.
        return -_normal_quantile(0.5 * theta, -self.max_width, -MIN_HALF_WIDTH)

    def knots(self, theta: Tensor) -> Tensor:
        """``Phi^-1(theta)``, clamped to the bounds given in `Score.knots`."""
        return _normal_quantile(theta, -self.max_width, self.max_width)


@dataclass(frozen=True)
class RationalScore(Score):
    """The score ``|z| / (1 + |z|)``, and its signed form ``(1 + z / (1 + |z|)) / 2``.

    The residual ``z`` is in predictive standard deviations. The score resolves any width: a small
    change ``delta`` of the threshold changes the half-width ``w`` by about ``delta (1 + w)^2``. The
    score increases with ``|z|``, so intervals with miscoverage ``alpha`` track its
    ``1 - alpha``-quantile.

    Args:
        max_width: See `Score`.

    Example:
        >>> RationalScore().two_sided(torch.tensor([0.0, 1.0, 3.0]))
        tensor([0.0000, 0.5000, 0.7500])
    """

    max_width: float = 50.0

    def two_sided(self, z: Tensor) -> Tensor:
        """``|z| / (1 + |z|)``; residuals with scores up to the threshold are in the interval."""
        return _softsign(z.abs())

    def signed(self, z: Tensor) -> Tensor:
        """``(1 + z / (1 + |z|)) / 2``, which is 1/2 at ``z = 0``."""
        return 0.5 * (1.0 + _softsign(z))

    def half_width(self, theta: Tensor) -> Tensor:
        """``theta / (1 - theta)``, clamped to the bounds given in `Score.half_width`."""
        return _inverse_softsign(theta, 1.0, MIN_HALF_WIDTH, self.max_width)

    def knots(self, theta: Tensor) -> Tensor:
        """``c / (1/2 - |c|)`` with ``c = theta - 1/2``, clamped to the bounds in `Score.knots`."""
        return _inverse_softsign(theta - 0.5, 0.5, -self.max_width, self.max_width)


#: The default score of calibrators.
DEFAULT_SCORE = RationalScore()


def _softsign(z: Tensor) -> Tensor:
    """``z / (1 + |z|)``, also for infinite ``z``."""
    # An infinite z would give inf / inf = NaN. The largest finite number gives 1, the limit.
    limit = torch.finfo(z.dtype).max
    return softsign(z.clamp(-limit, limit))


def _inverse_softsign(c: Tensor, most: float, low: float, high: float) -> Tensor:
    """``c / (most - |c|)``, clamped to ``[low, high]``; at a bound if ``|c| >= most``."""
    # The denominator is clamped to at least `least`, where the quotient is already beyond a bound.
    # The clamps are `hardtanh`, whose derivative is a single operation.
    least = most * min(torch.finfo(c.dtype).eps, 0.5 / high)
    return hardtanh(c / hardtanh(most - c.abs(), least, most), low, high)


def _normal_quantile(p: Tensor, low: float, high: float) -> Tensor:
    """``Phi^-1(p)``, clamped to ``[low, high]``; ``p`` may be outside [0, 1].

    ``p`` is clamped first, because ``Phi^-1`` and its derivative are infinite at 0 and 1.
    """
    first, last = (0.5 * math.erfc(-_SQRT_HALF * end) for end in (low, high))
    info = torch.finfo(p.dtype)
    value = torch.special.ndtri(p.clamp(max(first, info.tiny), min(last, 1.0 - info.eps)))
    value = torch.where(p <= first, low, value)
    return torch.where(p >= last, high, value)
