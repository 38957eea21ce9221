r"""Linear functions over the part of the simplex inside an ellipsoid, for many functions at once.

`minimise_linear` minimises ``u' p`` over ``p >= 0``, ``sum p = 1``, ``|R' (p - w)| <= 1``, the
program behind `MMDBall`, by one of two methods. Both end with a certified duality gap.

* **Active set**, in the manner of Wolfe's method for the nearest point of a polytope (1976). A
  smooth kernel makes minimisers sparse: of a grid of 36 contexts they typically use 3 to 10, so
  that systems of this size are all that has to be solved. The method keeps a feasible ``p``, a
  mixture of the centre ``w`` and of some atoms. In each step it moves towards the best mixture of
  these, which has a closed form as long as signs are ignored, up to where a share vanishes: that
  atom, or the centre, leaves. If none does, the atom of the smallest reduced value joins. The
  value falls in each step, so that the method is finite.
* **Interior points**, where many atoms keep mass, and where the active set gives up: the
  primal-dual method with the scaling of Nesterov and Todd and Mehrotra's corrector, as usual for
  cone programs (for example Vandenberghe, "The CVXOPT linear and quadratic cone program solvers",
  2010). Its state is ``delta = p - w``, so that small ellipsoids lose no digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Excess to stop at, see `certified_excess`.
EXCESS = 1e-7
# Part of the range of a function below which its decrease needs no relative accuracy: there the
# worst case differs from the expectation by less than a thousandth of the range.
_FLOOR = 1e-3
_TINY = 1e-300

# Negative mass of the solution without signs from which on the active-set method is the faster one:
# the more of it, the fewer atoms keep mass.
_NEGATIVE = 1.0
# Rows that the active-set method solves together.
_SPARSE_ROWS = 512
# Its steps after which rows are left to the other method; most kernels and radii need 5 to 50.
_ACTIVE_SET_STEPS = 96
# Of these, those from one look at which rows have ended, which a device is waited for, to the next.
_STEPS = 4
# Places for atoms and for the centre, at most.
_MOST = 64

# Steps of the interior-point method; about 6 to 12 are needed.
_INTERIOR_POINT_STEPS = 40
# Numbers in the matrices of the rows that it solves together.
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


def minimise_linear(
    u: Tensor, weights: Tensor, root: Tensor, signed: Tensor
) -> tuple[Tensor, Tensor]:
    """Minimisers and certified bounds of how far they are from optimal.

    Args:
        u: Functions, ``b x M``, scaled such that they range over at least 1, and have a decrease
            of at most 1 or thereabouts.
        weights: ``w``, ``M``.
        root: ``R``, ``M x M``, lower triangular and invertible.
        signed: The minimisers without ``p >= 0``, ``b x M``. If they have much negative mass, few
            atoms will have mass in the end.

    Returns:
        The minimisers ``p``, ``b x M``, and their excess, ``b``, see `certified_excess`.
    """
    masses, excess = torch.empty_like(u), torch.full_like(u[:, 0], torch.inf)
    sparse = (signed.clamp(max=0.0).sum(dim=-1) < -_NEGATIVE).nonzero().squeeze(-1)
    for rows in sparse.split(_SPARSE_ROWS):
        masses[rows], excess[rows] = solve_sparse(u[rows], weights, root)
    rest = (excess > EXCESS).nonzero().squeeze(-1)
    if len(rest) == 0:
        return masses, excess
    quadratic = root @ root.mT
    for rows in rest.split(max(1, _BLOCK // root.numel())):
        masses[rows], excess[rows] = _InteriorPoint(u[rows], weights, root, quadratic).solve()
    return masses, excess


def certified_excess(
    u: Tensor, weights: Tensor, root: Tensor, delta: Tensor, dual: Tensor
) -> Tensor:
    """Upper bound of how far the points ``w + delta`` are from optimal.

    Weak duality: for ``p`` inside the ellipsoid, ``|R' (p - w)| <= 1``, so
    ``dual' R' (p - w) >= -|dual|`` by Cauchy and Schwarz. Hence
    ``u' (p - w) >= (u - R dual)' (p - w) - |dual|``, whose first term is linear, and on the simplex
    at least its smallest coefficient less its mean under ``w``.

    Args:
        u: Functions, ``b x M``.
        weights: ``w``, ``M``.
        root: ``R``, ``M x M``.
        delta: Feasible changes ``p - w``, ``b x M``.
        dual: Any vectors, ``b x M``.

    Returns:
        The duality gap divided by the decrease ``-u' delta`` plus 1e-3, ``b``.
    """
    reduced = u - dual @ root.mT
    bound = reduced.amin(dim=-1) - reduced @ weights - dual.norm(dim=-1)
    decrease = -torch.linalg.vecdot(u, delta)
    return (-decrease - bound) / (decrease.clamp(min=0.0) + _FLOOR)


def solve_sparse(u: Tensor, weights: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Minimisers, where few steps lead to them.

    Args:
        u: Functions, ``b x M``, scaled as for `minimise_linear`.
        weights: ``w``, ``M``.
        root: ``R``, ``M x M``, lower triangular and invertible.

    Returns:
        Minimisers, ``b x M``, and their excess (see `certified_excess`), ``b``, which is infinite
        in rows without a solution.
    """
    return _ActiveSet(u, weights, root).solve()


