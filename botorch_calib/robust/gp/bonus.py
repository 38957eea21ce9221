"""The bonus: a confidence bound less the mean of the Gaussian process, plain or calibrated.

The bound is ``mu(z) + h(v(z), z)``, with the mean ``mu`` and the variance ``v``. A plain Gaussian
process has the bonus ``h = sqrt(beta v)``, a calibrated one that of a `Prediction` with the mean 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_calib.calibration.base import TrackedCalibrator
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.posteriors import Prediction
from botorch_calib.robust.gp.stationary_gp import StationaryGP
from botorch_calib.robust.joint_inputs import Columns

# A bonus ``...`` and its derivatives by variances ``...`` and by joint inputs, ``... x d`` with
# decisions first, or None if it does not depend on these.
WithSlopes = tuple[Tensor, Tensor, Tensor | None]


class GaussianBonus:
    """``width * sqrt(v)``, with a derivative in closed form."""

    def __init__(self, width: float) -> None:
        self.width = width

    def __call__(self, variance: Tensor, points: Tensor) -> Tensor:
        """The bonus ``...`` from variances ``...``; joint inputs do not count."""
        return self.width * variance.sqrt()

    def with_slopes(self, variance: Tensor, points: Tensor) -> WithSlopes:
        """The same with its derivative, which is differentiable if gradients are enabled."""
        return self(variance, points), (0.5 * self.width) * variance.rsqrt(), None


class CalibratedBonus:
    """``sign * (mean - mu) + width * sigma`` of a calibrated posterior, whose process is ``gp``.

    The columns of ``gp`` have decisions first.
    """

    def __init__(
        self, model: CalibratedModel, gp: StationaryGP, columns: Columns, width: float, sign: float
    ) -> None:
        self.model, self.gp, self.columns = model, gp, columns
        self.width, self.sign = width, sign

    def __call__(self, variance: Tensor, points: Tensor) -> Tensor:
        """The bonus ``...`` from variances ``...`` and joint inputs ``... x d``."""
        v = variance.unsqueeze(-1).unsqueeze(-1)
        stated = Prediction(
            torch.zeros_like(v),
            v,
            v.new_full((1, 1), self.gp.noise),
            predictive=self._predictive(points),
            objective=self.model.denoise,
            excess=self.model.excess,
        )
        shift, square = (part.squeeze(-1).squeeze(-1) for part in stated.moments())
        return self.sign * shift + self.width * square.sqrt()

    def with_slopes(self, variance: Tensor, points: Tensor) -> WithSlopes:
        """The same with its derivatives, which are differentiable if gradients are enabled."""
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            at = variance.requires_grad_(), points.requires_grad_()
            bonus = self(*at)
            slopes = torch.autograd.grad(bonus.sum(), at, create_graph=twice, allow_unused=True)
        return bonus, slopes[0], slopes[1]

    def _predictive(self, points: Tensor) -> PiecewisePredictive:
        """What is stated at joint inputs ``... x d``: one point a batch, or one if all agree."""
        calibrator, columns = self.model.calibrator, self.columns
        tracked = calibrator if isinstance(calibrator, TrackedCalibrator) else None
        if tracked is not None and not tracked.tracker.localized:
            points = points.flatten(0, -2)[:1]
        split = len(columns.decision)
        whole = columns.join(points[..., :split], points[..., split:])
        whole = self.model.transform_inputs(whole)
        usual = TrackedCalibrator.predictive
        if tracked is not None and type(tracked).predictive is usual and points.dim() == 3:
            # All pairs
            sides = columns.decision, columns.context
            theta = tracked.tracker.threshold_at_pairs(whole, *sides)
            return tracked._predictive_from(theta.unsqueeze(-2))
        return calibrator.predictive(whole.unsqueeze(-2))
