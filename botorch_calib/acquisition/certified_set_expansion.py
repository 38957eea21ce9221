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

    ``max_i log(sigma_i(x) / u_i) - (m_i(x) / s_i(x))^2 / 2`` over the constraints, with the margin
    ``m``, the standard deviation ``sigma`` of the noise-free value, that of an outcome ``s``, and
    its mean over the training inputs ``u``, so that the outcomes' units do not matter. Far
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
        self.units = [constraint.typical_deviation() for constraint in constraints]

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the acquisition function.

        Args:
            X: Points ``b x 1 x d``.

        Returns:
            Values of shape ``b``.
        """
        gains = [
            self._gain(constraint, unit, X)
            for constraint, unit in zip(self.constraints, self.units, strict=True)
        ]
        return torch.stack(gains).amax(dim=0)

    @staticmethod
    def _gain(constraint: ChanceConstraint, unit: Tensor, X: Tensor) -> Tensor:
        variance = constraint.model.model.posterior(X).variance / unit.square()
        _, deviation = constraint.model.observation_moments(X)
        log_sigma = 0.5 * variance.clamp_min(1e-12).log()
        log_sigma, deviation = (v.squeeze(-1).squeeze(-1) for v in (log_sigma, deviation))
        return log_sigma - 0.5 * (constraint.margin(X) / deviation).square()
