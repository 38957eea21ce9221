"""Certified trials in Ax: outcome constraints that hold with a stated probability.

The module needs Ax (``pip install botorch_calib[ax]``). For each trial the constraint is built
anew, from models of the current data and the decisions about earlier trials. Ax stores each
decision, as a row of plain values, in the metadata of the candidate. So the account of decisions
and violations remains correct after a restart from JSON or a database, and with parallel trials.
Ax's transforms of outcomes are not used, since they would winsorize or compress the values that
have limits. Importing this module enables Ax to load a `chance_constrained_generation_strategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, NamedTuple

import torch

from botorch_calib.integrations.ax import (
    LeaveOutInfinite,
    calibrated_generation_strategy,
    check_observed,
    configured_experiment,
    fitted_adapter,
)

# isort: split
from ax.adapter import registry
from ax.adapter.base import GenResults
from ax.adapter.torch import TorchAdapter
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.derelativize import Derelativize
from ax.api.client import Client
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.arm import Arm
from ax.core.experiment import Experiment
from ax.core.generator_run import GeneratorRun
from ax.core.observation import ObservationFeatures
from ax.core.optimization_config import OptimizationConfig
from ax.core.search_space import SearchSpace, SearchSpaceDigest
from ax.core.trial_status import TrialStatus
from ax.core.types import ComparisonOp
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import REVERSE_MODEL_REGISTRY, register_acquisition
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY
from ax.utils.common.constants import Keys
from ax.utils.common.random import with_rng_seed
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import ModelList
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from torch import Tensor

from botorch_calib._validation import check_instance, check_open_unit
from botorch_calib.acquisition import LogCalibratedConstrainedExpectedImprovement
from botorch_calib.decisions import ChanceConstraint, Recommendation
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place, repeated_points
from botorch_calib.decisions.recommendation import posterior_mean
from botorch_calib.decisions.rows import DecisionAccount, Row, is_outside
from botorch_calib.integrations import _stored as stored
from botorch_calib.integrations._ax_acquisition import ConstrainedClosedForm
from botorch_calib.integrations._mixed_search import MixedSpace
from botorch_calib.optim.region import LinearConstraints, with_fixed

#: Ax's transforms of parameters. Transforms of outcomes are left out, since limits are in the units
#: of the metrics. Users may add Ax's `AddExecutionViability`.
TRANSFORMS: list[type[Transform]] = [LeaveOutInfinite, *registry.MBM_X_trans, Derelativize]
#: Statuses of trials that Ax regards as never run: Ax expects no data, and may repeat their points.
NEVER_RUN = (TrialStatus.FAILED, TrialStatus.STALE)
# Attributes of the generator that Ax's `ObjectivePFeasibleFrontierPlot` replaces, and that the
# adapter restores before each fit.
BORROWED = ("acquisition_class", "acquisition_options", "_botorch_acqf_classes_with_options")
# Number of initial trials per parameter. A fit to fewer trials is too uncertain to certify points.
_INITIAL = 8


class CertifiedPoints(ConstrainedClosedForm):
    """Ax's acquisition, maximised over the points that a chance constraint certifies."""

    recommended: Recommendation
    decided: list[Row]  # decisions about the points of the last search, in order

    def _construct_botorch_acquisition(
        self,
        botorch_acqf_class: type[AcquisitionFunction],
        botorch_acqf_options: dict[str, Any],
        model: Any,
    ) -> AcquisitionFunction:
        """Build Ax's function; a closed form improves on the best certified mean."""
        constraint, X = self.options.get("constraint"), self.X_observed
        is_closed = botorch_acqf_class is LogCalibratedConstrainedExpectedImprovement
        if is_closed and constraint is not None and X is not None:
            X = X.unsqueeze(-2)
            (weights,) = self._objective_weights
            index = int(weights.abs().argmax())
            with torch.no_grad():
                X = X[constraint.certified(X)]
                if len(X):
                    maximize = bool(weights[index] > 0.0)
                    best = posterior_mean(model.models[index], maximize)(X).max()
                    best_f = best if maximize else -best
                    botorch_acqf_options = {"best_f": best_f, **botorch_acqf_options}
        return super()._construct_botorch_acquisition(
            botorch_acqf_class, botorch_acqf_options, model
        )

    def optimize(
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        inequality_constraints: LinearConstraints | None = None,
        equality_constraints: LinearConstraints | None = None,
        fixed_features: dict[int, float] | None = None,
        rounding_func: Callable[[Tensor], Tensor] | None = None,
        optimizer_options: dict[str, Any] | None = None,
        candidate_set: Tensor | None = None,
        sampling_strategy: object = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if candidate_set is not None or sampling_strategy is not None:
            raise UnsupportedError(f"{type(self).__name__} does not choose among given candidates.")
        bounds = self.surrogate.Xs[0].new_tensor(search_space_digest.bounds).mT
        bounds = with_fixed(bounds, fixed_features or {})
        place = Place(bounds, None, None, inequality_constraints, equality_constraints)
        choices = {i: sorted(each) for i, each in search_space_digest.discrete_choices.items()}
        points, values = self._chosen(n, MixedSpace(place, choices, rounding_func))
        return points, values, torch.ones(len(points), dtype=self.dtype)

    def _chosen(self, n: int, space: MixedSpace) -> tuple[Tensor, Tensor]:
        """Choose ``n`` points one by one, each certified if possible.

        Returns the points ``n x d`` and the values ``n`` of the acquisition function. Each
        chosen point is treated as pending in later searches. With the option ``"recommend"`` the
        result is the recommended point, with the value 0.
        """
        self.decided = []
        if "recommend" in self.options:
            stated = {"constraint": self.options["constraint"], **self.options["recommend"]}
            self.recommended = space.recommended(**stated)
            return self.recommended.candidate, torch.zeros(1)
        chosen: list[Tensor] = []
        values: list[Tensor] = []

        def best(constraint: ChanceConstraint) -> tuple[Tensor, bool]:
            acqf = stored.expanding(self.acqf, constraint, self.options["expansion_share"])
            return space.best(acqf, LeastMargin(constraint))

        for _ in range(n):
            point, row = stored.decide(best, self.options["constraint"], self.X_pending)
            chosen.append(point)
            self.decided.append(row)
            with torch.no_grad(), repeated_points():
                values.append(self.acqf(point).reshape(1))
            if len(chosen) < n:
                pending = point[:0] if self.X_pending is None else self.X_pending
                self.X_pending = torch.cat([pending, point])
                self._instantiate_acquisition()
        return torch.cat(chosen), torch.cat(values)


class CertifyingAdapter(TorchAdapter):
    """An adapter that builds the constraint from stored decisions, and stores new decisions."""

    generator: Any  # Ax's `BoTorchGenerator`
    # Decisions of the current call about candidates that are not trials yet.
    _proposed: tuple[DecidedArm, ...] = ()
    # Values of the generator's `BORROWED` attributes before the first fit.
    _made: dict[str, Any] | None = None

    def _fit_if_implemented(self, *args: Any, **kwargs: Any) -> None:
        """Undo changes that Ax's analysis cards may have made to the generator, then fit it."""
        self._made = self._made or {name: vars(self.generator)[name] for name in BORROWED}
        vars(self.generator).update(self._made)
        super()._fit_if_implemented(*args, **kwargs)

    def gen(  # Ax passes only arguments that this signature names
        self,
        n: int,
        search_space: SearchSpace | None = None,
        optimization_config: OptimizationConfig | None = None,
        pending_observations: dict[str, list[ObservationFeatures]] | None = None,
        fixed_features: ObservationFeatures | None = None,
        model_gen_options: dict[str, Any] | None = None,
    ) -> GeneratorRun:
        """Generate candidates, and remember the decisions until the candidates are trials."""
        # Ax passes earlier candidates of the same call as pending points without a trial index.
        # Decisions about other candidates are from earlier calls, and are forgotten.
        pending = [f for of_metric in (pending_observations or {}).values() for f in of_metric]
        waiting = {Arm(f.parameters).signature for f in pending if f.trial_index is None}
        self._proposed = tuple(each for each in self._proposed if each.arm.signature in waiting)
        # Without this argument, Ax would use the configuration from the adapter's creation, which
        # may have changed since.
        config = optimization_config or self._experiment.optimization_config
        run = super().gen(
            n, search_space, config, pending_observations, fixed_features, model_gen_options
        )
        rows = stored_rows(run)
        decided = [arm for arm in run.arms if arm.signature in rows]
        self._proposed += tuple(DecidedArm(None, arm, rows[arm.signature], {}) for arm in decided)
        return run

    def _gen(self, *args: Any, **kwargs: Any) -> GenResults:
        if not issubclass(self.generator.acquisition_class, CertifiedPoints):
            return super()._gen(*args, **kwargs)  # candidates of an analysis card are not run
        check_observed(self._experiment)
        options, key = kwargs["model_gen_options"] or {}, Keys.AX_ACQUISITION_KWARGS.value
        settings, config = self.generator.acquisition_options, kwargs["optimization_config"]
        account = account_of(self._experiment, settings, config, self._proposed)
        constraint = stored.constraint_of(account, models_by_metric(self))
        stated = {**options.get(key, {}), "constraint": constraint}
        results = super()._gen(*args, **{**kwargs, "model_gen_options": {**options, key: stated}})
        decided = self.generator._acquisition.decided  # empty for a recommendation
        first: dict[str, Row] = {}  # an arm that is chosen twice is run once
        for features, row in zip(results.observation_features, decided, strict=False):
            own = first.setdefault(Arm(features.parameters).signature, row)
            features.metadata = {**(features.metadata or {}), stored.KEY: own}
        return results


class CertifyingGenerators(registry.GeneratorRegistryBase):
    """The generator of certified points, under the name by which Ax stores it."""

    CERTIFIED = "Certified"


# Ax's error shows the name if this module has not been imported, so the name includes the module.
CertifyingGenerators.__name__ = f"{__name__}.{CertifyingGenerators.__name__}"


def stated_limits(config: OptimizationConfig) -> dict[str, tuple[float | None, float | None]]:
    """Return the lower and upper limit of each constrained metric, by name; None for no limit.

    If a metric has several limits on one side, the tightest limit is returned. Metrics are in the
    order of the constraints.
    """
    if several := [c for c in config.outcome_constraints if len(c.metric_names) > 1]:
        raise UnsupportedError(f"Chance constraints are on one metric each, got {several}.")
    limits: dict[str, tuple[float | None, float | None]] = {}
    for constraint in config.outcome_constraints:
        ((_, weight),) = constraint.metric_weights
        (name,) = constraint.metric_names
        bound = constraint.bound / weight
        lower, upper = limits.get(name, (None, None))
        if (constraint.op is ComparisonOp.LEQ) == (weight > 0.0):
            limits[name] = lower, bound if upper is None else min(upper, bound)
        else:
            limits[name] = bound if lower is None else max(lower, bound), upper
    return limits


def absolute_config(spec: GeneratorSpec, experiment: Experiment) -> OptimizationConfig:
    """Return the configured optimisation, with limits relative to a baseline made absolute."""
    _, config = configured_experiment(experiment)
    if not any(constraint.relative for constraint in config.outcome_constraints):
        return config
    adapter = fitted_adapter(spec, experiment)
    space = adapter._search_space.clone()
    transformed: Any = adapter._get_transformed_gen_args(space, config).optimization_config
    return transformed


def check_baseline(experiment: Experiment, config: OptimizationConfig) -> None:
    """Raise ``UnsupportedError`` if batches may have a baseline of their own.

    This is the case under a relative limit if a trial with several arms lacks the baseline, or if
    the baseline was measured in several trials, including a trial with several arms.
    """
    if not any(constraint.relative for constraint in config.outcome_constraints):
        return
    name, means = getattr(experiment.status_quo, "name", None), observed_means(experiment)
    measured, trials = {index for index, arm in means if arm == name}, experiment.trials
    batches = {index for index, _ in means if len(trials[index].arms) > 1}
    lacking = {index for index in batches if name not in {arm.name for arm in trials[index].arms}}
    if lacking or (batches & measured and len(measured) > 1):
        raise UnsupportedError(
            f"The trials {sorted(batches)} have several arms, and the baseline was measured in the "
            f"trials {sorted(measured)}, but a limit relative to it would use one of these values "
            "for all trials: measure the baseline in each batch, report the ratio to the baseline "
            'of the same batch as another metric, and constrain it, `"heat_ratio <= 1.05"`.'
        )


def account_of(
    experiment: Experiment,
    settings: Mapping[str, Any],
    config: OptimizationConfig,
    proposed: Iterable[DecidedArm] = (),
) -> DecisionAccount:
    """Build the account of all decisions, including those about ``proposed`` arms.

    Proposed arms do not belong to a trial yet. ``settings`` holds the ``level`` and the ``budget``.
    The limits in ``config`` must be absolute, see `absolute_config`.
    """
    _, stated = configured_experiment(experiment)
    check_baseline(experiment, stated)
    own = stated_limits(stated).keys()  # without Ax's constraint on viability
    limits = {name: pair for name, pair in stated_limits(config).items() if name in own}
    if not limits:
        raise InputDataError(
            "The client has no outcome constraints any more: give it another strategy, such "
            "as `calibrated_generation_strategy`."
        )
    decided = [*decided_trials(experiment), *proposed]
    trials = [(each.decision, each.outcomes) for each in decided]
    certified = [each for each in decided if each.decision.get("certified")]
    is_out = [each.trial for each in certified if None in map(each.outcomes.get, limits)]
    trials_out = sorted({trial for trial in is_out if trial is not None}) or "trials of this call"
    remedy = (
        "report them by `client.complete_trial`, and take back trials that were never run by "
        f"`withdraw(client, trial)`: {trials_out}"
    )
    return stored.account_of(limits, settings["level"], settings["budget"], trials, remedy)


class DecidedArm(NamedTuple):
    """An arm that a model has chosen, the decision about it, and its outcomes."""

    trial: int | None  # None while the arm is not in a trial
    arm: Arm
    decision: Mapping[str, Any]  # the stored row; empty without a decision
    outcomes: Mapping[str, float | None]  # by name; empty until the trial has ended


def decided_trials(experiment: Experiment) -> list[DecidedArm]:
    """Return the arms that models have chosen, except arms that were never run.

    The arms are in the order of trials, and of generator runs within a trial.
    """
    found = observed_means(experiment)
    decided = []
    for index, trial in sorted(experiment.trials.items()):
        for run in trial.generator_runs:
            rows = stored_rows(run)
            setup = registry.GENERATOR_KEY_TO_GENERATOR_SETUP.get(run._generator_key or "")
            of_model = setup is not None and issubclass(setup.adapter_class, TorchAdapter)
            for arm in run.arms:
                decision = rows.get(arm.signature, {})
                # Arms of a generator run are named only in the experiment's trials.
                named = experiment.arms_by_signature[arm.signature]
                came = found.get((index, named.name), {})
                never_run = trial.status in NEVER_RUN and not came
                if (decision or of_model) and not never_run:
                    over = trial.status.is_terminal
                    decided.append(DecidedArm(index, named, decision, came if over else {}))
    return decided


def stored_rows(run: GeneratorRun) -> dict[str, Row]:
    """Return the rows of the decisions about a generator run's arms, by arm signature."""
    metadata = run.candidate_metadata_by_arm_signature or {}
    return {arm: own[stored.KEY] for arm, own in metadata.items() if own and stored.KEY in own}


def models_by_metric(adapter: TorchAdapter) -> dict[str, Model]:
    """Return the model of each metric, by the metric's name."""
    assert isinstance(adapter.generator, BoTorchGenerator)
    model, outcomes = adapter.generator.surrogate.model, adapter.generator.surrogate.outcomes
    models = [model]
    if isinstance(model, ModelList):
        models = [*model.models]
    elif len(outcomes) > 1:
        models = [model.subset_output([i]) for i in range(len(outcomes))]
    names = {metric.signature: name for name, metric in adapter._experiment.metrics.items()}
    return {names.get(key, key): own for key, own in zip(outcomes, models, strict=True)}


def observed_means(experiment: Experiment) -> dict[tuple[int, str], dict[str, float | None]]:
    """Return each metric's mean by name, for each pair of a trial index and an arm name.

    For a metric that is measured as a curve, the result is the last value.
    """
    means: dict[tuple[int, str], dict[str, float | None]] = {}
    for row in experiment.lookup_data().df.itertuples():
        means.setdefault((row.trial_index, row.arm_name), {})[row.metric_name] = float(row.mean)
    return means


def chance_constrained_generation_strategy(
    client: Client | Experiment,
    level: float = 0.9,
    budget: float = SIZE,
    expansion_share: float = 0.0,
    model_config: ModelConfig | None = None,
    metric_configs: Mapping[str, ModelConfig] | None = None,
    botorch_acqf_class: type[AcquisitionFunction] | None = None,
    struct: GenerationStrategyDispatchStruct | None = None,
) -> GenerationStrategy:
    """Return a strategy whose trials meet the outcome constraints with a stated probability.

    After the initial trials, each trial maximises Ax's acquisition function over the points that a
    `ChanceConstraint` on all outcomes certifies. At most ``(1 - level) T + budget + level`` of the
    first ``T`` certified trials violate a limit, however wrong the models are. If no point is
    certified, the trial is the most informative point, with a ``NotCertifiedWarning``. Initial
    trials and attached trials are not certified. Attached trials count as initial trials: attach
    trials that are known to be safe, so that few other initial trials run.

    Constraints may be relative to a baseline. If the baseline's outcomes change, each earlier
    decision keeps the limits from the time of the decision.

    Args:
        client: A client or an experiment, with constraints on one metric each.
        level: Probability, in (0, 1), with which all outcomes shall be within their limits.
        budget: See `ChanceConstraint`.
        expansion_share: See `optimize_chance_constrained`; useful if the initial trials have few
            safe points.
        model_config: Configuration of the models (default: Ax's own). A `calibrated_model_config`
            of a constrained metric needs ``denoise=False``, as limits are for observations.
        metric_configs: Configurations of some metrics, by name, instead of ``model_config``.
        botorch_acqf_class: See `calibrated_generation_strategy`.
        struct: See `calibrated_generation_strategy` (default: eight initial trials for each
            parameter, as a fit to fewer trials is too uncertain).

    Raises:
        InputDataError: If there are no constraints, or an argument is malformed.
        UnsupportedError: If a constraint is on several metrics, a relative constraint has no
            baseline yet, a constrained metric is denoised, or ``struct`` simplifies parameters.

    Example:
        >>> client.configure_optimization("y", outcome_constraints=["heat <= 2"])
        >>> strategy = chance_constrained_generation_strategy(client, level=0.9)
        >>> client.set_generation_strategy(strategy)
        >>> trials = client.get_next_trials(max_trials=1)
    """
    experiment, config = configured_experiment(client)
    if not config.outcome_constraints:
        raise InputDataError(
            "`client` has no constraints: call `client.configure_optimization(..., "
            'outcome_constraints=["cost <= 3"])`, or use `calibrated_generation_strategy`.'
        )
    if struct is not None and struct.simplify_parameter_changes:
        raise UnsupportedError("`simplify_parameter_changes` would change certified points.")
    limits = stated_limits(config)
    terms = stored.terms_of(level, budget, expansion_share)
    if struct is None:
        struct = GenerationStrategyDispatchStruct(
            method="custom",
            initialization_budget=_INITIAL * len(experiment.search_space.tunable_parameters),
        )
    check_instance("metric_configs", metric_configs or {}, Mapping)
    by_metric = {name: _standardized(each) for name, each in (metric_configs or {}).items()}
    shared = _standardized(ModelConfig(name="Ax's own") if model_config is None else model_config)
    strategy = calibrated_generation_strategy(client, shared, by_metric, botorch_acqf_class, struct)
    for name in limits:
        if by_metric.get(name, shared).model_options.get("denoise", False):
            raise UnsupportedError(
                f"The constrained metric {name!r} is denoised, but limits are for observations: "
                "give it a `calibrated_model_config(denoise=False)`."
            )
    node = strategy.nodes_by_name["MBM"]
    # If the best point was run before, Ax would replace it with a random, uncertified point.
    node.should_deduplicate = False
    (spec,) = node.generator_specs
    spec.generator_enum = CertifyingGenerators.CERTIFIED
    kwargs = spec.generator_kwargs
    kwargs["transforms"] = TRANSFORMS
    kwargs["acquisition_class"] = CertifiedPoints
    kwargs["surrogate_spec"] = replace(kwargs["surrogate_spec"], allow_batched_models=False)
    kwargs["acquisition_options"] = terms
    return strategy


def _standardized(config: ModelConfig) -> ModelConfig:
    """Return the configuration; standardisation is added if it specifies no outcome transform."""
    if not isinstance(config, ModelConfig) or config.outcome_transform_classes is not None:
        return config
    options = config.model_options
    kind = REVERSE_MODEL_REGISTRY.get(options.get("model_class", ""), config.botorch_model_class)
    batched: dict[str, Any] = {}
    if kind is EnsembleMapSaasSingleTaskGP:  # it copies the data for each member
        num = options.get("num_taus", signature(kind).parameters["num_taus"].default)
        batched = {Standardize.__name__: {"batch_shape": torch.Size([num])}}
    return replace(
        config,
        outcome_transform_classes=[Standardize],
        outcome_transform_options={**batched, **config.outcome_transform_options},
    )


def recommendation(
    client: Client, confidence: float = 0.95, baseline: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Recommendation]:
    """Recommend final parameters, and return them with the `Recommendation`.

    ``client.get_best_parameterization`` is biased towards trials with favourable noise. This
    function compares points of the whole search space by models of all data.

    Args:
        client: A client with a `chance_constrained_generation_strategy`.
        confidence: Confidence of each statement in the `Recommendation`, in (0, 1).
        baseline: Parameters to compare with (default: the parameters given to
            ``client.attach_baseline``, if any).

    Raises:
        InputDataError: If the client has another strategy, an outcome has not been observed, or the
            ``baseline`` lacks a parameter.
        UnsupportedError: If the objective is not a single metric.

    Warns:
        NotCertifiedWarning: If no point is safe with this confidence.

    Example:
        >>> client.configure_optimization("y", outcome_constraints=["heat <= 2"])
        >>> client.set_generation_strategy(chance_constrained_generation_strategy(client))
        >>> for x, c in torch.rand(16, 2).tolist():
        ...     data = {"y": x, "heat": x + c}
        ...     status = client.complete_trial(client.attach_trial({"x": x, "c": c}), data)
        >>> parameters, stated = recommendation(client)
    """
    check_instance("client", client, Client)
    spec = certifying_spec(client._maybe_generation_strategy)
    experiment, config = configured_experiment(client)
    if not config.objective.is_single_objective:
        raise UnsupportedError(f"Give one metric as the objective, not {config.objective}.")
    with with_rng_seed(client._random_seed):
        adapter = fitted_adapter(spec, experiment)
        if baseline is None and experiment.status_quo is not None:
            baseline = experiment.status_quo.parameters
        point = None
        if baseline is not None:
            try:
                features = [ObservationFeatures(dict(baseline))]
                point = adapter.transform_observation_features(features)
            except ValueError as error:
                names = [*experiment.search_space.tunable_parameters]
                raise InputDataError(
                    f"`baseline` must give each of the parameters {names} a value, got {baseline}."
                ) from error
        options = {
            "objective": models_by_metric(adapter)[config.objective.metric_names[0]],
            "maximize": not config.objective.minimize,
            "confidence": check_open_unit("confidence", confidence),
            "baseline": point,
        }
        stated = {Keys.AX_ACQUISITION_KWARGS.value: {"recommend": options}}
        run = adapter.gen(1, model_gen_options=stated)
    return run.arms[0].parameters, adapter.generator._acquisition.recommended


def last_safe(client: Client) -> dict[str, Any] | None:
    """Return the parameters of the latest trial within all limits, for use after a violation.

    All trials that have ended and have data are considered, including attached trials. The result
    is None if no trial was within the current limits. Outcomes within the limits do not prove that
    the parameters are safe; see `recommendation`.

    Raises:
        InputDataError: If the client has no `chance_constrained_generation_strategy`.

    Example:
        >>> client.configure_optimization("y", outcome_constraints=["heat <= 2"])
        >>> client.set_generation_strategy(chance_constrained_generation_strategy(client))
        >>> trial = client.attach_trial({"x": 0.5, "c": 0.5})
        >>> status = client.complete_trial(trial, {"y": 0.5, "heat": 1.0})
        >>> last_safe(client)
        {'x': 0.5, 'c': 0.5}
    """
    check_instance("client", client, Client)
    experiment, spec = client._experiment, certifying_spec(client._maybe_generation_strategy)
    limits = stated_limits(absolute_config(spec, experiment))
    for (trial, arm), means in sorted(observed_means(experiment).items(), reverse=True):
        is_kept = is_outside(limits, **stored.known_outcomes(limits, means, {})) is False
        if is_kept and experiment.trials[trial].status.is_terminal:
            return dict(experiment.arms_by_name[arm].parameters)
    return None


def withdraw(client: Client, trial_index: int) -> None:
    """Take back the decision about a trial that was never run, and will not be run.

    A certified trial without data counts as a violation until it is withdrawn. For a running trial,
    ``client.mark_trial_failed`` has the same effect. This function also marks a trial as failed if
    the trial was abandoned, or completed without a value. Ax may propose the point of a withdrawn
    trial again. Do not withdraw a trial that was run, even if it has no value: the bound on
    violations would not hold without it.

    Raises:
        InputDataError: If the trial has no decision, or any data.

    Example:
        >>> client.configure_optimization("y", outcome_constraints=["x <= 2"])
        >>> client.set_generation_strategy(chance_constrained_generation_strategy(client))
        >>> for x, c in torch.rand(16, 2).tolist():
        ...     trial = client.attach_trial({"x": x, "c": c})
        ...     status = client.complete_trial(trial, {"y": c, "x": x})
        >>> _, (trial,) = (client.get_next_trials(max_trials=1) for _ in range(2))
        >>> client.mark_trial_abandoned(trial)
        >>> withdraw(client, trial)
    """
    experiment = check_instance("client", client, Client)._experiment
    decided = {each.trial for each in decided_trials(experiment) if each.decision}
    if trial_index not in decided or trial_index in {i for i, _ in observed_means(experiment)}:
        raise InputDataError(
            f"Trial {trial_index} has no decision that can be withdrawn: a trial with data was "
            "run, and counts. Withdraw only trials of `get_next_trials` that never ran, each once."
        )
    trial = experiment.trials[trial_index].mark_failed(reason="never run", unsafe=True)
    client._save_or_update_trial_in_db_if_possible(experiment=experiment, trial=trial)


def certifying_spec(strategy: GenerationStrategy | None) -> GeneratorSpec:
    """Return the generator specification that follows a strategy's initial trials.

    Raises ``InputDataError`` unless this generator certifies points.
    """
    node = None if strategy is None else strategy.nodes_by_name.get("MBM")
    spec = None if node is None else node.generator_specs[0]
    if spec is None or spec.generator_kwargs.get("acquisition_class") is not CertifiedPoints:
        raise InputDataError("`client` needs a `chance_constrained_generation_strategy` first.")
    return spec


_setup = registry.GeneratorSetup(CertifyingAdapter, BoTorchGenerator, TRANSFORMS)
registry.GENERATOR_KEY_TO_GENERATOR_SETUP[CertifyingGenerators.CERTIFIED.value] = _setup
CORE_DECODER_REGISTRY[CertifyingGenerators.__name__] = CertifyingGenerators
register_acquisition(CertifiedPoints)
