"""`NoCalibration`: the calibrator that corrects nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_calib.calibration.base import Calibrator, check_residuals
from botorch_calib.distributions.piecewise import PiecewisePredictive


class NoCalibration(Calibrator):
    """Leaves the base model's predictive distribution as it is, and learns nothing.

    It gives a model, such as an ensemble, the quantiles, probabilities and closed forms of a
    `CalibratedModel`. In a comparison it is the method without calibration.
    """

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        """The standard normal distribution, of batch shape ``batch_shape x q x 1``."""
        shape = torch.Size([*X.shape[:-1], 1])
        return PiecewisePredictive.gaussian(shape, dtype=X.dtype, device=X.device)

    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        """Check the arguments, and learn nothing; see `Calibrator.update`."""
        check_residuals(X, z)
        return self.predictive(X)

    def reset(self) -> None:
        """Do nothing."""

    @property
    def num_updates(self) -> int:
        return 0
