"""What a confidence bound adds to the mean of a Gaussian process.

The bound is ``mu(z) + h(v(z), z)``, with the mean ``mu`` and the variance ``v``: of the Gaussian
process itself ``h = sqrt(beta v)``, and of a calibrated model a function of the variance and of
what the calibrator, which makes statements on ``(y - mu) / sigma_y``, has learned at ``z``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from botorch_calib.robust.joint_inputs import Columns


@dataclass(frozen=True, eq=False)
class Inputs:
    """Decisions ``... x d_x`` and contexts ``... x d_c``, put together where that is asked for."""

    X: Tensor
    contexts: Tensor
    columns: Columns

    def joint(self, like: Tensor) -> Tensor:
        """Joint inputs ``... x d``, in the precision of ``like``."""
        return self.columns.join(self.X.to(like), self.contexts.to(like))


class Slopes(NamedTuple):
    """Derivatives of a bonus by the variance, ``...``, and by inputs, or their changes.

    Those by inputs, ``... x d``, decisions first, hold the variance; None where they are zero.
    """

    by_variance: Tensor
    by_inputs: Tensor | None


# The change of the slopes with changes of the variance, ``...``, and of the inputs.
Changes = Callable[[Tensor, Inputs], Slopes]


class Bonus(ABC):
    """A function of the variance ``...`` and the inputs, one by one.

    Results carry no graph. `values` and `with_slopes` are asked for all pairs, decisions
    ``b x 1 x d_x`` and contexts ``1 x M x d_c``, and `with_changes` for one context per decision.
    """

    @abstractmethod
    def values(self, variance: Tensor, inputs: Inputs) -> Tensor:
        """Values ``...``."""

    @abstractmethod
    def with_slopes(self, variance: Tensor, inputs: Inputs) -> tuple[Tensor, Slopes]:
        """Values ``...`` and their derivatives."""

    @abstractmethod
    def with_changes(self, variance: Tensor, inputs: Inputs) -> tuple[Slopes, Changes]:
        """First derivatives, and the second ones as a function of the direction."""


class GaussianBonus(Bonus):
    """``width * sqrt(v)``."""

    def __init__(self, width: float) -> None:
        self.width = width

    def values(self, variance: Tensor, inputs: Inputs) -> Tensor:
        """Values ``...``."""
        return variance.sqrt().mul_(self.width)

    def with_slopes(self, variance: Tensor, inputs: Inputs) -> tuple[Tensor, Slopes]:
        """Values ``...`` and their derivatives."""
        sigma = variance.sqrt()
        slope = (0.5 * self.width) / sigma
        return sigma.mul_(self.width), Slopes(slope, None)

    def with_changes(self, variance: Tensor, inputs: Inputs) -> tuple[Slopes, Changes]:
        """First derivatives, and the second ones as a function of the direction."""
        slope = (0.5 * self.width) * variance.rsqrt()

        def changes(by_variance: Tensor, by_inputs: Inputs) -> Slopes:
            # v^(-1/2) changes by the factor -1/2 dv / v.
            return Slopes(slope * by_variance / variance.mul(-2.0), None)

        return Slopes(slope, None), changes
