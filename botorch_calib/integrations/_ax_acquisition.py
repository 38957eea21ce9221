"""Acquisition functions in Ax for calibrated models, with and without outcome constraints.

Importing this module enables Ax to store these functions.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from ax.adapter.adapter_utils import extract_outcome_constraints
from ax.core.optimization_config import OptimizationConfig
from ax.core.outcome_constraint import OutcomeConstraint
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch_base import TorchOptConfig
from ax.storage.botorch_modular_registry import register_acquisition, register_acquisition_function
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement, qLogProbabilityOfFeasibility
from botorch.acquisition.monte_carlo import MCAcquisitionFunction
from botorch.acquisition.multi_objective.base import MultiObjectiveMCAcquisitionFunction
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import (
    LinearMCObjective,
    MCAcquisitionObjective,
    PosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model, ModelList
from botorch.posteriors import GPyTorchPosterior

from botorch_calib import acquisition as ours
from botorch_calib.acquisition.base import CalibratedAcquisitionFunction
from botorch_calib.acquisition.delayed import DelayAwareAcquisitionFunction
from botorch_calib.decisions import CertifiedSetExpansion
from botorch_calib.models import CalibratedModelList
from botorch_calib.posteriors import CalibratedPosterior

# Pending points may lie beyond a parameter constraint by up to this distance, due to rounding. The
# unit is that of Ax's transformed parameters. Ax still drops pending points at larger distances.
_EDGE = 1e-6

#: Base classes of acquisition functions of one outcome. A function of such a class ignores outcome
#: constraints unless it is in ``UNDER_CONSTRAINTS``.
ONE_OUTCOME = (
    AnalyticAcquisitionFunction,
    CalibratedAcquisitionFunction,
    DelayAwareAcquisitionFunction,
)
#: Acquisition functions that depend only on the outcome constraints, not on the objective.
CONSTRAINTS_ALONE = (CertifiedSetExpansion, ours.LogCalibratedProbabilityOfFeasibility)
#: For each Monte Carlo function that Ax chooses, the closed form under outcome constraints.
CLOSED_FORMS: dict[type[AcquisitionFunction], type[AcquisitionFunction]] = {
    qLogNoisyExpectedImprovement: ours.LogCalibratedConstrainedExpectedImprovement,
    qLogProbabilityOfFeasibility: ours.LogCalibratedProbabilityOfFeasibility,
}
UNDER_CONSTRAINTS = *CLOSED_FORMS.values(), *CONSTRAINTS_ALONE
#: For each Monte Carlo function that Ax chooses, this package's variant that caches roots of the
#: models' covariances.
CACHED_ROOTS: dict[type[AcquisitionFunction], type[AcquisitionFunction]] = {
    qLogNoisyExpectedImprovement: ours.qLogCalibratedNoisyExpectedImprovement,
    qLogNoisyExpectedHypervolumeImprovement: ours.qLogCalibratedNoisyExpectedHypervolumeImprovement,
}


class PendingAtEdges(Acquisition):
    """Ax's acquisition, without dropping pending points that are just beyond a constraint.

    Rounding may move a pending point beyond a parameter constraint, and Ax drops such points. But
    the best point is often on the boundary, and Ax would propose a dropped point again.
    """

    def __init__(self, *, torch_opt_config: TorchOptConfig, **given: Any) -> None:
        if torch_opt_config.linear_constraints is not None:
            A, b = torch_opt_config.linear_constraints
            wider = (A, b + _EDGE * A.abs().amax(dim=-1, keepdim=True))
            torch_opt_config = replace(torch_opt_config, linear_constraints=wider)
        super().__init__(torch_opt_config=torch_opt_config, **given)


class SampledSums(PendingAtEdges):
    """A variant of Ax's acquisition that samples all outcomes jointly and sums the samples.

    In Ax's own acquisition, the ``ModelList`` would sample each calibrated model separately. For a
    sum of outcomes as the objective, Ax would need a joint normal distribution of the outcomes,
    which calibrated models do not have.
    """

    def _subset_model(self, model: Model, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        model, *rest = super()._subset_model(model, *args, **kwargs)
        if type(model) is ModelList:
            with suppress(UnsupportedError):  # for example, if one model is an ensemble
                model = CalibratedModelList(*model.models)
        return model, *rest

    def get_botorch_objective_and_transform(
        self, botorch_acqf_class: type[AcquisitionFunction], *args: Any, **kwargs: Any
    ) -> tuple[MCAcquisitionObjective | None, PosteriorTransform | None]:
        objective, transform = super().get_botorch_objective_and_transform(
            botorch_acqf_class, *args, **kwargs
        )
        sampled = issubclass(botorch_acqf_class, MCAcquisitionFunction)
        if sampled and isinstance(transform, ScalarizedPosteriorTransform):
            weights = transform.get_buffer("weights")
            if weights.count_nonzero() > 1:
                return LinearMCObjective(weights), None
        return objective, transform


class ConstrainedClosedForm(SampledSums):
    """A variant of Ax's acquisition that uses a closed form if the constraints allow it.

    Under outcome constraints, Ax's ``qLogNoisyExpectedImprovement`` becomes
    `LogCalibratedConstrainedExpectedImprovement`, and ``qLogProbabilityOfFeasibility`` becomes
    `LogCalibratedProbabilityOfFeasibility`. This requires that the function has no options, that
    the objective and each constraint are on different metrics, and that each metric has its own
    model with a calibrated or Gaussian posterior. If the models are sampled jointly, a noisy
    improvement function that remains becomes its variant that caches roots of the covariances
    (``CACHED_ROOTS``).
    """

    def _instantiate_acquisition(self) -> None:
        chosen = self.botorch_acqf_classes_with_options
        closed = [(c if options else self._closed_form(c), options) for c, options in chosen]
        if type(self._model) is not ModelList:
            closed = [(CACHED_ROOTS.get(c, c), options) for c, options in closed]
        self.botorch_acqf_classes_with_options = closed
        super()._instantiate_acquisition()

    def _closed_form(self, acqf_class: type[AcquisitionFunction]) -> type[AcquisitionFunction]:
        weights, constraints = self._objective_weights, self._outcome_constraints
        if acqf_class not in CLOSED_FORMS or constraints is None or len(weights) > 1:
            return acqf_class
        constrained = constraints[0] != 0.0
        expressible = bool((constrained.sum(dim=-1) == 1).all())
        if acqf_class is qLogNoisyExpectedImprovement:
            (objective,) = weights != 0.0
            clash = (constrained & objective).any()
            expressible = expressible and int(objective.sum()) == 1 and not clash
        learned = self._learned_objective_preference_model is not None
        if not expressible or learned or not self._has_known_posteriors():
            return acqf_class
        return CLOSED_FORMS[acqf_class]

    @torch.no_grad()
    def _has_known_posteriors(self) -> bool:
        """Whether each outcome has its own model with a posterior that the closed form supports."""
        models: list[Any] = [self._model]
        if isinstance(self._model, ModelList):
            models = [*self._model.models]
        X, known = self.surrogate.Xs[0][:1], (CalibratedPosterior, GPyTorchPosterior)
        return all(m.num_outputs == 1 and type(m.posterior(X)) in known for m in models)


def check_acquisition(
    config: OptimizationConfig, acqf_class: type[AcquisitionFunction] | None
) -> None:
    """Raise ``UnsupportedError`` if an acquisition function does not fit the optimization.

    ``acqf_class`` is None if Ax chooses the function. Without this check, Ax would raise an error
    only after the initial trials, or silently ignore a metric.
    """
    objective, constraints = config.objective, config.outcome_constraints
    for constraint in constraints:
        # Ax's transforms turn any constraint into an ``OutcomeConstraint``, of which Ax 1.3 keeps
        # only the first metric.
        plain = OutcomeConstraint.clone(constraint)
        rows = extract_outcome_constraints([plain], plain.metric_signatures)
        if rows is not None and (rows[0] != 0.0).sum() < len(plain.metric_names):
            raise UnsupportedError(
                f"Ax uses only one of the metrics in {constraint}: report and constrain their sum."
            )
    if acqf_class is None:
        return
    samples = issubclass(acqf_class, MCAcquisitionFunction)
    # Without these checks, Ax would silently drop the constraints and add up the objectives.
    is_constrained = acqf_class in UNDER_CONSTRAINTS
    is_of_one = issubclass(acqf_class, ONE_OUTCOME) and not is_constrained
    needs_metric = (is_of_one or is_constrained) and acqf_class not in CONSTRAINTS_ALONE
    is_of_several = issubclass(acqf_class, MultiObjectiveMCAcquisitionFunction)
    if is_of_several and not objective.is_multi_objective:
        problem = f"is for several objectives, but there is only {objective.expression!r}"
    elif objective.is_scalarized_objective and not (constraints or samples):
        problem = f"is for one metric, but the objective is the sum {objective.expression!r}"
    elif needs_metric and not objective.is_single_objective:
        problem = f"is for one metric, but the objective is {objective.expression!r}"
    elif is_of_one and constraints:
        closed = ours.LogCalibratedConstrainedExpectedImprovement.__name__
        problem = f"ignores outcome constraints, unlike {closed}"
    elif is_constrained and not constraints:
        problem = "needs outcome constraints, but there are none"
    elif is_constrained and any(len(each.metric_names) > 1 for each in constraints):
        problem = f"needs constraints on one metric each, got {constraints}"
    else:
        return
    raise UnsupportedError(
        f"`botorch_acqf_class` {acqf_class.__name__} {problem}: omit it, so that Ax chooses."
    )


for _searched in (PendingAtEdges, SampledSums, ConstrainedClosedForm):
    register_acquisition(_searched)
for _acquisition in (*vars(ours).values(), CertifiedSetExpansion):
    if isinstance(_acquisition, type) and issubclass(_acquisition, AcquisitionFunction):
        register_acquisition_function(_acquisition)
