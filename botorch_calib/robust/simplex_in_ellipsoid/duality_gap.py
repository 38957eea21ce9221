"""How far points of the simplex inside an ellipsoid are from optimal, at most."""

from __future__ import annotations

import torch
from torch import Tensor

#: Excess to stop at, see `certified_excess`.
EXCESS = 1e-7
#: Part of the range of a function below which its decrease needs no relative accuracy: there the
#: worst case differs from the expectation by less than a thousandth of the range.
FLOOR = 1e-3
#: Stands for zero where something is divided by it.
TINY = 1e-300


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
    return (-decrease - bound) / (decrease.clamp(min=0.0) + FLOOR)
