"""`WithMoments`: mean and variance that are found together."""

from __future__ import annotations

from torch import Tensor


class WithMoments:
    """An object with a mean and a variance."""

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance together, at the cost of one of them."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """Mean, the first of `moments`."""
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variance, the second of `moments`."""
        return self.moments()[1]
