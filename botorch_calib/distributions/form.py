"""The form of a piecewise distribution: its properties other than knots and masses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_calib.distributions._normal_functions import cached_constant


@dataclass(frozen=True)
class PiecewiseForm:
    """The properties other than knots and masses that all distributions of a batch share.

    Integrals branch on the form instead of on knots, which would be read back from the device.

    Args:
        uniform: For each piece, from left to right, whether the piece is uniform; otherwise it is a
            truncated normal distribution.
        open_low: Whether the first knot is minus infinity.
        open_high: Whether the last knot is plus infinity.
        stretched: Total mass of both tails of a stretched form; 0 for other forms. A stretched form
            is the standard normal distribution, except that the mass in a symmetric interval about
            zero is distributed uniformly. The interval is at most seven standard deviations wide.
        hollow: Whether an open outer piece (one with an infinite knot) may have less mass than
            `MIN_COVER`. With noise, each piece is then integrated separately.

    Example:
        >>> PiecewisePredictive.gaussian().form.uniform
        (False,)
    """

    uniform: tuple[bool, ...]
    open_low: bool = False
    open_high: bool = False
    stretched: float = 0.0
    hollow: bool = False

    @property
    def num_pieces(self) -> int:
        """Number of pieces ``K``."""
        return len(self.uniform)

    @cached_property
    def is_open(self) -> bool:
        """Whether both outer knots are infinite, so that the support is the real line."""
        return self.open_low and self.open_high

    @cached_property
    def covered(self) -> bool:
        """Whether both outer knots are infinite, and both outer pieces have enough mass."""
        return self.is_open and not self.hollow

    @cached_property
    def is_gaussian(self) -> bool:
        """Whether the only piece is a normal piece without bounds."""
        return self.uniform == (False,) and self.is_open

    def mirrored(self) -> PiecewiseForm:
        """Return the form of the distribution of ``-z``."""
        pieces = self.uniform[::-1]
        return replace(self, uniform=pieces, open_low=self.open_high, open_high=self.open_low)

    def pad(
        self, values: Tensor, low: float = -math.inf, high: float = math.inf, dim: int = 0
    ) -> Tensor:
        """Insert ``low`` and ``high`` at infinite outer knots into values at the finite knots."""
        shape = list(values.shape)
        shape[dim] = 1
        first = [values.new_full(shape, low)] if self.open_low else []
        last = [values.new_full(shape, high)] if self.open_high else []
        return torch.cat([*first, values, *last], dim=dim)

    @cached_constant
    def is_uniform(self, device: torch.device) -> Tensor:
        """Return the flags ``uniform`` as a tensor of shape ``K``."""
        return torch.tensor(self.uniform, device=device)

    @cached_constant
    def is_normal(self, device: torch.device) -> Tensor:
        """Return whether each piece is normal, ``K x 1``."""
        return torch.tensor([[not flag] for flag in self.uniform], device=device)


class Pieces(NamedTuple):
    """Distributions of one form at ``n`` points, for calculations at all points together.

    Tensors are float64 and have ``n`` columns, or one column if all points share one distribution.
    """

    knots: Tensor  # finite knots, divided by the standard deviation of untruncated normal pieces
    masses: Tensor  # masses of all ``K`` pieces, which may be 0
    form: PiecewiseForm
