"""Sparse minimisers, by an active-set method like Wolfe's for the nearest point (1976).

A smooth kernel makes minimisers sparse: of a grid of 36 contexts they typically use 3 to 10, so
that systems of this size are all that has to be solved. The method keeps a feasible ``p``, a
mixture of the centre ``w`` and of some atoms. In each step it moves towards the best mixture of
these, which has a closed form as long as signs are ignored, up to where a share vanishes: that
atom, or the centre, leaves. If none does, the atom of the smallest reduced value joins. The value
falls in each step, so that the method is finite.

All rows take the same steps at once. A row that is at its optimum stays there, to the last bit, and
one that cannot be solved in this way becomes NaN, so that nobody has to look at either.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_calib.robust.simplex_in_ellipsoid.duality_gap import (
    EXCESS,
    FLOOR,
    TINY,
    certified_excess,
)

# Steps after which rows are given up. Most kernels and radii need 5 to 50, and a smooth one on 500
# atoms about 200, which still take less than a tenth of the time of interior points.
_MOST_STEPS = 256
# Of these, those from one look at which rows have ended to the next: a look is cheap on a
# processor, where it spares the steps of those rows, and a device is waited for.
_STEPS, _DEVICE_STEPS = 4, 16
# Places for atoms and for the centre, at most.
_MOST = 128


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
    """Rows on their way: the mixture of each has ``shares`` in ``places``, ``b x k``.

    A place holds the index of an atom, or ``M`` for the centre, or ``M + 1 + s`` if it is place
    ``s`` and empty. What the places hold picks the equations of their mixture from ``system``, with
    the right-hand sides from ``right``, ``b x 2 x (M + 1 + k)``: ones and values. What is empty
    stands alone, with zeros on the right.
    """

    def __init__(self, u: Tensor, weights: Tensor, root: Tensor) -> None:
        self.u, self.weights, self.root = u, weights, root
        num = u.shape[-1]
        self.size = size = num + 1
        self.empty = torch.arange(size, size + _MOST, device=u.device)
        # Of atoms and the centre: products as seen from the centre, and values less its mean
        images = pad(root - weights @ root, (0, 0, 0, 1))
        self.products = images @ images.mT
        values = pad(u - (u @ weights).unsqueeze(-1), (0, 1))
        self.right = pad(torch.stack([torch.ones_like(values), values], dim=1), (0, _MOST))
        # The 1 adds a constant to what is minimised, as shares sum to 1, and makes the products
        # positive definite with the centre among them, whose image is 0.
        self.system = torch.eye(size + _MOST, dtype=u.dtype, device=u.device)
        self.system[:size, :size] = self.products + 1.0
        self.rows = torch.arange(len(u), device=u.device)
        self.places = self.empty[:2].repeat(len(u), 1)
        self.places[:, 0], self.places[:, 1] = num, u.argmin(dim=-1)
        self.shares = torch.full_like(self.places, TINY, dtype=u.dtype)
        self.shares[:, 0] = 1.0
        # Of atoms and the centre, and the multiplier of the ellipsoid, in the end; NaN in rows that
        # this method does not solve.
        self.masses = torch.full_like(values, torch.nan)
        self.multipliers = torch.full_like(u[:, :1], torch.nan)

    def solve(self) -> tuple[Tensor, Tensor]:
        """Minimisers ``b x M`` and their excess ``b``, infinite where there is none."""
        steps = _STEPS if self.u.device.type == "cpu" else _DEVICE_STEPS
        for _ in range(_MOST_STEPS // steps):
            if not self._make_room(steps):
                break
            for _ in range(steps):
                solved, multiplier = self._step()
            self._leave(solved, multiplier, steps)
        return self._certified()

    def _make_room(self, steps: int) -> bool:
        """Add empty places for the atoms that the next steps let in, if there is a row left."""
        if not len(self.rows):
            return False
        width = self.places.shape[-1]
        used = int((self.places < self.size).sum(dim=-1).max())
        more = used + steps - width
        if more > 0:
            spare = self.empty[width : width + more].expand(len(self.places), -1)
            self.places = torch.cat([self.places, spare], dim=-1)
            self.shares = pad(self.shares, (0, more), value=TINY)
        return True

    def _step(self) -> tuple[Tensor, Tensor]:
        """Move and exchange; which rows are solved, and their multipliers, ``b x 1`` each."""
        target, multiplier, level = self._best_mixture()
        # Up to where the first share vanishes
        limit = self.shares / (self.shares - target.clamp(max=0.0))
        part, place = limit.min(dim=-1, keepdim=True)
        drops = part < 1
        self.shares = torch.lerp(self.shares, target, part).clamp_(min=TINY)
        pull = self._masses() @ self.products
        reduced = torch.addcmul(self.right[:, 1, : self.size], pull, multiplier)
        least, atom = reduced.min(dim=-1, keepdim=True)
        # The duality gap `level - least` beside the decrease of the best mixture
        allowed = torch.add(least, multiplier - level, alpha=EXCESS)
        is_best = level - allowed <= EXCESS * FLOOR
        # Empty the place, or give an empty one to the atom, or to none.
        last, spare = self.places.max(dim=-1, keepdim=True)
        held = torch.where(drops, place + self.size, torch.where(is_best, last, atom))
        self.places = self.places.scatter(-1, torch.where(drops, place, spare), held)
        return is_best & ~drops, multiplier

    def _best_mixture(self) -> tuple[Tensor, Tensor, Tensor]:
        """Shares of any sign that are best, ``b x k``.

        From the mixture nearest to the centre it is the steepest descent to the boundary. With the
        solutions ``a`` for ones and ``d`` for values these are ``near = a / 1'a`` and
        ``d - (1'd) near``.

        Returns:
            The shares; the multiplier of the ellipsoid, which is infinite if there is no such
            mixture; the multiplier of the sum. The last two are ``b x 1``.
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
        square = torch.linalg.vecdot(descent, right[:, 1]).unsqueeze(-1).clamp_(min=TINY)
        # The square of the distance to the nearest is `inverse - 1`: of products with the 1 added
        multiplier = (square / (2.0 - inverse).clamp_(min=0.0)).sqrt_()
        level = torch.addcmul(slope * inverse, inverse - 1.0, multiplier)
        return torch.addcdiv(nearest, descent, multiplier, value=-1.0), multiplier, level

    def _masses(self) -> Tensor:
        """What the shares add up to for each atom and the centre, ``b x (M + 1)``."""
        masses = self.shares.new_zeros(len(self.places), len(self.system))
        return masses.scatter_(-1, self.places, self.shares)[:, : self.size]

    def _leave(self, solved: Tensor, multiplier: Tensor, steps: int) -> None:
        """Take out the rows that have ended, and keep the solutions of the solved ones."""
        self.masses[self.rows] = torch.where(solved, self._masses(), torch.nan)
        self.multipliers[self.rows] = multiplier
        # Without places for further steps a row is given up.
        used = (self.places < self.size).sum(dim=-1, keepdim=True)
        going = ~solved & (used + steps <= _MOST) & multiplier.isfinite()
        left = going.squeeze(-1).nonzero().squeeze(-1)
        for name in ("rows", "right", "places", "shares"):
            setattr(self, name, getattr(self, name)[left])

    def _certified(self) -> tuple[Tensor, Tensor]:
        """Solutions of all rows, corrected for rounding to lie in the set, and their excess."""
        masses = self.masses[:, :-1] + self.masses[:, -1:] * self.weights
        delta = masses / masses.sum(dim=-1, keepdim=True) - self.weights
        delta = delta / (delta @ self.root).norm(dim=-1, keepdim=True).clamp(min=1.0)
        dual = (delta @ self.root) * -self.multipliers
        excess = certified_excess(self.u, self.weights, self.root, delta, dual)
        return self.weights + delta, excess.nan_to_num(nan=torch.inf)
