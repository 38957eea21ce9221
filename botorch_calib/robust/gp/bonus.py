"""What a confidence bound adds to the mean of a Gaussian process.

The bound is ``mu(z) + h(v(z), z)``, with the mean ``mu`` and the variance ``v``: of the Gaussian
process itself ``h = sqrt(beta v)``, and of a calibrated model a function of the variance and of
what the calibrator has learned at the input ``z``. As a calibrator makes statements on
``(y - mu) / sigma_y``, nothing but the mean moves its distribution as a whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_calib._autograd import with_gradients
from botorch_calib.calibration.learners.radial_sum import PairedSums
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.posteriors.moments import mean_and_deviation
from botorch_calib.robust.gp.stationary_gp import StationaryGP
from botorch_calib.robust.joint_inputs import Columns


@dataclass(frozen=True, eq=False)
class Inputs:
    """Joint inputs, which are put together where they are asked for.

    Attributes:
        X: Decisions ``... x d_x``.
        contexts: ``... x d_c``, whose batch dimensions broadcast with those of ``X``.
        columns: Where either is in joint inputs.
    """

    X: Tensor
    contexts: Tensor
    columns: Columns

    def joint(self, like: Tensor) -> Tensor:
        """Joint inputs ``... x d``, in the precision of ``like``."""
        return self.columns.join(self.X.to(like), self.contexts.to(like))

    @property
    def order(self) -> list[int]:
        """Columns of joint inputs in the order of derivatives."""
        return self.columns.decision + self.columns.context


class Slopes(NamedTuple):
    """Derivatives of a bonus, or changes of these derivatives.

    Attributes:
        by_variance: ``...``.
        by_inputs: ``... x d``, decisions first, with the variance held; None where it is zero.
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
    is what automatic differentiation is good for. At all pairs, localized thresholds themselves
    come from `RadialSum`, with their gradients.

    Args:
        model: The calibrated model.
        gp: Its Gaussian process, which knows the input transform.
        width: In standard deviations.
        sign: 1 for the bound of ``f``, -1 for that of ``-f``.
    """

    def __init__(self, model: CalibratedModel, gp: StationaryGP, width: float, sign: float) -> None:
        self.model, self.gp, self.width, self.sign = model, gp, width, sign

    def values(self, variance: Tensor, inputs: Inputs) -> Tensor:
        """Values ``...``."""
        with torch.no_grad():
            Z, sums = inputs.joint(variance), self._sums(inputs)
            return self._bonus(variance, Z, None if sums is None else sums.values())

    def with_slopes(self, variance: Tensor, inputs: Inputs) -> tuple[Tensor, Slopes]:
        """Values ``...`` and their derivatives."""
        Z, sums = inputs.joint(variance), self._sums(inputs)
        with with_gradients():
            if sums is not None:
                arguments = _leaves(variance, sums.values())
                values = self._bonus(arguments[0], Z.clone(), arguments[1])
            else:
                arguments = _leaves(variance, Z)
                values = self._bonus(*arguments)
            slopes = torch.autograd.grad(values.sum(), arguments, allow_unused=True)
        if sums is None:
            return values.detach(), self._slopes(slopes, inputs)
        by_inputs = sums.pulled(slopes[1]).to(variance) * self.gp.transform_slope[inputs.order]
        return values.detach(), Slopes(slopes[0], by_inputs)

    def with_changes(self, variance: Tensor, inputs: Inputs) -> tuple[Slopes, Changes]:
        """First derivatives, and the second ones as a function of the direction."""
        with with_gradients():
            arguments = _leaves(variance, inputs.joint(variance))
            total = self._bonus(*arguments).sum()
            slopes = torch.autograd.grad(total, arguments, create_graph=True, allow_unused=True)

        def changes(by_variance: Tensor, by_inputs: Inputs) -> Slopes:
            pairs = zip(slopes, (by_variance, by_inputs.joint(variance)), strict=True)
            # Where the calibrator is not localized there is no slope by the inputs.
            known = [(slope, step) for slope, step in pairs if slope is not None]
            with with_gradients():
                outputs, steps = zip(*known, strict=True)
                found = torch.autograd.grad(outputs, arguments, steps, allow_unused=True)
            return self._slopes(found, inputs)

        return self._slopes([s if s is None else s.detach() for s in slopes], inputs), changes

    def _slopes(self, slopes: Sequence[Tensor | None], inputs: Inputs) -> Slopes:
        """From derivatives by the variance and by joint inputs."""
        by_variance, by_joint = slopes
        assert by_variance is not None
        return Slopes(by_variance, None if by_joint is None else by_joint[..., inputs.order])

    def _sums(self, inputs: Inputs) -> PairedSums | None:
        """What makes the thresholds at all pairs, if it is a sum, of transformed inputs."""
        radial, columns = self.model.calibrator.radial_sum(), inputs.columns
        if radial is None:
            return None
        return radial.at_pairs(
            self.gp.transformed(inputs.X[:, 0], columns.decision),
            self.gp.transformed(inputs.contexts[0], columns.context),
            (columns.decision, columns.context),
        )

    def _bonus(self, variance: Tensor, inputs: Tensor, sums: Tensor | None = None) -> Tensor:
        # One point a batch, as nothing is asked about several of them together.
        variance, inputs = variance.unsqueeze(-1), inputs.unsqueeze(-2)
        normal = MultivariateNormal(torch.zeros_like(variance), DiagLinearOperator(variance))
        predictive = None
        if sums is not None:
            predictive = self.model.calibrator.predictive_from(sums.unsqueeze(-2))
        posterior = self.model.corrected(GPyTorchPosterior(normal), inputs, predictive)
        mean, sigma = mean_and_deviation(posterior)
        bonus: Tensor = (self.sign * mean + self.width * sigma).squeeze(-1).squeeze(-1)
        return bonus


def _leaves(*values: Tensor) -> list[Tensor]:
    """Copies to differentiate by."""
    return [value.clone().requires_grad_() for value in values]
