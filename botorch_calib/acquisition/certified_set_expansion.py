"""`CertifiedSetExpansion`: where an observation would do most to grow the certified set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from botorch_calib.acquisition.chance_constraints import ChanceConstraint


class CertifiedSetExpansion(AcquisitionFunction):
    r"""Uncertainty of a constrained outcome at the border of what is certified.

    ``max_i log sigma_i(x) - (m_i(x) / s_i(x))^2 / 2`` over the constraints, with the margin ``m``,
    the standard deviation ``sigma`` of the noise-free value and that of an outcome ``s``. Far
    inside, an observation cannot move the border; where the value is known already it does not.
    What SafeOpt calls expanders (Sui et al., Safe exploration for optimization with Gaussian
    processes, 2015), without its grid of points. Meant to be maximised over certified points, by
    `optimize_chance_constrained`.

    Args:
        constraints: The constraints, on the same inputs.

    Raises:
        InputDataError: If there are none.
    """

    def __init__(self, constraints: Sequence[ChanceConstraint]) -> None:
        constraints = list(constraints)
        if not constraints:
            raise InputDataError("`constraints` must hold at least one ChanceConstraint.")
        super().__init__(model=constraints[0].model)
        self.constraints = constraints

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the acquisition function.

        Args:
            X: Points ``b x 1 x d``.

        Returns:
            Values of shape ``b``.
        """
        return torch.stack([self._gain(c, X) for c in self.constraints]).amax(dim=0)

    @staticmethod
    def _gain(constraint: ChanceConstraint, X: Tensor) -> Tensor:
        uncertainty = constraint.model.model.posterior(X).variance.clamp_min(1e-12).sqrt()
        _, deviation = constraint.model.observation_moments(X)
        log_sigma, deviation = (v.squeeze(-1).squeeze(-1) for v in (uncertainty.log(), deviation))
        return log_sigma - 0.5 * (constraint.margin(X) / deviation).square()
