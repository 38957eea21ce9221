"""What a confidence bound adds to the mean of a Gaussian process.

The bound is ``mu(z) + h(v(z), z)``, with the mean ``mu`` and the variance ``v``: of the Gaussian
process itself ``h = sqrt(beta v)``, and of a calibrated model a function of the variance and of
what the calibrator has learned at the input ``z``. As a calibrator makes statements on
``(y - mu) / sigma_y``, nothing but the mean moves its distribution as a whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_calib._autograd import with_gradients
from botorch_calib.posteriors.calibrated import MIN_VARIANCE, CalibratedPosterior

# Makes a calibrated posterior of a Gaussian one at inputs ``... x 1 x d``.
Correction = Callable[[GPyTorchPosterior, Tensor], CalibratedPosterior]
# Makes the inputs ``... x d``, where they are asked for.
Inputs = Callable[[], Tensor]


class Slopes(NamedTuple):
    """Derivatives of a bonus, or changes of these derivatives.

    Attributes:
        by_variance: ``...``.
        by_inputs: ``... x d``, with the variance held; None where it is zero.
    """

    by_variance: Tensor
    by_inputs: Tensor | None


# The change of the slopes with changes ``...`` of the variance and ``... x d`` of the inputs.
Changes = Callable[[Tensor, Inputs], Slopes]


class Bonus(ABC):
    """A function of the variance ``...`` and the inputs ``... x d``, one by one.

    Results carry no graph.
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
    """``width * sqrt(v)``.

    Args:
        width: In standard deviations.
    """

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


class CalibratedBonus(Bonus):
    """``sign * (mean - mu) + width * sigma`` of a calibrated posterior.

    It is an elementary function of the Gaussian variance and of thresholds that were learned, which
    is what automatic differentiation is good for.

    Args:
        correction: Makes the calibrated posterior: `CalibratedModel.corrected`.
        width: In standard deviations.
        sign: 1 for the bound of ``f``, -1 for that of ``-f``.
    """

    def __init__(self, correction: Correction, width: float, sign: float) -> None:
        self.correction, self.width, self.sign = correction, width, sign

    def values(self, variance: Tensor, inputs: Inputs) -> Tensor:
        """Values ``...``."""
        with torch.no_grad():
            return self._bonus(variance, inputs())

    def with_slopes(self, variance: Tensor, inputs: Inputs) -> tuple[Tensor, Slopes]:
        """Values ``...`` and their derivatives."""
        with with_gradients():
            arguments = _leaves(variance, inputs())
            values = self._bonus(*arguments)
            slopes = torch.autograd.grad(values.sum(), arguments, allow_unused=True)
        return values.detach(), Slopes(*slopes)

    def with_changes(self, variance: Tensor, inputs: Inputs) -> tuple[Slopes, Changes]:
        """First derivatives, and the second ones as a function of the direction."""
        with with_gradients():
            arguments = _leaves(variance, inputs())
            total = self._bonus(*arguments).sum()
            slopes = torch.autograd.grad(total, arguments, create_graph=True, allow_unused=True)

        def changes(by_variance: Tensor, by_inputs: Inputs) -> Slopes:
            pairs = zip(slopes, (by_variance, by_inputs()), strict=True)
            # Where the calibrator is not localized there is no slope by the inputs.
            known = [(slope, step) for slope, step in pairs if slope is not None]
            with with_gradients():
                outputs, steps = zip(*known, strict=True)
                return Slopes(*torch.autograd.grad(outputs, arguments, steps, allow_unused=True))

        return Slopes(*(None if slope is None else slope.detach() for slope in slopes)), changes

    def _bonus(self, variance: Tensor, inputs: Tensor) -> Tensor:
        # One point a batch, as nothing is asked about several of them together.
        variance = variance.unsqueeze(-1)
        normal = MultivariateNormal(torch.zeros_like(variance), DiagLinearOperator(variance))
        posterior = self.correction(GPyTorchPosterior(normal), inputs.unsqueeze(-2))
        mean, variance = posterior.moments()
        sigma = variance.clamp_min(MIN_VARIANCE).sqrt()
        bonus: Tensor = (self.sign * mean + self.width * sigma).squeeze(-1).squeeze(-1)
        return bonus


def _leaves(*values: Tensor) -> list[Tensor]:
    """Copies to differentiate by."""
    return [value.clone().requires_grad_() for value in values]
