"""A search whose end does not depend on the units of the inputs and of the outcome."""

from __future__ import annotations

from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_calib.models.inspection import outcome_scale, predicting_process


class InUnitBox(AcquisitionFunction):
    """An acquisition function of inputs in widths of their box, its values in units of the outcome.

    BoTorch's search stops where the gradient is less than 1e-5, whatever the units: where inputs
    range over a million, or outcomes over a millionth, it would not leave its starts. Where some
    inputs range over much more than others, it would creep.

    Args:
        acqf: A function of inputs ``b x 1 x d`` in their own units. Its values are in those of the
            outcome of its model, or logarithms.
        bounds: The box, ``2 x d``.

    Attributes:
        bounds: The unit cube, in which a column without width stays where it is.
        unit: By what values are divided: the standard deviation by which the model standardises its
            outcome; 1 if it does not, and for logarithms.
    """

    def __init__(self, acqf: AcquisitionFunction, bounds: Tensor) -> None:
        super().__init__(model=getattr(acqf, "model", None))  # type: ignore[arg-type]
        self.acqf, self.box = acqf, bounds
        self._log = acqf._log
        self.unit = torch.ones_like(bounds[0, 0]) if acqf._log else outcome_unit(self.model, bounds)
        self.bounds = torch.stack([torch.zeros_like(bounds[0]), (bounds[1] > bounds[0]).to(bounds)])

    def inputs(self, X: Tensor) -> Tensor:
        """The inputs, in their units."""
        # Exact at both ends, so that rounding takes nothing out of the box.
        return torch.lerp(self.box[0], self.box[1], X)

    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the function at ``b x 1 x d`` in widths of the box; values of shape ``b``."""
        value: Tensor = self.acqf(self.inputs(X))
        return value / self.unit


def outcome_unit(model: Any, like: Tensor) -> Tensor:
    """What one unit of the targets of a model is in units of its outcome; 1 where it is not known.

    Args:
        model: The model of an acquisition function, or None.
        like: Has the precision and the device of the result.
    """
    scale = outcome_scale(predicting_process(model))
    if scale is None or scale.numel() != 1:
        return torch.ones_like(like[0, 0])
    return scale.detach().reshape(()).to(like)
