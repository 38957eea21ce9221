"""Minimisers with mass on many atoms, by a primal-dual interior-point method.

It is the method with the scaling of Nesterov and Todd and Mehrotra's corrector, as usual for cone
programs (for example Vandenberghe, "The CVXOPT linear and quadratic cone program solvers", 2010).
Its state is ``delta = p - w``, so that small ellipsoids lose no digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_calib.robust.simplex_in_ellipsoid.duality_gap import (
    EXCESS,
    TINY,
    certified_excess,
)

# Steps; about 6 to 12 are needed.
_STEPS = 40
# Numbers in the matrices of the rows that are solved together.
_BLOCK = 2**19
# Excess from which on the atoms without mass may be recognised, so that a closed form ends it.
_NEAR = 1e-2
# Steps after which this is tried from anywhere, and corrections of the set of atoms at each trial.
_PATIENCE = 12
_CORRECTIONS = 3
# Slack of the multipliers at the start.
_START = 0.1
# Predictor steps shorter than this are not trusted for second-order terms.
_SHORT = 0.1


def solve_dense(u: Tensor, weights: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Minimisers, whatever they are like.

    Args:
        u: Functions, ``b x M``, scaled as for `minimise_linear`.
        weights: ``w``, ``M``.
        root: ``R``, ``M x M``, lower triangular and invertible.

    Returns:
        Minimisers, ``b x M``, and their excess (see `certified_excess`), ``b``.
    """
    quadratic = root @ root.mT
    parts = [
        _InteriorPoint(rows, weights, root, quadratic).solve()
        for rows in u.split(max(1, _BLOCK // root.numel()))
    ]
    masses, excess = zip(*parts, strict=True)
    return torch.cat(masses), torch.cat(excess)


def whitened(u: Tensor, root: Tensor) -> Tensor:
    """``R^-1 (u - c)`` with the number ``c`` that makes its norm smallest, ``b x M``.

    Args:
        u: Functions, ``b x M``.
        root: ``R``, ``M x M``, lower triangular.
    """
    both = torch.cat([u, torch.ones_like(root[:1])])
    white = torch.linalg.solve_triangular(root, both.mT, upper=False).mT
    values, ones = white[:-1], white[-1]
    return values - (values @ ones / (ones @ ones)).unsqueeze(-1) * ones


class _InteriorPoint:
    """A block of rows. Solved rows leave the block, the best iterate of each is kept.

    Primal: ``masses = w + delta > 0`` and ``cone = (1, R' delta)`` inside the second-order cone.
    Dual: ``z > 0`` and ``dual`` inside that cone.
    """

    def __init__(self, u: Tensor, weights: Tensor, root: Tensor, quadratic: Tensor) -> None:
        self.u, self.weights, self.root, self.quadratic = u, weights, root, quadratic
        num = u.shape[-1]
        # Strictly inside: a small step from the centre towards equal masses.
        step = 1 / num - weights
        reach = (step @ root).norm().clamp(min=TINY)
        self.delta = (step * torch.clamp(0.5 / reach, max=0.5)).expand_as(u).clone()
        # Strictly inside also for the dual: the multiplier of the ellipsoid alone, or part of it.
        ray = whitened(u, root)
        size = ray.norm(dim=-1, keepdim=True).clamp(min=TINY)
        share = (1 / size).clamp(max=1.0)
        self.dual = torch.cat([1.5 * share * size, share * ray], dim=-1)
        self.z = (1 - share) * (u - u.amin(dim=-1, keepdim=True)) + _START
        self.best = weights + self.delta
        self.excess = torch.full_like(u[:, 0], float("inf"))
        self.rows = torch.arange(len(u), device=u.device)

    def solve(self) -> tuple[Tensor, Tensor]:
        """Minimisers ``b x M`` and their excess ``b``."""
        for step in range(_STEPS):
            self._record(_NEAR if step < _PATIENCE else float("inf"))
            if not len(self.rows):
                break
            self._advance()
        self._record(float("inf"))
        return self.best, self.excess

    def _cone(self, delta: Tensor) -> Tensor:
        image = delta @ self.root
        return torch.cat([torch.ones_like(image[:, :1]), image], dim=-1)

    def _record(self, limit: float) -> None:
        """Keep what has improved, look for more from an excess of ``limit`` on, drop the solved."""
        self._compare(slice(None), self.delta, self.dual[:, 1:])
        near = (self.excess[self.rows] <= limit).nonzero().squeeze(-1)
        if len(near):
            free = (self.weights + self.delta[near]) * self.u.shape[-1] > self.z[near]
            for _ in range(_CORRECTIONS):
                delta, dual = self._polished(near, free)
                self._compare(near, delta, dual)
                unsolved = self.excess[self.rows[near]] > EXCESS
                near, free, delta, dual = (v[unsolved] for v in (near, free, delta, dual))
                # Atoms whose mass became negative leave; those that promise a decrease join.
                reduced = self.u[near] - dual @ self.root.T
                level = (reduced * free).sum(-1, keepdim=True) / free.sum(-1, keepdim=True)
                free = torch.where(free, self.weights + delta >= 0, reduced < level)
        going = self.excess[self.rows] > EXCESS
        for name in ("u", "delta", "z", "dual", "rows"):
            setattr(self, name, getattr(self, name)[going])

    def _compare(self, index: slice | Tensor, delta: Tensor, dual: Tensor) -> None:
        """Keep those of the points ``w + delta`` of the rows ``index`` that are better."""
        rows, masses = self.rows[index], self.weights + delta
        excess = certified_excess(self.u[index], self.weights, self.root, delta, dual)
        better = (excess < self.excess[rows]) & (masses >= 0).all(dim=-1)
        self.excess[rows[better]], self.best[rows[better]] = excess[better], masses[better]

    def _polished(self, index: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        """Closed-form solutions ``delta`` and ``dual``, given which atoms are ``free``, ``b x M``.

        The others have no mass. On the free atoms the ellipsoid's centre is ``-K^-1 pull``, where
        ``pull`` comes from the others. The solution is the sum of it, of the shortest correction
        of the total mass, and of the steepest descent that keeps the mass, up to the boundary.
        """
        mask = free.to(self.u)
        fixed = torch.where(free, 0.0, -self.weights)
        pull = (fixed @ self.quadratic) * mask
        matrix = self.quadratic * mask.unsqueeze(-1) * mask.unsqueeze(-2)
        matrix.diagonal(dim1=-2, dim2=-1).add_(1 - mask)
        factor, _ = torch.linalg.cholesky_ex(matrix)
        right = torch.stack([mask, pull, self.u[index] * mask], dim=-1)
        ones, back, descent = _solve(factor, right).unbind(dim=-1)
        total = ones.sum(dim=-1, keepdim=True)
        descent = descent - ones * (descent.sum(dim=-1, keepdim=True) / total)
        missing = (back - fixed).sum(dim=-1, keepdim=True)
        start = fixed - back + ones * (missing / total)
        room = 1 - (start @ self.root).square().sum(dim=-1, keepdim=True)
        length = room.clamp(min=0.0).sqrt() / (descent @ self.root).norm(dim=-1, keepdim=True)
        delta = start - length * descent
        return delta, -(delta @ self.root) / length.clamp(min=TINY)

    def _advance(self) -> None:
        """One step of the predictor and the corrector, which share a factorisation."""
        masses, cone = self.weights + self.delta, self._cone(self.delta)
        scaling = _Scaling(cone, self.dual)
        point = scaling.apply(self.dual)
        degree = self.u.shape[-1] + 1
        mu = (torch.linalg.vecdot(self.z, masses) + torch.linalg.vecdot(point, point)) / degree
        solver = self._factor(masses, scaling)
        first = self._direction(
            solver, scaling, -masses * self.z, -_jordan(point, point), masses, point
        )
        steps = self._steps(masses, cone, *first)
        reach = torch.minimum(*steps).clamp(max=1.0).unsqueeze(-1)
        center = (1 - reach) ** 3 * mu.unsqueeze(-1)
        delta, dz, dcone, ddual = first
        # After a short predictor its second-order terms mislead: then the step only centres.
        weight = (reach >= _SHORT).to(reach)
        linear = center - masses * self.z - weight * delta * dz
        conic = -_jordan(point, point)
        conic = conic - weight * _jordan(scaling.undo(dcone), scaling.apply(ddual))
        conic[:, :1] += center
        second = self._direction(solver, scaling, linear, conic, masses, point)
        # Unequal steps would leave the cone's two parts far from the central path.
        length = torch.minimum(*self._steps(masses, cone, *second)).unsqueeze(-1)
        length = (0.99 * length).clamp(max=1.0)
        self.delta = self.delta + length * second[0]
        self.z = self.z + length * second[1]
        self.dual = self.dual + length * second[3]

    def _factor(self, masses: Tensor, scaling: _Scaling) -> tuple[Tensor, Tensor, Tensor]:
        """Cholesky factor of the reduced system, its solution for ones, and whether it exists."""
        column = (scaling.vector[:, 1:] @ self.root.T).unsqueeze(-1)
        matrix = torch.baddbmm(self.quadratic, 2 * column, column.mT)
        matrix.div_(scaling.size2[:, None, None])
        matrix.diagonal(dim1=-2, dim2=-1).add_(self.z / masses)
        factor, info = torch.linalg.cholesky_ex(matrix)
        return (
            factor,
            _solve(factor, torch.ones_like(masses).unsqueeze(-1)).squeeze(-1),
            (info == 0).unsqueeze(-1),
        )

    def _direction(
        self,
        solver: tuple[Tensor, Tensor, Tensor],
        scaling: _Scaling,
        linear: Tensor,
        conic: Tensor,
        masses: Tensor,
        point: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Changes of ``delta``, ``z``, ``cone`` and ``dual`` for given complementarity targets."""
        # ``z`` and ``dual`` are eliminated, which leaves the reduced system in ``delta``; a
        # multiple of its solution for ones keeps the total mass.
        factor, ones, valid = solver
        target = scaling.undo(_divide(conic, point))
        residual = self.u - self.z - self.dual[:, 1:] @ self.root.T
        right = linear / masses + target[:, 1:] @ self.root.T - residual
        free = _solve(factor, right.unsqueeze(-1)).squeeze(-1)
        step = free - ones * (free.sum(-1, keepdim=True) / ones.sum(-1, keepdim=True))
        step = torch.where(valid & step.isfinite(), step, 0.0)
        image = step @ self.root
        dcone = torch.cat([torch.zeros_like(image[:, :1]), image], dim=-1)
        dz = (linear - self.z * step) / masses
        return step, dz, dcone, target - scaling.undo(scaling.undo(dcone))

    def _steps(
        self, masses: Tensor, cone: Tensor, step: Tensor, dz: Tensor, dcone: Tensor, ddual: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Longest primal and dual step of at most 1 inside the cones, ``b`` each."""
        primal = torch.minimum(_longest(masses, step), _longest_in_cone(cone, dcone))
        return primal, torch.minimum(_longest(self.z, dz), _longest_in_cone(self.dual, ddual))


class _Scaling:
    """The symmetric map ``W`` of the second-order cone with ``W dual = W^-1 cone``."""

    def __init__(self, cone: Tensor, dual: Tensor) -> None:
        # Nesterov and Todd's scaling: the square root of the quadratic map of the geometric mean.
        cone_det, dual_det = _det(cone), _det(dual)
        cone, dual = cone / cone_det.sqrt(), dual / dual_det.sqrt()
        size = ((1 + torch.linalg.vecdot(cone, dual)) / 2).sqrt().unsqueeze(-1)
        self.vector = (cone + _flip(dual)) / (2 * size)
        self.size2 = (cone_det / dual_det).sqrt().squeeze(-1)

    def apply(self, x: Tensor) -> Tensor:
        """``W x``."""
        return self._product(x, self.vector) * self.size2.sqrt().unsqueeze(-1)

    def undo(self, x: Tensor) -> Tensor:
        """``W^-1 x``."""
        return self._product(x, _flip(self.vector)) / self.size2.sqrt().unsqueeze(-1)

    @staticmethod
    def _product(x: Tensor, v: Tensor) -> Tensor:
        inner = torch.linalg.vecdot(x[:, 1:], v[:, 1:]).unsqueeze(-1)
        head = v[:, :1] * x[:, :1] + inner
        tail = x[:, 1:] + v[:, 1:] * (x[:, :1] + inner / (1 + v[:, :1]))
        return torch.cat([head, tail], dim=-1)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """Solutions ``b x M x k`` by Cholesky factors; much faster than ``torch.cholesky_solve``."""
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    return torch.linalg.solve_triangular(factor.mT, half, upper=True)


def _flip(x: Tensor) -> Tensor:
    """``(x_0, -x_1)``."""
    return torch.cat([x[:, :1], -x[:, 1:]], dim=-1)


def _det(x: Tensor) -> Tensor:
    """``x_0^2 - |x_1|^2``, positive inside the cone, ``b x 1``."""
    norm = x[:, 1:].norm(dim=-1, keepdim=True)
    return ((x[:, :1] - norm) * (x[:, :1] + norm)).clamp(min=TINY)


def _jordan(x: Tensor, y: Tensor) -> Tensor:
    """Product of the cone's Jordan algebra."""
    head = torch.linalg.vecdot(x, y).unsqueeze(-1)
    return torch.cat([head, x[:, :1] * y[:, 1:] + y[:, :1] * x[:, 1:]], dim=-1)


def _divide(y: Tensor, x: Tensor) -> Tensor:
    """The ``v`` with ``_jordan(x, v) = y``."""
    inner = torch.linalg.vecdot(x[:, 1:], y[:, 1:]).unsqueeze(-1)
    head = (x[:, :1] * y[:, :1] - inner) / _det(x)
    return torch.cat([head, (y[:, 1:] - head * x[:, 1:]) / x[:, :1]], dim=-1)


def _longest(x: Tensor, dx: Tensor) -> Tensor:
    """Largest multiple of ``dx``, at most 1 / 0.99, that keeps ``x`` nonnegative, ``b``."""
    return torch.where(dx < 0, -x / dx, 1 / 0.99).amin(dim=-1).clamp(max=1 / 0.99)


def _longest_in_cone(x: Tensor, dx: Tensor) -> Tensor:
    """Largest multiple of ``dx``, at most 1 / 0.99, that keeps ``x`` in the cone, ``b``."""
    flipped = _flip(x)
    a = torch.linalg.vecdot(_flip(dx), dx)
    half = torch.linalg.vecdot(flipped, dx)
    c = _det(x).squeeze(-1)
    # Smallest positive root of a t^2 + 2 half t + c, which is c at 0; none means no limit.
    root = (half.square() - a * c).clamp(min=0.0).sqrt()
    exists = (half.square() >= a * c) & ((a < 0) | (half < 0))
    limit = c / (root - half)
    limit = torch.where(exists & (limit > 0), limit, 1 / 0.99)
    return limit.clamp(max=1 / 0.99)
