"""Calibrated and delay-aware models in Ax, through its modular BoTorch generator.

It needs Ax (``pip install botorch_calib[ax]``). The Gaussian process of a calibrated model is the
one that Ax would have used: its choice of class, its transforms, data and fit. After the fit the
calibrator replays the trials in the order of their creation.

`DelayedUpperConfidenceBound` and `DelayedThompsonSampling` condition their model on the pending
points that Ax hands them, and a `PendingAwareModel` says how: by censoring or by hallucination.
Candidates, trials that are staged or run, and *abandoned* ones are pending to Ax; the latter keep
the search away only if they are censored. Ax hands over no times, so trials that hang stay pending
until somebody abandons them.

Importing this module teaches Ax to build, fit, cross-validate and store these models, and to store
a `PartlyKnownNoiseGP`: import it before loading an experiment.
"""

from __future__ import annotations

import warnings
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
    from ax.core.search_space import SearchSpaceDigest
    from ax.exceptions.core import DataRequiredError
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.generation_strategy.generator_spec import GeneratorSpec
    from ax.generators.torch.botorch_modular.surrogate import Surrogate as AxSurrogate
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
        "botorch_calib.integrations.ax needs Ax 1.3 or a later one that has what it imports "
        f"({error}): pip install botorch_calib[ax]"
    ) from error
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset

from botorch_calib._validation import check_flag, check_instance, check_nonnegative, check_one_of
from botorch_calib.acquisition import DelayedThompsonSampling, DelayedUpperConfidenceBound
from botorch_calib.asynchronous.delay_strategy import STRATEGIES
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.exceptions import level_of_caller
from botorch_calib.integrations import _stored as stored
from botorch_calib.integrations._ax_acquisition import (
    ConstrainedClosedForm,
    PendingAtEdges,
    SampledSums,
    check_acquisition,
)
from botorch_calib.models import CalibratedModel, CensoredDelayModel, PartlyKnownNoiseGP
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.process import observed_process
from botorch_calib.models.residuals import RESIDUALS
from botorch_calib.models.surrogate import Surrogate
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.posteriors.prediction import EXCESS

# Pending values have to be imputed, or the search would repeat itself.
IMPUTATIONS = ("censor", "hallucinate")

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
    """A surrogate whose calibrator, if it has one, is always the replay of its own data.

    In cross-validation Ax loads the hyperparameters of the whole into a model of a part of the
    data. The calibrator then replays that part, and nothing that is held out.
    """

    residuals = "prequential"

    def replay(self) -> None:
        """Calibrate anew, from the training data of the Gaussian process as it is now."""
        if self.calibrator is not None:
            fresh, residuals = self.calibrator.fresh(), self.residuals
            replayed = CalibratedModel.from_history(self.model, fresh, residuals=residuals)
            self.calibrator = replayed.calibrator

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        loaded = super().load_state_dict(*args, **kwargs)
        self.replay()
        return loaded


class ReplayedModel(Replays, CalibratedModel):
    """A `CalibratedModel` whose calibrator is always the replay of its own data.

    ``model`` is not fitted yet. For other arguments see `CalibratedModel.from_history`.
    """

    def __init__(
        self, model: Model, calibrator: Calibrator, residuals: str = "prequential", **settings: Any
    ) -> None:
        super().__init__(model, calibrator, **settings)
        self.residuals = residuals


