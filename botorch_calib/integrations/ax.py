"""Calibrated models in Ax, through its modular BoTorch generator.

It needs Ax (``pip install botorch_calib[ax]``). Importing this module teaches Ax to build, fit,
cross-validate and store a `ReplayedModel`, and to store the acquisition functions of one. The
Gaussian process within is the one that Ax would have used: its choice of class, its transforms,
data and fit. After the fit the calibrator replays the trials in the order of their creation. Which
acquisition function is used is Ax's choice or the user's, save that one objective under outcome
constraints is given the closed form, and that noisy improvement keeps its root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

try:
    from ax.core.search_space import SearchSpaceDigest
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.ax needs Ax: pip install botorch_calib[ax]"
    ) from error
from ax.adapter.adapter_utils import extract_outcome_constraints
from ax.api.client import Client
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.experiment import Experiment
from ax.core.optimization_config import OptimizationConfig
from ax.core.outcome_constraint import OutcomeConstraint
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch.botorch_modular.surrogate import (
    Surrogate,
    SurrogateSpec,
    submodel_input_constructor,
)
from ax.generators.torch.botorch_modular.utils import (
    ModelConfig,
    choose_model_class,
    fit_botorch_model,
)
from ax.storage.botorch_modular_registry import (
    register_acquisition,
    register_acquisition_function,
    register_model,
)
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement, qLogProbabilityOfFeasibility
from botorch.acquisition.monte_carlo import MCAcquisitionFunction
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import (
    LinearMCObjective,
    MCAcquisitionObjective,
    PosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model, ModelList
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from gpytorch.mlls import MarginalLogLikelihood

from botorch_calib._validation import check_one_of
from botorch_calib.acquisition import (
    CalibratedConditionalValueAtRisk,
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    CalibratedValueAtRisk,
    CertifiedSetExpansion,
    DelayedUpperConfidenceBound,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.integrations.stored_calibrators import (
    calibrator_class,
    check_calibrator,
    stored_name,
    with_default_options,
)
from botorch_calib.models import CalibratedModel
from botorch_calib.models.residuals import RESIDUALS
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.posteriors.calibrated import EXCESS

#: Closed forms of one outcome, which know nothing of constraints.
ONE_OUTCOME: tuple[type[AcquisitionFunction], ...] = (
    CalibratedConditionalValueAtRisk,
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    CalibratedValueAtRisk,
    DelayedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
)
#: Those that know of the outcome constraints alone, whatever the objective.
CONSTRAINTS_ALONE: tuple[type[AcquisitionFunction], ...] = (
    CertifiedSetExpansion,
    LogCalibratedProbabilityOfFeasibility,
)
#: What Ax would choose, and the closed form of the same idea under outcome constraints.
CLOSED_FORMS: dict[type[AcquisitionFunction], type[AcquisitionFunction]] = {
    qLogNoisyExpectedImprovement: LogCalibratedConstrainedExpectedImprovement,
    qLogProbabilityOfFeasibility: LogCalibratedProbabilityOfFeasibility,
}
#: What Ax would choose, and the same with the roots of calibrated models cached.
CACHED_ROOTS: dict[type[AcquisitionFunction], type[AcquisitionFunction]] = {
    qLogNoisyExpectedImprovement: qLogCalibratedNoisyExpectedImprovement,
    qLogNoisyExpectedHypervolumeImprovement: qLogCalibratedNoisyExpectedHypervolumeImprovement,
}


class ReplayedModel(CalibratedModel):
    """A `CalibratedModel` whose calibrator is always the replay of its own data.

    Ax also fits it to parts of the data, with the hyperparameters of the whole: by loading a state,
    as in cross-validation. The calibrator then replays that part, and nothing that is held out.

    Args:
        model: As Ax makes it, to be fitted.
        new_calibrator: Makes a calibrator that has learned nothing.
        denoise: Whether the posterior is of the objective (the default) or of the observation.
        residuals: Which residuals of the training data are replayed: ``"prequential"``, one step
            ahead, or ``"loo"``, leave-one-out.
        excess: See `CalibratedModel`.
    """

    def __init__(
        self,
        model: Model,
        new_calibrator: Callable[[], Calibrator],
        denoise: bool = True,
        residuals: str = "prequential",
        excess: str = "noise",
    ) -> None:
        super().__init__(model, new_calibrator(), denoise=denoise, excess=excess)
        self._new_calibrator, self._residuals = new_calibrator, residuals

    def replay(self) -> None:
        """Calibrate anew, from the training data of the Gaussian process as it is now."""
        replayed = CalibratedModel.from_history(
            self.model, self._new_calibrator(), residuals=self._residuals
        )
        self.calibrator = replayed.calibrator

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the Gaussian process, and replay."""
        loaded = super().load_state_dict(*args, **kwargs)
        self.replay()
        return loaded

    def _load_own(self, state: dict[str, Any], strict: bool, assign: bool) -> None:
        """What another calibrator has learned is left out."""

    @property
    def covar_module(self) -> Any:
        """The kernel, from whose lengthscales Ax reads the importance of parameters."""
        return self.model.covar_module


