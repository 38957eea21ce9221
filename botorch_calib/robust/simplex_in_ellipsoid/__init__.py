r"""Linear functions over the part of the simplex inside an ellipsoid, for many functions at once.

`minimise_linear` minimises ``u' p`` over ``p >= 0``, ``sum p = 1``, ``|R' (p - w)| <= 1``, the
program behind `MMDBall`.

* `active_set`: where few atoms keep mass.
* `interior_point`: where many do, and where the active set gives up.
* `duality_gap`: the certified accuracy with which both end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_calib.robust.simplex_in_ellipsoid.active_set import solve_sparse
from botorch_calib.robust.simplex_in_ellipsoid.duality_gap import EXCESS
from botorch_calib.robust.simplex_in_ellipsoid.interior_point import solve_dense

# Negative mass of the solution without signs from which on the active-set method is the faster one:
# the more of it, the fewer atoms keep mass.
_NEGATIVE = 1.0
# Rows that the active-set method solves together.
_SPARSE_ROWS = 512


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
    if len(rest):
        masses[rest], excess[rest] = solve_dense(u[rest], weights, root)
    return masses, excess
