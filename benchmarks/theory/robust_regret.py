r"""Bounds of the regret under shifts of the contexts [Micheli2025wdrbo]_, with all constants.

The theorems assume a known kernel of at most 1 whose feature map is ``L``-Lipschitz (assumption 1;
for a squared exponential kernel, ``L`` is the inverse of the smallest lengthscale), sub-Gaussian
noise, and a true distribution within the radius of the center. Remarks on the printed formulas:

* ``sigma_t`` has the factor ``1 / sqrt(lambda)`` (eq. 5), which ``deviations`` include. The sums
  over rounds need ``sigma_t <= 1`` (step i of eq. 59), and so ``lambda >= 1``; but lemma 23, the
  covering number in corollary 10, needs ``lambda < 1``. Step ii alone needs ``lambda >= 0.4``.
* Lemma 7 is proven for one round. Theorems 8 and 9 are therefore not proven for all rounds at once:
  the radius would need a smaller ``delta`` in each round, such as ``6 delta / (pi t)^2``.
* In eq. 15 the number of rounds belongs before the whole bracket, as in eqs. 18 and 60.

``gamma`` is the largest ``log det(I + K / lambda)``, twice the gain of `maximal_gains`.
"""

from __future__ import annotations

import math

import numpy as np


def norm_bound_of_mean(log_det: float, *, B: float, R: float, noise: float, delta: float) -> float:
    """``B-bar_t``, bound of the norm of the posterior mean (lemma 3).

    ``B-bar sqrt(lambda)`` is ``beta_t`` (eq. 7), and ``2 L B-bar_t`` bounds the slope of the upper
    confidence bound. It is the root of `confidence_multiplier` for a kernel of at most 1.

    Args:
        log_det: ``log det(I + K_{t-1} / lambda)`` of the queries, or its bound ``gamma``.
        B: Bound of the norm of the objective.
        R: The noise is ``R``-sub-Gaussian.
        noise: ``lambda``.
        delta: Failure probability.
    """
    return B + R / math.sqrt(noise) * math.sqrt(log_det - 2.0 * math.log(delta))


def instantaneous(
    beta: float, deviations: np.ndarray, weights: np.ndarray, radius: float, slope: float
) -> float:
    """Bound of a round's expected regret (Theorem 4), with probability ``1 - delta``.

    Theorem 8, for an empirical center, has the additional term ``2 rho_t`` and holds with
    probability ``1 - 2 delta``.

    Args:
        beta: ``beta_t``, which multiplies the standard deviation.
        deviations: ``sigma_{t-1}(x_t, c)`` at the contexts.
        weights: Their true probabilities.
        radius: ``epsilon_t``.
        slope: ``L^UCB_t`` at the best decision.
    """
    return 2.0 * beta * float(weights @ deviations) + 2.0 * radius * slope


def cumulative(
    beta: float, gamma: float, radii: np.ndarray, slopes: np.ndarray, delta: float
) -> float:
    """Bound of the expected regret of all rounds (Theorem 5), with probability ``1 - 2 delta``.

    Theorem 9 adds twice the sum of ``rho_t`` and holds with probability ``1 - 3 delta``. With
    ``2 L B-bar_T`` for all slopes, it is the bound whose order corollary 6 states.

    Args:
        beta: ``beta_T``.
        gamma: ``gamma_T``.
        radii: ``epsilon_t``, ``T``.
        slopes: ``L^UCB_t`` at the best decision of each round, ``T`` or one for all.
        delta: Failure probability.
    """
    first = 4.0 * beta * math.sqrt(len(radii) * (gamma + 4.0 * math.log(6.0 / delta)))
    return first + 2.0 * float((radii * slopes).sum())


def learning_slack(t: int, lipschitz: float, norm: float) -> float:
    """``rho_t`` of lemma 7 after ``t`` contexts, with ``B-bar_t`` as the norm."""
    return (1.0 + 2.0 * lipschitz * norm) / t
