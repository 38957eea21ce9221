r"""Bounds of the regret under stochastic delays [Verma2022]_, with all constants.

The model uses 0 instead of a value that has not arrived. It keeps the 0 if the delay exceeds
``m`` rounds, which has the probability ``1 - rho``. The theorems assume

* a known kernel of at most 1, a finite domain, and an objective whose norm is at most ``B_f``,
* a regularization ``lambda > 1``: in BoTorch's terms, the noise variance exceeds the variance of
  the objective,
* outcomes of size at most ``B_y``, which excludes Gaussian noise, and delays that do not depend on
  the outcomes.

``gains`` come from `maximal_gains`; round ``t`` uses the gain of ``t - 1`` queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# Lower bound of the probability that a sample exceeds the objective [Verma2022, lemma 3].
EXCEEDED = 1.0 / (4.0 * math.e * math.sqrt(math.pi))


@dataclass(frozen=True)
class DelayedRegret:
    """Bounds for one problem.

    **Batches.** Propositions 1 and 2 are Theorems 2 and 3 for a batch size ``m + 1``, whose delays
    are never above ``m``: ``rho = 1``.

    Args:
        norm_bound: ``B_f``.
        outcome_bound: ``B_y``.
        noise_bound: ``R``, for which the noise is sub-Gaussian.
        noise: ``lambda``.
        delta: Failure probability.
        max_wait: ``m``.
        arrival: ``rho_m``, the probability of a delay of at most ``m``.
    """

    norm_bound: float
    outcome_bound: float
    noise_bound: float
    noise: float
    delta: float
    max_wait: int
    arrival: float

    def root(self, gain: float, delta: float | None = None) -> float:
        """``beta_t`` (eq. 2) for the gain ``gamma_{t-1}``."""
        size = 2.0 * (gain + 1.0 + math.log(2.0 / (self.delta if delta is None else delta)))
        return self.norm_bound + (self.noise_bound + self.outcome_bound) * math.sqrt(size)

    def width(self, gain: float, deviations: np.ndarray, delta: float | None = None) -> float:
        """``nu_t`` (eq. 2), for which ``|mu - rho f| <= nu_t sigma`` (Theorems 1 and 4).

        Args:
            gain: ``gamma_{t-1}``.
            deviations: ``sigma_{t-1}`` at the last ``m`` queries, or at all if there are fewer.
            delta: Failure probability (default: the problem's).
        """
        return self.outcome_bound * float(deviations.sum()) + self.root(gain, delta)

    def ucb(self, gains: np.ndarray) -> float:
        """Theorem 2: the cumulative regret of GP-UCB-SDF after ``len(gains) - 1`` rounds."""
        return 2.0 / self.arrival * self._sum_of_widths(gains, self.delta)

    def thompson(self, gains: np.ndarray, num_points: int) -> float:
        """Theorem 3: the cumulative regret of GP-TS-SDF on ``num_points`` points.

        The theorem states the order; the constants are from its proof (eq. 23). Eq. 21 there
        divides by ``p - 1 / t^2``, which is negative before round 5. The bound holds in these
        rounds too if ``k(x, x) = 1``: its term ``11 c_t sigma / p`` exceeds ``2 B_f``.
        """
        T, delta = len(gains) - 1, 0.5 * self.delta
        spread = 1.0 + math.sqrt(2.0 * math.log(num_points * T**2))
        # Deviations are at most 1.
        largest = self.max_wait * self.outcome_bound + self.root(gains[T - 1], delta)
        step = (4.0 * self.norm_bound + 11.0 * largest * spread) / (self.arrival * EXCEEDED)
        return (
            11.0 * spread / (self.arrival * EXCEEDED) * self._sum_of_widths(gains, delta)
            + step * math.sqrt(2.0 * T * math.log(2.0 / self.delta))
            + self.norm_bound * math.pi**2 / 3.0
        )

    def _sum_of_widths(self, gains: np.ndarray, delta: float) -> float:
        """Bound of the sum of ``nu_t sigma_{t-1}(x_t)`` (eqs. 12 and 13)."""
        T = len(gains) - 1
        constant = 2.0 / math.log1p(1.0 / self.noise)
        first = math.sqrt(constant * T * gains[T]) * self.root(gains[T - 1], delta)
        return first + self.max_wait * self.outcome_bound * constant * float(gains[T])
