r"""Linear functions over the part of the simplex inside an ellipsoid, where few atoms have mass.

A smooth kernel makes worst laws sparse: of a grid of 36 contexts they typically use 3 to 10. So an
active-set method, in the manner of Wolfe's for the nearest point of a polytope (1976), gets there
by solving systems of that size. It keeps a feasible law, a mixture of the centre ``w`` and of some
atoms. In each step it moves towards the best mixture of the same, which has a closed form as long
as signs are ignored, up to where a share vanishes: that atom, or the centre, leaves. If none does,
the atom of the smallest reduced value joins. The value falls, so that the method is finite, and a
duality gap tells when it has arrived.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Excess to stop at, see `certified_excess`.
EXCESS = 1e-7
# Part of the range of a function below which its decrease needs no relative accuracy.
_FLOOR = 1e-3
# Steps after which rows are left to another method; most kernels and radii need 5 to 50.
_MAX_STEPS = 96
# Places for atoms and for the centre: at first, and at most, which is a multiple of the former.
_WIDTH, _MOST = 8, 64
_TINY = 1e-300


def solve_sparse(u: Tensor, weights: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Minimisers, where few steps lead to them.

    Args:
        u: See `minimise_linear`.
        weights: See `minimise_linear`.
        root: See `minimise_linear`.

    Returns:
        Laws, ``b x M``, and their excess (see `certified_excess`), ``b``, which is infinite in
        rows without a solution.
    """
    return _ActiveSet(u, weights, root).solve()


def certified_excess(
    u: Tensor, weights: Tensor, root: Tensor, delta: Tensor, dual: Tensor
) -> Tensor:
    """Upper bound of how far the laws ``w + delta`` are from optimal.

    Every element of the cone has a nonnegative product with ``(|dual|, dual)``. Without that
    product the function is linear, and its smallest value on the simplex bounds the optimum.

    Args:
        u: Functions, ``b x M``.
        weights: ``w``, ``M``.
        root: ``R``, ``M x M``.
        delta: Changes of the law, ``b x M``, feasible.
        dual: Any vectors, ``b x M``.

    Returns:
        The duality gap divided by the decrease ``-u' delta`` plus 1e-3, ``b``.
    """
    reduced = u - dual @ root.mT
    bound = reduced.amin(dim=-1) - reduced @ weights - dual.norm(dim=-1)
    decrease = -torch.linalg.vecdot(u, delta)
    return (-decrease - bound) / (decrease.clamp(min=0.0) + _FLOOR)


class _ActiveSet:
    """Rows not yet solved: the law of each has ``shares`` in ``places``, ``b x k``.

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
        self.places = self.empty[:_WIDTH].repeat(len(u), 1)
        self.places[:, 0], self.places[:, 1] = self.num, u.argmin(dim=-1)
        self.shares = torch.full_like(self.places, _TINY, dtype=u.dtype)
        self.shares[:, 0] = 1.0
        # Of atoms and the centre, in the end; NaN in rows that are left to others.
        self.law = torch.full_like(self.values, torch.nan)
        self.length = torch.full_like(u[:, :1], torch.nan)

    def solve(self) -> tuple[Tensor, Tensor]:
        """See `solve_sparse`."""
        for _ in range(_MAX_STEPS):
            if not len(self.rows):
                break
            atoms = self.places.clamp(max=self.num)
            target, length, level = self._best_mixture(self.values.gather(-1, atoms))
            place, drops = self._move(target)
            mass = torch.zeros_like(self.values).scatter_(-1, atoms, self.shares)
            pull = mass @ self.products
            least, atom = torch.addcdiv(self.values, pull, length).min(dim=-1, keepdim=True)
            # The duality gap and the decrease of the best mixture.
            small = level - least <= EXCESS * (1 / length - level + _FLOOR)
            solved = small & ~drops
            leave = solved | ~(length > 0) | self._exchange(place, drops, atom)
            if bool(leave.any()):
                self._leave(leave.squeeze(-1), solved.squeeze(-1), length)
        return self._certified()

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

    def _move(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Move towards ``target``; which place loses its share, and whether one does, ``b x 1``."""
        limit = self.shares / (self.shares - target.clamp(max=0.0))
        step, place = limit.min(dim=-1, keepdim=True)
        self.shares = torch.lerp(self.shares, target, step).clamp_(min=_TINY)
        return place, step < 1

    def _exchange(self, place: Tensor, drops: Tensor, atom: Tensor) -> Tensor:
        """Empty the place, or give an empty one to the atom; whether there was none, ``b x 1``."""
        last, spare = self.places.max(dim=-1, keepdim=True)
        full = last <= self.num
        width = self.places.shape[-1]
        if width < _MOST and bool(full.any()):
            more = self.empty[width : width + _WIDTH].expand(len(last), -1)
            self.places = torch.cat([self.places, more], dim=-1)
            self.shares = torch.nn.functional.pad(self.shares, (0, _WIDTH), value=_TINY)
            full, spare = torch.zeros_like(full), self.places.argmax(dim=-1, keepdim=True)
        index = torch.where(drops, place + (self.num + 1), atom)
        self.places = self.places.scatter(-1, torch.where(drops, place, spare), index)
        return full

    def _leave(self, leave: Tensor, solved: Tensor, length: Tensor) -> None:
        """Take rows out, and keep the laws of the solved ones."""
        rows = self.rows[solved]
        # Added up, since the atom that has just joined may have been there.
        law = self.u.new_zeros(len(rows), self.num + 1 + _MOST)
        law.scatter_add_(-1, self.places[solved], self.shares[solved])
        self.law[rows] = law[:, : self.num + 1]
        self.length[rows] = length[solved]
        for name in ("rows", "values", "places", "shares"):
            setattr(self, name, getattr(self, name)[~leave])

    def _certified(self) -> tuple[Tensor, Tensor]:
        """The laws of all rows, freed of what rounding left outside of the set, and the excess."""
        law = self.law[:, :-1] + self.law[:, -1:] * self.weights
        delta = law / law.sum(dim=-1, keepdim=True) - self.weights
        delta = delta / (delta @ self.root).norm(dim=-1, keepdim=True).clamp(min=1.0)
        dual = (delta @ self.root) / -self.length
        excess = certified_excess(self.u, self.weights, self.root, delta, dual)
        return self.weights + delta, excess.nan_to_num(nan=torch.inf)
