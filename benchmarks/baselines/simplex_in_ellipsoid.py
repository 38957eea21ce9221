r"""Minimise linear functions over the part of the simplex inside an ellipsoid, as a batch.

`minimise_linear` minimises ``u' p`` over ``p >= 0``, ``sum p = 1``, ``|R' (p - w)| <= 1``, the
program behind `MMDBall`, by an active-set method like Wolfe's for the nearest point (1976).

A smooth kernel makes minimisers sparse: they typically use 3 to 10 atoms of a grid of 36. The
method maintains a feasible ``p``, a mixture of the centre ``w`` and some atoms. Each step moves
towards the best mixture of these, which has a closed form if signs are ignored. If a share vanishes
on the way, the step ends there, and this atom or the centre leaves the mixture. Otherwise the atom
of the smallest reduced value enters. The value falls in each step, so the method is finite.

An interior-point method takes 3 to 90 times as long if few atoms have mass, and a half to a tenth
of the time if more than half of 100 to 256 atoms have mass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

# The iteration stops at this excess, see `certified_excess`.
_EXCESS = 1e-7
#: Below this part of a function's range, its decrease needs no relative accuracy: the worst case
#: differs from the expectation by less than a thousandth of the range.
FLOOR = 1e-3
# Replaces zero in denominators.
_TINY = 1e-300
# Values are tied if the square of their slope is below this: they then differ by rounding only.
_FLAT = 1e-24
# Steps per atom after which a row is given up. A few are needed if all atoms have mass.
_STEPS_PER_ATOM = 8


def minimise_linear(u: Tensor, weights: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Minimisers ``b x M``, and dual vectors for `certified_excess`, which bounds their error.

    The range of each function ``u``, ``b x M``, has to be at least 1, and its decrease about 1 or
    less. ``weights`` are ``w``, and ``root`` is ``R``, lower triangular and invertible.
    """
    return _ActiveSet(u, weights, root).solve()


def certified_excess(
    u: Tensor, weights: Tensor, root: Tensor, delta: Tensor, dual: Tensor
) -> Tensor:
    """Upper bound ``b`` of the relative suboptimality of the points ``w + delta``.

    Weak duality: inside the ellipsoid ``dual' R' (p - w) >= -|dual|`` for any ``dual``, by Cauchy
    and Schwarz. Hence ``u' (p - w) >= (u - R dual)' (p - w) - |dual|``. On the simplex, the first
    term is at least its smallest coefficient minus the mean of its coefficients under ``w``. The
    bound is the duality gap divided by the decrease ``-u' delta`` plus 1e-3.
    """
    reduced = u - dual @ root.mT
    bound = reduced.amin(dim=-1) - reduced @ weights - dual.norm(dim=-1)
    decrease = -torch.linalg.vecdot(u, delta)
    return (-decrease - bound) / (decrease.clamp(min=0.0) + FLOOR)


