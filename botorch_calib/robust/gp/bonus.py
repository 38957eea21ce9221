"""The bonus: a confidence bound less the mean of the Gaussian process, plain or calibrated.

The bound is ``mu(z) + h(v(z), z)``, with the mean ``mu`` and the variance ``v``. A plain Gaussian
process has the bonus ``h = sqrt(beta v)``. A calibrator states a mean ``m`` and a variance ``s`` of
``(y - mu) / sigma_y``: with the gain ``a = v / (v + n)`` and the noise variance ``n`` the objective
has the mean ``mu + a sigma_y m`` and the variance ``(a sigma_y)^2 s + a n``, see
`CalibratedPosterior`. At all pairs ``m`` and ``s`` follow from sums over past inputs, whose
derivatives `RadialSum` has; elsewhere from the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.robust.gp.stationary_gp import StationaryGP
from botorch_calib.robust.joint_inputs import Columns

_TINY = 1e-200

# The arguments ``... x k`` of a predictive distribution, the function that makes it, of the batch
# shape ``... x 1 x 1``, and the one that takes derivatives by the arguments to those by joint
# inputs, ``... x d``.
Source = tuple[Tensor, Callable[[Tensor], PiecewisePredictive], Callable[[Tensor], Tensor]]


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


class GaussianBonus:
    """``width * sqrt(v)``, one by one; results carry no graph.

    `values` and `with_slopes` are asked for all pairs, decisions ``b x 1 x d_x`` and contexts
    ``1 x M x d_c``, and `with_changes` for one context per decision.
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


class CalibratedBonus:
    """``sign * (mean - mu) + width * sigma`` of a calibrated posterior, whose process is ``gp``."""

    def __init__(
        self, model: CalibratedModel, gp: StationaryGP, columns: Columns, width: float, sign: float
    ) -> None:
        self.model, self.width, self.sign = model, width, sign
        self._both = columns.decision, columns.context
        self._order = columns.decision + columns.context
        self._maps = [gp.part(part) for part in self._both]
        self._whole, self._unit = gp.part(sorted(self._order)), gp.part(self._order).slope
        # The small number keeps the derivative of a root finite where there is no noise.
        self._noise = max(float(gp.noise), _TINY)

    @torch.no_grad()
    def values(self, variance: Tensor, inputs: Inputs) -> Tensor:
        """Values ``...``."""
        source, predictive, _ = self._at_pairs(variance, inputs)
        return self._bonus(variance, predictive(source))

    def with_slopes(self, variance: Tensor, inputs: Inputs) -> tuple[Tensor, Slopes]:
        """Values ``...`` and their derivatives."""
        source, predictive, pulled = self._at_pairs(variance, inputs)
        with torch.enable_grad():
            arguments = variance.detach().requires_grad_(), source.detach().requires_grad_()
            values = self._bonus(arguments[0], predictive(arguments[1]))
            slopes = torch.autograd.grad(values.sum(), arguments, allow_unused=True)
        by_inputs = None if slopes[1] is None else pulled(slopes[1])
        return values.detach(), Slopes(slopes[0], by_inputs)

    def with_changes(self, variance: Tensor, inputs: Inputs) -> tuple[Slopes, Changes]:
        """First derivatives, and the second ones as a function of the direction."""
        with torch.enable_grad():
            points = inputs.joint(variance).detach().requires_grad_()
            arguments = variance.detach().requires_grad_(), points
            total = self._bonus(arguments[0], self._stated(points)).sum()
            slopes = torch.autograd.grad(total, arguments, create_graph=True, allow_unused=True)

        def ordered(by_inputs: Tensor | None) -> Tensor | None:
            return None if by_inputs is None else by_inputs.detach()[..., self._order]

        def changes(by_variance: Tensor, by_inputs: Inputs) -> Slopes:
            pairs = zip(slopes, (by_variance, by_inputs.joint(points)), strict=True)
            # Where the calibrator is not localized there is no slope by the inputs.
            outputs, steps = zip(*((s, step) for s, step in pairs if s is not None), strict=True)
            found = torch.autograd.grad(outputs, arguments, steps, allow_unused=True)
            return Slopes(found[0], ordered(found[1]))

        return Slopes(slopes[0].detach(), ordered(slopes[1])), changes

    def _stated(self, points: Tensor) -> PiecewisePredictive:
        """The statement at joint inputs, one point a batch."""
        return self.model.calibrator.predictive(self._whole.transformed(points).unsqueeze(-2))

    def _at_pairs(self, variance: Tensor, inputs: Inputs) -> Source:
        calibrator, unit = self.model.calibrator, self._unit
        radial = calibrator.radial_sum()
        if radial is None:
            return inputs.joint(variance), self._stated, lambda slopes: slopes[..., self._order]
        sides = inputs.X[:, 0], inputs.contexts[0]
        first, second = (own.transformed(z) for own, z in zip(self._maps, sides, strict=True))
        sums = radial.at_pairs(first, second, self._both)

        def predictive(values: Tensor) -> PiecewisePredictive:
            return calibrator.predictive_from(values.unsqueeze(-2))

        return sums.values(), predictive, lambda slopes: sums.pulled(slopes).to(unit) * unit

    def _bonus(self, variance: Tensor, predictive: PiecewisePredictive) -> Tensor:
        """The bonus ``...``, given what the calibrator states, of batch shape ``... x 1 x 1``."""
        mean, spread = (part.double().squeeze(-1).squeeze(-1) for part in predictive.moments())
        v, noise = variance.double(), self._noise
        total = v + noise
        # f~ = mu + unit (z + r eps) with the ratio r, see `CalibratedPosterior`
        unit: Tensor = total.sqrt()
        square: Tensor | float = _TINY
        if self.model.denoise:
            unit, square = v * total.rsqrt(), noise / v
            if self.model.excess == "objective":
                stretch = spread.clamp(min=1.0)
                growth = 1.0 + (stretch - 1.0) * (1.0 + square)
                unit, square = unit * (growth / stretch), square * (stretch / growth)
        sigma = (spread + square).sqrt()
        return (unit * torch.add(self.width * sigma, mean, alpha=self.sign)).to(variance)
