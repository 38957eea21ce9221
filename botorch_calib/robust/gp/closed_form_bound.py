"""Upper confidence bounds of all pairs of decisions and contexts, and their context gradients."""

from __future__ import annotations

from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from torch import Tensor

from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.inspection import predicting_part, predicting_process, stated_moments
from botorch_calib.models.marginals import posterior_at
from botorch_calib.robust.contextual_function import ContextualFunction, norm_and_direction
from botorch_calib.robust.gp.bonus import CalibratedBonus, GaussianBonus
from botorch_calib.robust.gp.pairwise_moments import PairwiseMoments, Side
from botorch_calib.robust.gp.pointwise_function import PointwiseFunction, pairs_per_chunk
from botorch_calib.robust.gp.stationary_gp import StationaryGP, is_stationary, stationary_gp
from botorch_calib.robust.joint_inputs import Columns

# Pairs at which the bound is made of the moments together, on a processor and on a device, whose
# launches have to be few, and the least number of decisions among them, which share what localized
# thresholds need of the contexts.
_BLOCK, _DEVICE_BLOCK, _LEAST_ROWS = 2**14, 2**18, 4


class ClosedFormConfidenceBound(ContextualFunction):
    """``sign * mu(x, c) + sqrt(beta) sigma(x, c)`` of a `StationaryGP`, in closed form.

    The moments and their gradients (`PairwiseMoments`) cost one product ``(b M x n)(n x n)``: at
    ``b = 64`` an eighth, at ``b = 4`` half of autograd through the moments of single points.

    Args:
        gp: The posterior, made by `stationary_gp`.
        columns: Which columns are contexts.
        beta: BoTorch's ``beta``, which is under the root.
        sign: 1 for an upper bound of ``f``, -1 for one of ``-f``.
        calibrated: The calibrated model of ``mu`` and ``sigma``, if any, which predicts by ``gp``.
    """

    def __init__(
        self,
        gp: StationaryGP,
        columns: Columns,
        beta: float,
        sign: float = 1.0,
        calibrated: CalibratedModel | None = None,
    ) -> None:
        self.gp = gp
        self.columns = columns
        self.moments = PairwiseMoments(gp, columns, sign)
        width = beta**0.5
        self.bonus: GaussianBonus | CalibratedBonus = GaussianBonus(width)
        if calibrated is not None:
            self.bonus = CalibratedBonus(calibrated, self.moments.gp, columns, width, sign)

    @torch.no_grad()
    def _evaluate(self, X: Tensor, contexts: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        decisions, others = self.moments.sides(X, contexts)
        shape = len(X), len(contexts)
        values = decisions.points.new_empty(shape)
        width = X.shape[-1] + contexts.shape[-1] if gradients else 0
        results = values.new_empty(*shape, width)
        pairs = _BLOCK if values.device.type == "cpu" else _DEVICE_BLOCK
        size = max(_LEAST_ROWS, pairs // max(len(contexts), 1))
        for start in range(0, len(X), size):
            rows = slice(start, start + size)
            some = Side(*(part[rows] for part in decisions))
            at = self.moments.at_pairs(some, others, gradients)
            bonus, by_variance, by_inputs = self.bonus.at_pairs(
                at.variance, X[rows], contexts, gradients
            )
            values[rows] = at.mean.add_(bonus)
            if by_variance is not None:
                out = results[rows]
                self.moments.combined(at, some, others, by_variance, out)
                if by_inputs is not None:
                    out += by_inputs
        return values.to(X), results.to(X)

    @torch.no_grad()
    def _gradient_norm(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        split, points = X.shape[-1], torch.cat([X, contexts.to(X)], dim=-1)
        at = self.moments.at_points(points)
        by_variance, by_inputs, changes = self.bonus.at_points(at.variance, points)
        gradient = at.gradients(by_variance) + by_inputs
        norm, direction = norm_and_direction(gradient[:, split:])
        # grad_x |grad_c u| = (grad_x grad_c u) direction: the change of grad_x u along it.
        step, changed = at.along(direction)
        change, by_inputs_changed = changes(step, direction)
        slope = changed(by_variance, change) + by_inputs_changed
        return norm.to(X), slope[:, :split].to(X)


def gaussian_process(model: Any) -> Any:
    """The Gaussian process that a model predicts by, if `stationary_gp` takes it, else None.

    There may be a `CalibratedModel` and pending points around it.
    """
    part, gp = predicting_part(model), predicting_process(model)
    # Classes derived from `CalibratedModel` count if they predict as it does.
    is_known = part is gp or getattr(type(part), "posterior", None) is CalibratedModel.posterior
    return gp if is_known and is_stationary(gp) else None


def confidence_bound(
    model: Any,
    columns: Columns,
    beta: float,
    sign: float = 1.0,
    posterior_transform: PosteriorTransform | None = None,
) -> ContextualFunction:
    """The confidence bound of any model with one output, in closed form where there is one.

    Arguments are those of `ClosedFormConfidenceBound`, with an affine transform of the outcome.
    """
    gp = gaussian_process(model) if posterior_transform is None else None
    if gp is not None:
        part = predicting_part(model)
        calibrated = None if part is gp else part
        if calibrated is not None:
            model.warn_if_unlearned()  # as the first posterior would
        return ClosedFormConfidenceBound(stationary_gp(gp), columns, beta, sign, calibrated)

    def bound(Z: Tensor) -> Tensor:
        posterior = posterior_at(model, Z, posterior_transform=posterior_transform)
        mean, sigma = stated_moments(model, posterior, posterior_transform)
        return (sign * mean + beta**0.5 * sigma).squeeze(-1).squeeze(-1)

    return PointwiseFunction(bound, columns, chunk=pairs_per_chunk(model))