class _ActiveSet:
    """The unfinished rows: the mixture of each row has ``shares`` in ``places``, ``b x k``.

    A place contains the index of an atom, or ``M`` for the centre; place ``s`` contains
    ``M + 1 + s`` if it is empty. These indices select the equations of the mixture from ``system``,
    and their right-hand sides, ones and values, from ``right``, ``b x 2 x (M + 1 + k)``. The
    equation of an empty place is decoupled, with zeros on the right-hand side.

    All rows take the same steps at once. A row at its optimum does not change, to the last bit.
    """

    def __init__(self, u: Tensor, weights: Tensor, root: Tensor) -> None:
        self.u, self.weights, self.root = u, weights, root
        num = u.shape[-1]
        self.size = size = num + 1
        empty = torch.arange(size, 2 * size + 1, device=u.device)
        # Atoms and the centre: inner products relative to the centre, and values minus the mean
        images = pad(root - weights @ root, (0, 0, 0, 1))
        self.products = images @ images.mT
        values = pad(u - (u @ weights).unsqueeze(-1), (0, 1))
        self.right = pad(torch.stack([torch.ones_like(values), values], 1), (0, len(empty)))
        # Since shares sum to 1, adding 1 only adds a constant to the objective. It makes the matrix
        # of products positive definite, although the centre has the image 0.
        self.system = torch.eye(size + len(empty), dtype=u.dtype, device=u.device)
        self.system[:size, :size] = self.products + 1.0
        self.rows = torch.arange(len(u), device=u.device)
        self.places = empty.repeat(len(u), 1)
        self.places[:, 0], self.places[:, 1] = num, u.argmin(dim=-1)
        self.shares = torch.full_like(self.places, _TINY, dtype=u.dtype)
        self.shares[:, 0] = 1.0
        # Final masses of atoms and the centre, and the multiplier of the ellipsoid
        self.masses = torch.zeros_like(values)
        self.multipliers = torch.zeros_like(u[:, :1])

    def solve(self) -> tuple[Tensor, Tensor]:
        """Minimisers and dual vectors, ``b x M``."""
        for _ in range(_STEPS_PER_ATOM * self.size):
            if not len(self.rows):
                break
            self._leave(*self._step())
        return self._feasible()

    def _step(self) -> tuple[Tensor, Tensor]:
        """Take one step; return which rows are solved and their multipliers, ``b x 1`` each."""
        target, multiplier, level = self._best_mixture()
        # Move until the first share vanishes
        limit = self.shares / (self.shares - target.clamp(max=0.0))
        part, place = limit.min(dim=-1, keepdim=True)
        drops = part < 1
        self.shares = torch.lerp(self.shares, target, part).clamp_(min=_TINY)
        pull = self._masses() @ self.products
        reduced = torch.addcmul(self.right[:, 1, : self.size], pull, multiplier)
        least, atom = reduced.min(dim=-1, keepdim=True)
        # Compare the duality gap `level - least` with the decrease of the best mixture
        allowed = torch.add(least, multiplier - level, alpha=_EXCESS)
        is_best = level - allowed <= _EXCESS * FLOOR
        # Empty the place of the vanished share, or put the entering atom into an empty place.
        last, spare = self.places.max(dim=-1, keepdim=True)
        held = torch.where(drops, place + self.size, torch.where(is_best, last, atom))
        self.places = self.places.scatter(-1, torch.where(drops, place, spare), held)
        return is_best & ~drops, multiplier

    def _best_mixture(self) -> tuple[Tensor, Tensor, Tensor]:
        """The best signed shares, ``b x k``, and the multipliers of the ellipsoid and of the sum.

        The best mixture lies on the boundary, in the direction of steepest descent from the mixture
        nearest to the centre. With the solutions ``a`` for ones and ``d`` for values, the nearest
        mixture is ``near = a / 1'a`` and the direction is ``d - (1'd) near``. The multiplier of the
        ellipsoid is infinite if there is no such mixture.
        """
        first, second = self.places.unsqueeze(-1), self.places.unsqueeze(-2)
        right = self.right.gather(-1, second.expand(-1, 2, -1))
        factor, _ = torch.linalg.cholesky_ex(self.system[first, second])
        half = torch.linalg.solve_triangular(factor, right.mT, upper=False)
        solution = torch.linalg.solve_triangular(factor.mT, half, upper=True)
        totals = right[:, :1] @ solution
        inverse, slope = totals[..., 0].reciprocal(), totals[..., 1]
        nearest = solution[..., 0] * inverse
        descent = torch.addcmul(solution[..., 1], nearest, slope, value=-1.0)
        square = torch.linalg.vecdot(descent, right[:, 1]).unsqueeze(-1)
        # If values are tied, the nearest mixture is as good as any.
        descent = descent * (square > _FLAT)
        # The squared distance to the nearest mixture is `inverse - 1`: 1 was added to the products
        multiplier = (square.clamp(min=_FLAT) / (2.0 - inverse).clamp_(min=0.0)).sqrt_()
        level = torch.addcmul(slope * inverse, inverse - 1.0, multiplier)
        return torch.addcdiv(nearest, descent, multiplier, value=-1.0), multiplier, level

    def _masses(self) -> Tensor:
        """The sum of the shares of each atom and of the centre, ``b x (M + 1)``."""
        masses = self.shares.new_zeros(len(self.places), len(self.system))
        return masses.scatter_(-1, self.places, self.shares)[:, : self.size]

    def _leave(self, solved: Tensor, multiplier: Tensor) -> None:
        """Store the results so far, and remove the rows that have ended."""
        found = self._masses()
        valid = multiplier.isfinite() & found.isfinite().all(dim=-1, keepdim=True)
        kept = valid.squeeze(-1).nonzero().squeeze(-1)
        self.masses[self.rows[kept]] = found[kept]
        self.multipliers[self.rows[kept]] = multiplier[kept]
        left = (valid & ~solved).squeeze(-1).nonzero().squeeze(-1)
        for name in ("rows", "right", "places", "shares"):
            setattr(self, name, getattr(self, name)[left])

    def _feasible(self) -> tuple[Tensor, Tensor]:
        """Solutions of all rows, projected into the set against rounding, and dual vectors."""
        masses = self.masses[:, :-1] + self.masses[:, -1:] * self.weights
        total = masses.sum(dim=-1, keepdim=True)
        delta = torch.where(total > 0, masses / total, self.weights) - self.weights
        delta = delta / (delta @ self.root).norm(dim=-1, keepdim=True).clamp(min=1.0)
        return self.weights + delta, (delta @ self.root) * -self.multipliers