class _ActiveSet:
    """Rows not yet solved: the solution of each has ``shares`` in ``places``, ``b x k``.

    A place holds the index of an atom, or ``M`` for the centre, or ``M + 1 + s`` if it is place
    ``s`` and empty. The equations of a mixture are picked from ``system``, ``b x k + 1`` of them
    with the constraint on the sum of shares at the end: in it atoms have their products, as seen
    from the centre, and what is empty stands alone.
    """

    def __init__(self, u: Tensor, weights: Tensor, root: Tensor) -> None:
        self.u, self.weights, self.root = u, weights, root
        self.num, device = u.shape[-1], u.device
        images = torch.nn.functional.pad(root - weights @ root, (0, 0, 0, 1))
        self.products = images @ images.mT
        size = self.num + 1
        self.system = torch.eye(size + _MOST + 1, dtype=u.dtype, device=device)
        self.system[:size, :size] = self.products
        self.system[-1, :size] = self.system[:size, -1] = 1.0
        self.system[-1, -1] = 0.0
        self.values = torch.nn.functional.pad(u - (u @ weights).unsqueeze(-1), (0, 1))
        self.rows = torch.arange(len(u), device=device)
        self.empty = torch.arange(size, size + _MOST, device=device)
        self.places = self.empty[:2].repeat(len(u), 1)
        self.places[:, 0], self.places[:, 1] = self.num, u.argmin(dim=-1)
        self.shares = torch.full_like(self.places, _TINY, dtype=u.dtype)
        self.shares[:, 0] = 1.0
        # Which rows are not at their end; which are solved; the multiplier's inverse of each.
        self.going = torch.ones_like(self.places[:, :1], dtype=torch.bool)
        self.solved = torch.zeros_like(self.going)
        self.inverse = torch.full_like(u[:, :1], torch.nan)
        # Of atoms and the centre, in the end; NaN in rows that this method does not solve.
        self.masses = torch.full_like(self.values, torch.nan)
        self.length = torch.full_like(u[:, :1], torch.nan)

    def solve(self) -> tuple[Tensor, Tensor]:
        """Minimisers ``b x M`` and their excess ``b``, infinite where there is none."""
        for _ in range(_ACTIVE_SET_STEPS // _STEPS):
            if not len(self.rows):
                break
            self._make_room()
            for _ in range(_STEPS):
                self._step()
            self._leave()
        return self._certified()

    def _make_room(self) -> None:
        """Add empty places for the atoms that the next steps let in."""
        width = self.places.shape[-1]
        used = int((self.places <= self.num).sum(dim=-1).max())
        more = min(_MOST, used + _STEPS) - width
        if more > 0:
            spare = self.empty[width : width + more].expand(len(self.places), -1)
            self.places = torch.cat([self.places, spare], dim=-1)
            self.shares = torch.nn.functional.pad(self.shares, (0, more), value=_TINY)

    def _step(self) -> None:
        """A step of the rows that are going; the others are computed and left as they are."""
        atoms = self.places.clamp(max=self.num)
        target, length, level = self._best_mixture(self.values.gather(-1, atoms))
        shares, place, drops = self._moved(target)
        mass = torch.zeros_like(self.values).scatter_(-1, atoms, shares)
        pull = mass @ self.products
        least, atom = torch.addcdiv(self.values, pull, length).min(dim=-1, keepdim=True)
        # The duality gap and the decrease of the best mixture.
        small = level - least <= EXCESS * (1 / length - level + _FLOOR)
        places, full = self._exchanged(place, drops, atom)
        going = self.going
        self.shares = torch.where(going, shares, self.shares)
        self.places = torch.where(going, places, self.places)
        self.inverse = torch.where(going, length, self.inverse)
        solved = small & ~drops
        self.solved = self.solved | (going & solved)
        self.going = going & ~(solved | ~(length > 0) | full)

    def _best_mixture(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shares of any sign that are best, ``b x k``, given the values of what is mixed.

        From the mixture nearest to the centre, it is the steepest descent to the boundary.

        Returns:
            The shares; the inverse of the ellipsoid's multiplier, which is not positive if there is
            no such mixture; the multiplier of the sum. The last two are ``b x 1``.
        """
        index = torch.nn.functional.pad(self.places, (0, 1), value=len(self.system) - 1)
        system = self.system[index.unsqueeze(-1), index.unsqueeze(-2)]
        values = torch.nn.functional.pad(values, (0, 1))
        # The last column, which is that of the constraint, is also its right-hand side.
        unit = self.system[-1].new_zeros(values.shape[-1])
        unit[-1] = 1.0
        right = torch.stack([unit.expand_as(values), values], dim=-1)
        nearest, descent = torch.linalg.solve_ex(system, right)[0].unbind(dim=-1)
        room = (1 + nearest[:, -1:]).clamp(min=0.0)
        square = (descent * values).sum(dim=-1, keepdim=True)
        length = (room / square.clamp(min=_TINY)).sqrt()
        target = nearest - length * descent
        return target[:, :-1], length, target[:, -1:] / -length

    def _moved(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shares on the way to ``target``; which place loses its own, and whether one does."""
        limit = self.shares / (self.shares - target.clamp(max=0.0))
        step, place = limit.min(dim=-1, keepdim=True)
        return torch.lerp(self.shares, target, step).clamp_(min=_TINY), place, step < 1

    def _exchanged(self, place: Tensor, drops: Tensor, atom: Tensor) -> tuple[Tensor, Tensor]:
        """The place emptied, or an empty one given to the atom; whether there was none."""
        last, spare = self.places.max(dim=-1, keepdim=True)
        index = torch.where(drops, place + (self.num + 1), atom)
        places = self.places.scatter(-1, torch.where(drops, place, spare), index)
        return places, last <= self.num

    def _leave(self) -> None:
        """Take out the rows that have ended, and keep the solutions of the solved ones."""
        rows = self.rows
        # Added up, since the atom that has just joined may have been there.
        masses = self.u.new_zeros(len(rows), self.num + 1 + _MOST)
        masses.scatter_add_(-1, self.places, self.shares)
        self.masses[rows] = torch.where(self.solved, masses[:, : self.num + 1], torch.nan)
        self.length[rows] = torch.where(self.solved, self.inverse, torch.nan)
        left = self.going.squeeze(-1).nonzero().squeeze(-1)
        for name in ("rows", "values", "places", "shares", "inverse", "going", "solved"):
            setattr(self, name, getattr(self, name)[left])

    def _certified(self) -> tuple[Tensor, Tensor]:
        """Solutions of all rows, corrected for rounding to lie in the set, and their excess."""
        masses = self.masses[:, :-1] + self.masses[:, -1:] * self.weights
        delta = masses / masses.sum(dim=-1, keepdim=True) - self.weights
        delta = delta / (delta @ self.root).norm(dim=-1, keepdim=True).clamp(min=1.0)
        dual = (delta @ self.root) / -self.length
        excess = certified_excess(self.u, self.weights, self.root, delta, dual)
        return self.weights + delta, excess.nan_to_num(nan=torch.inf)


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
        reach = (step @ root).norm().clamp(min=_TINY)
        self.delta = (step * torch.clamp(0.5 / reach, max=0.5)).expand_as(u).clone()
        # Strictly inside also for the dual: the multiplier of the ellipsoid alone, or part of it.
        ray = whitened(u, root)
        size = ray.norm(dim=-1, keepdim=True).clamp(min=_TINY)
        share = (1 / size).clamp(max=1.0)
        self.dual = torch.cat([1.5 * share * size, share * ray], dim=-1)
        self.z = (1 - share) * (u - u.amin(dim=-1, keepdim=True)) + _START
        self.best = weights + self.delta
        self.excess = torch.full_like(u[:, 0], float("inf"))
        self.rows = torch.arange(len(u), device=u.device)

    def solve(self) -> tuple[Tensor, Tensor]:
        """Minimisers ``b x M`` and their excess ``b``."""
        for step in range(_INTERIOR_POINT_STEPS):
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
        return delta, -(delta @ self.root) / length.clamp(min=_TINY)

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
    return ((x[:, :1] - norm) * (x[:, :1] + norm)).clamp(min=_TINY)


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