def calibrated_model_config(
    calibrator: type[Calibrator] = LocalizedConformal,
    *,
    denoise: bool = True,
    residuals: str = "prequential",
    excess: str = "noise",
    **options: Any,
) -> ModelConfig:
    """A configuration that has Ax model an outcome by its own Gaussian process, calibrated.

    The result goes into `calibrated_generation_strategy`, into Ax's own
    ``choose_generation_strategy`` (method ``"custom"``) or, as the only configuration of an
    outcome, into a ``SurrogateSpec``. What is calibrated are outcomes as Ax hands them over, after
    its transforms: very bad ones are winsorized by default.

    Fields of the configuration that describe the Gaussian process (kernel, likelihood, transforms,
    marginal likelihood) mean what they mean without calibration:
    ``dataclasses.replace(calibrated_model_config(), covar_module_class=...)``. Not supported are
    tasks and Ax's selection among models; its sensitivity analysis asks for Gaussian posteriors. An
    objective that is a sum of outcomes needs `calibrated_generation_strategy`, or constraints.

    To save an experiment as JSON the calibrator must be a class of this package. To load one,
    import this module first.

    Args:
        calibrator: The class of the calibrator. Each fit makes a new one.
        denoise: Whether the posterior is of the objective (the default) or of the observation.
        residuals: Which residuals of the trials are replayed: ``"prequential"``, one step ahead,
            or ``"loo"``, leave-one-out.
        excess: Whose is the spread that the calibrator finds in excess of what the model states:
            ``"noise"``, for the search, or ``"objective"``. See `CalibratedModel`.
        options: Arguments of the calibrator, plain values; ``alpha=0.2`` if there are none and it
            is a `LocalizedConformal`. For other values, write a subclass that sets them.

    Raises:
        InputDataError: If ``calibrator`` is no class of calibrators, an option is not a plain
            value, or ``residuals`` or ``excess`` is unknown.
        Exception: Whatever the calibrator raises for its options.

    Example:
        >>> strategy = calibrated_generation_strategy(
        ...     client, calibrated_model_config(LocalizedConformal, alpha=0.1)
        ... )
        >>> client.set_generation_strategy(strategy)
    """
    check_one_of("residuals", residuals, RESIDUALS)
    check_one_of("excess", excess, EXCESS)
    options = with_default_options(calibrator, options)
    check_calibrator(calibrator, options)
    settings = ", ".join(f"{name}={value}" for name, value in options.items())
    return ModelConfig(
        botorch_model_class=ReplayedModel,
        model_options={
            "calibrator": stored_name(calibrator),
            "calibrator_options": options,
            "denoise": denoise,
            "residuals": residuals,
            "excess": excess,
        },
        name=f"{calibrator.__name__}({settings})",
    )


