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

import torch
from torch import Tensor

from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.robust.gp.stationary_gp import StationaryGP
from botorch_calib.robust.joint_inputs import Columns

_TINY = 1e-200

# The arguments ``... x k`` of a predictive distribution, the function that makes it, of the batch
# shape ``... x 1 x 1``, and the one that takes derivatives by the arguments to those by joint
# inputs, ``... x d`` with decisions first.
Source = tuple[Tensor, Callable[[Tensor], PiecewisePredictive], Callable[[Tensor], Tensor]]


# A bonus at pairs, ``b x M``, and its derivatives, if they are wanted: by the variance, and by the
# inputs while the variance stays, ``b x M x d`` with decisions first; None where they are zero.
AtPairs = tuple[Tensor, Tensor | None, Tensor | None]

# First derivatives at points, ``b`` by the variance and ``b x d`` by the inputs, and the function
# that gives their changes along one of the variance, ``b``, and of the contexts, ``b x d_c``.
Slopes = tuple[Tensor, Tensor | float]
AtPoints = tuple[Tensor, Tensor | float, Callable[[Tensor, Tensor], Slopes]]


class GaussianBonus:
    """``width * sqrt(v)``, one by one."""

    def __init__(self, width: float) -> None:
        self.width = width

    def at_pairs(self, variance: Tensor, X: Tensor, contexts: Tensor, gradients: bool) -> AtPairs:
        """At all pairs of ``b x d_x`` and ``M x d_c``, without a graph."""
        sigma = variance.sqrt()
        by_variance = (0.5 * self.width) / sigma if gradients else None
        return sigma.mul_(self.width), by_variance, None

    def at_points(self, variance: Tensor, points: Tensor) -> AtPoints:
        """At points ``b x d``, decisions first."""
        slope = (0.5 * self.width) * variance.rsqrt()
        # v^(-1/2) changes by the factor -1/2 dv / v.
        return slope, 0.0, lambda change, direction: (slope * change / variance.mul(-2.0), 0.0)


class CalibratedBonus:
    """``sign * (mean - mu) + width * sigma`` of a calibrated posterior, whose process is ``gp``.

    The columns of ``gp`` have decisions first.
    """

    def __init__(
        self, model: CalibratedModel, gp: StationaryGP, columns: Columns, width: float, sign: float
    ) -> None:
        self.model, self.gp, self.columns = model, gp, columns
        self.width, self.sign = width, sign
        self._parts = slice(len(columns.decision)), slice(len(columns.decision), None)
        # The small number keeps the derivative of a root finite where there is no noise.
        self._noise = max(gp.noise, _TINY)

    @torch.no_grad()
    def at_pairs(self, variance: Tensor, X: Tensor, contexts: Tensor, gradients: bool) -> AtPairs:
        """At all pairs of ``b x d_x`` and ``M x d_c``, without a graph."""
        source, predictive, pulled = self._source(X, contexts)
        if not gradients:
            return self._bonus(variance, predictive(source)), None, None
        with torch.enable_grad():
            arguments = variance.detach().requires_grad_(), source.detach().requires_grad_()
            values = self._bonus(arguments[0], predictive(arguments[1]))
            slopes = torch.autograd.grad(values.sum(), arguments, allow_unused=True)
        return values.detach(), slopes[0], None if slopes[1] is None else pulled(slopes[1])

    def at_points(self, variance: Tensor, points: Tensor) -> AtPoints:
        """At points ``b x d``, decisions first."""
        arguments = variance.detach().requires_grad_(), points.detach().requires_grad_()
        with torch.enable_grad():
            total = self._bonus(arguments[0], self._stated(arguments[1])).sum()
            # Where the calibrator is not localized there is no slope by the inputs.
            slopes = torch.autograd.grad(
                total, arguments, create_graph=True, materialize_grads=True
            )

        @torch.enable_grad()
        def changes(change: Tensor, direction: Tensor) -> Slopes:
            by_contexts = slopes[1][:, self._parts[1]]
            along = (slopes[0] * change).sum() + (by_contexts * direction).sum()
            first, second = torch.autograd.grad(along, arguments, materialize_grads=True)
            return first, second

        return slopes[0].detach(), slopes[1].detach(), changes

    def _stated(self, points: Tensor) -> PiecewisePredictive:
        """The statement at joint inputs ``... x d``, decisions first, one point a batch."""
        images = self.gp.transformed(points)
        whole = self.columns.join(*(images[..., part] for part in self._parts))
        return self.model.calibrator.predictive(whole.unsqueeze(-2))

    def _source(self, X: Tensor, contexts: Tensor) -> Source:
        calibrator = self.model.calibrator
        radial = calibrator.radial_sum()
        if radial is None:
            pairs = X.unsqueeze(1).expand(-1, len(contexts), -1), contexts.expand(len(X), -1, -1)
            return torch.cat(pairs, dim=-1).to(self.gp.origin), self._stated, lambda slopes: slopes
        sides = zip((X, contexts), self._parts, strict=True)
        first, second = (self.gp.transformed(points, part) for points, part in sides)
        sums = radial.at_pairs(first, second, (self.columns.decision, self.columns.context))
        unit = self.gp.transform_slope

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
