"""The radius of a Wasserstein ball for which a robust bound is proven, and the covering number."""

from __future__ import annotations

import math


def wasserstein_radius(
    t: int,
    delta: float,
    *,
    context_diameter: float,
    decision_diameter: float,
    decision_dim: int,
    log_covering_number: float,
) -> float:
    r"""Radius for which a robust bound holds with high probability [Micheli2025wdrbo, eq. 16].

    The radius is ``sqrt(2 D_C^2 (log(1/delta) + d_x log(1 + 2 t D_X) + log N) / t)``. With
    probability at least ``1 - 2 delta``, and for all decisions at once, the expectations of the
    upper confidence bound over true contexts and over ``t`` samples differ by at most the radius
    times the bound's Lipschitz constant plus ``(1 + 2 L B_t) / t`` (lemma 7). The radius exceeds
    the diameter of the contexts for thousands of rounds: in practice, use `RadiusSchedule`.

    Args:
        t: Number of context samples.
        delta: Failure probability, in (0, 1).
        context_diameter: ``D_C``, in the unit of the contexts.
        decision_diameter: ``D_X``.
        decision_dim: ``d_x``.
        log_covering_number: ``log N(1/t, U)``, logarithm of the number of balls of radius ``1/t``
            in the supremum norm that cover the set ``U`` of possible confidence bounds.

    Example:
        >>> number = log_covering_number(t=25, norm_bound=4.0, dim=2)
        >>> sizes = {"context_diameter": 1.0, "decision_diameter": 1.0, "decision_dim": 1}
        >>> radius = wasserstein_radius(25, 0.1, **sizes, log_covering_number=number)
    """
    total = -math.log(delta) + decision_dim * math.log1p(2 * t * decision_diameter)
    return context_diameter * math.sqrt(2 * (total + log_covering_number) / t)


def log_covering_number(t: int, norm_bound: float, dim: int, constant: float = 1.0) -> float:
    r"""Bound of ``log N(1/t, U(B, B, lambda))`` for a squared exponential kernel of at most 1.

    The bound is ``kappa (1 + log(B t))^(1 + d) + kappa (1 + log(B t))^(1 + 2 d)``, after
    [Micheli2025wdrbo, lemma 23 and corollary 24], who adapt Yang et al. (2020, lemma D.1). The
    first term counts posterior means, the second standard deviations times up to ``B``. The paper
    prints ``log t`` in the second term; but to cover the multiples to ``1/t``, standard deviations
    must be covered to ``1/(B t)``.

    Args:
        t: Number of context samples; the precision of the cover is ``1/t``.
        norm_bound: ``B``, bound of the norm of the posterior mean and of the multiplier of the
            standard deviation (lemma 3): the root of `confidence_multiplier`. At least ``1/t``.
        dim: ``d = d_x + d_c``.
        constant: ``kappa``, which the paper does not state. It may depend on the regularisation
            ``lambda``, which is less than 1.
    """
    order = 1 + math.log(norm_bound * t)
    try:
        return constant * (order ** (1 + dim) + order ** (1 + 2 * dim))
    except OverflowError:
        return math.inf
