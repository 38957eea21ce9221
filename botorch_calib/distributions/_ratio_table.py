"""`RatioTable`: a smooth function of the ratio of the noise, tabulated once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from botorch_calib.distributions._denoised_integrals import MAX_RATIO, MIN_RATIO

_NUM_CELLS, _NUM_NODES = 80, 12
_LOW = math.log(MIN_RATIO)
_WIDTH = (math.log(MAX_RATIO) - _LOW) / _NUM_CELLS
_TOLERANCE = 1e-9  # largest error over 1 + r; it is about 1e-13, if no two knots nearly meet


class RatioTable:
    """A function of ``r`` as a polynomial in ``log r`` on each of many cells, differentiable.

    Noise smooths whatever it reaches, so quantiles are analytic functions of ``log r``. Polynomials
    through 12 Chebyshev nodes are exact but for rounding, unless two knots nearly meet.

    Args:
        function: Returns its values at ``n`` ratios, float64.

    Attributes:
        is_exact: Whether the polynomials agree with the function at the ends and in the middle of
            each cell, to `_TOLERANCE`.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        counts = torch.arange(_NUM_CELLS, dtype=torch.float64, device=torch.device("cpu"))
        nodes = -((counts[:_NUM_NODES] + 0.5) * (math.pi / _NUM_NODES)).cos()
        checked = nodes.new_tensor([-1.0, 0.0, 1.0])  # between the nodes, and beyond them
        places = torch.cat([checked, nodes])
        r = (_LOW + _WIDTH * (counts.unsqueeze(-1) + 0.5 * (places + 1.0))).exp()
        values = function(r.flatten()).view_as(r)
        self._coefficients = torch.linalg.solve(
            torch.linalg.vander(nodes), values[:, len(checked) :].T
        )
        error = (self(r.flatten()).view_as(r) - values).abs()
        self.is_exact = bool((error <= _TOLERANCE * (1.0 + r)).all())

    def __call__(self, r: Tensor) -> Tensor:
        """Values at ratios ``n`` between `MIN_RATIO` and `MAX_RATIO`."""
        place = (r.log() - _LOW) / _WIDTH
        cell = place.detach().long().clamp(0, _NUM_CELLS - 1)  # a cell, even if NaN
        place = 2.0 * (place - cell) - 1.0
        *rest, value = self._coefficients.index_select(1, cell)
        for row in reversed(rest):
            value = torch.addcmul(row, value, place)
        return value
