"""Robust decisions in Ax: some parameters are contexts, which the environment chooses.

It needs Ax (``pip install botorch_calib[ax]``). Contexts are range parameters of the experiment,
which the model knows and the initial trials vary. From then on Ax searches the other parameters,
the decisions, for the maximum of a `RobustUpperConfidenceBound`, and the contexts of a trial are
drawn from their distribution. If others came, `complete_trial_in_context` records these.
`robust_decision` is the one to take in the end.

Contexts are in the user's units. Outcomes are not winsorized, as they are by Ax's default, since a
worst case is about extreme values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
import torch

from botorch_calib.integrations.ax import (
    configured_experiment,
    experiment_with_one_objective,
    fitted_adapter,
    spec_with,
    strategy_with,
)

# isort: split
from ax.api.client import Client
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.experiment import Experiment
from ax.core.observation import Observation, ObservationData, ObservationFeatures
from ax.core.parameter import DerivedParameter, ParameterType, RangeParameter
from ax.core.search_space import SearchSpace
from ax.core.trial import Trial
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.generators.types import WinsorizationConfig
from ax.storage.botorch_modular_registry import register_acquisition, register_acquisition_function
from ax.utils.common.constants import Keys
from ax.utils.common.random import with_rng_seed
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor

from botorch_calib._validation import check_instance, check_nonnegative
from botorch_calib.acquisition import RobustUpperConfidenceBound
from botorch_calib.decisions.chance_constrained_search import LeastMargin
from botorch_calib.integrations._ax_models import calibrated_or_plain
from botorch_calib.integrations._ax_own_search import OwnSearch
from botorch_calib.integrations._mixed_spaces import MixedSpace
from botorch_calib.integrations.stored_robustness import (
    read_ambiguity,
    read_contexts,
    stored_ambiguity,
    stored_contexts,
)
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.inspection import observed_process, raw_train_inputs, sole_member
from botorch_calib.optim import optimize_robust
from botorch_calib.optim.random_seeds import derived_seed
from botorch_calib.robust import AmbiguitySet, ContextDistribution
from botorch_calib.robust.contexts import as_distribution
from botorch_calib.robust.joint_inputs import Columns

#: Default settings of `optimize_robust`.
SEARCH = {"num_restarts": 8, "raw_samples": 256}


class RobustDecisions(OwnSearch):
    """Ax's acquisition, of decisions alone, which are judged by a worst case over their contexts.

    Values of pending points, those of the same call included, are hallucinated.
    """

    robust: RobustUpperConfidenceBound

    def _instantiate_acquisition(self) -> None:
        ((_, options),) = self.botorch_acqf_classes_with_options
        names = self.search_space_digest.feature_names
        places = [names.index(name) for name in options["context_names"]]
        model = sole_member(self._model)
        # Tracked metrics may have other inputs. One of several outcomes keeps the model's batch.
        inputs = raw_train_inputs(observed_process(model))
        assert inputs is not None
        self.observed = inputs = inputs[(0,) * (inputs.dim() - 2)]
        if options["contexts"] is None:
            contexts = ContextDistribution.empirical(inputs[:, places])
        else:
            contexts = read_contexts(options["contexts"])
        if self.X_pending is not None and len(self.X_pending):
            model = CensoredDelayModel(model, self.X_pending, imputation="hallucinate")
        self.robust = RobustUpperConfidenceBound(
            model,
            options["beta"],
            read_ambiguity(options["ambiguity"]),
            contexts.to(self.dtype, self.device).with_indices(places),
            maximize=bool(self._objective_weights.sum() > 0),
        )
        self.columns = Columns(len(names), len(places), places)
        self.acqf = _OfDecisions(self.robust, self.columns)
        self.models_used = [self.surrogate.model_name_by_metric]
        self.acq_function_sequence = None

    def _chosen(self, n: int, space: MixedSpace) -> tuple[Tensor, Tensor]:
        """The robust decisions, one after the other, each with a context that is drawn."""
        names, bounds = self.search_space_digest.feature_names, self.search_space_digest.bounds
        fixed, columns = space.place.fixed_features or {}, self.columns
        if clash := [names[i] for i in columns.context if i in fixed]:
            raise UnsupportedError(
                f"The contexts {clash} cannot be fixed, as nobody controls them: leave them out."
            )
        if outside := [names[i] for i, x in fixed.items() if not _is_within(x, bounds[i])]:
            raise InputDataError(f"The fixed values of {outside} must be within the bounds.")
        # Contexts do not matter to the search, which holds them where Ax can express them.
        (middle,) = space.rounded(space.region.bounds.mean(dim=0, keepdim=True)).tolist()
        fixed = {**fixed, **{column: middle[column] for column in columns.context}}
        space = replace(space, place=space.place._replace(fixed_features=fixed))
        pending = self.observed[:0] if self.X_pending is None else self.X_pending
        values = []
        for _ in range(n):
            decision, value = self._best_decision(space)
            values.append(value.reshape(1))
            context = self._drawn_context(len(self.observed) + len(pending))
            pending = torch.cat([pending, columns.join(decision, context)])
            self.X_pending = pending
            if len(values) < n:
                self._instantiate_acquisition()
        return pending[-n:], torch.cat(values)

    def _best_decision(self, space: MixedSpace) -> tuple[Tensor, Tensor]:
        """The decision ``1 x d_x`` and its value, by `optimize_robust` unless it is restricted."""
        settings, columns, region = {**SEARCH, **self.optimizer_options}, self.columns, space.region
        if space.discrete - {*(space.place.fixed_features or {})} or region.linear or region.equal:
            space = replace(space, place=space.place._replace(**settings))
            point, _ = space.best(self.acqf, LeastMargin([]))
        else:
            decision, _ = optimize_robust(
                self.robust, region.bounds[:, columns.decision], **settings
            )
            point = columns.join(decision, region.bounds[:1, columns.context])
        point = space.rounded(point)
        with torch.no_grad():
            return point[:, columns.decision], self.acqf(point)

    def _drawn_context(self, num_known: int) -> Tensor:
        """A context ``1 x d_c``, drawn from their distribution."""
        # In each call Ax seeds torch's random numbers anew, by the client's seed. The number of
        # known points makes calls differ.
        seed = derived_seed(int(torch.randint(2**31, ())), num_known)
        contexts, generator = self.robust.contexts, torch.Generator().manual_seed(seed)
        atom = torch.multinomial(contexts.weights.cpu(), 1, generator=generator)
        return contexts.points[atom.tolist()]


class _OfDecisions(AcquisitionFunction):
    """A function of the decisions in points ``b x 1 x d``, whatever the contexts beside them."""

    def __init__(self, acqf: RobustUpperConfidenceBound, columns: Columns) -> None:
        super().__init__(model=acqf.model)
        self.acqf, self.columns = acqf, columns

    def forward(self, X: Tensor) -> Tensor:
        value: Tensor = self.acqf(X[..., self.columns.decision])
        return value


def _is_within(value: float, bounds: tuple[float, float]) -> bool:
    """Whether a value is within bounds, up to rounding."""
    margin = 1e-6 * (bounds[1] - bounds[0])
    return bounds[0] - margin <= value <= bounds[1] + margin


def robust_generation_strategy(
    client: Client | Experiment,
    context_names: str | Sequence[str],
    contexts: ContextDistribution | Tensor | None,
    ambiguity: AmbiguitySet,
    beta: float = 2.25,
    calibrated: ModelConfig | None = None,
    struct: GenerationStrategyDispatchStruct | None = None,
) -> GenerationStrategy:
    """Ax's generation strategy for one objective some of whose parameters are contexts.

    A decision, the values of the other parameters, is judged by the worst expectation of an upper
    confidence bound over the distributions of the contexts in ``ambiguity``; for a metric that is
    minimised, by the largest expectation of the lower bound. A Wasserstein radius is a Euclidean
    distance in the units of the parameters, which should matter alike.

    Args:
        client: A client or an experiment, whose optimisation has been configured.
        context_names: Names of the parameters that nobody controls, in the order of the columns of
            ``contexts``: range parameters on a linear scale, in no parameter constraint.
        contexts: Their distribution, in the units of the parameters and within their bounds: a
            `ContextDistribution`, contexts ``n x d_c`` that were met, or None for those of the
            observed trials. Contexts of proposals are drawn from it, so None is for trials whose
            contexts come from the environment.
        ambiguity: The set of distributions; a schedule of its radius is a function of the number of
            observed trials. A set of your own, or with a function for an argument, cannot be saved
            to JSON.
        beta: Factor of the variance, at least 0, as in BoTorch's ``UpperConfidenceBound``.
        calibrated: A `calibrated_model_config`, or the configuration of a Gaussian process; None
            for Ax's own.
        struct: Ax's further choices, as of the initial trials, with the method ``"custom"``.

    Raises:
        InputDataError: If nothing has been configured, or an argument is malformed.
        UnsupportedError: If there is more than one objective, a context is not a range parameter on
            a linear scale, or other parameters or constraints depend on it.

    Example:
        >>> strategy = robust_generation_strategy(client, "c", None, WassersteinBall(0.1))
        >>> client.set_generation_strategy(strategy)
        >>> trials = client.get_next_trials(max_trials=1)
    """
    experiment, _ = experiment_with_one_objective(
        client,
        "Robust decisions are for one objective without outcome constraints: a worst case of "
        "several outcomes at a time is not defined here.",
    )
    if experiment.search_space.is_hierarchical:
        raise UnsupportedError("Robust decisions are not for parameters that depend on others.")
    if struct is not None and struct.method != "custom":
        raise InputDataError(f'`struct` must have the method "custom", got {struct.method!r}.')
    if struct is not None and struct.simplify_parameter_changes:
        raise UnsupportedError(
            "`simplify_parameter_changes` would simplify contexts too: set it to False."
        )
    names = [context_names] if isinstance(context_names, str) else list(context_names)
    parameters = _checked_parameters(experiment, names)
    check_instance("ambiguity", ambiguity, AmbiguitySet, "WassersteinBall(0.1)")
    strategy, kwargs = strategy_with(
        calibrated_or_plain(calibrated), RobustUpperConfidenceBound, struct
    )
    # A discrete decision may be proposed again in a context that it met already. Ax would fall back
    # on a random one, in a context that may never occur.
    strategy.nodes_by_name["MBM"].should_deduplicate = False
    kwargs["acquisition_class"] = RobustDecisions
    stored = None
    if contexts is not None:
        stored = stored_contexts(_checked_contexts(contexts, parameters))
    kwargs["botorch_acqf_options"] = {
        "beta": check_nonnegative("beta", beta),
        "ambiguity": stored_ambiguity(ambiguity),
        "contexts": stored,
        "context_names": names,
    }
    kwargs["transform_configs"] = {
        **kwargs["transform_configs"],
        "Winsorize": {"winsorization_config": WinsorizationConfig()},
    }
    return strategy


def complete_trial_in_context(
    client: Client, trial_index: int, contexts: Mapping[str, Any], raw_data: Mapping[str, Any]
) -> int:
    """Complete a trial whose decision was taken, and whose contexts came from the environment.

    Returns the index of the complete trial: the proposed one if its contexts came. If others did,
    an attached one, as Ax's arms cannot be changed, and the proposed one is marked as failed, from
    which nothing is learned. Leave Ax's ``use_existing_trials_for_initialization`` True, or initial
    trials that are recorded so do not count.

    Args:
        client: Its generation strategy is a `robust_generation_strategy`.
        trial_index: The trial that was proposed, and runs.
        contexts: The value of each context that came, by name.
        raw_data: As ``client.complete_trial`` takes them.

    Raises:
        InputDataError: If the trial does not run, or ``contexts`` are not a value within the bounds
            for each context.
        Exception: Whatever Ax raises for ``raw_data``. The trial runs on then, to be completed.

    Example:
        >>> strategy = robust_generation_strategy(client, "c", None, WassersteinBall(0.1))
        >>> client.set_generation_strategy(strategy)
        >>> (trial,) = client.get_next_trials(max_trials=1)
        >>> new_trial = complete_trial_in_context(client, trial, {"c": 0.4}, {"y": 1.2})
    """
    spec = _robust_spec(client)
    names = spec.generator_kwargs["botorch_acqf_options"]["context_names"]
    if not isinstance(contexts, Mapping) or set(contexts) != set(names):
        raise InputDataError(f"`contexts` must be a value for each of {names}, got {contexts!r}.")
    came: dict[str, Any] = {}
    for name, value in contexts.items():
        # Ax would attach values outside the bounds, and leave them out of the model; and it takes
        # neither numbers of NumPy's nor, for a float, an integer.
        parameter = client._experiment.search_space.parameters[name]
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        number = float(value) if is_number else math.nan
        if math.isnan(number) or not parameter.validate(number):
            raise InputDataError(f"`contexts` must fit {parameter}, got {value!r}.")
        came[name] = parameter.cast(number)
    trial = client._experiment.trials.get(trial_index)
    if not isinstance(trial, Trial) or trial.arm is None or not trial.status.is_running:
        raise InputDataError(f"`trial_index` must be that of a running trial, got {trial_index!r}.")
    actual = {**trial.arm.parameters, **came}
    if actual == trial.arm.parameters:
        client.complete_trial(trial_index, dict(raw_data))
        return trial_index
    attached = client.attach_trial(actual)
    try:
        client.complete_trial(attached, dict(raw_data))
    except Exception:
        client.mark_trial_failed(attached, f"Data refused: trial {trial_index} is still running.")
        raise
    client.mark_trial_failed(trial_index, f"Other contexts came: see trial {attached}.")
    return attached


def robust_decision(client: Client) -> tuple[dict[str, Any], float]:
    """The decision to take in the end, and its value, the best worst expectation of the metric.

    ``client.get_best_parameterization`` prefers trials with lucky contexts. Here the contexts and
    the set of the strategy judge decisions all over the space. Pending trials do not count.

    Args:
        client: Its generation strategy is a `robust_generation_strategy`.

    Raises:
        InputDataError: If there is no such strategy, or the objective has not been observed.

    Example:
        >>> strategy = robust_generation_strategy(client, "c", None, WassersteinBall(0.1))
        >>> client.set_generation_strategy(strategy)
        >>> for x, c in torch.rand(8, 2).tolist():
        ...     status = client.complete_trial(client.attach_trial({"x": x, "c": c}), {"y": x - c})
        >>> decision, value = robust_decision(client)
    """
    spec = _robust_spec(client)
    experiment, config = configured_experiment(client)
    with with_rng_seed(client._random_seed):
        adapter = fitted_adapter(spec, experiment)
        run = adapter.gen(1, model_gen_options={Keys.ACQF_KWARGS.value: {"beta": 0.0}})
    names = spec.generator_kwargs["botorch_acqf_options"]["context_names"]
    decision = {name: v for name, v in run.arms[0].parameters.items() if name not in names}
    (value,) = (run.gen_metadata or {})[Keys.EXPECTED_ACQF_VAL]
    (metric,) = config.objective.metric_signatures
    # Ax's transforms of one outcome are affine and increasing, and so commute with the worst case.
    mean = np.array([-value if config.objective.minimize else value])
    data = ObservationData([metric], mean, np.zeros((1, 1)))
    observations = [Observation(ObservationFeatures({}), data)]
    for transform in reversed(list(adapter.transforms.values())):
        observations = transform.untransform_observations(observations)
    return decision, float(observations[0].data.means[0])


def _robust_spec(client: Client) -> GeneratorSpec:
    strategy = client._maybe_generation_strategy
    return spec_with(RobustDecisions, strategy, "robust_generation_strategy")


def _checked_parameters(experiment: Experiment, names: list[str]) -> list[RangeParameter]:
    """The parameters of these names, if they can be contexts."""
    space = experiment.search_space
    if not names or len(set(names)) != len(names):
        raise InputDataError(f"`context_names` must be different names, at least one, got {names}.")
    for name in names:
        if name not in space.parameters:
            known = ", ".join(map(repr, space.parameters))
            raise InputDataError(f"`context_names` has {name!r}; the parameters are {known}.")
        if problem := _why_no_context(space, name):
            raise UnsupportedError(f"The context {name!r} must {problem}.")
    if not set(space.tunable_parameters) - set(names):
        raise InputDataError("`context_names` leave no parameter to decide on.")
    return [space.parameters[name] for name in names]  # type: ignore[misc]


def _why_no_context(space: SearchSpace, name: str) -> str | None:
    """What keeps a parameter from being a context, if anything."""
    parameter = space.parameters[name]
    if not isinstance(parameter, RangeParameter):
        return f"be a range parameter without steps, it is a {type(parameter).__name__}"
    if parameter.log_scale or parameter.logit_scale:
        return (
            "be on a linear scale, or a distance would not be in its units: make its logarithm the "
            "parameter, if distances of that are meant"
        )
    for constraint in space.parameter_constraints:
        if name in constraint.constraint_dict:
            return f"not be in a parameter constraint, as nobody controls it: {constraint}"
    for other in space.parameters.values():
        if isinstance(other, DerivedParameter) and name in other.parameter_names_to_weights:
            return (
                f"not be what a parameter is derived from, as {other.name!r} is: derive it where "
                "the objective is evaluated"
            )
    return None


def _checked_contexts(
    contexts: ContextDistribution | Tensor, parameters: list[RangeParameter]
) -> ContextDistribution:
    """The distribution in double precision, if it fits the parameters."""
    contexts = as_distribution(contexts)
    if contexts.indices is not None:
        raise InputDataError("`contexts` have `indices`, which `context_names` tell: omit them.")
    if contexts.points.shape[-1] != len(parameters):
        raise InputDataError(
            f"`contexts` must have a column for each of the {len(parameters)} `context_names`, got "
            f"{contexts.points.shape[-1]}."
        )
    for parameter, column in zip(parameters, contexts.points.T, strict=True):
        if parameter.parameter_type is ParameterType.INT and (column != column.round()).any():
            raise InputDataError(f"`contexts` must be integers, as {parameter.name!r} is.")
    lipschitz_points = contexts.lipschitz_points
    if lipschitz_points is not None:
        lipschitz_points = _within("lipschitz_points", lipschitz_points, parameters)
    points = _within("points", contexts.points, parameters)
    return ContextDistribution(points, contexts.weights.double().cpu(), None, lipschitz_points)


def _within(name: str, points: Tensor, parameters: list[RangeParameter]) -> Tensor:
    """The points ``n x d_c`` of a distribution, if they lie within the bounds of the parameters."""
    bounds = torch.tensor([[p.lower, p.upper] for p in parameters], dtype=torch.double).T
    # A bound that single precision rounded may be outside by that much.
    rounded = bounds.to(points).T
    for parameter, column, (lower, upper) in zip(parameters, points.T, rounded, strict=True):
        low, high = column.aminmax()
        if low < lower or high > upper:
            raise InputDataError(
                f"`contexts` must lie within the bounds [{parameter.lower}, {parameter.upper}] "
                f"of {parameter.name!r}, in its units; the `{name}` range over "
                f"[{low:.6g}, {high:.6g}]."
            )
    return points.double().cpu().clamp(*bounds)


register_acquisition(RobustDecisions)
register_acquisition_function(RobustUpperConfidenceBound)
