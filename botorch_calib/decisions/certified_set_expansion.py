"""`CertifiedSetExpansion`: an acquisition function that grows the certified set."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from botorch_calib._validation import check_instance
from botorch_calib.acquisition.base import members_of
from botorch_calib.acquisition.input_constructors import Constraints, limits_from, register_once
from botorch_calib.acquisition.pending_points import PendingPoints
from botorch_calib.decisions.chance_constraint import ChanceConstraint, at_points, spread_of
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.predict import mean_and_deviation
from botorch_calib.models.process import kind_of, observed_process, predicting_process
from botorch_calib.models.surrogate import Surrogate
from botorch_calib.posteriors.prediction import MEMBER_DIM


class CertifiedSetExpansion(PendingPoints):
    r"""Uncertainty of a constrained outcome at the boundary of the certified set.

    The value is ``max_i log(sigma_i(x) / u_i) - (m_i(x) / s_i(x))^2 / 2`` over the outcomes ``i``.
    Here ``m_i`` is the margin (see `ChanceConstraint.margins`), and ``sigma_i`` and ``s_i`` are the
    standard deviations of the noise-free value and of the outcome. The function does not depend on
    the outcomes' units, since ``u_i`` is the mean of ``s_i`` over the training inputs. An
    observation far inside the set, or at a point with a known value, would not move the boundary,
    so the function is small there. The maxima are the expanders of SafeOpt (Sui et al., Safe
    exploration for optimization with Gaussian processes, 2015), which searches a grid. Maximise the
    function over certified points, as `optimize_chance_constrained` does with an
    ``expansion_share``.

    Args:
        constraint: The constraint, on one outcome or several.
        X_pending: Points under evaluation, ``n x d``, with contexts if there are any. They lower
            ``sigma_i`` and do not change the margins.

    Raises:
        UnsupportedError: If there are pending points and a model cannot be conditioned.

    Example:
        >>> acqf = CertifiedSetExpansion(constraint)
        >>> candidate, value = optimize_acqf(acqf, bounds, q=1, num_restarts=2, raw_samples=16)
    """

    def __init__(self, constraint: ChanceConstraint, X_pending: Tensor | None = None) -> None:
        check_instance("constraint", constraint, ChanceConstraint)
        super().__init__(model=constraint.model)
        self.constraint = constraint
        self.units = constraint.typical_deviations()  # the ``u_i`` of the docstring
        self.set_X_pending(X_pending)

    @property
    def X_baseline(self) -> Tensor:
        """Points at which the first outcome was observed, ``n x d``, without contexts.

        BoTorch's mixed searches perturb these points to obtain starts. They have the task column if
        the model has one.
        """
        points = self.constraint.known_decisions()
        if not points:
            raise AttributeError("X_baseline")  # BoTorch then starts elsewhere
        return points[0]

    def _account_for(self, X_pending: Tensor | None) -> None:
        present = conditioned = [*map(predicting_process, self.constraint.models.values())]
        if X_pending is not None:
            # Only the variance is needed. It does not depend on outcomes, so hallucinated outcomes
            # suffice.
            given = partial(CensoredDelayModel, X_pending=X_pending, imputation="hallucinate")
            conditioned = [*map(given, present)]
        self._present, self._conditioned = present, conditioned

    def _models(self) -> list[Any]:
        """The processes, which ``constraint.observe`` may replace, given the pending points."""
        if self._present != [*map(predicting_process, self.constraint.models.values())]:
            self._account_for(self.X_pending)
        return self._conditioned

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        constraint, inputs, gains = self.constraint, self.constraint.inputs(X), []
        stated, margins = constraint.stated_margins(X)
        outcomes = zip(stated.items(), self._models(), self.units, margins, strict=True)
        for (name, outcome), model, unit, margin in outcomes:
            mean, sigma = mean_and_deviation(model, inputs)
            if kind_of(observed_process(model)) == "members":  # of their mixture
                spread = mean.var(dim=MEMBER_DIM, correction=0)
                sigma = (sigma.square().mean(dim=MEMBER_DIM) + spread).sqrt()
            sigma = constraint.in_contexts(at_points(sigma), name)
            to_border = margin / constraint.in_contexts(spread_of(outcome).deviation, name)
            gains.append((sigma / unit).log() - 0.5 * to_border.square())
        return torch.stack(gains).amax(dim=0)


@register_once(CertifiedSetExpansion)
def construct_inputs_certified_set_expansion(
    model: Model | None = None,
    constraint: ChanceConstraint | None = None,
    constraints: Constraints = None,
    constraints_tuple: tuple[Tensor, Tensor] | None = None,
    level: float = 0.9,
    X_pending: Tensor | None = None,
) -> dict[str, Any]:
    """Return the arguments of `CertifiedSetExpansion`, from the arguments that Ax passes.

    A given ``constraint`` is used unchanged, including its record of past decisions (its
    `Account`). Otherwise a new constraint is made from ``model``, an exact Gaussian process for
    each limited outcome, calibrated or not. The outcomes keep their limits jointly with probability
    ``level``. The limits are ``constraints``, a dictionary ``{i: (lower, upper)}`` for outputs
    ``i`` of the model, or ``constraints_tuple=(A, b)`` with ``A y <= b``, where each row of ``A``
    limits one outcome.
    """
    if constraint is None:
        if model is None:
            raise InputDataError("`model` must be given, unless there is a chance `constraint`.")
        found = limits_from(constraints, constraints_tuple, model.num_outputs)
        members, limits = members_of(model), {f"outcome {i}": pair for i, pair in found.items()}
        models = {f"outcome {i}": _gaussian(members[i]) for i in found}
        constraint = ChanceConstraint(models, level=level, limits=limits, rows=())
    return {"constraint": constraint, "X_pending": X_pending}


def _gaussian(model: Model) -> Model:
    """Return a model of one outcome without its calibrator, but with the same pending points."""
    if not isinstance(model, Surrogate):
        return model
    if not len(model.X_pending):
        return model.model
    settings = model.censor_value, model.imputation or "censor"
    return CensoredDelayModel(model.model, model.X_pending, *settings)
