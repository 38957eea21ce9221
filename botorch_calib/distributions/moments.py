"""`WithMoments`: mean and variance of what knows both together."""

from __future__ import annotations

from torch import Tensor


class WithMoments:
    """Has a mean and a variance, which `moments` finds together."""

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, which cost as much as one of them."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """Mean, the first of `moments`."""
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variance, the second of `moments`."""
        return self.moments()[1]