@submodel_input_constructor.register(ReplayedModel)
def _replayed_inputs(
    botorch_model_class: type[Model],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> dict[str, Any]:
    """Arguments of `ReplayedModel`: Ax's own model, not fitted yet, and how to calibrate it."""
    _check_supported(dataset, surrogate)
    options = dict(model_config.model_options)
    calibrator, settings = options.pop("calibrator"), options.pop("calibrator_options")
    own = {name: options.pop(name) for name in ("denoise", "residuals", "excess")}
    model = model_within(None, options, model_config, dataset, search_space_digest, surrogate)
    new_calibrator = partial(calibrator_class(calibrator), **settings)
    return {"model": model, "new_calibrator": new_calibrator, **own}


def model_within(
    model_class: type[Model] | None,
    options: dict[str, Any],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> Model:
    """The model that another one is to wrap, as Ax makes it, not fitted yet.

    Args:
        model_class: Its class, or None for the one that Ax chooses.
        options: Its options, in place of those of ``model_config``.
        model_config: The configuration of the model around it.
        dataset: The data of its outcome.
        search_space_digest: Ax's description of the search space.
        surrogate: The surrogate that it will be part of.
    """
    if model_class is None:
        model_class = choose_model_class(dataset=dataset, search_space_digest=search_space_digest)
    inputs = submodel_input_constructor(
        model_class,
        model_config=replace(model_config, botorch_model_class=model_class, model_options=options),
        dataset=dataset,
        search_space_digest=search_space_digest,
        surrogate=surrogate,
    )
    return model_class(**inputs)


def _check_supported(dataset: SupervisedDataset, surrogate: Surrogate) -> None:
    if isinstance(dataset, MultiTaskDataset):
        raise UnsupportedError("Calibrated models of several tasks are not supported in Ax.")
    spec = surrogate.surrogate_spec
    for name in dataset.outcome_names:
        if len(spec.metric_to_model_configs.get(name, spec.model_configs)) > 1:
            raise UnsupportedError(
                "Ax selects among models by their Gaussian posteriors: give the outcome "
                f"{name!r} the calibrated configuration alone."
            )


class SampledSums(Acquisition):
    """Ax's acquisition, in which a sum of outcomes is taken of samples.

    Ax takes an objective that is a sum of outcomes, without constraints, of their joint normal
    distribution. Calibrated outcomes have none, but functions that draw samples can sum these, as
    they do in Ax under constraints.
    """

    def get_botorch_objective_and_transform(
        self, botorch_acqf_class: type[AcquisitionFunction], *args: Any, **kwargs: Any
    ) -> tuple[MCAcquisitionObjective | None, PosteriorTransform | None]:
        """Ax's, with a sum of samples in place of the sum of a posterior's outputs."""
        objective, transform = super().get_botorch_objective_and_transform(
            botorch_acqf_class, *args, **kwargs
        )
        if isinstance(transform, ScalarizedPosteriorTransform):
            weights: Any = transform.weights
            is_sum = int((weights != 0.0).sum()) > 1
            if is_sum and issubclass(botorch_acqf_class, MCAcquisitionFunction):
                return LinearMCObjective(weights), None
        return objective, transform


class ConstrainedClosedForm(SampledSums):
    """Ax's acquisition, with the closed form in place of samples where constraints allow for one.

    Ax chooses ``qLogNoisyExpectedImprovement`` for one objective, or as long as nothing feasible
    was observed ``qLogProbabilityOfFeasibility``. Under outcome constraints they become
    `LogCalibratedConstrainedExpectedImprovement` and `LogCalibratedProbabilityOfFeasibility`, if
    each constraint is on one metric, the objective is a metric as well and not a sum of them, each
    metric has a model of its own with a calibrated or Gaussian posterior, and no options were given
    for what Ax chose. Other noisy improvement, of one or several objectives, keeps its samples and
    options, and caches the roots of the models' covariance. Anything else is left as it is.
    """

    def _instantiate_acquisition(self) -> None:
        chosen = self.botorch_acqf_classes_with_options
        closed = [(c if options else self._closed_form(c), options) for c, options in chosen]
        self.botorch_acqf_classes_with_options = [
            (CACHED_ROOTS.get(acqf_class, acqf_class), options) for acqf_class, options in closed
        ]
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
        """Whether each outcome has a model of its own whose posterior the closed form can take."""
        models: list[Any] = (
            list(self._model.models) if isinstance(self._model, ModelList) else [self._model]
        )
        if any(model.num_outputs > 1 for model in models):
            return False
        posteriors = [model.posterior(self.surrogate.Xs[0][:1]) for model in models]
        return all(type(p) in (CalibratedPosterior, GPyTorchPosterior) for p in posteriors)


def calibrated_generation_strategy(
    client: Client | Experiment,
    model_config: ModelConfig | None = None,
    metric_configs: Mapping[str, ModelConfig] | None = None,
    botorch_acqf_class: type[AcquisitionFunction] | None = None,
    struct: GenerationStrategyDispatchStruct | None = None,
) -> GenerationStrategy:
    """Ax's generation strategy with calibrated models, checked against the experiment.

    Unless ``botorch_acqf_class`` is given Ax chooses the acquisition function. One objective under
    outcome constraints then has a closed form, `ConstrainedClosedForm`; sums of metrics, in the
    objective or in a constraint, and several objectives are sampled. Pass
    ``qLogNoisyExpectedImprovement`` to sample in any case.

    Args:
        client: Whose optimisation has been configured, or an experiment that has an optimisation
            configuration.
        model_config: Configuration of the models; `calibrated_model_config` with its defaults if
            omitted.
        metric_configs: Other configurations for some of the metrics, by name. So a constraint can
            be on observations, ``calibrated_model_config(denoise=False)``, while the objective is
            what lies behind the noise.
        botorch_acqf_class: The acquisition function.
        struct: Ax's further choices, as of the initial trials, with the method ``"custom"``.

    Raises:
        InputDataError: If the optimisation has not been configured, or ``metric_configs`` names a
            metric that the experiment does not have.
        UnsupportedError: If ``botorch_acqf_class`` cannot be used for the objectives and outcome
            constraints of the experiment, if Ax would overlook a metric in a constraint on several,
            or if a constraint or threshold is relative to a baseline that was not attached yet.

    Example:
        >>> client.configure_optimization("yield", outcome_constraints=["cost <= 3"])
        >>> client.set_generation_strategy(
        ...     calibrated_generation_strategy(
        ...         client, metric_configs={"cost": calibrated_model_config(denoise=False)}
        ...     )
        ... )
    """
    experiment, optimization = configured_experiment(client)
    _check_combination(optimization, botorch_acqf_class)
    _check_baseline(experiment)
    model_config = calibrated_model_config() if model_config is None else model_config
    strategy = choose_generation_strategy(
        GenerationStrategyDispatchStruct(method="custom") if struct is None else struct,
        model_config=model_config,
        botorch_acqf_class=botorch_acqf_class,
    )
    by_signature = {}
    for name, config in (metric_configs or {}).items():
        if name not in experiment.metrics:
            known = ", ".join(map(repr, sorted(experiment.metrics)))
            raise InputDataError(f"`metric_configs` names {name!r}; the metrics are {known}.")
        by_signature[experiment.metrics[name].signature] = [config]
    (spec,) = strategy.nodes_by_name["MBM"].generator_specs
    spec.generator_kwargs["surrogate_spec"] = SurrogateSpec(
        model_configs=[model_config], metric_to_model_configs=by_signature
    )
    chosen_by_ax = botorch_acqf_class is None
    spec.generator_kwargs["acquisition_class"] = (
        ConstrainedClosedForm if chosen_by_ax else SampledSums
    )
    return strategy


def configured_experiment(client: Client | Experiment) -> tuple[Experiment, OptimizationConfig]:
    """The experiment, and what is optimised in it.

    Raises:
        InputDataError: If that has not been configured.
    """
    experiment = client._experiment if isinstance(client, Client) else client
    if experiment.optimization_config is None:
        raise InputDataError(
            "`client` has nothing to optimise yet: call `client.configure_optimization` first."
        )
    return experiment, experiment.optimization_config


def experiment_with_one_objective(
    client: Client | Experiment, otherwise: str
) -> tuple[Experiment, OptimizationConfig]:
    """As `configured_experiment`, for one objective without outcome constraints.

    Raises:
        InputDataError: If nothing has been configured.
        UnsupportedError: With the message ``otherwise`` if there is more.
    """
    experiment, config = configured_experiment(client)
    if not config.objective.is_single_objective or config.outcome_constraints:
        raise UnsupportedError(otherwise)
    return experiment, config


def calibrated_or_plain(calibrated: ModelConfig | None) -> ModelConfig:
    """The configuration of a calibrated model, or of Ax's own.

    Raises:
        InputDataError: If ``calibrated`` is none of a `ReplayedModel` or a Gaussian process.
    """
    config = ModelConfig() if calibrated is None else calibrated
    model_class = getattr(config, "botorch_model_class", config)
    if model_class not in (None, ReplayedModel):
        raise InputDataError(
            f"`calibrated` must be a calibrated_model_config, got one of {model_class}."
        )
    return config


def _check_baseline(experiment: Experiment) -> None:
    """Raise now what Ax would raise after the initial trials, when it looks for the baseline."""
    config = experiment.optimization_config
    assert config is not None
    for constraint in config.all_constraints:
        if constraint.relative and experiment.status_quo is None:
            raise UnsupportedError(
                f"{constraint} is relative to a baseline, and there is none: call "
                "`client.attach_baseline` first."
            )


def _check_combination(
    config: OptimizationConfig, acqf_class: type[AcquisitionFunction] | None
) -> None:
    """Raise now what Ax would raise after the initial trials, when it builds the acquisition."""
    objective, constraints = config.objective, config.outcome_constraints
    for constraint in constraints:
        # As a plain constraint, which the transforms of Ax make of any. In Ax 1.3 they lose all
        # metrics but the first.
        plain = OutcomeConstraint.clone(constraint)
        rows = extract_outcome_constraints([plain], plain.metric_signatures)
        if rows is not None and (rows[0] != 0.0).sum() < len(plain.metric_names):
            raise UnsupportedError(
                f"Ax reads but one of the metrics in {constraint}: report their sum as a metric of "
                "its own, and constrain that."
            )
    if acqf_class is None:
        return
    name = f"`botorch_acqf_class` {acqf_class.__name__}"
    samples = issubclass(acqf_class, MCAcquisitionFunction)
    if objective.is_scalarized_objective and not (constraints or samples):
        raise UnsupportedError(
            f"{name} is of one metric, and the objective is the sum {objective.expression!r}: "
            "leave the class out, and Ax chooses one that draws samples."
        )
    if acqf_class not in (*ONE_OUTCOME, *CLOSED_FORMS.values(), *CONSTRAINTS_ALONE):
        return
    if not (objective.is_single_objective or acqf_class in CONSTRAINTS_ALONE):
        raise UnsupportedError(
            f"{name} is of one metric, and the objective is {objective.expression!r}: leave the "
            "class out, and Ax chooses one that draws samples."
        )
    if acqf_class in ONE_OUTCOME:
        if constraints:
            raise UnsupportedError(
                f"{name} does not know of outcome constraints: leave the class out, which gives "
                f"{LogCalibratedConstrainedExpectedImprovement.__name__}."
            )
        return
    if not constraints:
        raise UnsupportedError(f"{name} needs outcome constraints, and there are none.")
    for constraint in constraints:
        if len(constraint.metric_names) > 1:
            raise UnsupportedError(
                f"{name} needs constraints on one metric each, got {constraint}: leave the class "
                "out, and Ax chooses one that draws samples."
            )


@fit_botorch_model.register(ReplayedModel)
def _fit_replayed(
    model: ReplayedModel,
    mll_class: type[MarginalLogLikelihood],
    mll_options: dict[str, Any] | None = None,
) -> None:
    """Fit the Gaussian process as Ax does, then replay the history."""
    fit_botorch_model(model.model, mll_class=mll_class, mll_options=mll_options)
    model.replay()
    # Now, as the optimiser's heuristics would be the first to ask for a posterior, and drop it.
    model.warn_if_unlearned()


register_model(ReplayedModel)
register_acquisition(SampledSums)
register_acquisition(ConstrainedClosedForm)
for _acquisition in (
    *ONE_OUTCOME,
    *CLOSED_FORMS.values(),
    *CACHED_ROOTS.values(),
    *CONSTRAINTS_ALONE,
):
    register_acquisition_function(_acquisition)
