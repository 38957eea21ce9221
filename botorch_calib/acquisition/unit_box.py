"""A search in widths of the box, whose end does not depend on the units of the inputs."""

from __future__ import annotations

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor


class InUnitBox(AcquisitionFunction):
    """An acquisition function of inputs measured in widths of their box.

    BoTorch's search stops where the gradient is less than 1e-5, whatever the units of inputs: where
    these range over a million, it would not leave its starts. Where some range over much more than
    others, it would creep.

    Args:
        acqf: A function of inputs ``b x 1 x d`` in their own units.
        bounds: The box, ``2 x d``.

    Attributes:
        bounds: The unit cube, in which a column without width stays where it is.
    """

    def __init__(self, acqf: AcquisitionFunction, bounds: Tensor) -> None:
        super().__init__(model=getattr(acqf, "model", None))  # type: ignore[arg-type]
        self.acqf, self.box = acqf, bounds
        self._log = acqf._log
        self.bounds = torch.stack([torch.zeros_like(bounds[0]), (bounds[1] > bounds[0]).to(bounds)])

    def inputs(self, X: Tensor) -> Tensor:
        """The inputs, in their units."""
        # Exact at both ends, so that rounding takes nothing out of the box.
        return torch.lerp(self.box[0], self.box[1], X)

    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the function at ``b x 1 x d`` in widths of the box; values of shape ``b``."""
        value: Tensor = self.acqf(self.inputs(X))
        return value
