"""Calibrated and delay-aware models in Ax, through its modular BoTorch generator.

The module needs Ax (``pip install botorch_calib[ax]``). A calibrated model wraps the Gaussian
process that Ax would have used, and that Ax fits. Then the calibrator replays the trials in the
order of their creation.

`DelayedUpperConfidenceBound` and `DelayedThompsonSampling` condition a `PendingAwareModel` on the
pending points that Ax passes to them. Ax regards candidate, staged, running and *abandoned* trials
as pending. Abandoned trials keep the search away from their points only with
``imputation="censor"``, which assumes the worst observed value at pending points. Ax passes no
times, so a hanging trial counts as running until it is marked as abandoned.

Importing this module enables Ax to build, fit, cross-validate and store these models, and to store
a `PartlyKnownNoiseGP`. Import it before loading an experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

try:
    from ax.adapter.registry import MBM_X_trans, Y_trans
    from ax.adapter.transforms.base import Transform
    from ax.adapter.transforms.winsorize import Winsorize
    from ax.api.client import Client
    from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
    from ax.api.utils.structs import GenerationStrategyDispatchStruct
    from ax.core.data_utils import ExperimentData
    from ax.core.experiment import Experiment
    from ax.core.optimization_config import OptimizationConfig
    from ax.exceptions.core import DataRequiredError
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.generation_strategy.generator_spec import GeneratorSpec
    from ax.generators.torch.botorch_modular.surrogate import (
        SurrogateSpec,
        submodel_input_constructor,
    )
    from ax.generators.torch.botorch_modular.utils import (
        ModelConfig,
        choose_model_class,
        fit_botorch_model,
    )
    from ax.storage.botorch_modular_registry import MODEL_REGISTRY, REVERSE_MODEL_REGISTRY
    from ax.storage.transform_registry import register_transform
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.ax needs Ax 1.3, or a later version with the names that it "
        f"imports ({error}): pip install botorch_calib[ax]"
    ) from error
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.utils.datasets import MultiTaskDataset
from botorch.utils.transforms import is_ensemble

from botorch_calib._validation import check_flag, check_instance, check_nonnegative, check_one_of
from botorch_calib.acquisition import DelayedThompsonSampling, DelayedUpperConfidenceBound
from botorch_calib.asynchronous.delay_strategy import STRATEGIES
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.exceptions import warn
from botorch_calib.integrations import _stored as stored
from botorch_calib.integrations._ax_acquisition import (
    ConstrainedClosedForm,
    PendingAtEdges,
    SampledSums,
    check_acquisition,
)
from botorch_calib.models import CalibratedModel, CensoredDelayModel, PartlyKnownNoiseGP
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.surrogate import Surrogate
from botorch_calib.posteriors import CalibratedPosterior

ACQUISITION_CLASSES: dict[str, type[AcquisitionFunction]] = {
    "ucb": DelayedUpperConfidenceBound,
    "ts": DelayedThompsonSampling,
}

__all__ = [
    "ConstrainedClosedForm",
    "PendingAwareModel",
    "ReplayedModel",
    "SampledSums",
    "calibrated_generation_strategy",
    "calibrated_model_config",
    "delay_aware_generation_strategy",
    "delayed_model_config",
]


class Replays(Surrogate):
    """A surrogate whose calibrator, if any, is always computed from the surrogate's own data.

    In cross-validation, Ax loads hyperparameters that were fitted to all data into a model of the
    training folds. The calibrator then replays the training folds only, and sees no held-out data.
    """

    residuals = "prequential"

    def replay(self) -> None:
        """Recompute the calibrator: an untrained copy of it replays the current training data."""
        if self.calibrator is not None:
            fresh, residuals = self.calibrator.fresh(), self.residuals
            replayed = CalibratedModel.from_history(self.model, fresh, residuals=residuals)
            self.calibrator = replayed.calibrator

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        loaded = super().load_state_dict(*args, **kwargs)
        self.replay()
        return loaded


class ReplayedModel(Replays, CalibratedModel):
    """A `CalibratedModel` whose calibrator is always computed from the model's own data.

    ``model`` may be unfitted, since Ax fits it afterwards. For the other arguments see
    `CalibratedModel.from_history`.
    """

    def __init__(
        self, model: Model, calibrator: Calibrator, residuals: str = "prequential", **settings: Any
    ) -> None:
        super().__init__(model, calibrator, **settings)
        self.residuals = residuals


class PendingAwareModel(Replays, CensoredDelayModel):
    """A model of the observed trials that can be conditioned on pending trials.

    Only acquisition functions condition it on pending trials, so Ax predicts and cross-validates
    with the inner ``model``. With ``imputation="censor"``, each pending outcome is assumed to be
    the worst value observed so far: the smallest value if the outcome is maximised, else the
    largest.
    """

    def __init__(self, model: Model, imputation: str = "censor", maximize: bool = True) -> None:
        Y = raw_train_targets(model)
        worst = Y.min() if maximize else Y.max()
        super().__init__(model, censor_value=worst.item(), imputation=imputation)
        if isinstance(model, Replays):
            self.residuals = model.residuals


def calibrated_model_config(
    calibrator: type[Calibrator] = LocalizedConformal,
    *,
    denoise: bool = True,
    residuals: str = "prequential",
    excess: str = "noise",
    model_class: type[Model] | None = None,
    **options: Any,
) -> ModelConfig:
    """Return a configuration that makes Ax calibrate its own Gaussian process of an outcome.

    Pass the configuration to `calibrated_generation_strategy` or to Ax's
    ``choose_generation_strategy`` (method ``"custom"``), or make it the only configuration of an
    outcome in a ``SurrogateSpec``. Outcomes are calibrated after Ax's transforms, which winsorize
    very bad values by default.

    Other fields of the configuration describe the Gaussian process, as without calibration. Set
    them by ``dataclasses.replace(calibrated_model_config(), covar_module_class=...)``. Multi-task
    models, Ax's model selection and Ax's sensitivity analysis are not supported. If the objective
    is a sum of outcomes, use `calibrated_generation_strategy`, unless there are outcome
    constraints. Ax can save an experiment as JSON if the calibrator is a class of this package.

    Args:
        calibrator: The class of the calibrator. Each fit creates a new calibrator.
        denoise: See `CalibratedModel`.
        residuals: See `CalibratedModel.from_history`.
        excess: See `CalibratedModel`.
        model_class: The class of the Gaussian process (default: Ax chooses), which Ax must be able
            to store. For ``SaasFullyBayesianSingleTaskGP``, for example, ``dataclasses.replace``
            sets the options of the sampler, ``mll_options``.
        options: Arguments of the calibrator (default: ``alpha=0.2`` for a `LocalizedConformal`).
            They must be plain values: numbers, strings, None or lists of these. For other values,
            write a subclass that sets them.

    Raises:
        InputDataError: If an argument is unknown, or an option is not a plain value.

    Example:
        >>> config = calibrated_model_config(QuantileRecalibrator, step_decay=0.3)
        >>> client.set_generation_strategy(calibrated_generation_strategy(client, config))
    """
    settings = stored.settings_of(denoise, residuals, excess)
    options = stored.checked_options(calibrator, options)
    if model_class is not None and model_class not in MODEL_REGISTRY:
        raise InputDataError(
            f"`model_class` must be a class that Ax can store, got {model_class}: add a class by "
            "`ax.storage.botorch_modular_registry.register_model`."
        )
    beneath = {} if model_class is None else {"model_class": MODEL_REGISTRY[model_class]}
    stated = ", ".join(f"{name}={value}" for name, value in options.items())
    return ModelConfig(
        botorch_model_class=ReplayedModel,
        model_options={
            "calibrator": stored.stored_name(calibrator),
            "calibrator_options": options,
            **settings,
            **beneath,
        },
        name=f"{calibrator.__name__}({stated})",
    )


def delayed_model_config(
    imputation: str = "censor", *, maximize: bool = True, calibrated: ModelConfig | None = None
) -> ModelConfig:
    """Return a configuration that lets Ax's model of an outcome take account of pending trials.

    Use the configuration with the acquisition function `DelayedUpperConfidenceBound` or
    `DelayedThompsonSampling`. `delay_aware_generation_strategy` sets both.

    Args:
        imputation: The assumed outcome of pending trials: ``"censor"`` for the worst observed
            value, ``"hallucinate"`` for the posterior mean.
        maximize: Whether the outcome is maximised.
        calibrated: A `calibrated_model_config`, or the configuration of a `PartlyKnownNoiseGP`
            (default: Ax's own model, without calibration).

    Raises:
        InputDataError: If ``imputation`` or ``calibrated`` has another value.

    Example:
        >>> config = delayed_model_config("hallucinate", calibrated=calibrated_model_config())
    """
    # The imputation "none" is excluded: without assumed values at pending points, the search would
    # propose these points again.
    check_one_of("imputation", imputation, ("censor", "hallucinate"))
    inner = ModelConfig() if calibrated is None else calibrated
    model_class = inner.botorch_model_class if isinstance(inner, ModelConfig) else inner
    if model_class not in (None, ReplayedModel, PartlyKnownNoiseGP):
        raise InputDataError(
            "`calibrated` must be a calibrated_model_config, or the configuration of a "
            f"PartlyKnownNoiseGP, got the configuration of {model_class}."
        )
    return replace(
        inner,
        botorch_model_class=PendingAwareModel,
        model_options={
            "imputation": imputation,
            "maximize": check_flag("maximize", maximize),
            **inner.model_options,
        },
        name="+".join(filter(None, [imputation, inner.name])),
    )


@submodel_input_constructor.register(ReplayedModel)
def _replayed_inputs(
    botorch_model_class: type[Model], *, model_config: ModelConfig, **given: Any
) -> dict[str, Any]:
    """Return the arguments of `ReplayedModel`; ``model`` is Ax's own model, not fitted yet."""
    spec = given["surrogate"].surrogate_spec
    for name in given["dataset"].outcome_names:
        if len(spec.metric_to_model_configs.get(name, spec.model_configs)) > 1:
            raise UnsupportedError(
                "Ax selects among models by their Gaussian posteriors: give the outcome "
                f"{name!r} only the calibrated configuration."
            )
    options = dict(model_config.model_options)
    calibrator, settings = options.pop("calibrator"), options.pop("calibrator_options")
    own = {name: options.pop(name) for name in ("denoise", "residuals", "excess")}
    beneath = REVERSE_MODEL_REGISTRY.get(options.pop("model_class", ""))
    model = model_within(beneath, options, model_config, **given)
    return {"model": model, "calibrator": stored.calibrator_class(calibrator)(**settings), **own}


@submodel_input_constructor.register(PendingAwareModel)
def _pending_aware_inputs(
    botorch_model_class: type[Model], *, model_config: ModelConfig, **given: Any
) -> dict[str, Any]:
    """Return constructor arguments of `PendingAwareModel`, including an unfitted ``model``.

    ``given`` holds the arguments that Ax passes to an input constructor.
    """
    options = dict(model_config.model_options)
    own = {name: options.pop(name) for name in ("imputation", "maximize")}
    kind = ReplayedModel if "calibrator" in options else None
    return {"model": model_within(kind, options, model_config, **given), **own}


def model_within(
    model_class: type[Model] | None,
    options: dict[str, Any],
    model_config: ModelConfig,
    **given: Any,
) -> Model:
    """Build the unfitted inner model of a wrapper.

    ``options`` are arguments of the model, and ``given`` holds the arguments that Ax passes to an
    input constructor. If ``model_class`` is None, Ax chooses the class.
    """
    dataset, digest = given["dataset"], given["search_space_digest"]
    if isinstance(dataset, MultiTaskDataset):
        raise UnsupportedError("In Ax, models of several tasks cannot be wrapped.")
    if model_class is None:
        model_class = choose_model_class(dataset=dataset, search_space_digest=digest)
        # Some standard errors may be unknown (NaN), which `SingleTaskGP` does not accept.
        if model_class is SingleTaskGP and dataset.Yvar is not None:
            model_class = PartlyKnownNoiseGP
    config = replace(model_config, botorch_model_class=model_class, model_options=options)
    return model_class(**submodel_input_constructor(model_class, model_config=config, **given))


@fit_botorch_model.register(Replays)
def _fit_replayed(model: Replays, **given: Any) -> None:
    fit_botorch_model(model.model, **given)
    model.replay()
    # Warn now: the model would warn at its first posterior, which is computed when the optimiser
    # chooses its starting points, and warnings are suppressed there.
    model.warn_if_unlearned()


class LeaveOutInfinite(Transform):
    """Replaces infinite values, to which no model can be fitted, with NaN, which Ax leaves out."""

    def transform_experiment_data(self, experiment_data: ExperimentData) -> ExperimentData:
        observed = experiment_data.observation_data
        if observed.empty:
            raise DataRequiredError(
                "There are no data in the current search space, but the initial trials of this "
                "strategy are over: give an empty client a new strategy, or attach trials in the "
                "current space."
            )
        for metric, means in observed["mean"].items():
            infinite = means.abs() >= stored.INFINITE
            if not infinite.any():
                continue
            trials = sorted({*means.index[infinite].get_level_values("trial_index")})
            warn(
                f"The metric {metric!r} is infinite in the trials {trials}: models leave these "
                "values out, so they do not learn to keep away. If they should, report a finite "
                "value, such as the worst possible one.",
                InputDataWarning,
            )
            observed["mean", metric] = means.mask(infinite)
        return experiment_data


register_transform(LeaveOutInfinite)
# Ax's default transforms. `Winsorize` clamps infinite values on the bad side, but keeps those on
# the good side, so `LeaveOutInfinite` follows it.
TRANSFORMS: list[type[Transform]] = [*MBM_X_trans, *Y_trans]
TRANSFORMS.insert(TRANSFORMS.index(Winsorize) + 1, LeaveOutInfinite)


def calibrated_generation_strategy(
    client: Client | Experiment,
    model_config: ModelConfig | None = None,
    metric_configs: Mapping[str, ModelConfig] | None = None,
    botorch_acqf_class: type[AcquisitionFunction] | None = None,
    struct: GenerationStrategyDispatchStruct | None = None,
) -> GenerationStrategy:
    """Return Ax's generation strategy with calibrated models of the experiment's outcomes.

    By default Ax chooses the acquisition function. For one objective under outcome constraints, a
    closed form replaces Ax's choice if possible, see `ConstrainedClosedForm`. In all other cases
    Ax's choice is used, which is estimated from posterior samples. To use samples always, give
    ``qLogNoisyExpectedImprovement`` as ``botorch_acqf_class``.

    Args:
        client: A client or an experiment with a configured optimisation.
        model_config: Configuration of the models (default: `calibrated_model_config`).
        metric_configs: Configurations of some metrics, by name, instead of ``model_config``. For
            example, a constraint can be on observations, with the configuration
            ``calibrated_model_config(denoise=False)``, and the objective on noise-free outcomes.
        botorch_acqf_class: The class of the acquisition function (default: Ax chooses).
        struct: Ax's other settings, such as the number of initial trials, with the method
            ``"custom"``.

    Raises:
        InputDataError: If no optimisation is configured, or ``metric_configs`` is malformed.
        UnsupportedError: If the objectives or constraints do not fit ``botorch_acqf_class``, a
            constraint is on several metrics, a relative constraint has no baseline yet, or only
            some models are calibrated ensembles.

    Example:
        >>> client.set_generation_strategy(calibrated_generation_strategy(client))
        >>> trials = client.get_next_trials(max_trials=2)
    """
    experiment, optimization = configured_experiment(client)
    check_acquisition(optimization, botorch_acqf_class)
    for constraint in optimization.all_constraints:  # Ax would raise only after initial trials
        if constraint.relative and experiment.status_quo is None:
            raise UnsupportedError(
                f"{constraint} is relative to a baseline, but there is none: call "
                "`client.attach_baseline` first."
            )
    model_config = calibrated_model_config() if model_config is None else model_config
    check_instance("model_config", model_config, ModelConfig, "calibrated_model_config()")
    strategy, options = strategy_with(model_config, botorch_acqf_class, struct)
    check_instance("metric_configs", metric_configs or {}, Mapping)
    by_signature = {}
    for name, config in (metric_configs or {}).items():
        if name not in experiment.metrics:
            known = ", ".join(map(repr, sorted(experiment.metrics)))
            raise InputDataError(f"`metric_configs` names {name!r}; the metrics are {known}.")
        example = "calibrated_model_config()"
        check_instance(f"metric_configs[{name!r}]", config, ModelConfig, example)
        by_signature[experiment.metrics[name].signature] = [config]
    shared = [model_config]
    used = [by_signature.get(each.signature, shared)[0] for each in experiment.metrics.values()]
    if len({*map(_is_calibrated_ensemble, used)}) > 1:  # Ax would raise after the initial trials
        raise UnsupportedError(
            "Ax cannot join the predictions of a calibrated ensemble, such as a fully Bayesian "
            "model, with those of other models: give all metrics, including tracked ones, the same "
            "`model_class` in a `calibrated_model_config`, or give none of them an ensemble."
        )
    options["surrogate_spec"] = SurrogateSpec(
        model_configs=[model_config], metric_to_model_configs=by_signature
    )
    is_open = botorch_acqf_class is None
    options["acquisition_class"] = ConstrainedClosedForm if is_open else SampledSums
    return strategy


def _is_calibrated_ensemble(config: ModelConfig) -> bool:
    beneath: Any = REVERSE_MODEL_REGISTRY.get(config.model_options.get("model_class", ""))
    return config.botorch_model_class is ReplayedModel and is_ensemble(beneath)


def delay_aware_generation_strategy(
    client: Client | Experiment,
    imputation: str = "hallucinate",
    calibrated: ModelConfig | None = None,
    beta: float | None = None,
    struct: GenerationStrategyDispatchStruct | None = None,
    acquisition: str = "ucb",
) -> GenerationStrategy:
    """Return Ax's generation strategy for one objective, with account of pending trials.

    With ``imputation="censor"`` the strategy is GP-UCB-SDF [Verma2022]_, and with ``"hallucinate"``
    it is GP-BUCB. With ``acquisition="ts"`` the strategies are GP-TS-SDF and GP-BTS. The settings
    ``max_censored`` and ``spread_beyond`` of a `DelayStrategy` are not used.

    Mark a trial as *abandoned* if its point cannot be evaluated, or if the trial hangs. The point
    of a trial that is marked as *failed* may be proposed again: without new observations, the next
    trial repeats it.

    Args:
        client: A client or an experiment with a configured optimisation.
        imputation: See `delayed_model_config`. If some points cannot be evaluated, use
            ``"censor"``, and mark their trials as abandoned.
        calibrated: See `delayed_model_config`. A `calibrated_model_config` calibrates the model by
            the observed trials.
        beta: Factor of the posterior variance if nothing is pending, as in BoTorch's
            ``UpperConfidenceBound``. The default is the default of `DelayAwareProposer`, 4 for
            ``"hallucinate"`` with ``"ucb"`` and 1 otherwise.
        struct: See `calibrated_generation_strategy`.
        acquisition: ``"ucb"`` for `DelayedUpperConfidenceBound`, or ``"ts"`` for
            `DelayedThompsonSampling`, which needs a kernel with random features, such as Ax's own.

    Raises:
        InputDataError: If no optimisation is configured, or an argument is out of its range.
        UnsupportedError: If there are several objectives or outcome constraints, or ``calibrated``
            has ``denoise=False`` with ``acquisition="ts"``.

    Example:
        >>> client.set_generation_strategy(delay_aware_generation_strategy(client))
        >>> running = client.get_next_trials(max_trials=3)
    """
    check_one_of("acquisition", acquisition, ACQUISITION_CLASSES)
    _, config = configured_experiment(client)
    if not config.objective.is_single_objective or config.outcome_constraints:
        raise UnsupportedError(
            "Delay-aware proposals are for one objective without outcome constraints. "
            "`calibrated_generation_strategy` also takes account of pending trials, and "
            "`ax_decisions.chance_constrained_generation_strategy` also keeps limits."
        )
    maximize = not config.objective.minimize
    model_config = delayed_model_config(imputation, maximize=maximize, calibrated=calibrated)
    if acquisition == "ts" and not model_config.model_options.get("denoise", True):
        raise UnsupportedError(
            "A draw of observations is not a function of the parameters, as each has new noise: "
            'use `acquisition="ucb"`, or a `calibrated_model_config` with `denoise=True`.'
        )
    strategy, options = strategy_with(model_config, ACQUISITION_CLASSES[acquisition], struct)
    options["acquisition_class"] = PendingAtEdges
    if beta is None:
        widened = imputation == "hallucinate" and acquisition == "ucb"
        beta = STRATEGIES["hallucinate" if widened else acquisition].beta
    options["botorch_acqf_options"] = {"beta": check_nonnegative("beta", beta)}
    return strategy


def strategy_with(
    model_config: ModelConfig,
    botorch_acqf_class: type[AcquisitionFunction] | None,
    struct: GenerationStrategyDispatchStruct | None,
) -> tuple[GenerationStrategy, dict[str, Any]]:
    """Return Ax's strategy, and the arguments of the generator that follows the initial trials.

    The caller may change the returned dictionary, which belongs to the strategy.
    """
    strategy = choose_generation_strategy(
        GenerationStrategyDispatchStruct(method="custom") if struct is None else struct,
        model_config=model_config,
        botorch_acqf_class=botorch_acqf_class,
    )
    (spec,) = strategy.nodes_by_name["MBM"].generator_specs
    spec.generator_kwargs["transforms"] = TRANSFORMS
    return strategy, spec.generator_kwargs


def fitted_adapter(spec: GeneratorSpec, experiment: Experiment) -> Any:
    """Fit the generator of a strategy to all data of the experiment, and return its adapter."""
    check_observed(experiment)
    spec.fit(experiment)
    return spec.fitted_adapter


def check_observed(experiment: Experiment) -> None:
    """Raise ``InputDataError`` unless each objective and constraint has data."""
    _, config = configured_experiment(experiment)
    if missing := config.metric_names - experiment.lookup_data().metric_names:
        raise InputDataError(
            f"{sorted(missing)} have not been observed yet: run a trial first, or attach the "
            "values of earlier trials by `client.attach_data`."
        )


def configured_experiment(client: Client | Experiment) -> tuple[Experiment, OptimizationConfig]:
    """Return the experiment and its optimisation; raise an error if none is configured."""
    experiment = client._experiment if isinstance(client, Client) else client
    if not isinstance(experiment, Experiment):  # for example, an `AxClient`
        raise InputDataError(
            "`client` must be a Client of `ax.api.client`, or an Experiment, got "
            f"{type(client).__name__}."
        )
    if experiment.optimization_config is None:
        raise InputDataError("`client` needs an objective: call `client.configure_optimization`.")
    return experiment, experiment.optimization_config


for _kept in (ReplayedModel, PartlyKnownNoiseGP, PendingAwareModel):
    # Ax's error shows the name if this module has not been imported, so the name includes the
    # module.
    _name = f"{__name__}.{_kept.__name__}"
    MODEL_REGISTRY[_kept], REVERSE_MODEL_REGISTRY[_name] = _name, _kept
# For an ``EnsemblePosterior``, Ax predicts the mean and variance of the mixture. A
# `CalibratedPosterior` is registered as one, since it has these moments, even if its model is not
# an ensemble.
EnsemblePosterior.register(CalibratedPosterior)
