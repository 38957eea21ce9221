"""The information gain of a kernel on a finite domain, which bounds of regret depend on."""

from __future__ import annotations

import numpy as np

# The gain of greedily chosen queries is at least this share of the maximal gain.
GREEDY = 1.0 - 1.0 / np.e


def maximal_gains(K: np.ndarray, num_queries: int, noise: float) -> np.ndarray:
    """Upper bounds of the maximal information gain after each number of queries.

    The gain of queries with the covariance matrix ``K_t`` is ``log det(I + K_t / noise) / 2``. It
    is submodular. Therefore the gain of greedy queries, each at the point of largest variance, is
    at least 1 - 1/e times the maximal gain [Srinivas et al. 2010, section 2].

    Args:
        K: Prior covariance of the points of the domain, ``n x n``. A point may be queried again.
        num_queries: The largest number of queries, ``T``.
        noise: ``lambda``, the variance of the noise or the regularization.

    Returns:
        ``T + 1`` numbers; the first is 0.
    """
    K, gains = K.copy(), [0.0]
    for _ in range(num_queries):
        variance = K.diagonal()
        index = int(variance.argmax())
        gains.append(gains[-1] + 0.5 * np.log1p(variance[index] / noise))
        K = K - np.outer(K[index], K[index]) / (variance[index] + noise)
    return np.array(gains) / GREEDY
