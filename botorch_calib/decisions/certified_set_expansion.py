"""`CertifiedSetExpansion`: where an observation would do most to grow the certified set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from botorch_calib.acquisition.base import members_of
from botorch_calib.acquisition.constrained import checked_constraints
from botorch_calib.acquisition.input_constructors import limits_from, register_once
from botorch_calib.acquisition.pending_points import PendingPoints
from botorch_calib.decisions.chance_constraints import ChanceConstraint, chance_constraints_of
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.inspection import gaussian_part, like, observed_part, stated_moments
from botorch_calib.models.marginals import posterior_at


class CertifiedSetExpansion(PendingPoints):
    r"""Uncertainty of a constrained outcome at the border of what is certified.

    ``max_i log(sigma_i(x) / u_i) - (m_i(x) / s_i(x))^2 / 2`` over the constraints, with the margin
    ``m``, the standard deviation ``sigma`` of the noise-free value, that of an outcome ``s``, and
    its mean over the training inputs ``u``, so that the outcomes' units do not matter. Far
    inside, an observation cannot move the border; where the value is known already it does not.
    What SafeOpt calls expanders (Sui et al., Safe exploration for optimization with Gaussian
    processes, 2015), without its grid of points. Meant to be maximised over certified points, by
    `optimize_chance_constrained`.

    Args:
        constraints: The constraints, on the same inputs, or a single one.
        X_pending: Points under evaluation, ``n x d``: they lower ``sigma``, whatever their outcomes
            will be, and leave the margins as they are.

    Raises:
        InputDataError: If there are no constraints or something else is among them, or
            ``X_pending`` holds NaN or infinite values.
        BotorchTensorDimensionError: If ``X_pending`` is not ``n x d``.
        UnsupportedError: If there are pending points, and a model cannot be conditioned.
    """

    def __init__(
        self,
        constraints: ChanceConstraint | Sequence[ChanceConstraint],
        X_pending: Tensor | None = None,
    ) -> None:
        several = chance_constraints_of(constraints)
        super().__init__(model=several[0].model)
        self.constraints = several
        self.units = [constraint.typical_deviation() for constraint in several]
        self.set_X_pending(X_pending)

    def _account_for(self, X_pending: Tensor | None) -> None:
        """Let points make known what is around them."""
        self._known = None if X_pending is None else self._conditioned(X_pending)

    def _conditioned(self, X_pending: Tensor) -> tuple[list[Any], list[Any]]:
        """The models as they are now, and the same ones knowing ``n x d`` points."""
        models = [constraint.model.model for constraint in self.constraints]
        return models, [_knowing(model, X_pending) for model in models]

    def _models(self) -> list[Any]:
        """The models, knowing the pending points, as they are now: `observe` replaces them."""
        models = [constraint.model.model for constraint in self.constraints]
        if self._known is None or self.X_pending is None:
            return models
        if any(old is not new for old, new in zip(self._known[0], models, strict=True)):
            self._known = self._conditioned(self.X_pending)
        return self._known[1]

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the acquisition function at ``b x 1 x d``; values of shape ``b``."""
        gains = []
        for constraint, model, unit in zip(
            self.constraints, self._models(), self.units, strict=True
        ):
            _, sigma = stated_moments(model, posterior_at(model, X))
            _, deviation = constraint.model.observation_moments(X)
            sigma, deviation = (v.squeeze(-1).squeeze(-1) for v in (sigma, deviation))
            to_border = constraint.margin(X) / deviation
            gains.append((sigma / unit).log() - 0.5 * to_border.square())
        return torch.stack(gains).amax(dim=0)


def _knowing(model: Any, X_pending: Tensor) -> CensoredDelayModel:
    """A Gaussian model whose variance is the one after points ``n x d`` were evaluated as well.

    The variance does not depend on outcomes, so hallucinated ones do.
    """
    X_pending = like(model, X_pending)
    if getattr(model, "imputation", "none") != "none":
        X_pending = torch.cat([model.X_pending, X_pending])
    return CensoredDelayModel(observed_part(model), X_pending, imputation="hallucinate")


@register_once(CertifiedSetExpansion)
def construct_inputs_certified_set_expansion(
    model: Model | None = None,
    constraints: Any = None,
    constraints_tuple: tuple[Tensor, Tensor] | None = None,
    level: float = 0.9,
    X_pending: Tensor | None = None,
) -> dict[str, Any]:
    """Arguments of `CertifiedSetExpansion`.

    Args:
        model: Model of the outcomes, an exact Gaussian process for each that has a limit,
            calibrated or not. From its history the chance constraints start. Not needed if
            ``constraints`` are such.
        constraints: Each a `ChanceConstraint`, whose account goes on over the rounds; or
            ``{i: (lower, upper)}``. Anything else is overlooked if ``constraints_tuple`` is given.
        constraints_tuple: ``(A, b)`` with the constraints ``A y <= b``, on one outcome each.
        level: Probability with which an outcome shall be within its limits, where these are not
            given as chance constraints.
        X_pending: As of the class.

    Raises:
        InputDataError: If there are no constraints, or ``level`` is outside (0, 1).
        UnsupportedError: If ``constraints_tuple`` binds several outcomes together, or the model of
            an outcome is not an exact Gaussian process.
    """
    several = [constraints] if isinstance(constraints, ChanceConstraint) else constraints
    if isinstance(several, Sequence) and any(isinstance(c, ChanceConstraint) for c in several):
        return {"constraints": several, "X_pending": X_pending}
    if model is None:
        raise InputDataError("`model` must be given, unless `constraints` are chance constraints.")
    limits = checked_constraints(limits_from(constraints, constraints_tuple), model.num_outputs)
    members = members_of(model)
    return {
        "constraints": [
            ChanceConstraint.from_history(
                _uncalibrated(members[i]), upper=upper, lower=lower, level=level
            )
            for i, (lower, upper) in limits.items()
        ],
        "X_pending": X_pending,
    }


def _uncalibrated(model: Model) -> Model:
    """The Gaussian model of one that may be calibrated, which goes on to know what is pending."""
    gaussian: Any = gaussian_part(model)
    observed = observed_part(gaussian)
    if gaussian_part(observed) is observed:
        return gaussian
    # A calibrated model inside of one that knows pending points.
    return CensoredDelayModel(
        gaussian_part(observed), gaussian.X_pending, gaussian.censor_value, gaussian.imputation
    )