class PendingAwareModel(Replays, CensoredDelayModel):
    """A model of the observed trials that knows how to be conditioned on pending ones.

    By itself nothing is pending, so Ax predicts and cross-validates with the model within. The
    worst value observed so far replaces censored ones.
    """

    def __init__(self, model: Model, imputation: str = "censor", maximize: bool = True) -> None:
        Y = raw_train_targets(observed_process(model))
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
    """A configuration that has Ax model an outcome by its own Gaussian process, calibrated.

    It is for `calibrated_generation_strategy`, for Ax's own ``choose_generation_strategy`` (method
    ``"custom"``) or, as the only configuration of an outcome, for a ``SurrogateSpec``. Outcomes are
    calibrated after Ax's transforms: very bad ones are winsorized by default.

    Other fields of the configuration describe the Gaussian process, as without calibration:
    ``dataclasses.replace(calibrated_model_config(), covar_module_class=...)``. Not supported are
    tasks, Ax's selection among models and its sensitivity analysis. An objective that is a sum of
    outcomes needs `calibrated_generation_strategy`, or constraints. To save an experiment as JSON
    the calibrator must be a class of this package.

    Args:
        calibrator: The class of the calibrator. Each fit makes a new one.
        denoise: As in `CalibratedModel`.
        residuals: As in `CalibratedModel.from_history`.
        excess: As in `CalibratedModel`.
        model_class: The class of the model beneath (default: Ax chooses), of those that Ax stores,
            such as ``SaasFullyBayesianSingleTaskGP``, for which ``dataclasses.replace`` sets the
            options of its sampler, ``mll_options``.
        options: Arguments of the calibrator, plain values; ``alpha=0.2`` if there are none and it
            is a `LocalizedConformal`. For other values, write a subclass that sets them.

    Raises:
        InputDataError: If an argument is unknown, or an option of the calibrator not a plain value.

    Example:
        >>> config = calibrated_model_config(QuantileRecalibrator, step_decay=0.3)
        >>> client.set_generation_strategy(calibrated_generation_strategy(client, config))
    """
    check_one_of("residuals", residuals, RESIDUALS)
    check_one_of("excess", excess, EXCESS)
    options = stored.checked_options(calibrator, options)
    if model_class is not None and model_class not in MODEL_REGISTRY:
        raise InputDataError(
            f"`model_class` must be one that Ax can store, got {model_class}: teach Ax another by "
            "`ax.storage.botorch_modular_registry.register_model`."
        )
    beneath = {} if model_class is None else {"model_class": MODEL_REGISTRY[model_class]}
    settings = ", ".join(f"{name}={value}" for name, value in options.items())
    return ModelConfig(
        botorch_model_class=ReplayedModel,
        model_options={
            "calibrator": stored.stored_name(calibrator),
            "calibrator_options": options,
            "denoise": denoise,
            "residuals": residuals,
            "excess": excess,
            **beneath,
        },
        name=f"{calibrator.__name__}({settings})",
    )


