"""Worst cases as convex programs, solved by CVXPY from the definition of each set."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from botorch_calib.robust import (
    AmbiguitySet,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)

Array = NDArray[np.float64]


def pairwise_distances(points: Array) -> Array:
    return np.sqrt(((points[:, None, :] - points[None, :, :]) ** 2).sum(-1))


def constraints(ambiguity: AmbiguitySet, p: Any, points: Array, w: Array) -> list[Any]:
    """Constraints on a distribution ``p`` of the set, except ``p >= 0`` and ``sum p = 1``."""
    has = w > 0
    if isinstance(ambiguity, WassersteinBall):
        plan = cp.Variable((len(w), len(w)), nonneg=True)
        cost = cp.sum(cp.multiply(plan, pairwise_distances(points)))
        return [
            cp.sum(plan, axis=1) == w,
            cp.sum(plan, axis=0) == p,
            cost <= ambiguity.radius,
        ]
    if isinstance(ambiguity, TotalVariationBall):
        return [cp.norm1(p - w) <= ambiguity.radius]
    if isinstance(ambiguity, ConditionalValueAtRisk):
        return [p <= w / ambiguity.alpha]
    if isinstance(ambiguity, WorstCase):
        return []
    none = [p[~has] == 0] if (~has).any() else []
    if isinstance(ambiguity, ChiSquaredBall):
        divergence = cp.sum_squares(cp.multiply(p[has] - w[has], w[has] ** -0.5))
        return [*none, divergence <= ambiguity.radius]
    assert isinstance(ambiguity, KLBall)
    return [*none, cp.sum(cp.kl_div(p[has], w[has])) <= ambiguity.radius]


def solve(ambiguity: AmbiguitySet, values: Array, contexts: ContextDistribution) -> float:
    """The smallest expectation of ``M`` values over the set."""
    points, w = contexts.points.double().numpy(), contexts.weights.double().numpy()
    p = cp.Variable(len(w), nonneg=True)
    extra = constraints(ambiguity, p, points, w)
    # The solver's tolerances are absolute.
    low, size = values.min(), np.ptp(values) or 1.0
    problem = cp.Problem(cp.Minimize((values - low) / size @ p), [cp.sum(p) == 1, *extra])
    names = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
    problem.solve(solver="CLARABEL", **dict.fromkeys(names, 1e-9))
    return float(low + size * problem.value)


def distance_from_centre(
    ambiguity: AmbiguitySet, p: Array, points: Array, w: Array
) -> tuple[float, float]:
    """How far a distribution is from the centre, and how far it may be."""
    has = w > 0
    if isinstance(ambiguity, WassersteinBall):
        plan = cp.Variable((len(w), len(w)), nonneg=True)
        cost = cp.sum(cp.multiply(plan, pairwise_distances(points)))
        problem = cp.Problem(
            cp.Minimize(cost), [cp.sum(plan, axis=1) == w, cp.sum(plan, axis=0) == p / p.sum()]
        )
        problem.solve(solver="HIGHS")
        return float(problem.value), ambiguity.radius
    if isinstance(ambiguity, TotalVariationBall):
        return float(np.abs(p - w).sum()), ambiguity.radius
    if isinstance(ambiguity, WorstCase):
        return 0.0, 0.0
    assert (p[~has] == 0).all()
    p, w = p[has], w[has]
    if isinstance(ambiguity, ConditionalValueAtRisk):
        return float((p / w).max()), 1 / ambiguity.alpha
    if isinstance(ambiguity, ChiSquaredBall):
        return float(((p - w) ** 2 / w).sum()), ambiguity.radius
    assert isinstance(ambiguity, KLBall)
    ratio = np.where(p > 0, p, 1.0) / w
    return float((p * np.log(ratio)).sum()), ambiguity.radius
