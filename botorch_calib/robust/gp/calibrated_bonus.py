"""What a confidence bound of a calibrated model adds to the mean of its Gaussian process.

A calibrator states a mean ``m`` and a variance ``s`` of ``z = (y - mu) / sigma_y``. With the gain
``a = v / (v + n)``, ``n`` the variance of the noise, the objective has the mean
``mu + a sigma_y m`` and the variance ``(a sigma_y)^2 s + a n`` (`CalibratedPosterior`): elementary
functions of ``v``, ``m`` and ``s``, which automatic differentiation is good for. The last two
follow from a tensor, the *source*. Where the calibrator depends on the inputs by sums over past
ones, these are the source, and `RadialSum` has their derivatives; elsewhere it is the inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from botorch_calib._autograd import usable, with_gradients
from botorch_calib.calibration import Calibrator
from botorch_calib.calibration.learners.radial_sum import PairedSums, PointSums
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.inspection import predicting_part
from botorch_calib.robust.gp.bonus import Bonus, Changes, Inputs, Slopes
from botorch_calib.robust.gp.stationary_gp import StationaryGP

_TINY = 1e-200


class CalibratedBonus(Bonus):
    """``sign * (mean - mu) + width * sigma`` of a calibrated posterior.

    Args:
        model: The calibrated model.
        gp: Its Gaussian process, which knows the input transform and the noise.
        width: In standard deviations.
        sign: 1 for the bound of ``f``, -1 for that of ``-f``.
    """

    def __init__(self, model: CalibratedModel, gp: StationaryGP, width: float, sign: float) -> None:
        self.model, self.gp, self.width, self.sign = model, gp, width, sign
        # The small number keeps the derivative of a root finite where there is no noise.
        self._noise = max(float(gp.noise), _TINY)

    def values(self, variance: Tensor, inputs: Inputs) -> Tensor:
        """Values ``...``."""
        source = self._at_pairs(variance, inputs)
        with torch.no_grad():
            return self._bonus(variance, source.predictive(source.values))

    def with_slopes(self, variance: Tensor, inputs: Inputs) -> tuple[Tensor, Slopes]:
        """Values ``...`` and their derivatives."""
        source = self._at_pairs(variance, inputs)
        with with_gradients():
            arguments = _leaves(variance, source.values)
            values = self._bonus(arguments[0], source.predictive(arguments[1]))
            slopes = torch.autograd.grad(values.sum(), arguments, allow_unused=True)
        return values.detach(), _pulled(slopes, source)

    def with_changes(self, variance: Tensor, inputs: Inputs) -> tuple[Slopes, Changes]:
        """First derivatives, and the second ones as a function of the direction."""
        source = self._at_points(variance, inputs)
        with with_gradients():
            arguments = _leaves(variance, source.values)
            total = self._bonus(arguments[0], source.predictive(arguments[1])).sum()
            slopes = torch.autograd.grad(total, arguments, create_graph=True, allow_unused=True)
        constant = [None if slope is None else slope.detach() for slope in slopes]

        def changes(by_variance: Tensor, by_inputs: Inputs) -> Slopes:
            step, pulled_change = source.along(by_inputs)
            pairs = zip(slopes, (by_variance, step), strict=True)
            # Where the calibrator is not localized there is no slope by the source.
            known = [(slope, step) for slope, step in pairs if slope is not None]
            with with_gradients():
                outputs, steps = zip(*known, strict=True)
                found = torch.autograd.grad(outputs, arguments, steps, allow_unused=True)
            assert found[0] is not None
            if constant[1] is None or found[1] is None:
                return Slopes(found[0], None)
            return Slopes(found[0], pulled_change(constant[1], found[1]))

        return _pulled(constant, source), changes

    def _at_pairs(self, variance: Tensor, inputs: Inputs) -> _Source:
        radial, columns = self.model.calibrator.radial_sum(), inputs.columns
        if radial is None:
            return _InputSource(self.model, inputs, variance)
        both = columns.decision, columns.context
        first = self.gp.part(both[0]).transformed(inputs.X[:, 0])
        second = self.gp.part(both[1]).transformed(inputs.contexts[0])
        return self._source(inputs, radial.at_pairs(first, second, both))

    def _at_points(self, variance: Tensor, inputs: Inputs) -> _Source:
        radial, order = self.model.calibrator.radial_sum(), inputs.order
        if radial is None:
            return _InputSource(self.model, inputs, variance)
        points = self.gp.part(order).transformed(inputs.side_by_side(variance))
        return self._source(inputs, radial.at_points(points, order))

    def _source(self, inputs: Inputs, sums: PairedSums | PointSums) -> _Source:
        slope = self.gp.part(inputs.order).slope
        return _SumSource(self.model.calibrator, slope, sums)

    def _bonus(self, variance: Tensor, predictive: PiecewisePredictive) -> Tensor:
        """The bonus ``...``, given what the calibrator states, of batch shape ``... x 1 x 1``."""
        mean, spread = (part.double().squeeze(-1).squeeze(-1) for part in predictive.moments())
        v, noise = variance.double(), self._noise
        deviation = (v + noise).sqrt()
        # f~ = mu + unit (z + r eps) with the ratio r, see `CalibratedPosterior`
        unit: Tensor = deviation
        square: Tensor | float = _TINY
        if self.model.denoise:
            unit, square = v / deviation, noise / v
            if self.model.excess == "objective":
                stretch = spread.clamp(min=1.0)
                growth = 1.0 + (stretch - 1.0) * (1.0 + square)
                unit, square = unit * (growth / stretch), square * (stretch / growth)
        sigma = (spread + square).sqrt()
        return (unit * (self.sign * mean + self.width * sigma)).to(variance)


class _Source(ABC):
    """What the calibrator's statement at inputs is a function of.

    Attributes:
        values: ``... x k``.
    """

    values: Tensor

    @abstractmethod
    def predictive(self, values: Tensor) -> PiecewisePredictive:
        """The statement, of batch shape ``... x 1 x 1``."""

    @abstractmethod
    def pulled(self, by_values: Tensor) -> Tensor:
        """From derivatives by the values to those by joint inputs, ``... x d``, decisions first."""

    @abstractmethod
    def along(self, direction: Inputs) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        """Changes of the values along directions of contexts, and those of `pulled`.

        The latter is a function of derivatives by the values and of their own changes. What
        decision columns do not see may be missing in it.
        """


class _InputSource(_Source):
    """The joint inputs themselves."""

    def __init__(self, model: CalibratedModel, inputs: Inputs, like: Tensor) -> None:
        self.model, self.order = model, inputs.order
        self.values = inputs.joint(like)

    def predictive(self, values: Tensor) -> PiecewisePredictive:
        predicting = predicting_part(self.model.model)
        if predicting.training:  # an input transform would learn from them
            predicting.eval()
        # One point a batch, as nothing is asked about several of them together.
        return self.model.calibrator.predictive(self.model.transform_inputs(values.unsqueeze(-2)))

    def pulled(self, by_values: Tensor) -> Tensor:
        return by_values[..., self.order]

    def along(self, direction: Inputs) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        return direction.joint(self.values), lambda by_values, change: self.pulled(change)


class _SumSource(_Source):
    """Values of a `RadialSum` of transformed inputs."""

    def __init__(self, calibrator: Calibrator, slope: Tensor, sums: PairedSums | PointSums) -> None:
        self.calibrator, self.slope, self.sums = calibrator, slope, sums
        self.values = sums.values()

    def predictive(self, values: Tensor) -> PiecewisePredictive:
        return self.calibrator.predictive_from(values.unsqueeze(-2))

    def pulled(self, by_values: Tensor) -> Tensor:
        return self._of_inputs(self.sums.pulled(by_values))

    def along(self, direction: Inputs) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        assert isinstance(self.sums, PointSums)
        step, pulled_change = self.sums.along(direction.side_by_side(self.slope) * self.slope)
        return step, lambda *by_values: self._of_inputs(pulled_change(*by_values))

    def _of_inputs(self, slopes: Tensor) -> Tensor:
        """From derivatives by transformed inputs, decisions first."""
        return slopes.to(self.slope) * self.slope


def _leaves(*values: Tensor) -> list[Tensor]:
    """To differentiate by."""
    return [usable(value.detach()).requires_grad_() for value in values]


def _pulled(slopes: Sequence[Tensor | None], source: _Source) -> Slopes:
    """From derivatives by the variance and by the source."""
    by_variance, by_values = slopes
    assert by_variance is not None
    return Slopes(by_variance, None if by_values is None else source.pulled(by_values))