def delayed_model_config(
    imputation: str = "censor", *, maximize: bool = True, calibrated: ModelConfig | None = None
) -> ModelConfig:
    """A configuration that has Ax model an outcome by its own Gaussian process, aware of delays.

    It is for `DelayedUpperConfidenceBound` and `DelayedThompsonSampling`;
    `delay_aware_generation_strategy` puts both together.

    Args:
        imputation: What replaces values of pending trials: ``"censor"`` for the worst one observed,
            ``"hallucinate"`` for the posterior mean.
        maximize: Whether the outcome is maximised.
        calibrated: A `calibrated_model_config`, or the configuration of a Gaussian process of
            Ax's; None for Ax's own.

    Example:
        >>> config = delayed_model_config("hallucinate", calibrated=calibrated_model_config())
    """
    check_one_of("imputation", imputation, IMPUTATIONS)
    inner = ModelConfig() if calibrated is None else calibrated
    model_class = inner.botorch_model_class if isinstance(inner, ModelConfig) else inner
    if model_class not in (None, ReplayedModel, PartlyKnownNoiseGP):
        raise InputDataError(
            "`calibrated` must be a calibrated_model_config, or one of a PartlyKnownNoiseGP, got "
            f"one of {model_class}."
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
    """Arguments of `ReplayedModel`: Ax's own model, not fitted yet, and how to calibrate it."""
    spec = given["surrogate"].surrogate_spec
    for name in given["dataset"].outcome_names:
        if len(spec.metric_to_model_configs.get(name, spec.model_configs)) > 1:
            raise UnsupportedError(
                "Ax selects among models by their Gaussian posteriors: give the outcome "
                f"{name!r} the calibrated configuration alone."
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
    """Arguments of `PendingAwareModel`: Ax's own model, or a calibrated one, not fitted yet."""
    options = dict(model_config.model_options)
    own = {name: options.pop(name) for name in ("imputation", "maximize")}
    kind = ReplayedModel if "calibrator" in options else None
    return {"model": model_within(kind, options, model_config, **given), **own}


def model_within(
    model_class: type[Model] | None,
    options: dict[str, Any],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: AxSurrogate,
) -> Model:
    """The model to be wrapped, not fitted, by its own class (None: Ax chooses) and options."""
    if isinstance(dataset, MultiTaskDataset):
        raise UnsupportedError("Wrapped models of several tasks are not supported in Ax.")
    if model_class is None:
        model_class = choose_model_class(dataset=dataset, search_space_digest=search_space_digest)
        # The standard errors of some trials may not be known, which BoTorch's class refuses.
        if model_class is SingleTaskGP and dataset.Yvar is not None:
            model_class = PartlyKnownNoiseGP
    inputs = submodel_input_constructor(
        model_class,
        model_config=replace(model_config, botorch_model_class=model_class, model_options=options),
        dataset=dataset,
        search_space_digest=search_space_digest,
        surrogate=surrogate,
    )
    return model_class(**inputs)


@fit_botorch_model.register(Replays)
def _fit_replayed(model: Replays, **given: Any) -> None:
    fit_botorch_model(model.model, **given)
    model.replay()
    # Now, as the optimiser's heuristics would be the first to ask for a posterior, and drop it.
    model.warn_if_unlearned()


class LeaveOutInfinite(Transform):
    """Leaves infinite values, which no model can be fitted to, out of the data as Ax does NaN."""

    def transform_experiment_data(self, experiment_data: ExperimentData) -> ExperimentData:
        observed = experiment_data.observation_data
        if observed.empty:
            raise DataRequiredError(
                "There are no data in the present search space, and this strategy is past its "
                "initial trials: give an empty client a strategy of its own, or attach trials in "
                "the space as it is now."
            )
        for metric, means in observed["mean"].items():
            infinite = means.abs() >= stored.INFINITE
            if not infinite.any():
                continue
            trials = sorted({*means.index[infinite].get_level_values("trial_index")})
            warnings.warn(
                f"The metric {metric!r} is infinite in the trials {trials}: models leave these "
                "values out, and so do not learn to keep away. Report a finite value, such as the "
                "worst one possible, if they should.",
                InputDataWarning,
                stacklevel=level_of_caller(),
            )
            observed["mean", metric] = means.mask(infinite)
        return experiment_data


register_transform(LeaveOutInfinite)
# Ax's own, whose `Winsorize` leaves values infinite that are beyond all others on the good side.
TRANSFORMS: list[type[Transform]] = [*MBM_X_trans, *Y_trans]
TRANSFORMS.insert(TRANSFORMS.index(Winsorize) + 1, LeaveOutInfinite)


def calibrated_generation_strategy(
    client: Client | Experiment,
    model_config: ModelConfig | None = None,
    metric_configs: Mapping[str, ModelConfig] | None = None,
    botorch_acqf_class: type[AcquisitionFunction] | None = None,
    struct: GenerationStrategyDispatchStruct | None = None,
) -> GenerationStrategy:
    """Ax's generation strategy with calibrated models, checked against the experiment.

    Unless ``botorch_acqf_class`` is given Ax chooses the acquisition function. One objective under
    outcome constraints then has a closed form, `ConstrainedClosedForm`; a sum of metrics as the
    objective, and several objectives, are sampled; with ``qLogNoisyExpectedImprovement``, all are.

    Args:
        client: A client or an experiment, whose optimisation has been configured.
        model_config: Configuration of the models (default: `calibrated_model_config`).
        metric_configs: Other configurations for some of the metrics, by name. So a constraint can
            be on observations, ``calibrated_model_config(denoise=False)``, and the objective not.
        botorch_acqf_class: The acquisition function.
        struct: Ax's further choices, such as the initial trials, with the method ``"custom"``.

    Raises:
        InputDataError: If nothing has been configured, or ``metric_configs`` do not fit.
        UnsupportedError: If the objectives or constraints do not go with ``botorch_acqf_class``, a
            constraint is on several metrics, or the baseline has not been attached yet.

    Example:
        >>> client.set_generation_strategy(calibrated_generation_strategy(client))
        >>> trials = client.get_next_trials(max_trials=2)
    """
    experiment, optimization = configured_experiment(client)
    check_acquisition(optimization, botorch_acqf_class)
    for constraint in optimization.all_constraints:  # Ax would raise after the initial trials
        if constraint.relative and experiment.status_quo is None:
            raise UnsupportedError(
                f"{constraint} is relative to a baseline, and there is none: call "
                "`client.attach_baseline` first."
            )
    model_config = calibrated_model_config() if model_config is None else model_config
    check_instance("model_config", model_config, ModelConfig, "calibrated_model_config()")
    strategy, options = strategy_with(model_config, botorch_acqf_class, struct)
    by_signature = {}
    for name, config in (metric_configs or {}).items():
        if name not in experiment.metrics:
            known = ", ".join(map(repr, sorted(experiment.metrics)))
            raise InputDataError(f"`metric_configs` names {name!r}; the metrics are {known}.")
        example = "calibrated_model_config()"
        check_instance(f"metric_configs[{name!r}]", config, ModelConfig, example)
        by_signature[experiment.metrics[name].signature] = [config]
    options["surrogate_spec"] = SurrogateSpec(
        model_configs=[model_config], metric_to_model_configs=by_signature
    )
    is_open = botorch_acqf_class is None
    options["acquisition_class"] = ConstrainedClosedForm if is_open else SampledSums
    return strategy


def delay_aware_generation_strategy(
    client: Client | Experiment,
    imputation: str = "hallucinate",
    calibrated: ModelConfig | None = None,
    beta: float | None = None,
    struct: GenerationStrategyDispatchStruct | None = None,
    acquisition: str = "ucb",
) -> GenerationStrategy:
    """Ax's generation strategy for one objective while other trials are pending.

    With ``imputation="censor"`` it is GP-UCB-SDF [Verma2022]_, with ``"hallucinate"`` GP-BUCB; with
    ``acquisition="ts"`` GP-TS-SDF and GP-BTS. ``max_censored`` and ``spread_beyond`` of a
    `DelayStrategy` do not apply.

    Mark trials *abandoned* whose points cannot be evaluated, or that hang. The point of a *failed*
    one may be tried again: if nothing has been observed meanwhile, the next trial is there.

    Args:
        client: A client or an experiment, whose optimisation has been configured.
        imputation: As in `delayed_model_config`. Censor if some points cannot be evaluated, and
            their trials are abandoned.
        calibrated: A `calibrated_model_config`, to calibrate the model by the trials observed.
        beta: Factor of the posterior variance if nothing is pending, as in BoTorch's
            ``UpperConfidenceBound`` (default: as in `DelayAwareProposer`, 4 for ``"hallucinate"``
            with ``"ucb"`` and 1 otherwise).
        struct: Ax's further choices, such as the initial trials, with the method ``"custom"``.
        acquisition: ``"ucb"`` for `DelayedUpperConfidenceBound`, ``"ts"`` for
            `DelayedThompsonSampling`, which needs a kernel with random features, as Ax's own.

    Raises:
        InputDataError: If nothing has been configured, or an argument is out of its range.
        UnsupportedError: If there is more than one objective, or draws are to be of observations.

    Example:
        >>> client.set_generation_strategy(delay_aware_generation_strategy(client))
        >>> running = client.get_next_trials(max_trials=3)
    """
    check_one_of("acquisition", acquisition, ACQUISITION_CLASSES)
    _, config = configured_experiment(client)
    if not config.objective.is_single_objective or config.outcome_constraints:
        raise UnsupportedError(
            "Delay-aware proposals are for one objective without outcome constraints: "
            "`calibrated_generation_strategy` takes account of pending trials too, and keeps "
            "limits in `ax_decisions.chance_constrained_generation_strategy`."
        )
    maximize = not config.objective.minimize
    model_config = delayed_model_config(imputation, maximize=maximize, calibrated=calibrated)
    if acquisition == "ts" and not model_config.model_options.get("denoise", True):
        raise UnsupportedError(
            "A draw of observations is no function of the parameters, as noise is drawn anew each "
            'time: use `acquisition="ucb"`, or a `calibrated_model_config` with `denoise=True`.'
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
    """Ax's generation strategy, and the options of its generator after the initial trials."""
    strategy = choose_generation_strategy(
        GenerationStrategyDispatchStruct(method="custom") if struct is None else struct,
        model_config=model_config,
        botorch_acqf_class=botorch_acqf_class,
    )
    (spec,) = strategy.nodes_by_name["MBM"].generator_specs
    spec.generator_kwargs["transforms"] = TRANSFORMS
    return strategy, spec.generator_kwargs


def fitted_adapter(spec: GeneratorSpec, experiment: Experiment) -> Any:
    """The adapter of a part of a strategy, with models of all data."""
    check_observed(experiment)
    spec.fit(experiment)
    return spec.fitted_adapter


def check_observed(experiment: Experiment) -> None:
    """Raise unless there are data of each objective and constraint."""
    _, config = configured_experiment(experiment)
    if missing := config.metric_names - experiment.lookup_data().metric_names:
        raise InputDataError(
            f"{sorted(missing)} have not been observed yet: run a trial first, or attach the "
            "values of earlier ones by `client.attach_data`."
        )


def configured_experiment(client: Client | Experiment) -> tuple[Experiment, OptimizationConfig]:
    """The experiment and its objectives and constraints, which must have been configured."""
    experiment = client._experiment if isinstance(client, Client) else client
    if experiment.optimization_config is None:
        raise InputDataError("`client` needs an objective: call `client.configure_optimization`.")
    return experiment, experiment.optimization_config


for _kept in (ReplayedModel, PartlyKnownNoiseGP, PendingAwareModel):
    # By this name, as Ax's error where this module has not been imported shows it.
    _name = f"{__name__}.{_kept.__name__}"
    MODEL_REGISTRY[_kept], REVERSE_MODEL_REGISTRY[_name] = _name, _kept
# Ax then predicts the moments of the mixture, which posteriors without members have as well.
EnsemblePosterior.register(CalibratedPosterior)
