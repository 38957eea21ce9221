"""Balls in the maximum mean discrepancy (MMD) of a kernel on contexts."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from botorch.exceptions.warnings import NumericsWarning
from torch import Tensor

from benchmarks.baselines.simplex_in_ellipsoid import FLOOR, certified_excess, minimise_linear
from botorch_calib._validation import check_one_of
from botorch_calib.robust.contexts import ContextDistribution, pairwise_distances
from botorch_calib.robust.sets.base import TIED, Ball

_METHODS = ("exact", "minimax", "sensitivity")
# Relative accuracy of the exact method; the absolute accuracy is this times `FLOOR` of the range.
_ACCURACY = 1e-6


class _Matrices(NamedTuple):
    """Factors of a kernel matrix ``K`` on the atoms."""

    root: Tensor  # the lower Cholesky factor R of K
    # Maps u to R^-1 (u - c), with the number c that makes its norm, the sensitivity S, smallest
    whiten: Tensor
    reach: Tensor  # the MMD between the centre and all mass at an atom


class MMDBall(Ball):
    r"""Distributions ``p`` on the atoms with ``(p - w)' K (p - w) <= radius^2``.

    ``K`` is the kernel matrix of the atoms plus ``jitter`` on the diagonal. Atoms of weight 0 may
    receive mass.

    * ``method="exact"`` [Kirschner2020drbo]: the worst-case distribution, to 1e-6 of the decrease
      ``E u - value`` (or 1e-9 of the range of ``u``). It has a closed form if nonnegativity does
      not bind; otherwise an active-set method finds it for ``M`` up to a few hundred. Duality gaps
      certify the accuracy, and a ``NumericsWarning`` reports where it is not reached.
    * ``method="sensitivity"``: the lower bound ``max(E u - radius S, min u)``. Without
      nonnegativity, the minimum over ``p`` of total mass 1 is ``E u - radius S`` with
      ``S^2 = (u - c)' K^-1 (u - c)``, ``c = 1' K^-1 u / 1' K^-1 1``, at the signed
        ``p = w - radius K^-1 (u - c) / S``. If all weights are positive, ``-S`` is also the
        derivative of the exact worst case at radius 0, which is the worst-case sensitivity of
        [Tay2022sensitivity].
    * ``method="minimax"`` [Tay2022sensitivity]: the mean of two bounds. The exact worst case is
      convex in the radius, so it lies above that tangent. It lies below the chord from radius 0 to
      the radius at which the ball contains the point mass at the atom of the smallest value. The
      mean jumps where this atom changes. (Published code uses the identity in place of ``K`` in
      ``S``; ``S`` is much larger for a smooth kernel. A larger ``jitter`` is in between.)

    Args:
        radius: Bound of the MMD itself, not of its square (see `Ball`).
        lengthscale: ``l`` in the Gaussian kernel ``exp(-|c - c'|^2 / (2 l^2))`` (default: the
            median distance between the atoms).
        method: ``"exact"``, or one of two approximations that no distribution need attain.
        jitter: The number added to the diagonal, whose elements are 1.

    Example:
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, MMDBall(0.1), contexts)
    """

    def __init__(
        self,
        radius: float,
        lengthscale: float | None = None,
        method: str = "exact",
        jitter: float = 1e-6,
    ) -> None:
        super().__init__(radius)
        self.lengthscale = lengthscale
        self.method = check_one_of("method", method, _METHODS)
        self.jitter = jitter

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        weights, radius = contexts.weights, self.radius
        if radius == 0:
            return weights.expand_as(u)
        matrices = self._matrices(contexts)
        white = u @ matrices.whiten.mT
        sensitivity = white.norm(dim=-1, keepdim=True)
        # The signed minimisers of total mass 1. By Lagrange's conditions p - w is a multiple of
        # -K^-1 (u - c), with c such that it sums to 0; the radius determines the multiple. Here
        # white' whiten = (u - c)' K^-1, whose length in the norm of K is the sensitivity.
        signed = weights - radius / sensitivity * (white @ matrices.whiten)
        # If the ball hardly changes the expectation, use its centre: in units of such a radius the
        # kernel matrix, or its square, would leave the range of float64.
        signed = torch.where(radius * sensitivity > TIED, signed, weights)
        least = u.argmin(dim=-1, keepdim=True)
        point = torch.zeros_like(u).scatter_(-1, least, 1.0)
        reach = matrices.reach[least]
        if self.method == "exact":
            # If the ball contains the point mass at the smallest value, this is the worst case.
            worst = torch.where(reach > radius, signed, point)
            rows = (~(worst.amin(dim=-1) >= 0)).nonzero().squeeze(-1)
            if len(rows):
                worst[rows] = self._constrained(u[rows], contexts, sensitivity[rows])
            return worst
        # The tangent E u - radius S is cut off at the smallest value, which is 0 here.
        below = (u @ weights).unsqueeze(-1) < radius * sensitivity
        tangent = torch.where(below, point, signed)
        if self.method == "sensitivity":
            return tangent
        # A convex function of the radius lies below its chord from the centre to the point mass.
        chord = torch.lerp(weights.expand_as(u), point, (radius / reach).clamp(max=1.0))
        return (tangent + chord) / 2

    def _constrained(self, u: Tensor, contexts: ContextDistribution, sensitivity: Tensor) -> Tensor:
        """Exact worst-case distributions, ``b x M``, where nonnegativity binds."""
        matrices, weights = self._matrices(contexts), contexts.weights
        # Units in which both bounds of the decrease are at most 1.
        scale = (self.radius * sensitivity).clamp(max=1.0)
        u, root = u / scale, matrices.root / self.radius
        worst, dual = minimise_linear(u, weights, root)
        delta = worst - weights
        excess = certified_excess(u, weights, root, delta, dual)
        # In units of the range. The values of feasible points differ by at most twice the decrease
        # of the signed solution.
        decrease = -torch.linalg.vecdot(u, delta)
        error = (excess * (decrease + FLOOR)).clamp(max=2.0) * scale.squeeze(-1)
        missed = (excess > _ACCURACY) & (error > _ACCURACY * FLOOR)
        if bool(missed.any()):
            warnings.warn(
                f"{self!r}: the worst case is only accurate to {excess[missed].max().item():.1e} "
                "of the decrease it causes; a larger `jitter` may help.",
                NumericsWarning,
                stacklevel=2,
            )
        return weights + delta

    def _matrices(self, contexts: ContextDistribution) -> _Matrices:
        """Factors of the kernel matrix of the atoms, kept with the contexts."""
        key = ("mmd", self.lengthscale, self.jitter)
        return contexts.memo(key, lambda: self._factor(contexts))

    def _factor(self, contexts: ContextDistribution) -> _Matrices:
        points = contexts.points
        eye = torch.eye(len(points), dtype=points.dtype, device=points.device)
        scale = torch.pdist(points).median() if self.lengthscale is None else self.lengthscale
        distances = pairwise_distances(points, points) / scale
        root = torch.linalg.cholesky(torch.exp(-0.5 * distances.square()) + self.jitter * eye)
        # With 1~ = R^-1 1, the c that minimises |R^-1 (u - c)| is 1~' R^-1 u / |1~|^2.
        inverse = torch.linalg.solve_triangular(root, eye, upper=False)
        ones = inverse.sum(dim=-1, keepdim=True)
        whiten = inverse - ones * ((ones.mT @ inverse) / ones.square().sum())
        return _Matrices(root, whiten, (root - contexts.weights @ root).norm(dim=-1))
